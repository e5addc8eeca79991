package chaos

import "writ/test/check"

// What clients record and how it is judged is shared with the simulation.
type (
	// Op is an operation of a client.
	Op = check.Op
	// Answer is its outcome.
	Answer = check.Answer
	// Balance is an account's state.
	Balance = check.Balance
	// History is what all clients saw.
	History = check.History
)

// The actions and verdicts of operations.
const (
	Deposit  = check.Deposit
	Withdraw = check.Withdraw
	Transfer = check.Transfer
	Read     = check.Read

	Unknown  = check.Unknown
	Executed = check.Executed
	Rejected = check.Rejected
	Refused  = check.Refused
)

const currency = check.Currency
