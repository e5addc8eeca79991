// Package replica runs the Raft groups of one node: one group for each shard
// that the node holds a replica of, and the meta group.
//
// A [Host] owns what the groups of a node share: one log store (a pebble
// database whose single write-ahead log lets one fsync serve many groups), one
// listener, and the folder of shard files. A [Replica] is one shard's group: its
// state machine is a persistence.Store, and its snapshot is the shard file
// itself. A [Lease] is the right to lead a shard, and [Meta] is the meta group.
//
// # Invariants
//
//   - Nothing is acknowledged before a majority has it in a synced log. The
//     shard file follows behind; the log is never trimmed above the index that
//     the file stands for, so a crash loses no more than a replay.
//   - A replica id (node, incarnation, generation) votes only with the memory it
//     has voted with before. Whatever looks like lost or damaged memory puts the
//     replica in quarantine: it answers nobody, and is replaced by a replica
//     with a new generation. What is lost or damaged of the shared log, or of the
//     meta replica, is lost for the whole node: [LostMemory]. A folder that has no
//     log or no meta folder any more is refused: their disks may not be mounted.
//   - A lease has one term for its whole life: the term of the log entry that
//     carried its TermStart. Apply refuses its records under any other term.
//   - Raft messages reach exactly the replica they are meant for: every
//     connection opens with a handshake that names cluster, shard, epoch and both
//     replica ids.
//
// # Failures
//
// hashicorp/raft panics in goroutines of its own when a store returns an error,
// and pebble ends the process when a commit fails. Neither may happen: on the
// first error of a store its replica, or all replicas of the node if it is the
// shared log, are marked failed, their connections are cut and their leases
// ended, and the goroutine that met the error is ended by runtime.Goexit, so
// that raft never sees it. Deferred calls run, so raft's own bookkeeping stays
// sound. A failed log store may leave goroutines behind that wait inside pebble;
// only a new process recovers from it.
//
// A proposal's answer is one of three: nil (committed and applied),
// entity.NotExecuted (it never will be), entity.OutcomeUnknown.
package replica
