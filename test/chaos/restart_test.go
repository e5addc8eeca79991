package chaos

import (
	"context"
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	nodev1 "writ/proto/writ/node/v1"
	"writ/test/check"
)

// content is what a shard holds, apart from Raft's own index and term.
type content struct {
	Entities, Live, Expired, Effects, Numbered, Pending, Applied uint64
	Hash                                                         string
}

// contents audits every shard; all replicas must be equal. It waits for those that
// cannot be asked or are no replicas yet.
func (r *rig) contents(ctx context.Context) map[uint32]content {
	r.t.Helper()
	all := map[uint32]content{}
	node := r.running()[0]
	status, err := r.links.Status(ctx, node)
	must(r.t, err)
	for _, s := range status.GetMeta().GetShards() {
		var a *nodev1.AuditShardResponse
		must(r.t, eventually(ctx, fmt.Sprintf("audit of shard %d", s.GetShard()), func(ctx context.Context) (err error) {
			a, err = r.links.Admin(node).AuditShard(ctx, &nodev1.AuditShardRequest{Shard: s.GetShard(), Audit: rand.Text()})
			if err != nil || len(a.GetFindings()) > 0 {
				return err
			}
			for _, replica := range a.GetReplicas() {
				if replica.GetError() != "" {
					return fmt.Errorf("%s: %s", replica.GetNode(), replica.GetError())
				}
			}
			if have, want := len(a.GetReplicas()), len(s.GetReplicas()); have < want {
				return fmt.Errorf("%d of %d replicas", have, want)
			}
			return nil
		}))
		if !a.GetReplicasEqual() || len(a.GetFindings()) > 0 || len(a.GetReplicas()) != len(s.GetReplicas()) {
			r.t.Errorf("shard %d: replicas equal %v, findings %v, replicas %v", s.GetShard(), a.GetReplicasEqual(), a.GetFindings(), a.GetReplicas())
		}
		c := content{
			Entities: a.GetEntities(), Live: a.GetKeysLive(), Expired: a.GetKeysExpired(), Effects: a.GetEffects(),
			Numbered: a.GetRowsNumbered(), Pending: a.GetRowsPending(), Applied: a.GetApplied(),
		}
		if len(a.GetReplicas()) > 0 {
			c.Hash = fmt.Sprintf("%x", a.GetReplicas()[0].GetHash())
		}
		all[s.GetShard()] = c
	}
	return all
}

// All nodes are killed again and again at random moments of their start, after
// all keys have expired: the content stays the same to the bit.
func TestProcessRestartChangesNothing(t *testing.T) {
	t.Parallel()
	random := mrand.New(mrand.NewPCG(seed(t), 2))
	r := start(t, ProcessConfig{Args: []string{"--window", "2s", "--retry-horizon", "2s"}})
	ctx := within(t, 5*time.Minute)
	w, _ := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 8, Accounts: 40, Registers: 10, OpsPerClient: 40})
	w.Run(ctx)

	// Wait until nothing changes by itself any more: all keys are expired.
	var before map[uint32]content
	must(t, eventually(ctx, "expiry of all keys", func(ctx context.Context) error {
		before = r.contents(ctx)
		for shard, c := range before {
			if c.Live > 0 || c.Pending > 0 {
				return fmt.Errorf("shard %d: %d keys live, %d rows pending", shard, c.Live, c.Pending)
			}
		}
		return nil
	}))
	money := r.balances(ctx, w.Accounts())

	for round := range pick(3, 20) {
		nodes := r.cluster.Nodes()
		r.kill(nodes...)
		for range random.IntN(3) {
			for _, node := range nodes {
				must(t, r.cluster.Start(node))
			}
			pause(ctx, time.Duration(random.Int64N(int64(1500*time.Millisecond))))
			r.kill(nodes...)
		}
		random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		r.up(nodes...)
		if diff := cmp.Diff(before, r.contents(ctx)); diff != "" {
			t.Fatalf("round %d: the content has changed:\n%s", round, diff)
		}
		if diff := cmp.Diff(money, r.balances(ctx, w.Accounts())); diff != "" {
			t.Fatalf("round %d: balances have changed:\n%s", round, diff)
		}
	}
	r.audit()
}

// All nodes are killed at random moments under load, with snapshots and
// replays of the log; every answer given stays true.
func TestProcessKillAllUnderLoad(t *testing.T) {
	onlyLong(t)
	random := mrand.New(mrand.NewPCG(seed(t), 3))
	r := start(t, ProcessConfig{})
	ctx := within(t, 10*time.Minute)
	w, hedge := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 8, Accounts: 40, Registers: 8, Think: 10 * time.Millisecond})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	n := &Nemesis{Cluster: r.cluster, Steps: Plan(random.Uint64(), r.cluster.Nodes(), []Fault{FaultAll}, 10, 2*time.Second)}
	err := n.Run(ctx)
	stop()
	wg.Wait()
	t.Logf("what was done:\n%s", n.Report())
	r.check("faults", err)
	r.verify(w, hedge)
}

// probes starts one probe for each shard; the function ends them.
func (r *rig) probes(ctx context.Context, prefix string, door Door) (map[uint32]*Probe, func()) {
	r.t.Helper()
	home := onePerShard(r.deposits(ctx, prefix, 64))
	probes := map[uint32]*Probe{}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for shard, account := range home {
		p := &Probe{Account: account, Door: door, Every: 50 * time.Millisecond, Patience: 10 * time.Second, Prefix: prefix}
		probes[shard] = p
		wg.Go(func() { p.Run(ctx) })
	}
	// The first answers: everything is warm.
	must(r.t, eventually(ctx, "first answers", func(context.Context) error {
		for shard, p := range probes {
			if p.Executed() < 3 {
				return fmt.Errorf("shard %d: %d", shard, p.Executed())
			}
		}
		return nil
	}))
	return probes, func() {
		cancel()
		wg.Wait()
		for _, p := range probes {
			for _, op := range p.Ops() {
				r.side.Add(op)
			}
		}
	}
}

// A rolling restart of all nodes under load, driven by readiness: exit code 0
// in under 10 s, no error that the client's retry does not absorb, no shard held up
// for long.
func TestProcessRollingRestart(t *testing.T) {
	random := mrand.New(mrand.NewPCG(seed(t), 4))
	r := start(t, ProcessConfig{})
	ctx := within(t, 5*time.Minute)
	w, hedge := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 4, Accounts: 40, Registers: 4, Think: 20 * time.Millisecond, Prefix: "w-"})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	probes, end := r.probes(ctx, "roll", &Library{Client: r.client})

	moves := r.planned(probes)
	for range pick(1, 5) {
		for _, node := range r.cluster.Nodes() {
			moves.round(ctx, node+" stops and comes back", func() string {
				begin := time.Now()
				stopping, cancel := context.WithTimeout(ctx, 15*time.Second)
				code, took, err := r.cluster.Stop(stopping, node)
				cancel()
				must(t, err)
				if code != 0 || took > 10*time.Second {
					t.Errorf("%s: exit code %d after %v; want 0 in under 10 s", node, code, took)
				}
				r.up(node)
				ready := time.Since(begin) - took
				r.replaysAt(ctx, node, w.History().Ops())
				return fmt.Sprintf("stopped in %v, ready again after %v", millis(took), millis(ready))
			})
		}
	}
	stop()
	wg.Wait()
	end()
	for shard, p := range probes {
		for _, op := range p.Ops() {
			if op.Answer.Verdict != Executed {
				t.Errorf("shard %d: the client did not absorb: %+v", shard, op)
			}
		}
	}
	r.verify(w, hedge)
	moves.judge()
}

// replaysAt sends old commands to one node that has just said that it is ready:
// it knows all of them.
func (r *rig) replaysAt(ctx context.Context, node string, ops []Op) {
	r.t.Helper()
	ops = slices.DeleteFunc(ops, func(op Op) bool {
		return op.Key == "" || (op.Answer.Verdict != Executed && op.Answer.Verdict != Rejected)
	})
	ops = ops[max(0, len(ops)-500):]
	r.check("replays by "+node+" as soon as it is ready", check.Replays(ops, Resend(ctx, &Rounds{Links: r.links, Nodes: []string{node}}, ops)))
}
