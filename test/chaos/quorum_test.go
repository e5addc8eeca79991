package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	writv1 "writ/proto/writ/v1"
)

// Both followers freeze while fifty commands are in flight at the leader: the
// clients learn that the outcome is unknown, the node says within 10 s that it is
// not ready, and of the shard why, but stays alive; when the others wake, each key
// has executed once.
func TestProcessQuorumLost(t *testing.T) {
	t.Parallel()
	r := start(t, ProcessConfig{})
	ctx := within(t, 3*time.Minute)
	nodes := r.cluster.Nodes()
	home := r.deposits(ctx, "quorum-", 1)
	leaders, err := r.links.Leaders(ctx, nodes)
	must(t, err)
	leader := leaders[home["quorum-0"]]

	frozenAt := time.Now()
	for _, node := range others(r.cluster, leader) {
		must(t, r.cluster.Pause(node))
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		ops   []Op
		not   = map[string]bool{} // said to be not executed
		seen  = map[string]int{}
		wrong []Answer
	)
	for i := range 50 {
		op := Op{Action: Deposit, Account: "quorum-0", Amount: 1, Key: fmt.Sprintf("in-flight-%d", i)}
		wg.Go(func() {
			one, cancel := context.WithTimeout(ctx, 8*time.Second)
			defer cancel()
			a := call(one, r.links.Entity(leader), op)
			mu.Lock()
			defer mu.Unlock()
			ops = append(ops, op)
			not[op.Key] = a.Reason == "NOT_EXECUTED"
			seen[strings.TrimSpace(a.Code.String()+" "+a.Reason)]++
			if a.Verdict != Unknown || (a.Code != codes.Unavailable && a.Code != codes.DeadlineExceeded) {
				wrong = append(wrong, a)
			}
		})
	}
	shard := home["quorum-0"]
	soon, cancel := context.WithDeadline(ctx, frozenAt.Add(10*time.Second))
	defer cancel()
	var why Readiness
	must(t, eventually(soon, "not ready without a majority, with the shard's reason", func(ctx context.Context) (err error) {
		why, err = ReadinessOf(ctx, r.cluster, leader)
		if err == nil && (why.Ready || why.Shards[shard] == "") {
			err = fmt.Errorf("ready %v, shard %d: %+v", why.Ready, shard, why)
		}
		return err
	}))
	took := time.Since(frozenAt)
	// A liveness probe must not restart it, over HTTP or gRPC.
	r.wantHealth(soon, leader, map[string]bool{
		"": true, "liveness": true, "startup": true, "readiness": false, "writ.v1.EntityService": false, fmt.Sprintf("shard/%d", shard): false,
	})
	r.wantAlive(ctx, leader)
	wg.Wait()
	t.Logf("answers without a majority: %v; not ready after %v: %+v", seen, millis(took), why)
	for _, a := range wrong {
		t.Errorf("without a majority: %+v", a)
	}
	for _, node := range others(r.cluster, leader) {
		must(t, r.cluster.Resume(node))
	}
	must(t, AwaitReady(within(t, time.Minute), r.cluster, nodes...))
	for _, op := range ops {
		if not[op.Key] && r.outcome(ctx, op) == writv1.OutcomeResponse_EXECUTED {
			t.Errorf("key %q was executed although the answer had been NOT_EXECUTED", op.Key)
		}
	}
	for key, a := range Resend(ctx, &Rounds{Links: r.links, Nodes: nodes}, ops) {
		if a.Verdict != Executed {
			t.Errorf("key %q: %+v", key, a)
		}
	}
	if got := r.balances(ctx, []string{"quorum-0"})["quorum-0"].Amount; got != 150 {
		t.Errorf("balance %d, want 150", got)
	}
	r.audit()
}

// outcome is what became of a deposit's key.
func (r *rig) outcome(ctx context.Context, op Op) (state writv1.OutcomeResponse_State) {
	r.t.Helper()
	must(r.t, eventually(ctx, "outcome of "+op.Key, func(ctx context.Context) error {
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		res, err := r.links.Entity(r.running()[0]).Outcome(one, &writv1.OutcomeRequest{
			Entity: &writv1.EntityRef{Kind: "account", Id: op.Account}, IdempotencyKey: op.Key, CommandType: "writ.account.v1.Deposit",
		})
		state = res.GetState()
		return err
	}))
	return state
}

// Each node in turn loses its disk under load and is filled again by the others
// under a new replica generation.
func TestProcessRefill(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 15))
	r := start(t, ProcessConfig{})
	ctx := within(t, 5*time.Minute)
	nodes := r.cluster.Nodes()
	w, hedge := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 4, Accounts: 40, Registers: 4, Think: 20 * time.Millisecond})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	defer func() { stop(); wg.Wait() }()

	generations := r.generations(ctx)
	for _, node := range nodes[:pick(2, 3)] {
		r.kill(node)
		must(t, r.cluster.Wipe(node))
		begin := time.Now()
		must(t, r.cluster.Start(node))
		must(t, AwaitReady(within(t, 90*time.Second), r.cluster, nodes...))
		r.wantVotes(ctx, node)
		r.awaitSettled(within(t, time.Minute), nodes)
		t.Logf("%s lost its disk: filled again after %v", node, time.Since(begin).Round(time.Millisecond))
		after := r.generations(ctx)
		for shard, generation := range after[node] {
			if before := generations[node][shard]; generation <= before {
				t.Errorf("%s came back to shard %d as replica generation %d, was %d", node, shard, generation, before)
			}
		}
		generations = after
	}
	stop()
	wg.Wait()
	r.verify(w, hedge)
}

// wantVotes wants a node that says that it is ready to have a vote in every shard, by
// the word of the shard's leader.
func (r *rig) wantVotes(ctx context.Context, node string) {
	r.t.Helper()
	checked := 0
	for _, leader := range r.cluster.Nodes() {
		status, err := r.links.Status(ctx, leader)
		must(r.t, err)
		for _, s := range status.GetShards() {
			if s.GetLeader() != leader {
				continue
			}
			checked++
			if !slices.Contains(s.GetVoters(), node) {
				r.t.Errorf("%s is ready, and does not vote in shard %d: voters %v, learners %v", node, s.GetShard(), s.GetVoters(), s.GetLearners())
			}
		}
	}
	if checked == 0 {
		r.t.Error("no leader was asked")
	}
}

// generations are the replica generations by node and shard, as placed.
func (r *rig) generations(ctx context.Context) map[string]map[uint32]uint64 {
	r.t.Helper()
	status, err := r.links.Status(ctx, r.running()[0])
	must(r.t, err)
	all := map[string]map[uint32]uint64{}
	for _, p := range status.GetMeta().GetShards() {
		for _, replica := range p.GetReplicas() {
			if all[replica.GetNode()] == nil {
				all[replica.GetNode()] = map[uint32]uint64{}
			}
			all[replica.GetNode()][p.GetShard()] = replica.GetGeneration()
		}
	}
	return all
}

// A node is drained under load and taken back.
func TestProcessDrain(t *testing.T) {
	r := start(t, ProcessConfig{})
	ctx := within(t, 3*time.Minute)
	nodes := r.cluster.Nodes()
	probes, end := r.probes(ctx, "drain", &Library{Client: r.client})
	leads := func() (n int) {
		leaders, err := r.links.Leaders(ctx, nodes)
		must(t, err)
		for _, leader := range leaders {
			if leader == "n2" {
				n++
			}
		}
		return n
	}
	moves := r.planned(probes)
	for range pick(1, 5) {
		moves.round(ctx, "n2 is drained and taken back", func() string {
			r.awaitPreferred(ctx)
			begin := time.Now()
			var drained struct {
				Node, State string
				Done        bool
			}
			r.verb(&drained, "drain", "n2", "--wait", "30s")
			took := time.Since(begin)
			if drained.Node != "n2" || drained.State != "draining" || !drained.Done {
				t.Errorf("drain says %+v", drained)
			}
			// An election that was on its way may have given it one more, for a moment.
			must(t, eventually(within(t, 30*time.Second), "the drained node leads nothing", func(context.Context) error {
				if n := leads(); n > 0 {
					return fmt.Errorf("it leads %d shards", n)
				}
				return nil
			}))
			r.verb(&drained, "drain", "n2", "--undo")
			must(t, eventually(within(t, 30*time.Second), "the node leads again", func(context.Context) error {
				if leads() == 0 {
					return errors.New("it leads nothing")
				}
				return nil
			}))
			r.awaitPreferred(ctx)
			return fmt.Sprintf("drained in %v", millis(took))
		})
	}
	end()
	for shard, p := range probes {
		for _, op := range p.Ops() {
			if op.Answer.Verdict != Executed {
				t.Errorf("shard %d: the client did not absorb: %+v", shard, op)
			}
		}
	}
	r.audit()
	moves.judge()
}

// verb runs a verb of `node cluster` with --json and wants exit status 0 and one
// object; what it lacks of into stays as it was.
func (r *rig) verb(into any, args ...string) {
	r.t.Helper()
	args = append([]string{"cluster"}, args...)
	res, err := r.cli.Run(within(r.t, 3*time.Minute), append(args, "--json", "--addr", r.addr())...)
	must(r.t, err)
	if res.Code != 0 {
		r.t.Fatalf("%v: exit %d: %s%s", args, res.Code, res.Stdout, res.Stderr)
	}
	if err := json.Unmarshal(res.Stdout, into); err != nil {
		r.t.Fatalf("%v: %v: %s", args, err, res.Stdout)
	}
}
