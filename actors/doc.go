// Package actors runs entities: one node's side of single-writer activations,
// exactly-once decisions and the relay of events. It builds on the actor package
// of protoactor-go and uses neither its cluster nor its remote package.
//
// # Shape
//
// A [Runtime] hosts shards. Each open shard has one permanent gate actor. The
// gate is the only parent of the entity actors of its shard and the only one
// that sends them work. An entity actor (an activation) decides commands and
// events of its entity one after the other; its relay, a child actor that lives
// only while rows wait, drains its outbox.
//
// The gate counts what each entity has in progress and publishes which entities are
// full. The front door, [Runtime.Forward], refuses further calls to those without
// troubling the gate.
//
//	Forward, Deliver ─► gate ─► activation ─► Lease.Propose ─► (committed) ─► answer
//	                                └─ relay ─► Courier.Deliver ─► another gate
//
// # Invariants
//
//   - A gate works under a [Lease] or refuses: NOT_EXECUTED. When the lease ends
//     its activations end; nothing in memory survives a term.
//   - At most one activation of an entity takes work in a term. A new one starts
//     only after every record of the one before has its verdict.
//   - An activation runs ahead: the next command works on the speculative state
//     while records before it are in flight. No answer leaves before the last
//     record that it depends on is committed; an answer that rests on something
//     being absent waits for a barrier as well.
//   - If a record fails, all later ones in flight of the entity fail with it and
//     the activation is dropped.
//   - A row is sent before it is marked, always. Attempts are counted through the
//     log before the next send.
//   - No actor blocks while it receives: sends and scans run in goroutines of the
//     runtime, which waits for them on Close. Handlers are the exception: they
//     run in their own entity's turn and hold up nobody else.
//
// # Failures
//
// A handler that panics, or that returns an error that is not a rejection, or
// whose result is not valid, costs its caller HANDLER_PANIC; nothing is stored, as
// a barrier confirms, and the next command runs on state read anew. The same handler called
// for an event refuses the row, which its source counts. A record whose fate is
// unknown is OUTCOME_UNKNOWN; the same key tells later what became of it.
//
// # Goroutines
//
// The runtime owns: one ticker; for each destination shard at most [Config].Sends
// senders for healthy lanes and as many for lanes in trouble; and per gate one reader
// of pending sources, while it takes over, and one of timers. Actors run on goroutines
// of the actor system, none while idle.
package actors
