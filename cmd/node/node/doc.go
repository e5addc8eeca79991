// Package node puts one node of Writ together: gossip, formation, Raft groups,
// actors and the doors for clients. It is the composition root; it decides
// nothing itself but the order in which parts start and stop.
//
// Start binds all listeners first, so that a port in use is an error at once,
// then opens the parts from the inside out and returns before the cluster is
// formed. Stop turns the node not ready, hands leaderships over, finishes what
// is in flight, leaves the gossip and closes the files, in this order.
package node
