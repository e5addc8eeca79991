package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"writ/actors/client"
	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
)

// outage is a cluster of six nodes in which a shard can lose its quorum while
// others keep theirs.
type outage struct {
	*rig
	consumer uint32   // shard of the consumer: the one statement
	frozen   []string // two of its replicas
	sound    map[uint32]bool
	near     *client.Client // to the nodes that stay
	pairs    [][2]string    // who pays whom
	paid     []int
}

// The shard of a consumer loses its quorum for ten minutes, while its rows and
// those of others arrive. Transfers between accounts of other shards arrive as
// quickly as before, and when the quorum is back the backlog drains, each row
// applied once.
func TestProcessConsumerOutage(t *testing.T) {
	r := start(t, ProcessConfig{
		Nodes: []string{"n1", "n2", "n3", "n4", "n5", "n6"},
		Args:  []string{"--dead-grace", "1h"}, // nothing is placed anew
	})
	ctx := within(t, 20*time.Minute)
	o := &outage{rig: r}
	o.prepare(ctx)
	machine := watchMachine(t)

	// Transfers do not pause between the phases: what is measured is one stream.
	before := o.pay(ctx, pick(10*time.Second, time.Minute))
	for _, node := range o.frozen {
		must(t, r.cluster.Pause(node))
	}
	frozenAt := time.Now()
	o.awaitLeaders(ctx)
	during := o.pay(ctx, pick(20*time.Second, 10*time.Minute)-time.Since(frozenAt))
	slowest := machine.slowest(frozenAt)
	if at, err := o.near.Read(within(t, 2*time.Second), "statement", "all", client.ReadOptions{}); err == nil {
		t.Errorf("the statement answers without a quorum, at version %d", at.Version)
	}
	for _, node := range o.frozen {
		must(t, r.cluster.Resume(node))
	}
	back := time.Now()
	outage := back.Sub(frozenAt)
	must(t, eventually(within(t, 2*time.Minute), "the backlog is applied", func(ctx context.Context) error {
		if got, want := o.postings(ctx), o.want(); got != want {
			return fmt.Errorf("%d postings, want %d", got, want)
		}
		return nil
	}))
	drained := time.Since(back)
	must(t, AwaitReady(within(t, time.Minute), r.cluster, r.cluster.Nodes()...))
	report := r.audit()
	if got, want := o.postings(ctx), o.want(); got != want {
		t.Errorf("%d postings, want %d", got, want)
	}
	ratio := o.sent(ctx) / float64(report.Applied)
	p99 := func(all []time.Duration) time.Duration { return all[(len(all)-1)*99/100] }
	// A shared machine measures badly, and all pairs wait together when it is held up:
	// in a short run twice is the p99.
	limit := 3*p99(before) + 250*time.Millisecond + turns*slowest
	t.Logf("%v without the consumer: %d transfers beside it, from order to credit p99 %v, %v before, at most %v; %d postings drained in %v; %.3f sends a row",
		outage.Round(time.Second), len(during), p99(during), p99(before), millis(limit), o.want(), drained.Round(time.Millisecond), ratio)
	if p99(during) > limit {
		t.Errorf("transfers' p99 went from %v to %v; the machine's longest turn was %v", p99(before), p99(during), millis(slowest))
	}
	if ratio >= 1.5 && long() { // a short outage has few rows for its probes
		t.Errorf("%.3f sends a row", ratio)
	}
}

// prepare opens accounts and chooses whom to freeze.
func (o *outage) prepare(ctx context.Context) {
	o.t.Helper()
	home := o.deposits(ctx, "pay-", 60)
	status, err := o.links.Status(ctx, "n1")
	must(o.t, err)
	o.consumer = o.shardOfStatement(ctx, status)
	placed := map[uint32][]string{}
	for _, p := range status.GetMeta().GetShards() {
		for _, replica := range p.GetReplicas() {
			placed[p.GetShard()] = append(placed[p.GetShard()], replica.GetNode())
		}
	}
	// The two replicas whose loss hurts the fewest other shards.
	at := placed[o.consumer]
	for i := range at {
		pair := slices.Delete(slices.Clone(at), i, i+1)
		sound := map[uint32]bool{}
		for shard, on := range placed {
			if lost := len(on) - len(slices.DeleteFunc(slices.Clone(on), func(n string) bool { return slices.Contains(pair, n) })); lost < 2 {
				sound[shard] = true
			}
		}
		if len(sound) > len(o.sound) {
			o.frozen, o.sound = pair, sound
		}
	}
	var accounts []string
	for account, shard := range home {
		if o.sound[shard] {
			accounts = append(accounts, account)
		}
	}
	slices.Sort(accounts)
	for pair := range slices.Chunk(accounts[:min(16, len(accounts)/2*2)], 2) {
		o.pairs = append(o.pairs, [2]string{pair[0], pair[1]})
	}
	o.paid = make([]int, len(o.pairs))
	stay := slices.DeleteFunc(o.cluster.Nodes(), func(n string) bool { return slices.Contains(o.frozen, n) })
	o.near, err = client.New(client.Config{Addresses: endpoints(o.cluster, stay...)})
	must(o.t, err)
	o.t.Cleanup(func() { _ = o.near.Close() })
	o.t.Logf("the statement is in shard %d; %v freeze, %d of %d shards keep a quorum, %d pairs of accounts", o.consumer, o.frozen, len(o.sound), len(placed), len(o.pairs))
	if len(o.pairs) == 0 {
		o.t.Fatal("no accounts lie in shards that keep their quorum")
	}
	for _, pair := range o.pairs { // money for all transfers
		o.deposit(ctx, pair[0], "fund-"+pair[0], 1_000_000)
	}
}

func (o *outage) shardOfStatement(ctx context.Context, status *nodev1.StatusResponse) uint32 {
	o.t.Helper()
	var shard uint32
	must(o.t, eventually(within(o.t, time.Minute), "the statement's shard", func(context.Context) error {
		for _, s := range status.GetMeta().GetShards() {
			stream, err := o.links.Admin("n1").AuditLanes(ctx, &nodev1.AuditLanesRequest{Shard: s.GetShard(), AsDestination: true})
			if err != nil {
				return err
			}
			lane, err := stream.Recv()
			for ; err == nil; lane, err = stream.Recv() {
				if lane.GetDestination().GetKind() == "statement" {
					shard = s.GetShard()
					return nil
				}
			}
			if !errors.Is(err, io.EOF) { // not the end of the lanes
				return err
			}
		}
		return errors.New("it is in no shard")
	}))
	return shard
}

// awaitLeaders waits until a running node leads each shard that has a quorum.
func (o *outage) awaitLeaders(ctx context.Context) {
	o.t.Helper()
	must(o.t, eventually(ctx, "a leader for each shard with a quorum", func(ctx context.Context) error {
		for _, node := range o.cluster.Nodes() {
			if slices.Contains(o.frozen, node) {
				continue
			}
			status, err := o.links.Status(ctx, node)
			if err != nil {
				return err
			}
			for _, s := range status.GetShards() {
				if o.sound[s.GetShard()] && (s.GetLeader() == "" || slices.Contains(o.frozen, s.GetLeader())) {
					return fmt.Errorf("%s takes %q for the leader of shard %d", node, s.GetLeader(), s.GetShard())
				}
			}
		}
		return nil
	}))
}

// pay transfers money within each pair for a while; the result is how long each
// took from its order to the credit, in order.
func (o *outage) pay(ctx context.Context, d time.Duration) (took []time.Duration) {
	o.t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for i, pair := range o.pairs {
		wg.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				began := time.Now()
				o.paid[i]++
				_, err := o.near.Submit(ctx, "account", pair[0], fmt.Sprint("pay-", o.paid[i]), &accountv1.Transfer{To: pair[1], AmountMinor: 1, Currency: currency}, client.SubmitOptions{})
				if err == nil { // each credit is one version
					_, err = o.near.Read(ctx, "account", pair[1], client.ReadOptions{MinVersion: uint64(1 + o.paid[i])})
				}
				if err != nil {
					o.t.Errorf("transfer %d from %s to %s: %v", o.paid[i], pair[0], pair[1], err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
				pause(ctx, 200*time.Millisecond-time.Since(began))
			}
		})
	}
	wg.Wait()
	if len(took) == 0 {
		o.t.Fatal("no transfer was made")
	}
	slices.Sort(took)
	return took
}

// postings are those that the statement has added up; 0 while it does not answer.
func (o *outage) postings(ctx context.Context) uint64 {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	state, err := o.near.Read(ctx, "statement", "all", client.ReadOptions{})
	if err != nil {
		return 0
	}
	s, _ := state.State.(*accountv1.Statement)
	return s.GetByCurrency()[currency].GetPostings()
}

// want is the number of postings: one for each deposit, two for each transfer.
func (o *outage) want() uint64 {
	n := len(o.side.Ops()) + len(o.pairs)
	for _, paid := range o.paid {
		n += 2 * paid
	}
	return uint64(n)
}

// sent is the number of rows that the nodes have sent, repeats included.
func (o *outage) sent(ctx context.Context) (rows float64) {
	o.t.Helper()
	for _, node := range o.cluster.Nodes() {
		rows += o.metric(ctx, node, "writ_rows_sent_total")
	}
	return rows
}
