package account

import (
	"writ/actors/entity"
	accountv1 "writ/proto/writ/account/v1"
)

// Names of the kinds, and the id of the one statement.
const (
	AccountKind   = "account"
	StatementKind = "statement"
	StatementID   = "all"
)

// Kinds returns the kinds of this package.
func Kinds() []entity.Definer { return []entity.Definer{Account(), Statement()} }

// Account defines the kind that holds money.
func Account() *entity.Kind[*accountv1.Balance] {
	k := entity.NewKind[*accountv1.Balance](AccountKind)
	entity.Handle(k, deposit)
	entity.Handle(k, withdraw)
	entity.Handle(k, transfer)
	entity.On(k, creditOffered)
	entity.On(k, creditTaken)
	entity.On(k, creditRefused)
	return k
}

func deposit(c *entity.Context, b *accountv1.Balance, cmd *accountv1.Deposit) (*accountv1.Balance, error) {
	if why := first(referable(cmd), credit(b, cmd)); why != "" {
		return nil, why.reject(c, b)
	}
	post(c, +cmd.GetAmountMinor(), cmd.GetCurrency(), cmd.GetReference())
	return b, nil
}

func withdraw(c *entity.Context, b *accountv1.Balance, cmd *accountv1.Withdraw) (*accountv1.Balance, error) {
	if why := first(referable(cmd), debit(b, cmd)); why != "" {
		return nil, why.reject(c, b)
	}
	post(c, -cmd.GetAmountMinor(), cmd.GetCurrency(), cmd.GetReference())
	return b, nil
}

func transfer(c *entity.Context, b *accountv1.Balance, cmd *accountv1.Transfer) (*accountv1.Balance, error) {
	if why := first(referable(cmd), payable(c.ID(), cmd.GetTo()), debit(b, cmd)); why != "" {
		return nil, why.reject(c, b)
	}
	b.PendingTransfers++
	b.InFlightMinor += cmd.GetAmountMinor()
	c.Emit(entity.To(AccountKind, cmd.GetTo()), &accountv1.CreditOffered{
		AmountMinor: cmd.GetAmountMinor(),
		Currency:    cmd.GetCurrency(),
	})
	post(c, -cmd.GetAmountMinor(), cmd.GetCurrency(), cmd.GetReference())
	return b, nil
}

// creditOffered is the receiver's side of a transfer.
func creditOffered(c *entity.Context, b *accountv1.Balance, offer *accountv1.CreditOffered) error {
	payer := entity.To(c.Source().Kind, c.Source().ID)
	if why := credit(b, offer); why != "" {
		c.Emit(payer, &accountv1.CreditRefused{
			AmountMinor: offer.GetAmountMinor(),
			Currency:    offer.GetCurrency(),
			Reason:      string(why),
		})
		return nil
	}
	c.Emit(payer, &accountv1.CreditTaken{AmountMinor: offer.GetAmountMinor(), Currency: offer.GetCurrency()})
	post(c, offer.GetAmountMinor(), offer.GetCurrency(), "")
	return nil
}

// creditTaken ends a transfer at the payer.
func creditTaken(c *entity.Context, b *accountv1.Balance, taken *accountv1.CreditTaken) error {
	return settle(c, b, taken)
}

// creditRefused ends a transfer at the payer, who takes the money back.
func creditRefused(c *entity.Context, b *accountv1.Balance, refused *accountv1.CreditRefused) error {
	if err := settle(c, b, refused); err != nil {
		return err
	}
	b.AmountMinor += refused.GetAmountMinor() // fits: credit kept room for it
	post(c, refused.GetAmountMinor(), refused.GetCurrency(), "")
	return nil
}

// settle takes one transfer out of those pending. That it finds one is the
// promise of Writ, not a rule of the domain: hence a rejected event.
func settle(c *entity.Context, b *accountv1.Balance, m money) error {
	if b.GetPendingTransfers() == 0 || b.GetInFlightMinor() < m.GetAmountMinor() {
		return c.Reject(entity.FailedPrecondition, "NOTHING_PENDING",
			"%d transfers of %d %s in all are pending, but one of %d %s was answered",
			b.GetPendingTransfers(), b.GetInFlightMinor(), b.GetCurrency(), m.GetAmountMinor(), m.GetCurrency())
	}
	b.PendingTransfers--
	b.InFlightMinor -= m.GetAmountMinor()
	return nil
}

// post tells the statement that this account's balance has changed.
func post(c *entity.Context, amount int64, currency, reference string) {
	c.Emit(entity.To(StatementKind, StatementID), &accountv1.Posted{
		AmountMinor: amount,
		Currency:    currency,
		Day:         c.Time().UTC().Format("2006-01-02"),
		Reference:   reference,
	})
}
