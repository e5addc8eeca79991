package check

import (
	"strings"
	"testing"
	"time"

	accountv1 "writ/proto/writ/account/v1"
)

// op makes an operation between two moments.
func op(action Action, key, account string, amount int64, call, ret int, a Answer) Op {
	return Op{
		Action: action, Key: key, Account: account, Amount: amount,
		Call: time.Duration(call), Return: time.Duration(ret), Answer: a,
	}
}

func executed(balance int64, version uint64) Answer {
	return Answer{Verdict: Executed, Balance: Balance{Amount: balance}, Version: version, Calls: 1}
}

func rejected(version uint64) Answer {
	return Answer{Verdict: Rejected, Reason: "OVERDRAFT", Version: version, Calls: 1}
}

// wants checks that err mentions text, or that there is none if text is empty.
func wants(t *testing.T, err error, text string) {
	t.Helper()
	switch {
	case text == "" && err != nil:
		t.Fatalf("a right history is refused: %v", err)
	case text != "" && err == nil:
		t.Fatalf("a wrong history passes; want %q", text)
	case text != "" && !strings.Contains(err.Error(), text):
		t.Fatalf("error %q does not say %q", err, text)
	}
}

func TestReplays(t *testing.T) {
	first := executed(5, 1)
	replay := first
	replay.Replayed, replay.Calls = true, 3
	other := replay
	other.Balance.Amount = 6
	later := replay
	later.AcceptedAt = 7
	for name, c := range map[string]struct {
		first  Answer
		second map[string]Answer
		want   string
	}{
		"replayed":                {first, map[string]Answer{"k": replay}, ""},
		"executed twice":          {first, map[string]Answer{"k": first}, "executed again"},
		"another balance":         {first, map[string]Answer{"k": other}, "replayed differently"},
		"another time":            {first, map[string]Answer{"k": later}, "replayed differently"},
		"rejected, then executed": {rejected(1), map[string]Answer{"k": replay}, "replayed differently"},
		"lost":                    {first, map[string]Answer{"k": {Verdict: Unknown}}, "no outcome"},
		"not sent":                {first, nil, "not sent again"},
		"refused":                 {Answer{Verdict: Refused}, map[string]Answer{"k": replay}, "was refused"},
		"unknown, then executed":  {Answer{}, map[string]Answer{"k": first}, ""},
		"unknown, then replayed":  {Answer{}, map[string]Answer{"k": replay}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			wants(t, Replays([]Op{op(Deposit, "k", "a", 5, 1, 2, c.first)}, c.second), c.want)
		})
	}
}

func TestVersions(t *testing.T) {
	right := []Op{
		op(Deposit, "k1", "a", 5, 1, 2, executed(5, 1)),
		op(Deposit, "k2", "a", 5, 1, 2, executed(10, 2)),
		op(Deposit, "k3", "b", 5, 1, 2, executed(5, 1)),
		op(Read, "", "a", 0, 1, 2, executed(5, 1)),
	}
	wants(t, Versions(right), "")
	wants(t, Versions(append(right, op(Withdraw, "k4", "a", 99, 1, 2, rejected(2)))), "both decided as version 2 of a")
	wants(t, Versions(append(right, op(Deposit, "k5", "a", 1, 1, 2, executed(1, 0)))), "without a version")
}

func TestLinearizable(t *testing.T) {
	lost := Answer{Verdict: Unknown}
	for name, c := range map[string]struct {
		ops  []Op
		want string
	}{
		"one after the other": {[]Op{
			op(Deposit, "1", "r", 5, 1, 2, executed(5, 1)),
			op(Withdraw, "2", "r", 3, 3, 4, executed(2, 2)),
			op(Withdraw, "3", "r", 3, 5, 6, rejected(3)),
			op(Read, "", "r", 0, 7, 8, executed(2, 3)),
		}, ""},
		"at once, in the other order": {[]Op{
			op(Deposit, "1", "r", 5, 1, 9, executed(12, 2)),
			op(Deposit, "2", "r", 7, 2, 8, executed(7, 1)),
		}, ""},
		"stale read": {[]Op{
			op(Deposit, "1", "r", 5, 1, 2, executed(5, 1)),
			op(Deposit, "2", "r", 5, 3, 4, executed(10, 2)),
			op(Read, "", "r", 0, 5, 6, executed(5, 1)),
		}, "no order"},
		"lost update": {[]Op{
			op(Deposit, "1", "r", 5, 1, 9, executed(5, 1)),
			op(Deposit, "2", "r", 7, 1, 9, executed(7, 2)),
		}, "no order"},
		"doubled": {[]Op{
			op(Deposit, "1", "r", 5, 1, 2, executed(5, 1)),
			op(Read, "", "r", 0, 3, 4, executed(10, 2)),
		}, "no order"},
		"acknowledged, then gone": {[]Op{
			op(Deposit, "1", "r", 5, 1, 2, executed(5, 1)),
			op(Read, "", "r", 0, 3, 4, executed(0, 1)),
		}, "no order"},
		"version goes back": {[]Op{
			op(Deposit, "1", "r", 5, 1, 2, executed(5, 4)),
			op(Deposit, "2", "r", 5, 3, 4, executed(10, 3)),
		}, "no order"},
		"rejected with money there": {[]Op{
			op(Deposit, "1", "r", 5, 1, 2, executed(5, 1)),
			op(Withdraw, "2", "r", 5, 3, 4, rejected(2)),
		}, "no order"},
		"overdrawn": {[]Op{
			op(Withdraw, "1", "r", 5, 1, 2, executed(-5, 1)),
		}, "no order"},
		"unknown took effect": {[]Op{
			op(Deposit, "1", "r", 5, 1, 2, lost),
			op(Read, "", "r", 0, 3, 4, executed(5, 1)),
		}, ""},
		"unknown took no effect": {[]Op{
			op(Deposit, "1", "r", 5, 1, 2, lost),
			op(Read, "", "r", 0, 3, 4, executed(0, 0)),
		}, ""},
		"unknown took effect twice": {[]Op{
			op(Deposit, "1", "r", 5, 1, 2, lost),
			op(Read, "", "r", 0, 3, 4, executed(10, 2)),
		}, "no order"},
		"unknown took effect and was taken back": {[]Op{
			op(Deposit, "1", "r", 5, 1, 2, lost),
			op(Read, "", "r", 0, 3, 4, executed(5, 1)),
			op(Read, "", "r", 0, 5, 6, executed(0, 1)),
		}, "no order"},
		"failed read says nothing": {[]Op{
			op(Read, "", "r", 0, 3, 4, lost),
		}, ""},
		"others do not matter": {[]Op{
			op(Deposit, "1", "s", 5, 1, 2, executed(99, 1)),
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			wants(t, Linearizable(c.ops, []string{"r"}, time.Minute), c.want)
		})
	}
}

func TestConservation(t *testing.T) {
	transfer := op(Transfer, "3", "a", 4, 5, 6, executed(6, 3))
	transfer.To = "b"
	ops := []Op{
		op(Deposit, "1", "a", 12, 1, 2, executed(12, 1)),
		op(Withdraw, "2", "a", 2, 3, 4, executed(10, 2)),
		transfer,
		op(Withdraw, "4", "a", 99, 7, 8, rejected(4)),
	}
	statement := func(amount int64, postings uint64, byDay int64) *accountv1.Statement {
		return &accountv1.Statement{
			ByCurrency: map[string]*accountv1.Total{Currency: {AmountMinor: amount, Postings: postings}},
			ByDay: map[string]*accountv1.DayTotals{"2030-01-01": {
				ByCurrency: map[string]*accountv1.Total{Currency: {AmountMinor: byDay, Postings: postings}},
			}},
		}
	}
	stored := func(a, b int64) map[string]Balance { return map[string]Balance{"a": {Amount: a}, "b": {Amount: b}} }
	inFlight := stored(6, 4)
	inFlight["a"] = Balance{Amount: 6, InFlight: 4, Pending: 1}
	for name, c := range map[string]struct {
		ops       []Op
		stored    map[string]Balance
		statement *accountv1.Statement
		want      string
	}{
		"right":             {ops, stored(6, 4), statement(10, 4, 10), ""},
		"money appears":     {ops, stored(6, 5), statement(11, 4, 11), "b holds 5, but its commands make 4"},
		"money vanishes":    {ops, stored(6, 0), statement(6, 4, 6), "b holds 0"},
		"swapped":           {ops, stored(4, 6), statement(10, 4, 10), "a holds 4"},
		"still in flight":   {ops, inFlight, statement(10, 4, 10), "1 transfers with 4 in flight"},
		"posting twice":     {ops, stored(6, 4), statement(14, 5, 14), "the statement says 14"},
		"posting of 0":      {ops, stored(6, 4), statement(10, 5, 10), "5 postings, the commands make 4"},
		"day is missing":    {ops, stored(6, 4), statement(10, 4, 6), "days sum up to 6"},
		"account not read":  {ops, map[string]Balance{"a": {Amount: 6}}, statement(6, 4, 6), "b should hold 4"},
		"no statement":      {ops, stored(6, 4), nil, "the statement says 0"},
		"outcome not known": {append(ops, op(Deposit, "5", "a", 1, 9, 10, Answer{})), stored(6, 4), statement(10, 4, 10), "no known outcome"},
	} {
		t.Run(name, func(t *testing.T) {
			wants(t, Conservation(c.ops, c.stored, c.statement), c.want)
		})
	}
}

func TestHistoryResolves(t *testing.T) {
	h := NewHistory()
	h.Add(op(Deposit, "k1", "a", 5, 3, 4, Answer{Calls: 2}))
	h.Add(op(Deposit, "k2", "a", 5, 1, 2, executed(5, 1)))
	h.Resolve(map[string]Answer{"k1": executed(10, 2), "k2": executed(99, 9)}, 20)
	ops := h.Ops()
	if ops[0].Key != "k2" || ops[0].Answer != executed(5, 1) || ops[0].Return != 2 {
		t.Errorf("a known outcome has changed: %+v", ops[0])
	}
	if a := ops[1].Answer; a.Verdict != Executed || a.Calls != 3 || ops[1].Return != 20 {
		t.Errorf("an unknown outcome is not resolved: %+v", ops[1])
	}
	want := Tally{Ops: 2, Executed: 2, Retries: 2}
	if got := h.Tally(); got != want {
		t.Errorf("tally %+v, want %+v", got, want)
	}
}
