package sim_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"writ/actors/account"
	"writ/actors/entity"
	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
	"writ/sharding"
	"writ/test/check"
)

const (
	clients   = 8
	commands  = 8 // of each client
	accounts  = 4 // with transfers between them
	registers = 2 // without: their histories are checked for linearizability
	readers   = 2
	tries     = 1000
)

func accountID(i int) string  { return fmt.Sprint("a", i) }
func registerID(i int) string { return fmt.Sprint("r", i) }

func registerIDs() (all []string) {
	for i := range registers {
		all = append(all, registerID(i))
	}
	return all
}

func accountIDs() (all []string) {
	for i := range accounts {
		all = append(all, accountID(i))
	}
	return all
}

func refOf(kind, id string) entity.Ref { return entity.Ref{Tenant: "t", Kind: kind, ID: id} }

func locate(ref entity.Ref) uint32 { return sharding.Locate(shards, ref) }

func shardOf(id string) uint32 { return locate(refOf(account.AccountKind, id)) }

// client sends its commands one after the other, each again and again with its key
// until it is answered or the client gives up; now and then twice at once, and now
// and then once more when it is answered.
func (w *world) client(c int) {
	dice := w.dice("client %d", c)
	for i := range commands {
		op := check.Op{Client: c, Key: fmt.Sprintf("c%d-%d", c, i), Amount: int64(1 + w.roll(dice, 60))}
		from := w.roll(dice, accounts)
		switch roll := w.roll(dice, 10); {
		case roll < 3:
			op.Action, op.Account = check.Deposit, registerID(w.roll(dice, registers))
		case roll < 5:
			op.Action, op.Account = check.Withdraw, registerID(w.roll(dice, registers))
		case roll < 7:
			op.Action, op.Account, op.Amount = check.Deposit, accountID(from), 3*op.Amount
		default:
			op.Action, op.Account = check.Transfer, accountID(from)
			op.To = accountID((from + 1 + w.roll(dice, accounts-1)) % accounts)
		}
		most := tries
		if w.roll(dice, 8) == 0 {
			most = 1 + w.roll(dice, 3)
		}
		op.Call = w.history.Now()
		op.Answer = w.insist(dice, op, most)
		op.Return = w.history.Now()
		w.history.Add(op)
		w.note("client %d: %s %v on %s: %d version %d", c, op.Key, op.Action, op.Account, op.Answer.Verdict, op.Answer.Version)
		if op.Answer.Verdict == check.Unknown || w.roll(dice, 3) > 0 {
			continue
		}
		if err := check.Replays([]check.Op{op}, map[string]check.Answer{op.Key: w.insist(dice, op, tries)}); err != nil {
			w.fail("%v", err)
		}
	}
}

// reader reads registers and accounts, at any node that may believe to lead.
func (w *world) reader(r int, stop <-chan struct{}) {
	dice := w.dice("reader %d", r)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond + w.span(dice, 20*time.Millisecond)):
		}
		op := check.Op{Client: clients + r, Action: check.Read, Account: registerID(w.roll(dice, registers))}
		if w.roll(dice, 3) == 0 {
			op.Account = accountID(w.roll(dice, accounts))
		}
		op.Call = w.history.Now()
		answer, err := w.ask(fmt.Sprintf("read %d %d", r, i), w.roll(dice, nodes), shardOf(op.Account), 150*time.Millisecond, &nodev1.ForwardRequest{
			Call: &nodev1.ForwardRequest_Read{Read: &writv1.ReadRequest{Entity: &writv1.EntityRef{Kind: account.AccountKind, Id: op.Account}}},
		})
		if err != nil {
			continue
		}
		op.Return = w.history.Now()
		b := &accountv1.Balance{}
		if err := answer.GetRead().GetState().UnmarshalTo(b); err != nil {
			w.fail("read: %v", err)
		}
		op.Answer = check.Answer{Verdict: check.Executed, Balance: check.BalanceOf(b), Version: answer.GetRead().GetVersion()}
		w.history.Add(op)
		w.note("reader %d: %s is %d version %d", r, op.Account, op.Answer.Balance.Amount, op.Answer.Version)
		w.count("reads")
	}
}

// insist sends a command up to so many times, until it is answered.
func (w *world) insist(dice *rand.Rand, op check.Op, most int) check.Answer {
	for try := range most {
		if !w.whole() {
			break
		}
		twice := w.lucky(dice, 6)
		got := make(chan check.Answer, 2)
		var calls sync.WaitGroup
		for n := range 2 {
			if n == 1 && !twice {
				break
			}
			name := fmt.Sprintf("%s-%d-%d-%d", op.Key, w.history.Now(), try, n)
			calls.Go(func() {
				if a := w.call(name, op); a.Verdict != check.Unknown {
					got <- a
				}
			})
		}
		calls.Wait()
		close(got)
		if first, ok := <-got; ok {
			if second, ok := <-got; ok && !first.Same(second) {
				w.fail("%s is answered %+v and %+v", op.Key, first, second)
			}
			return first
		}
		w.count("retries")
		pause(time.Millisecond + w.span(dice, 60*time.Millisecond))
	}
	if most == tries && w.whole() {
		w.fail("%s is never answered", op.Key)
	}
	return check.Answer{}
}

// call sends a command once.
func (w *world) call(name string, op check.Op) check.Answer {
	packed, err := anypb.New(op.Command())
	if err != nil {
		w.fail("%v", err)
	}
	to := w.guess(shardOf(op.Account), w.fresh("to "+name))
	answer, err := w.ask(name, to, shardOf(op.Account), 1500*time.Millisecond, &nodev1.ForwardRequest{Call: &nodev1.ForwardRequest_Submit{Submit: &writv1.SubmitRequest{
		Entity: &writv1.EntityRef{Kind: account.AccountKind, Id: op.Account}, IdempotencyKey: op.Key, Command: packed,
	}}})
	if e, ok := errors.AsType[*entity.Error](err); ok && e.Reason != entity.NotExecuted && e.Reason != entity.OutcomeUnknown && e.Reason != entity.Overloaded {
		return check.Answer{Verdict: check.Refused, Reason: string(e.Reason), Text: e.Error()}
	}
	if err != nil {
		return check.Answer{}
	}
	return answerOf(answer.GetSubmit())
}

func answerOf(res *writv1.SubmitResponse) check.Answer {
	a := check.Answer{
		Verdict: check.Executed, Version: res.GetVersion(), AcceptedAt: res.GetAcceptedAt().AsTime().UnixNano(),
		Replayed: res.GetReplayed(), Calls: 1,
	}
	if r := res.GetRejection(); r != nil {
		a.Verdict, a.Text = check.Rejected, r.GetMessage()
		return a
	}
	b := &accountv1.Balance{}
	if err := res.GetReply().UnmarshalTo(b); err != nil {
		return check.Answer{Verdict: check.Refused, Text: err.Error()}
	}
	a.Balance = check.BalanceOf(b)
	return a
}

// ask sends a request once, through any node, to the given one.
func (w *world) ask(name string, to int, shard uint32, most time.Duration, req *nodev1.ForwardRequest) (answer *nodev1.ForwardResponse, err error) {
	dice := w.fresh("call " + name)
	req.Shard, req.Tenant = shard, "t"
	via := w.roll(dice, nodes)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond+w.span(dice, most))
	defer cancel()
	got := make(chan *nodev1.ForwardResponse, 2)
	err = w.carry(ctx, dice, via, to, func(ctx context.Context) error {
		rt, _ := w.nodes[to].process()
		if rt == nil {
			return errNetwork
		}
		res, err := rt.Forward(ctx, req)
		if err == nil {
			got <- res
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-got, nil
}
