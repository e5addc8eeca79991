// Package cluster forms a cluster out of nodes and tends it: who belongs to it,
// which node holds which replica, and the steps that lead there. It knows the
// meta group, the replicas of a node, gossip and the other nodes through small
// interfaces, and what a good placement is from package sharding.
//
// The parts, in the order in which a node needs them:
//
//   - [Identity]: the node's name, incarnation and cluster, on disk and locked.
//   - [Formation]: brings the node into a cluster, new or old.
//   - [Registrar]: keeps the node's entry in the registry of the meta group.
//   - [Controller]: on the leader of the meta group, keeps the registry, the
//     placement and the members of the meta group.
//   - [Reconciler]: on every node, opens and drops replicas as the placement
//     says, and on the leader of a shard changes its group step by step.
//   - [Agent]: runs the last three.
//
// # Formation
//
// Every initial node is given the same list. The first of the sorted list asks
// all others whether they belong to a cluster; only when all have said no does it
// draw an id and ask for promises; only when all have promised, on disk, one id
// and one list, and it has written down the whole set, does the meta group begin.
// A promise is never taken back. So whatever is cut off, wiped or restarted, in
// any order:
//
//   - two clusters never come out of one list;
//   - a node that holds data is never overruled by nodes that hold none: if any
//     listed node, or any node in gossip, belongs to a cluster that has begun,
//     the empty ones join that one as new incarnations;
//   - if that cannot be, the node says which nodes it waits for and why.
//
// # Placement
//
// The placement is a wish; a group's committed configuration is the truth. The
// controller changes the wish by one step of sharding.Next, a bounded number of
// shards at a time. The leader of a shard follows with one change of its group at
// a time: add a learner, wait until it has caught up, promote it, remove the
// replica that is not wanted. A node drops a replica only when the leader's
// committed configuration is rid of it; until then it opens the replica again at
// every start, placed or not, for the group may need its vote.
//
// A replica is a node, an incarnation and a generation, and none of these ever
// comes back once replaced. A new incarnation under a known name takes the old
// one's place; an old one that turns up again is refused.
//
// Nobody is condemned by gossip alone: a node counts as dead when gossip has lost
// it and it has not answered either, for the whole grace time.
//
// # Failures
//
// All steps are computed from what is seen at that moment and may be repeated,
// so a crash between any two of them is repaired by the next step of whoever
// leads then. Errors are logged once, until the trouble changes, and told by the
// State methods.
package cluster
