package check

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	accountv1 "writ/proto/writ/account/v1"
)

// findingsMax bounds what a checker lists.
const findingsMax = 20

// findings collects what is wrong; it keeps the first ones and counts the rest.
type findings struct {
	errs []error
	more int
}

func (f *findings) add(format string, args ...any) {
	if len(f.errs) == findingsMax {
		f.more++
		return
	}
	f.errs = append(f.errs, fmt.Errorf(format, args...))
}

func (f *findings) err() error {
	if f.more > 0 {
		return errors.Join(append(f.errs, fmt.Errorf("and %d more", f.more))...)
	}
	return errors.Join(f.errs...)
}

// Replays compares the history with the answers that the same commands got
// when they were all sent once more: each must be a replay, equal to the first
// answer. Call it before Resolve changes the history.
func Replays(ops []Op, again map[string]Answer) error {
	var f findings
	for _, op := range ops {
		if op.Key == "" {
			continue
		}
		second, ok := again[op.Key]
		first := op.Answer
		switch {
		case !ok:
			f.add("key %q was not sent again", op.Key)
		case first.Verdict == Refused:
			f.add("key %q (%v on %s) was refused: %v %s: %s", op.Key, op.Action, op.Account, first.Code, first.Reason, first.Text)
		case second.Verdict != Executed && second.Verdict != Rejected:
			f.add("key %q has no outcome: %v %s: %s", op.Key, second.Code, second.Reason, second.Text)
		case first.Verdict == Unknown:
			// Both are fine: it had executed, or it did now.
		case !second.Replayed:
			f.add("key %q (%v on %s) was executed again: first %+v, then %+v", op.Key, op.Action, op.Account, first, second)
		case !first.Same(second):
			f.add("key %q was replayed differently: first %+v, then %+v", op.Key, first, second)
		}
	}
	return f.err()
}

// Versions checks that no two commands of one entity were decided at the
// same version: each was decided once, one after the other.
func Versions(ops []Op) error {
	type place struct {
		account string
		version uint64
	}
	var f findings
	owner := map[place]string{}
	for _, op := range ops {
		if op.Key == "" || (op.Answer.Verdict != Executed && op.Answer.Verdict != Rejected) {
			continue
		}
		at := place{op.Account, op.Answer.Version}
		if at.version == 0 {
			f.add("key %q was decided without a version", op.Key)
			continue
		}
		if before, taken := owner[at]; taken && before != op.Key {
			f.add("keys %q and %q were both decided as version %d of %s", before, op.Key, at.version, at.account)
		}
		owner[at] = op.Key
	}
	return f.err()
}

// register is the model of one account without transfers.
type register struct {
	amount  int64
	version uint64
}

// step says whether an operation may take effect on s now, and what it leaves.
func step(s register, op Op) (bool, register) {
	next := s
	a := op.Answer
	switch op.Action {
	case Read:
		return a.Verdict != Executed || (a.Balance.Amount == s.amount && a.Version >= s.version), s
	case Deposit:
		next.amount += op.Amount
	case Withdraw:
		next.amount -= op.Amount
	case Transfer:
		return false, s
	}
	switch a.Verdict {
	case Executed:
		next.version = a.Version
		return next.amount >= 0 && a.Version > s.version && a.Balance.Amount == next.amount, next
	case Rejected:
		// Only an overdraft is against the rules here.
		return next.amount < 0 && a.Version > s.version, register{amount: s.amount, version: a.Version}
	case Unknown:
		// It may take effect here. That it never does is the same as doing so
		// after everything else, which its open end allows.
		if next.amount < 0 {
			return true, s
		}
		return true, next
	case Refused:
		return true, s
	}
	return false, s
}

// Linearizable checks the history of each given register: there must be an
// order of its operations that agrees with real time and with every answer.
func Linearizable(ops []Op, registers []string, limit time.Duration) error {
	var f findings
	model := porcupine.Model{
		Init: func() any { return register{} },
		Step: func(state, input, _ any) (bool, any) {
			ok, next := step(state.(register), input.(Op))
			return ok, next
		},
	}
	var end time.Duration
	for _, op := range ops {
		end = max(end, op.Return)
	}
	for _, name := range registers {
		var history []porcupine.Operation
		for _, op := range ops {
			if op.Account != name || (op.Action == Read && op.Answer.Verdict != Executed) {
				continue
			}
			until := op.Return
			if op.Answer.Verdict == Unknown {
				until = end + 1
			}
			history = append(history, porcupine.Operation{ClientId: op.Client, Input: op, Call: int64(op.Call), Return: int64(until)})
		}
		switch porcupine.CheckOperationsTimeout(model, history, limit) {
		case porcupine.Ok:
		case porcupine.Illegal:
			f.add("%s: its %d operations have no order that explains them", name, len(history))
		case porcupine.Unknown:
			f.add("%s: no verdict on its %d operations within %v", name, len(history), limit)
		}
	}
	return f.err()
}

// Expected computes every balance from what was executed. Every operation must
// have a known outcome.
func Expected(ops []Op) (map[string]int64, error) {
	var f findings
	balances := map[string]int64{}
	for _, op := range ops {
		if op.Action == Read {
			continue
		}
		switch op.Answer.Verdict {
		case Executed:
		case Rejected, Refused:
			continue
		case Unknown:
			f.add("key %q has no known outcome", op.Key)
			continue
		}
		switch op.Action {
		case Deposit:
			balances[op.Account] += op.Amount
		case Withdraw:
			balances[op.Account] -= op.Amount
		case Transfer:
			balances[op.Account] -= op.Amount
			balances[op.To] += op.Amount
		case Read:
		}
	}
	return balances, f.err()
}

// Conservation compares the stored balances and the statement with what
// was executed, once all events have arrived: each account holds exactly what
// its commands and incoming transfers say, nothing is in flight, and the
// statement has every posting once.
func Conservation(ops []Op, stored map[string]Balance, statement *accountv1.Statement) error {
	expected, err := Expected(ops)
	if err != nil {
		return err
	}
	var f findings
	var total int64
	names := make([]string, 0, len(stored))
	for name := range stored {
		names = append(names, name)
	}
	for name, amount := range expected {
		if _, ok := stored[name]; !ok && amount != 0 {
			f.add("%s should hold %d but was not read", name, amount)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		b := stored[name]
		total += b.Amount
		if b.Amount != expected[name] {
			f.add("%s holds %d, but its commands make %d", name, b.Amount, expected[name])
		}
		if b.Pending != 0 || b.InFlight != 0 {
			f.add("%s still has %d transfers with %d in flight", name, b.Pending, b.InFlight)
		}
		if b.Amount < 0 {
			f.add("%s is overdrawn: %d", name, b.Amount)
		}
	}
	checkStatement(&f, ops, total, statement)
	return f.err()
}

func checkStatement(f *findings, ops []Op, total int64, s *accountv1.Statement) {
	var postings uint64
	for _, op := range ops {
		if op.Answer.Verdict != Executed {
			continue
		}
		switch op.Action {
		case Deposit, Withdraw:
			postings++
		case Transfer:
			postings += 2
		case Read:
		}
	}
	sum := s.GetByCurrency()[Currency]
	if sum.GetAmountMinor() != total {
		f.add("the statement says %d, the accounts hold %d", sum.GetAmountMinor(), total)
	}
	if sum.GetPostings() != postings {
		f.add("the statement has %d postings, the commands make %d", sum.GetPostings(), postings)
	}
	var byDay int64
	for _, day := range s.GetByDay() {
		byDay += day.GetByCurrency()[Currency].GetAmountMinor()
	}
	if byDay != sum.GetAmountMinor() {
		f.add("the statement's days sum up to %d, its total is %d", byDay, sum.GetAmountMinor())
	}
}
