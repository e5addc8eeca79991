package account_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"writ/actors/account"
	"writ/actors/entity"
	accountv1 "writ/proto/writ/account/v1"
)

var (
	ann  = entity.Ref{Tenant: "t", Kind: account.AccountKind, ID: "ann"}
	bob  = entity.Ref{Tenant: "t", Kind: account.AccountKind, ID: "bob"}
	all  = entity.Ref{Tenant: "t", Kind: account.StatementKind, ID: account.StatementID}
	noon = time.Date(2026, 2, 28, 12, 0, 0, 0, time.UTC)
)

// call runs the handler of one command or event of a kind on a copy of the
// state, as the runtime does.
func call(t *testing.T, d *entity.Definition, c *entity.Context, state, message proto.Message) (next, reply proto.Message, err error) {
	t.Helper()
	name := string(message.ProtoReflect().Descriptor().FullName())
	h := d.Command(name)
	if h == nil {
		h = d.Event(name)
	}
	if h == nil {
		t.Fatalf("kind %s has no handler for %s", d.Name(), name)
	}
	next = proto.Clone(state)
	reply, err = h.Call(c, next, message)
	return next, reply, err
}

func posted(amount int64, currency string) entity.Emission {
	return entity.Emission{To: all, Event: &accountv1.Posted{AmountMinor: amount, Currency: currency, Day: "2026-02-28"}}
}

func TestKindsRegister(t *testing.T) {
	registry, err := entity.NewRegistry(account.Kinds()...)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{account.AccountKind, account.StatementKind} {
		if registry.Kind(name) == nil {
			t.Errorf("kind %s is missing", name)
		}
	}
}

func TestCommands(t *testing.T) {
	const most = math.MaxInt64
	offer := func(amount int64) entity.Emission {
		return entity.Emission{To: bob, Event: &accountv1.CreditOffered{AmountMinor: amount, Currency: "EUR"}}
	}
	eur := func(amount int64) *accountv1.Balance {
		return &accountv1.Balance{AmountMinor: amount, Currency: "EUR"}
	}
	tests := []struct {
		name    string
		state   *accountv1.Balance
		command proto.Message
		want    *accountv1.Balance
		emitted []entity.Emission
		code    entity.Code // of a rejection
		reason  account.Reason
	}{
		{name: "first deposit fixes the currency", state: &accountv1.Balance{}, command: &accountv1.Deposit{AmountMinor: 5, Currency: "EUR"}, want: eur(5), emitted: []entity.Emission{posted(5, "EUR")}},
		{name: "deposit", state: eur(5), command: &accountv1.Deposit{AmountMinor: 7, Currency: "EUR"}, want: eur(12), emitted: []entity.Emission{posted(7, "EUR")}},
		{name: "deposit up to the limit", state: eur(1), command: &accountv1.Deposit{AmountMinor: most - 1, Currency: "EUR"}, want: eur(most), emitted: []entity.Emission{posted(most-1, "EUR")}},
		{name: "deposit over the limit", state: eur(1), command: &accountv1.Deposit{AmountMinor: most, Currency: "EUR"}, code: entity.OutOfRange, reason: account.Overflow},
		{name: "deposit leaves room for refunds", state: &accountv1.Balance{AmountMinor: 1, Currency: "EUR", PendingTransfers: 1, InFlightMinor: 4}, command: &accountv1.Deposit{AmountMinor: most - 4, Currency: "EUR"}, code: entity.OutOfRange, reason: account.Overflow},
		{name: "deposit of nothing", state: eur(5), command: &accountv1.Deposit{Currency: "EUR"}, code: entity.OutOfRange, reason: account.AmountNotPositive},
		{name: "deposit of less than nothing", state: eur(5), command: &accountv1.Deposit{AmountMinor: math.MinInt64, Currency: "EUR"}, code: entity.OutOfRange, reason: account.AmountNotPositive},
		{name: "deposit without currency", state: eur(5), command: &accountv1.Deposit{AmountMinor: 1}, code: entity.FailedPrecondition, reason: account.CurrencyMalformed},
		{name: "deposit in small letters", state: eur(5), command: &accountv1.Deposit{AmountMinor: 1, Currency: "eur"}, code: entity.FailedPrecondition, reason: account.CurrencyMalformed},
		{name: "deposit in one letter of three bytes", state: eur(5), command: &accountv1.Deposit{AmountMinor: 1, Currency: "€"}, code: entity.FailedPrecondition, reason: account.CurrencyMalformed},
		{name: "deposit in four letters", state: eur(5), command: &accountv1.Deposit{AmountMinor: 1, Currency: "EURO"}, code: entity.FailedPrecondition, reason: account.CurrencyMalformed},
		{name: "deposit in another currency", state: eur(5), command: &accountv1.Deposit{AmountMinor: 1, Currency: "USD"}, code: entity.FailedPrecondition, reason: account.OtherCurrency},
		{name: "an empty account keeps its currency", state: eur(0), command: &accountv1.Deposit{AmountMinor: 1, Currency: "USD"}, code: entity.FailedPrecondition, reason: account.OtherCurrency},

		{
			name: "reference", state: eur(5), command: &accountv1.Withdraw{AmountMinor: 2, Currency: "EUR", Reference: "rent"}, want: eur(3),
			emitted: []entity.Emission{{To: all, Event: &accountv1.Posted{AmountMinor: -2, Currency: "EUR", Day: "2026-02-28", Reference: "rent"}}},
		},
		{
			name: "longest reference", state: eur(5), command: &accountv1.Deposit{AmountMinor: 2, Currency: "EUR", Reference: strings.Repeat("x", 4096)}, want: eur(7),
			emitted: []entity.Emission{{To: all, Event: &accountv1.Posted{AmountMinor: 2, Currency: "EUR", Day: "2026-02-28", Reference: strings.Repeat("x", 4096)}}},
		},
		{name: "reference too long", state: eur(5), command: &accountv1.Deposit{AmountMinor: 1, Currency: "EUR", Reference: strings.Repeat("x", 4097)}, code: entity.OutOfRange, reason: account.ReferenceTooLong},

		{name: "withdraw", state: eur(5), command: &accountv1.Withdraw{AmountMinor: 2, Currency: "EUR"}, want: eur(3), emitted: []entity.Emission{posted(-2, "EUR")}},
		{name: "withdraw everything", state: eur(5), command: &accountv1.Withdraw{AmountMinor: 5, Currency: "EUR"}, want: eur(0), emitted: []entity.Emission{posted(-5, "EUR")}},
		{name: "withdraw too much", state: eur(5), command: &accountv1.Withdraw{AmountMinor: 6, Currency: "EUR"}, code: entity.FailedPrecondition, reason: account.Overdraft},
		{name: "withdraw from a new account", state: &accountv1.Balance{}, command: &accountv1.Withdraw{AmountMinor: 1, Currency: "EUR"}, code: entity.FailedPrecondition, reason: account.Overdraft},
		{name: "withdraw nothing", state: eur(5), command: &accountv1.Withdraw{Currency: "EUR"}, code: entity.OutOfRange, reason: account.AmountNotPositive},
		{name: "withdraw a negative amount", state: eur(5), command: &accountv1.Withdraw{AmountMinor: -1, Currency: "EUR"}, code: entity.OutOfRange, reason: account.AmountNotPositive},
		{name: "withdraw another currency", state: eur(5), command: &accountv1.Withdraw{AmountMinor: 1, Currency: "USD"}, code: entity.FailedPrecondition, reason: account.OtherCurrency},

		{
			name: "transfer", state: eur(5), command: &accountv1.Transfer{To: "bob", AmountMinor: 2, Currency: "EUR"},
			want:    &accountv1.Balance{AmountMinor: 3, Currency: "EUR", PendingTransfers: 1, InFlightMinor: 2},
			emitted: []entity.Emission{offer(2), posted(-2, "EUR")},
		},
		{
			name: "second transfer", state: &accountv1.Balance{AmountMinor: 3, Currency: "EUR", PendingTransfers: 1, InFlightMinor: 2}, command: &accountv1.Transfer{To: "bob", AmountMinor: 3, Currency: "EUR"},
			want:    &accountv1.Balance{Currency: "EUR", PendingTransfers: 2, InFlightMinor: 5},
			emitted: []entity.Emission{offer(3), posted(-3, "EUR")},
		},
		{name: "transfer too much", state: eur(5), command: &accountv1.Transfer{To: "bob", AmountMinor: 6, Currency: "EUR"}, code: entity.FailedPrecondition, reason: account.Overdraft},
		{name: "transfer what is in flight", state: &accountv1.Balance{Currency: "EUR", PendingTransfers: 1, InFlightMinor: 5}, command: &accountv1.Transfer{To: "bob", AmountMinor: 1, Currency: "EUR"}, code: entity.FailedPrecondition, reason: account.Overdraft},
		{name: "transfer to oneself", state: eur(5), command: &accountv1.Transfer{To: "ann", AmountMinor: 1, Currency: "EUR"}, code: entity.FailedPrecondition, reason: account.TransferToSelf},
		{name: "transfer to a name that is too long", state: eur(5), command: &accountv1.Transfer{To: strings.Repeat("x", 256), AmountMinor: 1, Currency: "EUR"}, code: entity.OutOfRange, reason: account.ReceiverTooLong},
		{name: "transfer to nobody", state: eur(5), command: &accountv1.Transfer{AmountMinor: 1, Currency: "EUR"}, code: entity.FailedPrecondition, reason: account.ReceiverMissing},
		{name: "transfer nothing", state: eur(5), command: &accountv1.Transfer{To: "bob", Currency: "EUR"}, code: entity.OutOfRange, reason: account.AmountNotPositive},
		{name: "transfer another currency", state: eur(5), command: &accountv1.Transfer{To: "bob", AmountMinor: 1, Currency: "USD"}, code: entity.FailedPrecondition, reason: account.OtherCurrency},
	}
	kind := account.Account().Definition()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := entity.NewContext(ann, entity.Ref{}, noon)
			next, reply, err := call(t, kind, c, tt.state, tt.command)
			if tt.want == nil {
				var rejection *entity.Rejection
				if !errors.As(err, &rejection) {
					t.Fatalf("got error %v, want a rejection", err)
				}
				if rejection.Code != tt.code || rejection.Reason != string(tt.reason) || rejection.Message == "" {
					t.Errorf("rejected with %d %v, want %d %s and a text", rejection.Code, rejection, tt.code, tt.reason)
				}
				if len(c.Emitted()) != 0 {
					t.Errorf("a rejected command emitted %v", c.Emitted())
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(proto.Message(tt.want), next, protocmp.Transform()); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(proto.Message(tt.want), reply, protocmp.Transform()); diff != "" {
				t.Errorf("reply (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.emitted, c.Emitted(), protocmp.Transform()); diff != "" {
				t.Errorf("emitted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEvents(t *testing.T) {
	taken := entity.Emission{To: bob, Event: &accountv1.CreditTaken{AmountMinor: 4, Currency: "EUR"}}
	refused := func(why account.Reason) entity.Emission {
		return entity.Emission{To: bob, Event: &accountv1.CreditRefused{AmountMinor: 4, Currency: "EUR", Reason: string(why)}}
	}
	pending := &accountv1.Balance{AmountMinor: 1, Currency: "EUR", PendingTransfers: 2, InFlightMinor: 10}
	tests := []struct {
		name    string
		state   *accountv1.Balance
		event   proto.Message
		want    *accountv1.Balance
		emitted []entity.Emission
	}{
		{
			name: "credit to a new account", state: &accountv1.Balance{}, event: &accountv1.CreditOffered{AmountMinor: 4, Currency: "EUR"},
			want:    &accountv1.Balance{AmountMinor: 4, Currency: "EUR"},
			emitted: []entity.Emission{taken, posted(4, "EUR")},
		},
		{
			name: "credit", state: &accountv1.Balance{AmountMinor: 1, Currency: "EUR"}, event: &accountv1.CreditOffered{AmountMinor: 4, Currency: "EUR"},
			want:    &accountv1.Balance{AmountMinor: 5, Currency: "EUR"},
			emitted: []entity.Emission{taken, posted(4, "EUR")},
		},
		{
			name: "credit in another currency is sent back", state: &accountv1.Balance{Currency: "USD"}, event: &accountv1.CreditOffered{AmountMinor: 4, Currency: "EUR"},
			want:    &accountv1.Balance{Currency: "USD"},
			emitted: []entity.Emission{refused(account.OtherCurrency)},
		},
		{
			name: "credit that does not fit is sent back", state: &accountv1.Balance{AmountMinor: math.MaxInt64 - 3, Currency: "EUR"}, event: &accountv1.CreditOffered{AmountMinor: 4, Currency: "EUR"},
			want:    &accountv1.Balance{AmountMinor: math.MaxInt64 - 3, Currency: "EUR"},
			emitted: []entity.Emission{refused(account.Overflow)},
		},
		{
			name: "transfer taken", state: pending, event: &accountv1.CreditTaken{AmountMinor: 4, Currency: "EUR"},
			want: &accountv1.Balance{AmountMinor: 1, Currency: "EUR", PendingTransfers: 1, InFlightMinor: 6},
		},
		{
			name: "transfer refused", state: pending, event: &accountv1.CreditRefused{AmountMinor: 4, Currency: "EUR", Reason: "OVERFLOW"},
			want:    &accountv1.Balance{AmountMinor: 5, Currency: "EUR", PendingTransfers: 1, InFlightMinor: 6},
			emitted: []entity.Emission{posted(4, "EUR")},
		},
		{
			name: "refund to a full account", state: &accountv1.Balance{AmountMinor: math.MaxInt64 - 4, Currency: "EUR", PendingTransfers: 1, InFlightMinor: 4}, event: &accountv1.CreditRefused{AmountMinor: 4, Currency: "EUR", Reason: "OVERFLOW"},
			want:    &accountv1.Balance{AmountMinor: math.MaxInt64, Currency: "EUR"},
			emitted: []entity.Emission{posted(4, "EUR")},
		},
	}
	kind := account.Account().Definition()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := entity.NewContext(ann, bob, noon)
			next, _, err := call(t, kind, c, tt.state, tt.event)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(proto.Message(tt.want), next, protocmp.Transform()); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.emitted, c.Emitted(), protocmp.Transform()); diff != "" {
				t.Errorf("emitted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnswerToNoTransferIsRejected(t *testing.T) {
	kind := account.Account().Definition()
	for name, state := range map[string]*accountv1.Balance{
		"none pending": {AmountMinor: 5, Currency: "EUR"},
		"less pending": {AmountMinor: 5, Currency: "EUR", PendingTransfers: 1, InFlightMinor: 3},
	} {
		for _, event := range []proto.Message{
			&accountv1.CreditTaken{AmountMinor: 4, Currency: "EUR"},
			&accountv1.CreditRefused{AmountMinor: 4, Currency: "EUR"},
		} {
			t.Run(name, func(t *testing.T) {
				_, _, err := call(t, kind, entity.NewContext(ann, bob, noon), state, event)
				var rejection *entity.Rejection
				if !errors.As(err, &rejection) || rejection.Reason != "NOTHING_PENDING" {
					t.Errorf("%T: got %v, want NOTHING_PENDING", event, err)
				}
			})
		}
	}
}
