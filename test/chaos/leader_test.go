package chaos

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	accountv1 "writ/proto/writ/account/v1"
	writv1 "writ/proto/writ/v1"
)

// A leader is frozen, its successor takes a write, then it wakes: it never
// answers from its old state, neither a read nor the question about a key, and
// it commits nothing.
func TestProcessFrozenLeader(t *testing.T) {
	r := start(t, ProcessConfig{})
	ctx := within(t, 5*time.Minute)
	nodes := r.cluster.Nodes()
	const account = "frozen-0"
	home := r.deposits(ctx, "frozen-", 1)
	machine := watchMachine(t)

	for round := range pick(3, 20) {
		leaders, err := r.links.Leaders(ctx, nodes)
		must(t, err)
		old := leaders[home[account]]
		f := &frozen{rig: r, node: old, account: account, key: fmt.Sprintf("while-frozen-%d", round)}
		// Commands that the old leader has in hand when it freezes.
		f.background(ctx, 20)
		must(t, r.cluster.Pause(old))
		frozenAt := time.Now()
		f.read(ctx, 20)

		// One patient call: its node must not wait for the frozen one.
		a := (&Rounds{Links: r.links, Nodes: others(r.cluster, old), Patience: 20 * time.Second}).Do(ctx, Op{Action: Deposit, Account: account, Key: f.key, Amount: 7})
		if a.Verdict != Executed {
			t.Fatalf("round %d: write while %s is frozen: %+v", round, old, a)
		}
		took := time.Since(frozenAt)
		limit := 4*time.Second + turns*machine.slowest(frozenAt)
		f.ask(ctx, 5)
		must(t, r.cluster.Resume(old))
		f.read(ctx, 50)
		f.ask(ctx, 20)
		f.wait()
		executed := f.verdict(a.Balance.Amount)
		t.Logf("round %d: %s frozen, the next leader took a write after %v; %d answers of the woken node, %d of them definite; %d commands in its hands",
			round, old, took.Round(time.Millisecond), len(f.answers), executed, len(f.sent))
		if took > limit {
			t.Errorf("round %d: failover from a frozen node took %v; want about 3 s, at most %v", round, took, limit)
		}
		must(t, AwaitReady(ctx, r.cluster, nodes...))
		// What was in the old leader's hands took effect once or not at all.
		for _, op := range f.sent {
			if b := (&Rounds{Links: r.links, Nodes: nodes}).Do(ctx, op); b.Verdict != Executed {
				t.Errorf("key %q: %+v", op.Key, b)
			}
		}
		got := r.balances(ctx, []string{account})[account].Amount
		want := 100 + int64(round+1)*(7+20)
		if got != want {
			t.Errorf("round %d: the balance is %d, want %d", round, got, want)
		}
	}
	r.audit()
}

// frozen asks one node while it is frozen and when it wakes.
type frozen struct {
	rig                *rig
	node, account, key string

	wg      sync.WaitGroup
	mu      sync.Mutex
	answers []Answer
	states  []writv1.OutcomeResponse_State
	sent    []Op
}

// background sends deposits of 1 to the node; most are not answered before it freezes.
func (f *frozen) background(ctx context.Context, n int) {
	for i := range n {
		op := Op{Action: Deposit, Account: f.account, Amount: 1, Key: fmt.Sprintf("%s-in-hand-%d", f.key, i)}
		f.sent = append(f.sent, op)
		f.wg.Go(func() {
			one, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			call(one, f.rig.links.Entity(f.node), op)
		})
	}
}

// read sends reads to the node. They may wait in its socket until it wakes.
func (f *frozen) read(ctx context.Context, n int) {
	for range n {
		f.wg.Go(func() {
			one, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			a := call(one, f.rig.links.Entity(f.node), Op{Action: Read, Account: f.account})
			f.mu.Lock()
			f.answers = append(f.answers, a)
			f.mu.Unlock()
		})
	}
}

// ask asks the node what became of the key that its successor took.
func (f *frozen) ask(ctx context.Context, n int) {
	for range n {
		f.wg.Go(func() {
			one, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			res, err := f.rig.links.Entity(f.node).Outcome(one, &writv1.OutcomeRequest{
				Entity: &writv1.EntityRef{Kind: "account", Id: f.account}, IdempotencyKey: f.key, CommandType: "writ.account.v1.Deposit",
			})
			if err == nil {
				f.mu.Lock()
				f.states = append(f.states, res.GetState())
				f.mu.Unlock()
			}
		})
	}
}

func (f *frozen) wait() { f.wg.Wait() }

// verdict checks every definite answer: none is older than the write.
func (f *frozen) verdict(least int64) (definite int) {
	for _, a := range f.answers {
		if a.Verdict != Executed {
			continue
		}
		definite++
		if a.Balance.Amount < least {
			f.rig.t.Errorf("stale read: %s answered %d after %d had been acknowledged", f.node, a.Balance.Amount, least)
		}
	}
	for _, s := range f.states {
		if s != writv1.OutcomeResponse_EXECUTED {
			f.rig.t.Errorf("stale answer about a key: %s says %v of a key that was executed", f.node, s)
		}
	}
	return definite
}

// Fifty parallel calls with one key from each of two clients to all nodes
// execute once, also while the leader is killed.
func TestProcessOneKey(t *testing.T) {
	t.Parallel()
	r := start(t, ProcessConfig{})
	ctx := within(t, 3*time.Minute)
	nodes := r.cluster.Nodes()
	home := r.deposits(ctx, "one-", 1)
	want := int64(100)
	for round := range pick(4, 40) {
		op := Op{Action: Deposit, Account: "one-0", Amount: 3, Key: fmt.Sprintf("the-key-%d", round)}
		if round%2 == 1 {
			leaders, err := r.links.Leaders(ctx, nodes)
			must(t, err)
			victim := leaders[home["one-0"]]
			time.AfterFunc(2*time.Millisecond, func() { _ = r.cluster.Kill(victim) })
			r.together(ctx, op, 50)
			must(t, eventually(ctx, "end of "+victim, func(context.Context) error {
				if r.cluster.Running(victim) {
					return fmt.Errorf("%s runs", victim)
				}
				return nil
			}))
			r.up(victim)
		} else {
			r.together(ctx, op, 50)
		}
		want += 3
		if got := r.balances(ctx, []string{"one-0"})["one-0"].Amount; got != want {
			t.Fatalf("round %d: balance %d, want %d", round, got, want)
		}
	}
	if report := r.audit(); report.Keys != uint64(1+pick(4, 40)) {
		t.Errorf("%d keys are stored", report.Keys)
	}
}

// together sends one command from two clients, n times each, at once.
func (r *rig) together(ctx context.Context, op Op, n int) {
	r.t.Helper()
	other, err := Dial(r.cluster)
	must(r.t, err)
	defer func() { _ = other.Close() }()
	answers := make([]Answer, 2*n)
	var wg sync.WaitGroup
	for i := range answers {
		links := r.links
		if i%2 == 1 {
			links = other
		}
		wg.Go(func() { answers[i] = (&Rounds{Links: links, Nodes: r.cluster.Nodes()}).Do(ctx, op) })
	}
	wg.Wait()
	first := 0
	for _, a := range answers {
		if a.Verdict != Executed || !a.Same(answers[0]) {
			r.t.Errorf("key %q: %+v and %+v", op.Key, answers[0], a)
		}
		if !a.Replayed {
			first++
		}
	}
	if first > 1 {
		r.t.Errorf("key %q: %d answers say that they executed it", op.Key, first)
	}
	// The same key for another amount is refused, by every node.
	packed, err := anypb.New(&accountv1.Deposit{AmountMinor: op.Amount + 1, Currency: currency})
	must(r.t, err)
	for _, node := range r.running() {
		_, err := r.links.Entity(node).Submit(ctx, &writv1.SubmitRequest{
			Entity: &writv1.EntityRef{Kind: "account", Id: op.Account}, IdempotencyKey: op.Key, Command: packed,
		})
		if a := failure(err, nil); a.Reason != "KEY_REUSED" && a.Verdict != Unknown {
			r.t.Errorf("%s: key %q with another amount: %+v", node, op.Key, a)
		}
	}
}
