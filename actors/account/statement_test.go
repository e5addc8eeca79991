package account_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"writ/actors/account"
	"writ/actors/entity"
	accountv1 "writ/proto/writ/account/v1"
)

func TestStatementAddsUp(t *testing.T) {
	kind := account.Statement().Definition()
	state := kind.NewState()
	for _, p := range []*accountv1.Posted{
		{AmountMinor: 5, Currency: "EUR", Day: "2026-02-28"},
		{AmountMinor: -2, Currency: "EUR", Day: "2026-02-28"},
		{AmountMinor: 7, Currency: "USD", Day: "2026-02-28"},
		{AmountMinor: 1, Currency: "EUR", Day: "2026-03-01"},
	} {
		next, _, err := call(t, kind, entity.NewContext(all, ann, noon), state, p)
		if err != nil {
			t.Fatal(err)
		}
		// Through the wire, as between two events on a cluster.
		data, err := proto.Marshal(next)
		if err != nil {
			t.Fatal(err)
		}
		state = kind.NewState()
		if err := proto.Unmarshal(data, state); err != nil {
			t.Fatal(err)
		}
	}

	february := &accountv1.DayTotals{ByCurrency: map[string]*accountv1.Total{
		"EUR": {AmountMinor: 3, Postings: 2},
		"USD": {AmountMinor: 7, Postings: 1},
	}}
	want := &accountv1.Statement{
		ByCurrency: map[string]*accountv1.Total{
			"EUR": {AmountMinor: 4, Postings: 3},
			"USD": {AmountMinor: 7, Postings: 1},
		},
		ByDay: map[string]*accountv1.DayTotals{
			"2026-02-28": february,
			"2026-03-01": {ByCurrency: map[string]*accountv1.Total{"EUR": {AmountMinor: 1, Postings: 1}}},
		},
	}
	if diff := cmp.Diff(proto.Message(want), state, protocmp.Transform()); diff != "" {
		t.Errorf("statement (-want +got):\n%s", diff)
	}

	query := kind.Query("writ.account.v1.DayQuery")
	for day, want := range map[string]*accountv1.DayTotals{
		"2026-02-28": february,
		"2026-01-01": {},
	} {
		got, err := query.Call(nil, state, &accountv1.DayQuery{Day: day})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(proto.Message(want), got, protocmp.Transform()); diff != "" {
			t.Errorf("totals of %s (-want +got):\n%s", day, diff)
		}
	}
}

// TestStatementNeverWraps: each account fits, but all of them together may not.
func TestStatementNeverWraps(t *testing.T) {
	kind := account.Statement().Definition()
	state := kind.NewState()
	for i, step := range []struct {
		amount int64
		want   *accountv1.Total
	}{
		{math.MaxInt64, &accountv1.Total{AmountMinor: math.MaxInt64}},
		{math.MaxInt64, &accountv1.Total{AmountMinor: math.MaxInt64, Exact: "18446744073709551614"}},
		{math.MaxInt64, &accountv1.Total{AmountMinor: math.MaxInt64, Exact: "27670116110564327421"}},
		{-math.MaxInt64, &accountv1.Total{AmountMinor: math.MaxInt64, Exact: "18446744073709551614"}},
		{-math.MaxInt64, &accountv1.Total{AmountMinor: math.MaxInt64}},
		{-math.MaxInt64, &accountv1.Total{}},
		{math.MinInt64, &accountv1.Total{AmountMinor: math.MinInt64}},
		{-1, &accountv1.Total{AmountMinor: math.MinInt64, Exact: "-9223372036854775809"}},
		{2, &accountv1.Total{AmountMinor: math.MinInt64 + 1}},
	} {
		next, _, err := call(t, kind, entity.NewContext(all, ann, noon), state, &accountv1.Posted{AmountMinor: step.amount, Currency: "EUR", Day: "2026-02-28"})
		if err != nil {
			t.Fatal(err)
		}
		state = next
		want := proto.CloneOf(step.want)
		want.Postings = uint64(i + 1)
		for where, got := range map[string]*accountv1.Total{
			"all": state.(*accountv1.Statement).GetByCurrency()["EUR"],
			"day": state.(*accountv1.Statement).GetByDay()["2026-02-28"].GetByCurrency()["EUR"],
		} {
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("posting %d, %s (-want +got):\n%s", i, where, diff)
			}
		}
	}
}

func TestDayIsUTC(t *testing.T) {
	east := time.FixedZone("east", 3600)
	c := entity.NewContext(ann, entity.Ref{}, time.Date(2026, 3, 1, 0, 30, 0, 0, east))
	command := &accountv1.Deposit{AmountMinor: 1, Currency: "EUR"}
	if _, _, err := call(t, account.Account().Definition(), c, &accountv1.Balance{}, command); err != nil {
		t.Fatal(err)
	}
	if got := c.Emitted()[0].Event.(*accountv1.Posted).GetDay(); got != "2026-02-28" {
		t.Errorf("posted on %s, want the day in UTC, 2026-02-28", got)
	}
}
