package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	nodev1 "writ/proto/writ/node/v1"
)

// message runs `node cluster VERB --json`, which prints a message.
func (r *rig) message(into proto.Message, verb string) {
	r.t.Helper()
	res, err := r.cli.Run(within(r.t, 20*time.Second), "cluster", verb, "--json", "--addr", r.addr())
	must(r.t, err)
	if res.Code != 0 {
		r.t.Fatalf("cluster %s: exit %d: %s", verb, res.Code, res.Stderr)
	}
	if err := protojson.Unmarshal(res.Stdout, into); err != nil {
		r.t.Fatalf("cluster %s: %v: %s", verb, err, res.Stdout)
	}
}

// move is an order that leaves the nodes as even as they are, so that nothing
// moves back by itself.
type move struct {
	shard    uint32
	from, to string
	leads    bool // from leads the shard
}

// evenMove chooses a replica on a node with one more than another that has none of
// the shard; the leader's, if there is one, and rather to the wanted node.
func evenMove(s *nodev1.StatusResponse, wanted string) (move, error) {
	held, on := map[string]int{}, map[uint32][]string{}
	for _, p := range s.GetMeta().GetShards() {
		for _, replica := range p.GetReplicas() {
			held[replica.GetNode()]++
			on[p.GetShard()] = append(on[p.GetShard()], replica.GetNode())
		}
	}
	var best move
	score := func(m move) (n int) {
		if m.to == wanted {
			n += 2
		}
		if m.leads {
			n++
		}
		return n
	}
	for _, p := range s.GetMeta().GetShards() {
		for _, from := range on[p.GetShard()] {
			for to := range s.GetMeta().GetNodes() {
				if held[from] != held[to]+1 || slices.Contains(on[p.GetShard()], to) {
					continue
				}
				m := move{p.GetShard(), from, to, p.GetPreferred() == from}
				if best.to == "" || score(m) > score(best) {
					best = m
				}
			}
		}
	}
	if best.to == "" {
		return best, fmt.Errorf("no replica can be moved that leaves the nodes even: %v", held)
	}
	return best, nil
}

// A shard's replica moves to another node under load, as an operator orders it; what
// the verbs print for scripts is what has become of the cluster.
func TestProcessMoveShard(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 22))
	// 21 replicas on four nodes: one node has one more than the others.
	r := start(t, ProcessConfig{Nodes: []string{"n1", "n2", "n3", "n4"}, Args: []string{"--shards", "7"}})
	ctx := within(t, 8*time.Minute)
	nodes := r.cluster.Nodes()
	w, hedge := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 4, Accounts: 40, Registers: 4, Think: 20 * time.Millisecond, Prefix: "w-"})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	defer func() { stop(); wg.Wait() }()
	probes, end := r.probes(ctx, "move", &Library{Client: r.client})
	moves := r.planned(probes)
	for range pick(2, 10) {
		moves.round(ctx, "a shard moves", func() string {
			r.awaitPreferred(ctx)
			before := &nodev1.StatusResponse{}
			r.message(before, "shards")
			m, err := evenMove(before, "n4")
			must(t, err)
			return r.moveShard(ctx, m, before)
		})
	}
	end()
	stop()
	wg.Wait()
	for shard, p := range probes {
		for _, op := range p.Ops() {
			if op.Answer.Verdict != Executed {
				t.Errorf("shard %d: the client did not absorb: %+v", shard, op)
			}
		}
	}
	r.awaitSettled(ctx, nodes)
	r.verify(w, hedge)
	moves.judge()
}

// moveShard carries a move out and checks what the verbs say behind it.
func (r *rig) moveShard(ctx context.Context, m move, before *nodev1.StatusResponse) string {
	r.t.Helper()
	var moved struct {
		Shard    uint32
		From, To string
		Leader   string
		Voters   []string
		Done     bool
		Left     int
		Seconds  float64
	}
	begin := time.Now()
	r.verb(&moved, "move", fmt.Sprint(m.shard), "--from", m.from, "--to", m.to, "--wait", "2m")
	took := time.Since(begin)
	if moved.Shard != m.shard || moved.From != m.from || moved.To != m.to || !moved.Done || moved.Left != 0 || moved.Leader == "" ||
		moved.Seconds <= 0 || !slices.Contains(moved.Voters, m.to) || slices.Contains(moved.Voters, m.from) {
		r.t.Errorf("move %+v says %+v", m, moved)
	}
	newest := uint64(0)
	for _, p := range before.GetMeta().GetShards() {
		for _, replica := range p.GetReplicas() {
			newest = max(newest, replica.GetGeneration())
		}
	}
	r.wantMoved(ctx, m, newest)

	registry := &nodev1.MetaState{}
	r.message(registry, "nodes")
	for _, node := range r.cluster.Nodes() {
		if e := registry.GetNodes()[node]; e.GetState() != nodev1.NodeEntry_ACTIVE || e.GetName() != node || e.GetIncarnation() == "" {
			r.t.Errorf("cluster nodes says of %s: %v", node, e)
		}
	}
	if n := len(registry.GetNodes()); n != len(r.cluster.Nodes()) || registry.GetClusterId() != before.GetClusterId() {
		r.t.Errorf("cluster nodes: %d nodes of cluster %s", n, registry.GetClusterId())
	}
	// A leadership that goes its way makes a node unready for a moment.
	must(r.t, eventually(within(r.t, 30*time.Second), "cluster status", func(context.Context) error {
		status := &nodev1.StatusResponse{}
		r.message(status, "status")
		alive := 0
		for _, member := range status.GetMembers() {
			if member.GetAlive() && r.cluster.Addrs(member.GetName()).GRPC == member.GetGrpc() {
				alive++
			}
		}
		if alive != len(r.cluster.Nodes()) || !slices.Contains(r.cluster.Nodes(), status.GetMetaLeader()) || !status.GetReady() {
			return fmt.Errorf("%d nodes alive at their addresses, leader of the meta group %q, ready %v", alive, status.GetMetaLeader(), status.GetReady())
		}
		return nil
	}))
	leads := ""
	if m.leads {
		leads = ", its leader,"
	}
	return fmt.Sprintf("shard %d from %s%s to %s in %v", m.shard, m.from, leads, m.to, millis(took))
}

// wantMoved wants `node cluster shards` to show the new replica, of a generation that
// was never used, and the old node to have dropped its own.
func (r *rig) wantMoved(ctx context.Context, m move, newest uint64) {
	r.t.Helper()
	must(r.t, eventually(ctx, "the moved shard", func(context.Context) error {
		after := &nodev1.StatusResponse{}
		r.message(after, "shards")
		var on []string
		for _, p := range after.GetMeta().GetShards() {
			if p.GetShard() != m.shard {
				continue
			}
			for _, replica := range p.GetReplicas() {
				on = append(on, replica.GetNode())
				if replica.GetNode() == m.to && replica.GetGeneration() <= newest {
					return &finalError{fmt.Errorf("%s has replica generation %d, and %d was given out before", m.to, replica.GetGeneration(), newest)}
				}
			}
		}
		if len(on) != 3 || !slices.Contains(on, m.to) || slices.Contains(on, m.from) {
			return fmt.Errorf("shard %d is placed on %v", m.shard, on)
		}
		for _, s := range after.GetShards() {
			if s.GetShard() == m.shard && (len(s.GetVoters()) != 3 || len(s.GetLearners()) > 0 || !slices.Contains(on, s.GetLeader())) {
				return fmt.Errorf("shard %d: %v", m.shard, s)
			}
		}
		old, err := r.links.Status(ctx, m.from)
		if err != nil {
			return err
		}
		for _, s := range old.GetShards() {
			if s.GetShard() == m.shard && s.GetLocal() {
				return fmt.Errorf("%s still has a replica", m.from)
			}
		}
		return nil
	}))
}

// A node dies and does not come back: after the grace time its replicas are placed on
// the others, and the cluster survives the next loss; when the node returns it gets
// its share again.
func TestProcessDeadNodeIsReplaced(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 23))
	const grace = 3 * time.Second
	r := start(t, ProcessConfig{Nodes: []string{"n1", "n2", "n3", "n4"}, Args: []string{"--dead-grace", grace.String()}})
	ctx := within(t, 6*time.Minute)
	w, hedge := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 4, Accounts: 40, Registers: 4, Think: 20 * time.Millisecond})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	defer func() { stop(); wg.Wait() }()
	r.awaitSettled(ctx, r.cluster.Nodes())

	dead := r.cluster.Nodes()[random.IntN(4)]
	rest := others(r.cluster, dead)
	held := r.generations(ctx)[dead]
	if len(held) == 0 {
		t.Fatalf("%s holds nothing: its loss proves nothing", dead)
	}
	killed := time.Now()
	r.kill(dead)
	r.awaitSettled(within(t, 2*time.Minute), rest)
	took := time.Since(killed)
	t.Logf("%s died with %d replicas: all shards have three voters elsewhere after %v, %v of them grace", dead, len(held), millis(took), grace)
	if took < grace {
		t.Errorf("its replicas were placed anew after %v, before the grace time of %v was over", took, grace)
	}
	status, err := r.links.Status(ctx, rest[0])
	must(t, err)
	if e := status.GetMeta().GetNodes()[dead]; e.GetState() != nodev1.NodeEntry_ACTIVE {
		t.Errorf("%s is %v: an absence is no removal", dead, e.GetState())
	}

	must(t, eventually(within(t, time.Minute), "a meta group of the living", func(ctx context.Context) error {
		status, err := r.links.Status(ctx, rest[0])
		if err == nil && slices.Contains(status.GetMetaVoters(), dead) {
			err = fmt.Errorf("the meta group has voters %v", status.GetMetaVoters())
		}
		return err
	}))

	// Three live nodes of three survive the loss of one.
	next := rest[random.IntN(3)]
	r.kill(next)
	op := Op{Action: Deposit, Account: "next", Key: "one more is lost", Amount: 1}
	op.Answer = r.again(ctx, op.Account, op.Key, op.Amount)
	if op.Answer.Verdict != Executed {
		t.Errorf("with %s and %s lost: %+v", dead, next, op.Answer)
	}
	r.side.Add(op)
	two := slices.DeleteFunc(slices.Clone(rest), func(node string) bool { return node == next })
	must(t, AwaitReady(within(t, time.Minute), r.cluster, two...)) // ready takes a leader of the meta group
	r.up(next)

	must(t, r.cluster.Start(dead))
	must(t, AwaitReady(within(t, time.Minute), r.cluster, r.cluster.Nodes()...))
	must(t, eventually(within(t, 2*time.Minute), "replicas on the node that is back", func(ctx context.Context) error {
		again := r.generations(ctx)[dead]
		if len(again) == 0 {
			return errors.New("it has none")
		}
		for shard, generation := range again {
			if before, ok := held[shard]; ok && generation <= before {
				return &finalError{fmt.Errorf("it came back to shard %d as generation %d", shard, generation)}
			}
		}
		return nil
	}))
	r.awaitSettled(within(t, 2*time.Minute), r.cluster.Nodes())
	stop()
	wg.Wait()
	r.verify(w, hedge)
}
