package check

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// LinearizableTransfers checks the history of each given account, transfers
// included. What happens to an account is what its clients order, and two kinds of
// events that no client sees: the credit of a transfer to it, and the word that a
// transfer of its own has arrived. They come at an unknown time after the transfer
// was ordered, those of one lane in order. Everything that happens raises the version
// by one, so the answers say how many events came between two commands, and what they
// must add up to. There must be an order of all of it that explains every answer and
// agrees with real time. Every operation must have a known outcome.
func LinearizableTransfers(ops []Op, accounts []string, limit time.Duration) error {
	var f findings
	var transfers []Op
	for _, op := range ops {
		switch {
		case op.Action == Read:
		case op.Answer.Verdict == Unknown:
			f.add("key %q has no known outcome", op.Key)
		case op.Action == Transfer && op.Answer.Verdict == Executed:
			transfers = append(transfers, op)
		}
	}
	if err := f.err(); err != nil {
		return err
	}
	// A lane has the order of its source's versions.
	slices.SortStableFunc(transfers, func(a, b Op) int { return cmp.Compare(a.Answer.Version, b.Answer.Version) })
	for _, name := range accounts {
		l := newLife(name, ops, transfers)
		events := len(l.history) - l.operations
		switch porcupine.CheckOperationsTimeout(l.model(), l.history, limit) {
		case porcupine.Ok:
		case porcupine.Illegal:
			f.add("%s: its %d operations and %d events have no order that explains them", name, l.operations, events)
		case porcupine.Unknown:
			f.add("%s: no verdict on its %d operations and %d events within %v", name, l.operations, events, limit)
		}
	}
	return f.err()
}

// life is the history of one account, its events included.
type life struct {
	history    []porcupine.Operation
	operations int
	// decided are the versions that clients' commands have.
	decided map[uint64]bool
	// known is what the answers say of the account at a version, and at are those
	// versions in order. Without it the search would place events first and learn
	// at the next command only that they do not add up.
	known map[uint64]Balance
	at    []uint64
}

// moment is an account at a version. done counts the events that have come, by lane.
type moment struct {
	balance Balance
	version uint64
	done    string
}

// happening is an event of a transfer, the place-th of its lane.
type happening struct {
	transfer    Op
	credit      bool
	lane, place int
}

func newLife(name string, ops, transfers []Op) *life {
	l := &life{decided: map[uint64]bool{}, known: map[uint64]Balance{}}
	var end time.Duration
	for _, op := range ops {
		end = max(end, op.Return)
		v := op.Answer.Verdict
		if op.Account != name || (v != Executed && v != Rejected) || (v == Rejected && op.Action == Read) {
			continue
		}
		l.history = append(l.history, porcupine.Operation{ClientId: op.Client, Input: op, Call: int64(op.Call), Return: int64(op.Return)})
		l.operations++
		l.learn(op)
	}
	for version := range l.known {
		l.at = append(l.at, version)
	}
	slices.Sort(l.at)
	type lane struct {
		peer   string
		credit bool
	}
	lanes, count := map[lane]int{}, map[lane]int{}
	add := func(transfer Op, on lane) {
		if _, ok := lanes[on]; !ok {
			lanes[on] = len(lanes)
		}
		l.history = append(l.history, porcupine.Operation{
			Input: happening{transfer, on.credit, lanes[on], count[on]}, Call: int64(transfer.Call), Return: int64(end + 1),
		})
		count[on]++
	}
	for _, t := range transfers {
		if t.To == name {
			add(t, lane{t.Account, true})
		}
		if t.Account == name {
			add(t, lane{t.To, false})
		}
	}
	return l
}

// learn keeps what an answer says of the account, behind the operation and before.
func (l *life) learn(op Op) {
	a := op.Answer
	if op.Action != Read {
		l.decided[a.Version] = true
	}
	if a.Verdict != Executed {
		return
	}
	l.known[a.Version] = a.Balance
	before := a.Balance
	switch op.Action {
	case Deposit:
		before.Amount -= op.Amount
	case Withdraw:
		before.Amount += op.Amount
	case Transfer:
		before.Amount += op.Amount
		before.InFlight -= op.Amount
		before.Pending--
	case Read:
		return
	}
	if a.Version > 1 {
		l.known[a.Version-1] = before
	}
}

func (l *life) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return moment{} },
		Step: func(state, input, _ any) (bool, any) {
			m := state.(moment)
			if e, ok := input.(happening); ok {
				ok, next := l.happens(m, e)
				return ok, next
			}
			ok, next := decide(m, input.(Op))
			return ok, next
		},
	}
}

// decide says whether an operation of a client may take effect now, and what it
// leaves.
func decide(m moment, op Op) (bool, moment) {
	next, a := m, op.Answer
	switch op.Action {
	case Read:
		return a.Version == m.version && a.Balance == m.balance, m
	case Deposit:
		next.balance.Amount += op.Amount
	case Withdraw:
		next.balance.Amount -= op.Amount
	case Transfer:
		next.balance.Amount -= op.Amount
		next.balance.InFlight += op.Amount
		next.balance.Pending++
	}
	next.version++
	overdrawn := next.balance.Amount < 0
	if a.Verdict == Rejected { // only an overdraft is against the rules here
		next.balance = m.balance
		return overdrawn && a.Version == next.version, next
	}
	return !overdrawn && a.Version == next.version && a.Balance == next.balance, next
}

// happens says whether an event may come now, and what it leaves.
func (l *life) happens(m moment, e happening) (bool, moment) {
	next := m
	next.version++
	if l.decided[next.version] {
		return false, m
	}
	var ok bool
	if next.done, ok = advance(m.done, e.lane, e.place); !ok {
		return false, m
	}
	if e.credit {
		next.balance.Amount += e.transfer.Amount
	} else {
		if m.version < e.transfer.Answer.Version || m.balance.Pending == 0 {
			return false, m
		}
		next.balance.Pending--
		next.balance.InFlight -= e.transfer.Amount
	}
	return l.leadsOn(next), next
}

// leadsOn reports whether events alone can bring the account from here to what is
// known of it next: credits only add, arrivals only take.
func (l *life) leadsOn(m moment) bool {
	i, _ := slices.BinarySearch(l.at, m.version)
	if i == len(l.at) {
		return true
	}
	version, want := l.at[i], l.known[l.at[i]]
	if version == m.version {
		return m.balance == want
	}
	for v := m.version + 1; v <= version; v++ {
		if l.decided[v] {
			return true // a rejected command lies between: it is no event
		}
	}
	return m.balance.Amount <= want.Amount && m.balance.InFlight >= want.InFlight &&
		m.balance.Pending >= want.Pending && m.balance.Pending-want.Pending <= version-m.version
}

// advance counts the event at a place of a lane; it is false for any place but the
// next. The counts are kept as text, so that two moments can be compared.
func advance(done string, lane, place int) (string, bool) {
	const width = 4
	counts := []byte(done)
	for len(counts) < (lane+1)*width {
		counts = append(counts, make([]byte, width)...)
	}
	own := counts[lane*width:]
	if binary.BigEndian.Uint32(own) != uint32(place) {
		return done, false
	}
	binary.BigEndian.PutUint32(own, uint32(place)+1)
	return string(counts), true
}
