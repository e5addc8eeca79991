package account

import (
	"math"
	"math/big"

	"writ/actors/entity"
	accountv1 "writ/proto/writ/account/v1"
)

// Statement defines the kind that adds up all accounts of a tenant: a projection
// fed by their events. It takes no commands.
func Statement() *entity.Kind[*accountv1.Statement] {
	k := entity.NewKind[*accountv1.Statement](StatementKind)
	entity.On(k, posted)
	entity.Read(k, day)
	return k
}

func posted(_ *entity.Context, s *accountv1.Statement, p *accountv1.Posted) error {
	if s.ByCurrency == nil {
		s.ByCurrency = map[string]*accountv1.Total{}
	}
	add(s.ByCurrency, p)

	if s.ByDay == nil {
		s.ByDay = map[string]*accountv1.DayTotals{}
	}
	today := s.ByDay[p.GetDay()]
	if today == nil {
		today = &accountv1.DayTotals{ByCurrency: map[string]*accountv1.Total{}}
		s.ByDay[p.GetDay()] = today
	}
	add(today.ByCurrency, p)
	return nil
}

// day answers with the totals of one day, empty if nothing was posted.
func day(s *accountv1.Statement, q *accountv1.DayQuery) (*accountv1.DayTotals, error) {
	if totals := s.GetByDay()[q.GetDay()]; totals != nil {
		return totals, nil
	}
	return &accountv1.DayTotals{}, nil
}

// add adds a posting to a sum. The sum stays exact even beyond 64 bits, since the
// money has moved and the posting can no longer be refused.
func add(totals map[string]*accountv1.Total, p *accountv1.Posted) {
	total := totals[p.GetCurrency()]
	if total == nil {
		total = &accountv1.Total{}
		totals[p.GetCurrency()] = total
	}
	total.Postings++
	sum := new(big.Int)
	if _, ok := sum.SetString(total.GetExact(), 10); !ok {
		sum.SetInt64(total.GetAmountMinor())
	}
	sum.Add(sum, big.NewInt(p.GetAmountMinor()))
	switch {
	case sum.IsInt64():
		total.AmountMinor, total.Exact = sum.Int64(), ""
	case sum.Sign() > 0:
		total.AmountMinor, total.Exact = math.MaxInt64, sum.String()
	default:
		total.AmountMinor, total.Exact = math.MinInt64, sum.String()
	}
}
