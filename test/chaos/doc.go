// Package chaos attacks a running cluster from outside: it starts real nodes,
// does harm to them under load, and checks what clients saw against what is
// stored. It knows the program only by its command line, its protocol and its
// Go client.
//
//   - A [Cluster] is a set of nodes with handles to hurt them. [Process] runs
//     them as operating system processes on loopback; [Networked] gives each
//     process a network namespace of its own in a [LAN]; [Compose] runs them as
//     containers with docker-compose.
//   - A [Workload] is a seeded stream of commands of many clients. Each command
//     has its own key; commands are retried, hedged and abandoned with that key.
//     It records a [History].
//   - A [Nemesis] is a seeded schedule of faults, one by one or in pairs that
//     overlap. It records what was done when.
//   - The checkers judge: every key was executed once and replays verbatim, each
//     entity is linearizable, money is conserved, the statement equals the
//     accounts (these in test/check, shared with the simulation), the audit holds
//     and all replicas are equal.
//
// The seed of every random choice is printed. The environment variable
// CHAOS_SEED repeats a choice of load and faults (the interleaving is the
// machine's and cannot be repeated); CHAOS_LONG=1 runs the full numbers;
// WRIT_NODE names a binary to test in place of one that is built; CHAOS_DIR
// keeps data and logs there.
package chaos
