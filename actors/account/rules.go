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
	ReceiverTooLong   Reason = "RECEIVER_TOO_LONG"
	ReferenceTooLong  Reason = "REFERENCE_TOO_LONG"
	TransferToSelf    Reason = "TRANSFER_TO_SELF"
)

// receiverMax is the longest id of an account, in bytes, as of every entity: an event
// to a longer one cannot be sent.
const receiverMax = 255

// referenceMax is the longest reference of a command, in bytes.
const referenceMax = 4096

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
	if len(receiver) > receiverMax {
		return ReceiverTooLong
	}
	return ""
}

// referable checks the free text of a command.
func referable(cmd interface{ GetReference() string }) Reason {
	if len(cmd.GetReference()) > referenceMax {
		return ReferenceTooLong
	}
	return ""
}

// first returns the first rule that is broken. All of them are looked at: what
// credit or debit changed meanwhile is dropped with the rejected command.
func first(reasons ...Reason) Reason {
	for _, why := range reasons {
		if why != "" {
			return why
		}
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
	case ReceiverTooLong:
		return c.Reject(entity.OutOfRange, string(why), "an account's id has at most %d bytes", receiverMax)
	case ReferenceTooLong:
		return c.Reject(entity.OutOfRange, string(why), "a reference has at most %d bytes", referenceMax)
	case TransferToSelf:
		text = "the receiver is the payer"
	}
	return c.Reject(code, string(why), "%s", text)
}
