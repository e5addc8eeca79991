package entity_test

import (
	"fmt"
	"time"

	"writ/actors/entity"
	accountv1 "writ/proto/writ/account/v1"
)

// PiggyBank defines a kind: its state is a Balance, it takes deposits, and it
// tells a statement about each. There is nothing else to learn.
func PiggyBank() entity.Definer {
	k := entity.NewKind[*accountv1.Balance]("piggybank")

	entity.Handle(k, func(c *entity.Context, s *accountv1.Balance, cmd *accountv1.Deposit) (*accountv1.Balance, error) {
		if cmd.GetAmountMinor() <= 0 {
			return nil, c.Reject(entity.OutOfRange, "NOTHING_IN_IT", "%d is no deposit", cmd.GetAmountMinor())
		}
		s.AmountMinor += cmd.GetAmountMinor()
		c.Emit(entity.To("statement", "all"), &accountv1.Posted{AmountMinor: cmd.GetAmountMinor()})
		return s, nil
	})
	entity.On(k, func(_ *entity.Context, s *accountv1.Balance, gift *accountv1.CreditOffered) error {
		s.AmountMinor += gift.GetAmountMinor()
		return nil
	})
	return k
}

// A kind is registered once, at start. Its handlers need no runtime to be
// tested: a context, a state and a message will do.
func Example() {
	registry, err := entity.NewRegistry(PiggyBank())
	if err != nil {
		fmt.Println(err)
		return
	}
	kind := registry.Kind("piggybank")
	pig := entity.Ref{Tenant: "family", Kind: "piggybank", ID: "pig"}
	state := kind.NewState()
	for _, amount := range []int64{5, -1} {
		c := entity.NewContext(pig, entity.Ref{}, time.Unix(0, 0))
		reply, err := kind.Command("writ.account.v1.Deposit").Call(c, state, &accountv1.Deposit{AmountMinor: amount})
		if err != nil {
			fmt.Println("rejected:", err)
			continue
		}
		fmt.Println("balance:", reply.(*accountv1.Balance).GetAmountMinor(), "events:", len(c.Emitted()))
	}
	// Output:
	// balance: 5 events: 1
	// rejected: NOTHING_IN_IT: -1 is no deposit
}
