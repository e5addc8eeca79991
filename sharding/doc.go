// Package sharding says which shard an entity belongs to and which nodes should
// hold the shard. It is arithmetic: no I/O, no clock, no randomness, no state.
//
// Every entity has one hash, 64 bits over its (tenant, kind, id). A shard owns a
// contiguous range of hashes; the ranges of a cluster are disjoint and cover
// every hash. Ranges, not remainders, so that a shard can be split later without
// moving entities of other shards.
//
// Hash, its encoding and the cut of the ranges are identities: files and logs
// depend on them, so they never change. Golden tests hold them in place.
package sharding
