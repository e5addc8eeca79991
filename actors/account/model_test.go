package account_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"writ/actors/account"
	"writ/actors/entity"
	accountv1 "writ/proto/writ/account/v1"
)

// lane carries events from one entity to another, in order.
type lane struct{ from, to entity.Ref }

// bank is a whole tenant in memory: states, and lanes that deliver when told
// to, each at its own pace, as on a cluster.
type bank struct {
	t        *testing.T
	random   *rand.Rand
	kinds    *entity.Registry
	states   map[entity.Ref]proto.Message
	lanes    map[lane][]proto.Message
	order    []lane // lanes that were ever used: map order would not repeat
	supplied map[string]int64
}

func newBank(t *testing.T, seed uint64) *bank {
	t.Helper()
	kinds, err := entity.NewRegistry(account.Kinds()...)
	if err != nil {
		t.Fatal(err)
	}
	return &bank{
		t:        t,
		random:   rand.New(rand.NewPCG(seed, 0)),
		kinds:    kinds,
		states:   map[entity.Ref]proto.Message{},
		lanes:    map[lane][]proto.Message{},
		supplied: map[string]int64{},
	}
}

// handle runs one message and reports whether it was accepted.
func (b *bank) handle(to, from entity.Ref, message proto.Message) bool {
	kind := b.kinds.Kind(to.Kind)
	state := b.states[to]
	if state == nil {
		state = kind.NewState()
	}
	c := entity.NewContext(to, from, noon)
	next, _, err := call(b.t, kind, c, state, message)
	if err != nil {
		var rejection *entity.Rejection
		if from != (entity.Ref{}) || !errors.As(err, &rejection) {
			b.t.Fatalf("%T for %v: %v", message, to, err)
		}
		return false
	}
	b.states[to] = next
	for _, e := range c.Emitted() {
		l := lane{from: to, to: e.To}
		if _, used := b.lanes[l]; !used {
			b.order = append(b.order, l)
		}
		b.lanes[l] = append(b.lanes[l], e.Event)
	}
	return true
}

// deliver takes one event of one lane to its destination; false if all are quiet.
func (b *bank) deliver() bool {
	start := b.random.IntN(max(len(b.order), 1))
	for i := range b.order {
		l := b.order[(start+i)%len(b.order)]
		if waiting := b.lanes[l]; len(waiting) > 0 {
			b.lanes[l] = waiting[1:]
			b.handle(l.to, l.from, waiting[0])
			return true
		}
	}
	return false
}

// command sends one random command of a small world: five accounts, two
// currencies, and now and then an amount near the limit.
func (b *bank) command() {
	id := func() string { return fmt.Sprintf("a%d", b.random.IntN(5)) }
	amount := b.random.Int64N(100) - 2
	if b.random.IntN(10) == 0 {
		amount = math.MaxInt64 - b.random.Int64N(200)
	}
	currency := []string{"EUR", "EUR", "EUR", "USD"}[b.random.IntN(4)]
	to := entity.Ref{Tenant: "t", Kind: account.AccountKind, ID: id()}
	switch b.random.IntN(6) {
	case 0:
		if b.handle(to, entity.Ref{}, &accountv1.Deposit{AmountMinor: amount, Currency: currency}) {
			b.supplied[currency] += amount
		}
	case 1:
		if b.handle(to, entity.Ref{}, &accountv1.Withdraw{AmountMinor: amount, Currency: currency}) {
			b.supplied[currency] -= amount
		}
	default:
		b.handle(to, entity.Ref{}, &accountv1.Transfer{To: id(), AmountMinor: amount, Currency: currency})
	}
}

// check compares what is there with what was supplied. Both sums wrap around, so
// equality is modulo 2^64.
func (b *bank) check() {
	b.t.Helper()
	held := map[string]int64{}
	for ref, state := range b.states {
		balance, ok := state.(*accountv1.Balance)
		if !ok {
			continue
		}
		if balance.GetAmountMinor() < 0 || balance.GetAmountMinor() > math.MaxInt64-balance.GetInFlightMinor() {
			b.t.Fatalf("%v holds %v", ref, balance)
		}
		held[balance.GetCurrency()] += balance.GetAmountMinor()
	}
	for _, waiting := range b.lanes {
		for _, event := range waiting {
			switch e := event.(type) {
			case *accountv1.CreditOffered:
				held[e.GetCurrency()] += e.GetAmountMinor()
			case *accountv1.CreditRefused:
				held[e.GetCurrency()] += e.GetAmountMinor()
			}
		}
	}
	for _, currency := range []string{"EUR", "USD"} {
		if held[currency] != b.supplied[currency] {
			b.t.Fatalf("%s: %d held and in flight, %d supplied", currency, held[currency], b.supplied[currency])
		}
	}
}

// checkQuiet compares the statement with the balances once nothing is in flight.
func (b *bank) checkQuiet() {
	b.t.Helper()
	held := map[string]*big.Int{"EUR": {}, "USD": {}, "": {}} // the sum may be more than one account can hold
	for ref, state := range b.states {
		balance, ok := state.(*accountv1.Balance)
		if !ok {
			continue
		}
		if balance.GetPendingTransfers() != 0 || balance.GetInFlightMinor() != 0 {
			b.t.Errorf("%v still waits: %v", ref, balance)
		}
		held[balance.GetCurrency()].Add(held[balance.GetCurrency()], big.NewInt(balance.GetAmountMinor()))
	}
	statement, _ := b.states[all].(*accountv1.Statement)
	today := statement.GetByDay()["2026-02-28"]
	for _, currency := range []string{"EUR", "USD"} {
		want := held[currency].String()
		if got := sum(statement.GetByCurrency()[currency]); got != want {
			b.t.Errorf("%s: the statement says %s, the accounts hold %s", currency, got, want)
		}
		if got := sum(today.GetByCurrency()[currency]); got != want {
			b.t.Errorf("%s: the day's total is %s, the accounts hold %s", currency, got, want)
		}
	}
}

// sum is a total in decimal.
func sum(t *accountv1.Total) string {
	if t.GetExact() != "" {
		return t.GetExact()
	}
	return fmt.Sprint(t.GetAmountMinor())
}

func TestMoneyIsConserved(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			b := newBank(t, seed)
			for range 400 {
				// Mail that is slower than commands, so that transfers pile up.
				if b.random.IntN(5) < 3 {
					b.command()
				} else {
					b.deliver()
				}
				b.check()
			}
			for b.deliver() {
				b.check()
			}
			b.checkQuiet()
		})
	}
}
