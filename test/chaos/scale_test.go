package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	nodev1 "writ/proto/writ/node/v1"
)

// settled checks that every shard has the wanted number of voters, all of them
// among the nodes, no learner, and a leader.
func settled(status *nodev1.StatusResponse, nodes []string, voters int) error {
	placed := map[uint32][]string{}
	for _, p := range status.GetMeta().GetShards() {
		for _, replica := range p.GetReplicas() {
			placed[p.GetShard()] = append(placed[p.GetShard()], replica.GetNode())
		}
		if n := len(p.GetReplicas()); n != voters {
			return fmt.Errorf("shard %d is placed on %d nodes", p.GetShard(), n)
		}
	}
	for shard, on := range placed {
		for _, node := range on {
			if !slices.Contains(nodes, node) {
				return fmt.Errorf("shard %d is placed on %s", shard, node)
			}
		}
	}
	for _, s := range status.GetShards() {
		if !s.GetLocal() {
			continue
		}
		if len(s.GetVoters()) != voters || len(s.GetLearners()) > 0 {
			return fmt.Errorf("shard %d has the voters %v and the learners %v", s.GetShard(), s.GetVoters(), s.GetLearners())
		}
		for _, v := range s.GetVoters() {
			if !slices.Contains(placed[s.GetShard()], v) {
				return fmt.Errorf("shard %d has the voter %s, but is placed on %v", s.GetShard(), v, placed[s.GetShard()])
			}
		}
	}
	return nil
}

// awaitSettled waits until the given nodes all report a settled placement.
func (r *rig) awaitSettled(ctx context.Context, nodes []string) {
	r.t.Helper()
	must(r.t, eventually(ctx, "a settled placement", func(ctx context.Context) error {
		version := uint64(0) // of the placement: one that is behind looks settled, too
		for i, node := range nodes {
			status, err := r.links.Status(ctx, node)
			if err != nil {
				return err
			}
			if err := settled(status, nodes, 3); err != nil {
				return fmt.Errorf("%s: %w", node, err)
			}
			v := status.GetMeta().GetVersion()
			if i > 0 && v != version {
				return fmt.Errorf("%s has version %d of the placement, %s has %d", node, v, nodes[0], version)
			}
			version = v
		}
		return nil
	}))
}

// From three nodes to five and back to three under load; then one of the three
// dies and nobody notices.
func TestProcessScale(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 12))
	r := start(t, ProcessConfig{})
	ctx := within(t, 8*time.Minute)
	w, hedge := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 4, Accounts: 40, Registers: 4, Think: 20 * time.Millisecond})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	defer func() { stop(); wg.Wait() }()

	first := r.cluster.Nodes()
	for _, node := range []string{"n4", "n5"} {
		must(t, r.process.Add(node))
		must(t, r.cluster.Start(node))
	}
	all := r.cluster.Nodes()
	wide := &rig{t: t, cluster: r.cluster, process: r.process, cli: r.cli, side: r.side}
	wide.connect()
	defer func() { _ = wide.links.Close(); _ = wide.client.Close() }()
	begin := time.Now()
	must(t, AwaitReady(within(t, 2*time.Minute), r.cluster, all...))
	must(t, eventually(ctx, "replicas on the new nodes", func(ctx context.Context) error {
		status, err := wide.links.Status(ctx, "n1")
		if err != nil {
			return err
		}
		held := map[string]int{}
		for _, p := range status.GetMeta().GetShards() {
			for _, replica := range p.GetReplicas() {
				held[replica.GetNode()]++
			}
		}
		if held["n4"] == 0 || held["n5"] == 0 {
			return fmt.Errorf("replicas by node: %v", held)
		}
		return nil
	}))
	wide.awaitSettled(within(t, 3*time.Minute), all)
	t.Logf("from 3 to 5 nodes in %v", time.Since(begin).Round(time.Millisecond))

	for _, node := range []string{"n5", "n4"} {
		begin := time.Now()
		res, err := r.cli.Run(within(t, 3*time.Minute), "cluster", "remove", "--addr", wide.addr(), "--wait", "2m", node)
		must(t, err)
		if res.Code != 0 {
			t.Fatalf("remove %s: exit %d: %s%s", node, res.Code, res.Stdout, res.Stderr)
		}
		t.Logf("removed %s in %v", node, time.Since(begin).Round(time.Millisecond))
		stopping, cancel := context.WithTimeout(ctx, 15*time.Second)
		code, _, err := r.cluster.Stop(stopping, node)
		cancel()
		must(t, err)
		if code != 0 {
			t.Errorf("%s ended with exit code %d", node, code)
		}
		r.process.Remove(node)
	}
	r.awaitSettled(within(t, 2*time.Minute), first)
	r.kill("n2")
	r.deposit(ctx, "after", "with two of three", 1)
	r.side.Add(Op{Action: Deposit, Account: "after", Key: "with two of three", Amount: 1, Answer: r.again(ctx, "after", "with two of three", 1)})
	r.up("n2")
	stop()
	wg.Wait()
	r.verify(w, hedge)
}

// again sends a deposit once more and returns its answer.
func (r *rig) again(ctx context.Context, account, key string, amount int64) Answer {
	return (&Library{Client: r.client}).Do(ctx, Op{Action: Deposit, Account: account, Key: key, Amount: amount})
}

// Random faults, one after the other, under load of several clients with
// retries, hedges and lost answers; all checkers at the end.
func TestProcessNemesis(t *testing.T) {
	random := rand.New(rand.NewPCG(seed(t), 14))
	kinds := []Fault{FaultKill, FaultPause, FaultStorm, FaultRolling, FaultAll}
	r := prepare(t, ProcessConfig{Args: []string{"--free-min-mb", lowDiskMB}})
	if long() {
		kinds = append(kinds, r.ownFaults("n2")...)
	}
	r.up(r.cluster.Nodes()...)
	ctx := within(t, pick(4*time.Minute, 90*time.Minute))
	w, hedge := r.load(WorkloadConfig{
		Seed: random.Uint64(), Clients: pick(8, 16), Accounts: 60, Registers: pick(8, 40), Think: pick(10*time.Millisecond, 40*time.Millisecond),
	})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	n := &Nemesis{Cluster: r.cluster, Steps: Plan(random.Uint64(), r.cluster.Nodes(),
		kinds, pick(5, 64), pick(1500*time.Millisecond, 6*time.Second))}
	err := n.Run(ctx)
	stop()
	wg.Wait()
	t.Logf("what was done: %v\n%s", n.Faults(), n.Report())
	r.check("faults", err)
	r.verify(w, hedge)
}
