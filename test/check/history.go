package check

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	accountv1 "writ/proto/writ/account/v1"
)

// Currency is the only one in use: with one Currency and small amounts no
// credit is ever refused, and every balance can be computed.
const Currency = "EUR"

// Action is what an operation asks for.
type Action int

// Actions.
const (
	Deposit Action = iota + 1
	Withdraw
	Transfer
	Read
)

func (a Action) String() string {
	switch a {
	case Deposit:
		return "deposit"
	case Withdraw:
		return "withdraw"
	case Transfer:
		return "transfer"
	case Read:
		return "read"
	}
	return "?"
}

// Verdict is what a client knows of its operation.
type Verdict int

// Verdicts.
const (
	// Unknown: no definite answer has come.
	Unknown Verdict = iota
	// Executed: it took effect.
	Executed
	// Rejected by rule: decided, without effect.
	Rejected
	// Refused: an error that the same call will always get.
	Refused
)

// Balance is an account's state.
type Balance struct {
	Amount, InFlight int64
	Pending          uint64
}

// BalanceOf reads an account's state.
func BalanceOf(b *accountv1.Balance) Balance {
	return Balance{Amount: b.GetAmountMinor(), InFlight: b.GetInFlightMinor(), Pending: b.GetPendingTransfers()}
}

// Answer is the outcome of an operation. All but the last two fields are the
// outcome itself, the same for every copy of the command.
type Answer struct {
	Verdict Verdict
	Code    codes.Code
	Reason  string
	Text    string
	Balance Balance
	Version uint64
	// AcceptedAt is Unix nanoseconds, 0 if unknown.
	AcceptedAt int64

	Replayed bool
	// Calls is how often the command was sent until this answer came.
	Calls int
}

// Same reports whether two answers are one outcome.
func (a Answer) Same(b Answer) bool {
	a.Replayed, a.Calls = b.Replayed, b.Calls
	return a == b
}

// Op is one operation of one client, from its first call to its first definite
// answer: within that time it took effect, if it did. Times count from the
// beginning of the history.
type Op struct {
	Client       int
	Action       Action
	Account, To  string
	Amount       int64
	Key          string // empty for reads
	Call, Return time.Duration
	Answer       Answer
}

// Command is the operation's message; nil for a read.
func (o Op) Command() proto.Message {
	switch o.Action {
	case Deposit:
		return &accountv1.Deposit{AmountMinor: o.Amount, Currency: Currency}
	case Withdraw:
		return &accountv1.Withdraw{AmountMinor: o.Amount, Currency: Currency}
	case Transfer:
		return &accountv1.Transfer{To: o.To, AmountMinor: o.Amount, Currency: Currency}
	case Read:
	}
	return nil
}

// History is what all clients saw. It is safe for concurrent use.
type History struct {
	start time.Time
	mu    sync.Mutex
	ops   []Op
}

// NewHistory begins a history now.
func NewHistory() *History { return &History{start: time.Now()} }

// Now is the time since the beginning, by the monotonic clock.
func (h *History) Now() time.Duration { return time.Since(h.start) }

// Add records an operation.
func (h *History) Add(op Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

// Ops returns a copy of all operations, by time of call.
func (h *History) Ops() []Op {
	h.mu.Lock()
	ops := slices.Clone(h.ops)
	h.mu.Unlock()
	slices.SortStableFunc(ops, func(a, b Op) int { return int(a.Call - b.Call) })
	return ops
}

// Resolve replaces unknown answers by what a later copy of the same command
// learned; the operation then ended with that copy.
func (h *History) Resolve(later map[string]Answer, at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, op := range h.ops {
		if a, ok := later[op.Key]; ok && op.Key != "" && op.Answer.Verdict == Unknown {
			a.Calls += op.Answer.Calls
			h.ops[i].Answer, h.ops[i].Return = a, at
		}
	}
}

// Tally counts a history.
type Tally struct {
	Ops, Executed, Rejected, Refused, Unknown int
	// Replays are answers that came from an earlier copy; Retries are calls
	// beyond the first.
	Replays, Retries int
}

// Tally counts the operations so far.
func (h *History) Tally() Tally {
	var t Tally
	for _, op := range h.Ops() {
		t.Ops++
		switch op.Answer.Verdict {
		case Executed:
			t.Executed++
		case Rejected:
			t.Rejected++
		case Refused:
			t.Refused++
		case Unknown:
			t.Unknown++
		}
		if op.Answer.Replayed {
			t.Replays++
		}
		t.Retries += max(0, op.Answer.Calls-1)
	}
	return t
}
