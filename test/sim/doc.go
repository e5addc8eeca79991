// Package sim runs a whole cluster in one process under virtual time
// (testing/synctest): the real actors runtime, the real stores of every node with
// their files, and the example domain.
//
// Modelled are Raft, the network and the disks. Every replica of a shard has a log, a
// vote and a term of its own and takes part in elections; uncommitted ends of logs
// are overwritten, logs are trimmed up to what the shard file stands for, and a
// replica that is too far behind gets the leader's shard file. Messages are late, lost,
// doubled and reordered, links cut one way or both. A power cut leaves of a log what
// was synced and any piece of the rest, its end torn, and of a shard file the last
// flush or one cut off in the middle. Where the model stands for code of
// persistence/replica (sync, TermStart, log floor) it obeys that code's mutants.
//
// All choices of the world come from a seed; a failing seed is printed with the hash
// of its history, and SIM_SEED=n runs it alone. Decision 13 says why Raft is modelled,
// and how exactly a seed repeats.
package sim
