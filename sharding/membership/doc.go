// Package membership is gossip: which nodes are there, where they listen and
// which of them leads a shard, as far as anyone has heard. It hides memberlist
// behind one small type, [Gossip], and nothing else in the program imports that
// library.
//
// Gossip never gives the right to do anything. It is a failure detector without
// a quorum: a member may be alive and believed dead for a while, and the other
// way round. Leader hints save a hop, no more. What must be decided is decided
// in Raft groups.
//
// Rules:
//
//   - Every node asks its seeds and every member it has ever seen and lost to
//     meet again, for ever, so that a partition heals whichever side the seeds
//     were on. A name that cannot be resolved is trouble on the way, not an
//     error.
//   - Members of another cluster are refused, and counted ([Gossip.Strangers]):
//     two clusters must not go by one name. A node that belongs to no cluster
//     yet is admitted: that is how it hears of one.
//   - A node's entry in gossip fits into 512 bytes or Start and SetClusterID
//     say so; the map of shards is not part of it.
//   - A name has one process. A process that finds another one alive under its
//     name gives up through [Gossip.Failed], and the one that was there first
//     goes on. Wait for [Gossip.Settled] before doing anything in the node's
//     name.
//   - memberlist calls back under its own lock. The callbacks here copy what
//     they are told and return.
//
// The cluster name is sent in clear text and proves nothing. Give a key to keep
// strangers out.
package membership
