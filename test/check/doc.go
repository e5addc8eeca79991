// Package check judges what clients of a cluster saw. Whoever runs the clients,
// against processes (test/chaos) or in a simulated world (test/sim), records their
// operations in a [History]; the checkers compare it with itself and with what is
// stored:
//
//   - [Replays]: each key was executed once and replays verbatim;
//   - [Versions]: no version of an entity was decided twice;
//   - [Linearizable]: an order of each register's operations explains every
//     answer (porcupine);
//   - [LinearizableTransfers]: the same of accounts with transfers between them,
//     whose events come unseen;
//   - [Order]: each consumer took what its sources numbered once and in order;
//   - [Conservation]: every balance is what was executed, the statement has
//     every posting once.
//
// The package knows nothing of the program but the messages of its example domain.
package check
