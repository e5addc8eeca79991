// Package sim runs a whole cluster in one process under virtual time
// (testing/synctest): the real actors runtime and the real stores of every node,
// over a modelled Raft group per shard, a modelled network and disks that forget
// what was not flushed. All choices of the world (who crashes when, what the
// network does to which message, what becomes of a proposal) come from a seed; a
// failing seed is printed, and SIM_SEED=n runs it alone.
//
// A seed repeats the world's choices and its virtual times. What is runnable at one
// instant runs in the order of Go's scheduler; where that mattered so far the
// choices were made independent of it, so a seed has led to the same history every
// time. SIM_COUNT=n runs it n times, should one not.
package sim
