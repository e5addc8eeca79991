package account

import (
	"math"

	"writ/actors/entity"
	accountv1 "writ/proto/writ/account/v1"
)

// Reason says which rule a command or a credit breaks. It is the reason of a
// command's rejection and the text of CreditRefused.reason.
type Reason string

// Reasons. The empty one means that no rule is broken.
const (
	AmountNotPositive Reason = "AMOUNT_NOT_POSITIVE"
	CurrencyMalformed Reason = "CURRENCY_MALFORMED"
	OtherCurrency     Reason = "OTHER_CURRENCY"
	Overdraft         Reason = "OVERDRAFT"
	Overflow          Reason = "OVERFLOW"
	ReceiverMissing   Reason = "RECEIVER_MISSING"
	TransferToSelf    Reason = "TRANSFER_TO_SELF"
)

// money is what commands and credits have in common.
type money interface {
	GetAmountMinor() int64
	GetCurrency() string
}

// credit adds money to a balance, or names the rule against it.
func credit(b *accountv1.Balance, m money) Reason {
	if why := wellFormed(m); why != "" {
		return why
	}
	if b.GetCurrency() != "" && b.GetCurrency() != m.GetCurrency() {
		return OtherCurrency
	}
	// Both are positive and their sum fits: this very rule sees to it.
	if m.GetAmountMinor() > math.MaxInt64-b.GetAmountMinor()-b.GetInFlightMinor() {
		return Overflow
	}
	b.AmountMinor += m.GetAmountMinor()
	b.Currency = m.GetCurrency()
	return ""
}

// debit takes money from a balance, or names the rule against it.
func debit(b *accountv1.Balance, m money) Reason {
	if why := wellFormed(m); why != "" {
		return why
	}
	if b.GetCurrency() != "" && b.GetCurrency() != m.GetCurrency() {
		return OtherCurrency
	}
	if b.GetAmountMinor() < m.GetAmountMinor() {
		return Overdraft
	}
	b.AmountMinor -= m.GetAmountMinor()
	return ""
}

func wellFormed(m money) Reason {
	if m.GetAmountMinor() <= 0 {
		return AmountNotPositive
	}
	if len(m.GetCurrency()) != 3 {
		return CurrencyMalformed
	}
	for _, letter := range m.GetCurrency() {
		if letter < 'A' || letter > 'Z' {
			return CurrencyMalformed
		}
	}
	return ""
}

// payable checks the receiver of a transfer.
func payable(payer, receiver string) Reason {
	switch receiver {
	case "":
		return ReceiverMissing
	case payer:
		return TransferToSelf
	}
	return ""
}

// reject makes a command's rejection out of the rule that it breaks.
func (why Reason) reject(c *entity.Context, b *accountv1.Balance) error {
	code, text := entity.FailedPrecondition, ""
	switch why {
	case AmountNotPositive:
		code, text = entity.OutOfRange, "the amount must be positive"
	case CurrencyMalformed:
		text = "a currency is three capital letters"
	case OtherCurrency:
		return c.Reject(code, string(why), "the account's currency is %s", b.GetCurrency())
	case Overdraft:
		return c.Reject(code, string(why), "the account holds no more than %d", b.GetAmountMinor())
	case Overflow:
		code, text = entity.OutOfRange, "the account cannot hold that much"
	case ReceiverMissing:
		text = "a transfer needs a receiver"
	case TransferToSelf:
		text = "the receiver is the payer"
	}
	return c.Reject(code, string(why), "%s", text)
}
