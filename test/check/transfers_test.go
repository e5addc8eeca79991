package check

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// bank executes operations as the cluster would and records them: each takes effect
// at one instant between its call and its return, each event at any time later.
type bank struct {
	random  *rand.Rand
	now     int
	account map[string]*held
	lanes   map[Lane][]func()
	ops     []Op
}

// held is what an account holds.
type held struct {
	Balance
	version uint64
}

func newBank(seed uint64) *bank {
	return &bank{
		random: rand.New(rand.NewPCG(seed, 1)), lanes: map[Lane][]func(){},
		account: map[string]*held{"a": {}, "b": {}, "c": {}},
	}
}

// do executes an operation; call and return lie up to slack around its instant.
func (b *bank) do(action Action, from, to string, amount int64) {
	b.now += 1 + b.random.IntN(5)
	a := b.account[from]
	op := Op{
		Client: b.random.IntN(4), Action: action, Account: from, To: to, Amount: amount, Key: string(rune('0' + len(b.ops))),
		Call: time.Duration(b.now - b.random.IntN(6)), Return: time.Duration(b.now + b.random.IntN(6)),
	}
	if action != Read {
		a.version++
	}
	switch {
	case action == Read:
		op.Key = ""
	case action == Deposit:
		a.Amount += amount
	case a.Amount < amount:
		op.Answer = rejected(a.version)
		b.ops = append(b.ops, op)
		return
	case action == Withdraw:
		a.Amount -= amount
	case action == Transfer:
		a.Amount -= amount
		a.InFlight += amount
		a.Pending++
		b.send(Lane{from, to}, func() {
			b.account[to].Amount += amount
			b.account[to].version++
			b.send(Lane{to, from}, func() {
				a.InFlight -= amount
				a.Pending--
				a.version++
			})
		})
	}
	op.Answer = Answer{Verdict: Executed, Balance: a.Balance, Version: a.version, Calls: 1}
	b.ops = append(b.ops, op)
}

func (b *bank) send(l Lane, event func()) { b.lanes[l] = append(b.lanes[l], event) }

// deliver applies the first event of some lane.
func (b *bank) deliver() bool {
	var lanes []Lane
	for _, from := range []string{"a", "b", "c"} {
		for _, to := range []string{"a", "b", "c"} {
			if l := (Lane{from, to}); len(b.lanes[l]) > 0 {
				lanes = append(lanes, l)
			}
		}
	}
	if len(lanes) == 0 {
		return false
	}
	l := lanes[b.random.IntN(len(lanes))]
	event := b.lanes[l][0]
	b.lanes[l] = b.lanes[l][1:]
	b.now++
	event()
	return true
}

// run does n random operations, with events in between and at the end.
func (b *bank) run(n int) []Op {
	names := []string{"a", "b", "c"}
	for range n {
		i := b.random.IntN(3)
		action := []Action{Deposit, Withdraw, Transfer, Transfer, Read}[b.random.IntN(5)]
		b.do(action, names[i], names[(i+1+b.random.IntN(2))%3], 1+b.random.Int64N(50))
		for b.random.IntN(2) == 0 && b.deliver() {
		}
	}
	for b.deliver() {
	}
	for _, name := range names {
		b.do(Read, name, "", 0)
	}
	return b.ops
}

func TestLinearizableTransfers(t *testing.T) {
	for seed := range uint64(100) {
		ops := newBank(seed).run(60)
		wants(t, LinearizableTransfers(ops, []string{"a", "b", "c"}, time.Minute), "")
	}
}

// Whatever is spoilt in a right history is noticed.
func TestLinearizableTransfersNotices(t *testing.T) {
	// a has 100, pays 30 and 40 to b, and reads; b reads before and behind.
	pay := func(key string, amount int64, call int, b Balance, version uint64) Op {
		o := op(Transfer, key, "a", amount, call, call+1, Answer{Verdict: Executed, Balance: b, Version: version, Calls: 1})
		o.To = "b"
		return o
	}
	read := func(account string, call int, b Balance, version uint64) Op {
		return op(Read, "", account, 0, call, call+1, Answer{Verdict: Executed, Balance: b, Version: version, Calls: 1})
	}
	right := []Op{
		op(Deposit, "1", "a", 100, 1, 2, executed(100, 1)),
		pay("2", 30, 3, Balance{Amount: 70, InFlight: 30, Pending: 1}, 2),
		pay("3", 40, 5, Balance{Amount: 30, InFlight: 70, Pending: 2}, 3),
		read("b", 7, Balance{Amount: 30}, 1),
		read("a", 9, Balance{Amount: 30, InFlight: 40, Pending: 1}, 4),
		read("b", 11, Balance{Amount: 70}, 2),
		op(Withdraw, "4", "b", 71, 13, 14, rejected(3)),
		read("a", 15, Balance{Amount: 30}, 5),
		op(Deposit, "5", "b", 5, 17, 18, executed(75, 4)),
	}
	const noOrder = "no order that explains them"
	for name, c := range map[string]struct {
		spoil func(ops []Op) []Op
		want  string
	}{
		"nothing":              {func(ops []Op) []Op { return ops }, ""},
		"credit lost":          {func(ops []Op) []Op { ops[5].Answer.Balance.Amount = 30; ops[8].Answer.Balance.Amount = 35; return ops }, "b: " + "its"},
		"credit lost silently": {func(ops []Op) []Op { ops[5] = read("b", 11, Balance{Amount: 30}, 1); return ops[:6] }, ""}, // it is only late
		"credit doubled":       {func(ops []Op) []Op { ops[5] = read("b", 11, Balance{Amount: 110}, 3); return ops[:6] }, noOrder},
		"credits swapped":      {func(ops []Op) []Op { ops[3].Answer.Balance.Amount = 40; return ops }, noOrder},
		"credit before it was ordered": {func(ops []Op) []Op {
			ops[3] = read("b", 1, Balance{Amount: 30}, 1)
			return ops
		}, noOrder},
		"credit without a transfer": {func(ops []Op) []Op { ops[1].Answer.Verdict = Rejected; ops[1].Answer.Balance = Balance{}; return ops }, noOrder},
		"arrival before the transfer": {func(ops []Op) []Op {
			ops[1].Answer.Balance = Balance{Amount: 70}
			return ops
		}, noOrder},
		"arrival lost": {func(ops []Op) []Op { ops[7].Answer.Balance = Balance{Amount: 30, InFlight: 40, Pending: 1}; return ops }, noOrder},
		"arrival doubled": {func(ops []Op) []Op {
			ops[4].Answer = Answer{Verdict: Executed, Balance: Balance{Amount: 30}, Version: 6}
			return ops[:5]
		}, noOrder},
		"stale read": {func(ops []Op) []Op {
			return append(ops, read("b", 19, Balance{Amount: 70}, 2))
		}, noOrder},
		"old version, new balance":      {func(ops []Op) []Op { ops[5].Answer.Version = 1; return ops }, noOrder},
		"debit twice":                   {func(ops []Op) []Op { ops[2].Answer.Balance.Amount = 0; return ops }, noOrder},
		"version skipped":               {func(ops []Op) []Op { ops[8].Answer.Version = 5; return ops }, noOrder},
		"rejected with the money there": {func(ops []Op) []Op { ops[6].Amount = 70; return ops }, noOrder},
		"two decided at one version": {func(ops []Op) []Op {
			return append(ops, op(Deposit, "6", "b", 5, 17, 18, executed(75, 4)))
		}, noOrder},
		"later command, earlier version": {func(ops []Op) []Op {
			ops[8].Call, ops[8].Return = 1, 2 // b's credits are not even ordered
			return ops
		}, noOrder},
		"outcome not known": {func(ops []Op) []Op { ops[1].Answer = Answer{}; return ops }, "no known outcome"},
	} {
		t.Run(name, func(t *testing.T) {
			wants(t, LinearizableTransfers(c.spoil(slices.Clone(right)), []string{"a", "b"}, time.Minute), c.want)
		})
	}
}

// Any answer of a long history that says another balance or another version than it
// should is noticed.
func TestLinearizableTransfersNoticesOneWrongAnswer(t *testing.T) {
	for seed := range uint64(100) {
		ops := newBank(seed).run(40)
		random := rand.New(rand.NewPCG(seed, 2))
		at := random.IntN(len(ops))
		for ops[at].Answer.Verdict != Executed {
			at = random.IntN(len(ops))
		}
		a := &ops[at].Answer
		switch random.IntN(3) {
		case 0:
			a.Balance.Amount += 1000
		case 1:
			a.Balance.InFlight++
		default:
			a.Version += 1000
		}
		if LinearizableTransfers(ops, []string{"a", "b", "c"}, time.Minute) == nil {
			t.Errorf("seed %d: answer %d is wrong and passes: %+v", seed, at, ops[at])
		}
	}
}
