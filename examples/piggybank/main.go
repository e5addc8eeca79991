// Command piggybank is a node with a kind of its own beside the example's: the
// smallest complete program on Writ. It has all subcommands of node.
//
//	go run ./examples/piggybank dev --dir data/piggy
//	go run ./examples/piggybank submit --kind piggybank --id pig --key 1 \
//		--command writ.account.v1.Deposit --json '{"amount_minor": 5, "currency": "EUR"}'
package main

import (
	"time"

	"writ/actors/account"
	"writ/actors/entity"
	"writ/cmd/node/cli"
	accountv1 "writ/proto/writ/account/v1"
)

func main() { cli.Main(append(account.Kinds(), PiggyBank())...) }

// PiggyBank takes deposits, and tells the statement of each.
func PiggyBank() entity.Definer {
	k := entity.NewKind[*accountv1.Balance]("piggybank")
	entity.Handle(k, func(c *entity.Context, s *accountv1.Balance, cmd *accountv1.Deposit) (*accountv1.Balance, error) {
		if cmd.GetAmountMinor() <= 0 {
			return nil, c.Reject(entity.OutOfRange, "NOTHING_IN_IT", "%d is no deposit", cmd.GetAmountMinor())
		}
		s.AmountMinor += cmd.GetAmountMinor()
		s.Currency = cmd.GetCurrency()
		c.Emit(entity.To("statement", "all"), &accountv1.Posted{
			AmountMinor: cmd.GetAmountMinor(), Currency: cmd.GetCurrency(), Day: c.Time().UTC().Format(time.DateOnly),
		})
		return s, nil
	})
	return k
}
