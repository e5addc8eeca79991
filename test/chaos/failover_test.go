package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"writ/actors/client"
)

// What a failover may cost users of the Go client.
const (
	// killedPause is how long a shard may fail to answer after its leader was killed:
	// the leader's connections end, and its successor stands for election at once.
	killedPause = 500 * time.Millisecond
	// disturbed is how long something else, a disk or other processes, may hold the
	// machine up. If the p99 at other shards is already longer before the kill, or
	// none of them answers for longer after it, or the machine was held up by its own
	// account, the round is run again, and its pauses and retries do not count. That
	// does not hide a failover that holds up other shards: each of their clients would
	// have one slow call in forty, and their p99 is compared in every round that was
	// undisturbed before its kill and on a machine that was not held up half as long.
	disturbed = killedPause / 2
	// tries is how often a round may be run.
	tries = 4
	// lostPause is the same as killedPause for a leader that falls silent: its
	// followers' patience has to end first.
	lostPause = 3 * time.Second
	// retriesMax is how many retries a call may need that was on its way when its
	// leader went, or was begun during the failover. A retry is an attempt that was
	// sent to a node after the first, for whatever reason: an error, an unknown
	// outcome, a refused connection, no answer.
	retriesMax = 1
	// window is how long before the kill, and from it on, calls to shards that
	// other nodes lead are compared.
	window = 2 * time.Second
	// slowdown and noise bound what these calls may cost more: the 99th percentile
	// may double or grow by noise, whichever is more. In a quiet window it is a few ms,
	// and two processes that get in each other's way may add as much by chance. Noise is
	// far below the length of any failover, so calls that wait for one stand out: in
	// every round with that node. One in which they do not shows that it was chance, and
	// so many in which they do that it was not.
	slowdown = 2
	noise    = 20 * time.Millisecond
	enough   = 3
)

// users are clients that call each shard all the time.
type users struct {
	clients []*client.Client
	// probes of each shard, one of each client.
	probes map[uint32][]*Probe
	end    func()

	mu sync.Mutex
	// trouble is what the clients were told of attempts that failed.
	trouble []string
}

// users starts n clients of the nodes, each with connections of its own and an
// account in each shard, to which it sends one deposit after the other.
func (r *rig) users(ctx context.Context, prefix string, n int, nodes ...string) *users {
	r.t.Helper()
	accounts := map[uint32][]string{}
	home := r.deposits(ctx, prefix+"-", 64+16*n) // eight shards: enough for each
	for _, account := range slices.Sorted(maps.Keys(home)) {
		if strings.HasPrefix(account, prefix+"-") {
			accounts[home[account]] = append(accounts[home[account]], account)
		}
	}
	u := &users{probes: map[uint32][]*Probe{}}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	u.end = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		for _, c := range u.clients {
			_ = c.Close()
		}
	})
	r.t.Cleanup(u.end)
	for i := range n {
		c, err := client.New(client.Config{Addresses: endpoints(r.cluster, nodes...), Troubled: u.troubled})
		must(r.t, err)
		u.clients = append(u.clients, c)
		for shard, names := range accounts {
			if len(names) < n {
				r.t.Fatalf("shard %d has %d accounts for %d clients", shard, len(names), n)
			}
			p := &Probe{Account: names[i], Door: &Library{Client: c}, Every: 50 * time.Millisecond, Patience: 20 * time.Second, Prefix: prefix}
			u.probes[shard] = append(u.probes[shard], p)
			wg.Go(func() { p.Run(ctx) })
		}
	}
	return u
}

func (u *users) troubled(e *client.Error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.trouble = append(u.trouble, fmt.Sprintf("%s attempt %d at %s: %v", time.Now().Format("15:04:05.000"), e.Attempts, e.Address, e))
}

// troubles are the last of the clients' troubles.
func (u *users) troubles() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return strings.Join(u.trouble[max(0, len(u.trouble)-100):], "\n")
}

// reach waits until all calls have their answers that were begun before the moment.
func (u *users) reach(ctx context.Context, at time.Time) error {
	return eventually(ctx, "an answer from each shard", func(context.Context) error {
		for shard, probes := range u.probes {
			for _, p := range probes {
				if !p.Past(at) {
					return fmt.Errorf("shard %d: none", shard)
				}
			}
		}
		return nil
	})
}

// cost is what a failover cost the users.
type cost struct {
	// pauses of the shards that the node led, and of the others: each client's.
	pauses, others []time.Duration
	// calls from the failover on, and how many of them needed retries.
	calls, retried int
	// worst are calls that needed more retries than they may.
	worst []Op
	// before and after are latencies at the other shards.
	before, after []time.Duration
}

func (c *cost) add(more cost) {
	c.pauses, c.worst = append(c.pauses, more.pauses...), append(c.worst, more.worst...)
	c.calls, c.retried = c.calls+more.calls, c.retried+more.retried
}

// cost compares the window before the moment with the one from it on.
func (u *users) cost(leaders map[uint32]string, node string, at time.Time) cost {
	var c cost
	for shard, probes := range u.probes {
		for _, p := range probes {
			after := p.Between(at, at.Add(window))
			for _, op := range after {
				c.calls++
				if op.Answer.Calls > 1 {
					c.retried++
				}
				if op.Answer.Calls > 1+retriesMax {
					c.worst = append(c.worst, op)
				}
			}
			if leaders[shard] == node {
				c.pauses = append(c.pauses, p.Pause(at))
				continue
			}
			c.others = append(c.others, p.Pause(at))
			c.after = append(c.after, latencies(after)...)
			// Not those in flight at the moment: they belong to what comes after.
			before := slices.DeleteFunc(p.Between(at.Add(-window), at), func(op Op) bool { return op.Return >= p.At(at) })
			c.before = append(c.before, latencies(before)...)
		}
	}
	return c
}

func latencies(ops []Op) []time.Duration {
	all := make([]time.Duration, 0, len(ops))
	for _, op := range ops {
		all = append(all, op.Return-op.Call)
	}
	return all
}

func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(all))[(len(all)-1)*99/100]
}

func millis(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// served fails the test unless every command was executed.
func (r *rig) served(u *users) {
	r.t.Helper()
	u.end()
	for shard, probes := range u.probes {
		for _, p := range probes {
			for _, op := range p.Ops() {
				if op.Answer.Verdict != Executed {
					r.t.Errorf("shard %d: %+v", shard, op)
				}
			}
		}
	}
}

// Each node in turn is killed, with the leaders of its shards, while several Go
// clients that know all nodes call every shard: how long until it answers again,
// how many retries that costs, and what the other shards feel.
func TestProcessFailoverTime(t *testing.T) {
	r := start(t, ProcessConfig{})
	ctx := within(t, pick(15*time.Minute, time.Hour))
	nodes := r.cluster.Nodes()
	u := r.users(ctx, "fail", 4, nodes...)
	machine := watchMachine(t)
	var sum cost
	judged, compared := 0, 0
	for range pick(1, 5) {
		for _, node := range nodes {
			done, felt, unfelt := false, 0, false
			for n := 0; n < tries && (!done || !unfelt); n++ {
				c, calm, comparable := r.failover(ctx, u, machine, node)
				if calm && !done {
					done = true
					sum.add(c)
				}
				switch {
				case !comparable:
				case p99(c.after) > mostly(p99(c.before)):
					felt++
				default:
					unfelt = true
				}
			}
			if done {
				judged++
			}
			if unfelt {
				compared++
			} else if felt >= enough {
				compared++
				t.Errorf("shards with other leaders felt it each time that %s was killed, %d times: see their p99 above", node, felt)
			}
		}
	}
	r.served(u)
	median, greatest := spread(sum.pauses)
	t.Logf("killed leaders: pause median %v, greatest %v (at most %v)", millis(median), millis(greatest), killedPause)
	t.Logf("retries seen by the Go client: %d of %d calls had one, %d had more (at most 0)", sum.retried-len(sum.worst), sum.calls, len(sum.worst))
	for _, op := range sum.worst {
		t.Errorf("a call needed more than %d retries: %+v", retriesMax, op)
	}
	if greatest > killedPause {
		t.Errorf("a shard was out for %v after its leader was killed; want at most %v", greatest, killedPause)
	}
	t.Logf("pauses and retries were judged for %d kills, other shards for %d", judged, compared)
	if t.Failed() {
		t.Logf("what the clients were told:\n%s", u.troubles())
	}
	r.audit()
	if judged == 0 || compared == 0 {
		t.Skip("SKIP: something else held the machine up in every round: not all was judged")
	}
}

// failover kills one node and brings it back. It returns what that cost, whether
// nothing disturbed the round, and whether at least other shards can be compared.
func (r *rig) failover(ctx context.Context, u *users, machine *machine, node string) (c cost, calm, comparable bool) {
	r.t.Helper()
	nodes := r.cluster.Nodes()
	r.awaitPreferred(ctx)
	must(r.t, u.reach(ctx, time.Now().Add(window)))
	leaders, err := r.links.Leaders(ctx, nodes)
	must(r.t, err)
	killed := time.Now()
	r.kill(node)
	must(r.t, u.reach(ctx, killed.Add(window)))
	slowest := machine.slowest(killed.Add(-window))
	c = u.cost(leaders, node, killed)
	r.up(node)
	median, greatest := spread(c.pauses)
	_, rest := spread(c.others)
	before, after := p99(c.before), p99(c.after)
	r.t.Logf("killed %s: pause of its shards median %v, greatest %v, of others %v; %d of %d calls retried, %d twice; p99 at other shards %v in %v from then on, %v before (at most %v); the machine's longest turn %v",
		node, millis(median), millis(greatest), millis(rest), c.retried, c.calls, len(c.worst), millis(after), window, millis(before), millis(mostly(before)), millis(slowest))
	if len(c.pauses) == 0 {
		r.t.Errorf("%s led no shard: the round proves nothing", node)
	}
	comparable = before <= disturbed && slowest <= heldUp/2
	calm = before <= disturbed && rest <= disturbed && slowest <= heldUp
	if !calm {
		r.t.Logf("disturbed: once more")
	}
	return c, calm, comparable
}

// mostly is what a p99 may become.
func mostly(before time.Duration) time.Duration { return max(slowdown*before, before+noise) }

// Each node in turn is frozen: nothing comes from it any more, and nothing tells
// that it has gone, as if its machine were lost.
func TestProcessHostLost(t *testing.T) {
	r := start(t, ProcessConfig{})
	r.hostLost(pick(1, 5), r.cluster.Pause, r.cluster.Resume)
}

// hostLost takes each node away and gives it back. For how long its shards are out
// is seen by clients that do not know the node: a call that is sent to it waits for
// as long as the client lets an attempt wait. Clients that know all nodes pay for
// that with one retry.
func (r *rig) hostLost(rounds int, lose, back func(node string) error) {
	r.t.Helper()
	ctx := within(r.t, time.Duration(rounds)*15*time.Minute)
	nodes := r.cluster.Nodes()
	all := r.users(ctx, "all", 2, nodes...)
	machine := watchMachine(r.t)
	var pauses []time.Duration
	// One loss; false if the machine was held up meanwhile.
	one := func(node, name string) bool {
		r.awaitPreferred(ctx)
		u := r.users(ctx, name, 2, others(r.cluster, node)...)
		must(r.t, u.reach(ctx, time.Now()))
		must(r.t, all.reach(ctx, time.Now()))
		leaders, err := r.links.Leaders(ctx, nodes)
		must(r.t, err)
		lost := time.Now()
		must(r.t, lose(node))
		must(r.t, u.reach(ctx, lost.Add(lostPause+window)))
		must(r.t, all.reach(ctx, lost.Add(window)))
		slowest := machine.slowest(lost)
		c, known := u.cost(leaders, node, lost), all.cost(leaders, node, lost)
		r.served(u)
		must(r.t, back(node))
		must(r.t, AwaitReady(ctx, r.cluster, node))
		median, greatest := spread(c.pauses)
		_, longest := spread(known.pauses)
		r.t.Logf("lost %s: pause of its shards median %v, greatest %v; clients that know it: %d of %d calls retried, pause %v; the machine's longest turn %v",
			node, millis(median), millis(greatest), known.retried, known.calls, millis(longest), millis(slowest))
		if len(c.pauses) == 0 {
			r.t.Errorf("%s led no shard: the round proves nothing", node)
		}
		if slowest > heldUp {
			r.t.Logf("disturbed: once more")
			return false
		}
		pauses = append(pauses, c.pauses...)
		for _, op := range slices.Concat(c.worst, known.worst) {
			r.t.Errorf("a call needed too many retries: %+v", op)
		}
		if r.t.Failed() {
			r.t.Logf("what the clients were told:\n%s\n\n%s", u.troubles(), all.troubles())
		}
		return true
	}
	for round := range rounds {
		for _, node := range nodes {
			for n := range tries {
				if one(node, fmt.Sprintf("lost-%s-%d-%d", node, round, n)) {
					break
				}
			}
		}
	}
	r.served(all)
	median, greatest := spread(pauses)
	r.t.Logf("lost leaders: pause median %v, greatest %v (at most %v)", millis(median), millis(greatest), lostPause)
	if greatest > lostPause {
		r.t.Errorf("a shard was out for %v after its leader was lost; want at most %v", greatest, lostPause)
	}
	r.audit()
	if len(pauses) == 0 {
		r.t.Skip("SKIP: something else held the machine up in every round: pauses and retries were not judged")
	}
}

// awaitPreferred waits until every shard is led by the node that should, as all
// nodes see it, and nothing moves any more.
func (r *rig) awaitPreferred(ctx context.Context) {
	r.t.Helper()
	nodes := r.cluster.Nodes()
	must(r.t, eventually(ctx, "leaderships where they should be", func(ctx context.Context) error {
		for _, node := range nodes {
			status, err := r.links.Status(ctx, node)
			if err != nil {
				return err
			}
			if err := settled(status, nodes, 3); err != nil {
				return fmt.Errorf("%s: %w", node, err)
			}
			preferred := map[uint32]string{}
			for _, p := range status.GetMeta().GetShards() {
				preferred[p.GetShard()] = p.GetPreferred()
			}
			for _, s := range status.GetShards() {
				if want := preferred[s.GetShard()]; s.GetLeader() != want {
					return fmt.Errorf("%s: shard %d is led by %q, %s should", node, s.GetShard(), s.GetLeader(), want)
				}
			}
		}
		return nil
	}))
}
