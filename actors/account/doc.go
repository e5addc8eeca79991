// Package account is the example domain: accounts that hold money and one
// statement that adds them all up. It shows a small saga, which is how work
// across several entities is done.
//
//	Deposit, Withdraw    change one balance
//	Transfer             debits the payer and emits CreditOffered to the receiver
//	CreditOffered        the receiver takes it and answers CreditTaken, or refuses
//	                     it by rule and answers CreditRefused with the reason
//	CreditTaken          ends the transfer
//	CreditRefused        ends it too: the payer takes its money back
//	Posted               tells the statement of every change of a balance
//
// # Rules
//
//   - An amount is a positive number of minor units (cents); never a float.
//   - A currency is three capital letters. The first money that an account gets
//     fixes the account's currency.
//   - An account is never overdrawn.
//   - What an account holds and what may come back to it fit in an int64, so a
//     refund is never refused.
//   - Nobody transfers to oneself.
//   - A command's reference, free text for people, has at most 4,096 bytes. It
//     goes with the command's posting.
//
// # Invariants
//
// Per currency, the balances and the money in flight add up to what was
// deposited less what was withdrawn. When nothing is in flight, the statement's
// total equals the sum of the balances. A total that does not fit in 64 bits is kept
// exactly, as a decimal in Total.exact.
//
// # Failures
//
// A command that breaks a rule is rejected with one of the reasons in rules.go.
// An event is never rejected by a rule: the handler accepts it and answers with
// a compensation, so that one bad credit does not hold up those after it. The
// one event that is rejected is the answer to a transfer that the account never
// made: it means that a promise of Writ was broken, and parks its lane.
package account
