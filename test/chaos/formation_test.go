package chaos

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// clusterIDs are the ids that running nodes report, with who reports each.
func (r *rig) clusterIDs(ctx context.Context) map[string][]string {
	ids := map[string][]string{}
	for _, node := range r.running() {
		if status, err := r.links.StatusOnce(ctx, node); err == nil && status.GetClusterId() != "" {
			ids[status.GetClusterId()] = append(ids[status.GetClusterId()], node)
		}
	}
	return ids
}

func (r *rig) oneCluster(ctx context.Context) string {
	r.t.Helper()
	ids := r.clusterIDs(ctx)
	if len(ids) != 1 {
		r.t.Fatalf("%d clusters: %v", len(ids), ids)
	}
	for id := range ids {
		return id
	}
	return ""
}

// Nodes start in any order and far apart: while one of the list is missing no
// cluster forms and the others say who is missing; then there is one.
func TestProcessFormation(t *testing.T) {
	t.Parallel()
	orders := [][]string{{"n2", "n3", "n1"}}
	if long() {
		orders = append(orders, []string{"n1", "n3", "n2"}, []string{"n3", "n2", "n1"}, []string{"n1", "n2", "n3"}, []string{"n2", "n1", "n3"}, []string{"n3", "n1", "n2"})
	}
	for _, order := range orders {
		t.Run(strings.Join(order, "-"), func(t *testing.T) {
			r := prepare(t, ProcessConfig{})
			ctx := within(t, 2*time.Minute)
			last := order[2]
			// The first name of --join does not resolve, at any time.
			for _, node := range order {
				r.process.SetArgs(node, "--initial-nodes", "n1,n2,n3",
					"--join", "no-such-host.invalid:7402,"+strings.Join([]string{r.cluster.Addrs("n1").Gossip, r.cluster.Addrs("n2").Gossip, r.cluster.Addrs("n3").Gossip}, ","))
			}
			must(t, r.cluster.Start(order[0]))
			pause(ctx, time.Second)
			must(t, r.cluster.Start(order[1]))
			must(t, eventually(ctx, "a word on who is missing", func(ctx context.Context) error {
				for _, node := range order[:2] {
					ok, text := Ready(ctx, r.cluster, node)
					if ok {
						return &finalError{fmt.Errorf("%s is ready without %s: %s", node, last, text)}
					}
					if !Alive(ctx, r.cluster, node) {
						return fmt.Errorf("%s is not alive", node)
					}
					if !strings.Contains(text, last) && !strings.Contains(r.cluster.Logs(node, 50), last) {
						return fmt.Errorf("%s says neither in its readiness nor in its log that %s is missing: %s", node, last, text)
					}
				}
				return nil
			}))
			begin := time.Now()
			r.up(last)
			must(t, AwaitReady(ctx, r.cluster, order...))
			t.Logf("ready %v after the last node's start", time.Since(begin).Round(time.Millisecond))
			r.oneCluster(ctx)
			r.deposits(ctx, "form-", 10)
			r.audit()
		})
	}
}

// Two nodes with empty disks never overrule one that holds data.
func TestProcessFreshNodesDoNotOverrule(t *testing.T) {
	t.Parallel()
	r := start(t, ProcessConfig{})
	ctx := within(t, 2*time.Minute)
	r.deposits(ctx, "old-", 20)
	id := r.oneCluster(ctx)
	nodes := r.cluster.Nodes()
	kept := nodes[1]
	r.kill(nodes...)
	for _, node := range others(r.cluster, kept) {
		must(t, r.cluster.Wipe(node))
		must(t, r.cluster.Start(node))
	}
	pause(ctx, time.Second) // the fresh ones alone first
	must(t, r.cluster.Start(kept))
	until, cancel := context.WithTimeout(ctx, pick(5*time.Second, 40*time.Second))
	defer cancel()
	for until.Err() == nil {
		for other, by := range r.clusterIDs(ctx) {
			if other != id {
				t.Fatalf("a second cluster %s was formed by %v beside %s", other, by, id)
			}
		}
		for _, node := range nodes {
			one, cancel := context.WithTimeout(until, time.Second)
			a := call(one, r.links.Entity(node), Op{Action: Read, Account: "old-3"})
			cancel()
			if a.Verdict == Executed && a.Balance.Amount != 100 {
				t.Fatalf("%s answers %+v: the data is overruled", node, a)
			}
		}
		pause(until, 200*time.Millisecond)
	}
	for _, node := range nodes {
		if !r.cluster.Running(node) {
			t.Logf("%s has ended: %s", node, r.cluster.Logs(node, 3))
			continue
		}
		ok, text := Ready(ctx, r.cluster, node)
		t.Logf("%s: ready %v: %s", node, ok, text)
		if ok {
			t.Errorf("%s is ready although two of three disks are lost", node)
		}
	}
}

// The only seed is away for a while and another node restarts meanwhile; when
// the seed is back all see each other again, without help.
func TestProcessSeedDown(t *testing.T) {
	t.Parallel()
	r := prepare(t, ProcessConfig{})
	ctx := within(t, 4*time.Minute)
	nodes := r.cluster.Nodes()
	for _, node := range nodes {
		r.process.SetArgs(node, "--initial-nodes", "n1,n2,n3", "--join", r.cluster.Addrs("n1").Gossip)
	}
	r.up(nodes...)
	must(t, r.links.AwaitMembers(ctx, nodes, 3))
	r.deposits(ctx, "seed-", 10)

	r.kill("n1")
	pause(ctx, pick(3*time.Second, 70*time.Second)) // gossip forgets the dead after 30 s
	r.deposit(ctx, "seed-0", "without the seed", 1)
	r.kill("n3")
	must(t, r.cluster.Start("n3"))
	pause(ctx, time.Second)
	begin := time.Now()
	r.up("n1")
	must(t, r.links.AwaitMembers(within(t, time.Minute), nodes, 3))
	must(t, AwaitReady(ctx, r.cluster, nodes...))
	t.Logf("healed %v after the seed's start", time.Since(begin).Round(time.Millisecond))
	r.audit()
}

// All nodes are down, and each comes back with an address that was another's: all
// three in a circle, or two of them swapped.
func TestProcessAddressesChange(t *testing.T) {
	t.Parallel()
	r := start(t, ProcessConfig{})
	ctx := within(t, 3*time.Minute)
	r.deposits(ctx, "addr-", 20)
	nodes := r.cluster.Nodes()
	rounds := []struct {
		swaps [][2]string
		moved int
	}{
		{[][2]string{{"n1", "n2"}, {"n2", "n3"}}, 3},
		{[][2]string{{"n1", "n2"}}, 2},
		{[][2]string{{"n2", "n3"}}, 2},
		{[][2]string{{"n3", "n1"}}, 2},
		{[][2]string{{"n1", "n3"}, {"n3", "n2"}}, 3},
	}
	for _, round := range rounds[:pick(2, len(rounds))] {
		r.kill(nodes...)
		before := map[string]Addrs{}
		for _, node := range nodes {
			before[node] = r.cluster.Addrs(node)
		}
		for _, pair := range round.swaps {
			r.process.SwapAddrs(pair[0], pair[1])
		}
		moved := 0
		for _, node := range nodes {
			if r.cluster.Addrs(node) != before[node] {
				moved++
			}
		}
		if moved != round.moved {
			t.Fatalf("%d nodes have other addresses, want %d", moved, round.moved)
		}
		r.connect()
		begin := time.Now()
		r.up(nodes...)
		t.Logf("%d of %d nodes have other addresses: ready after %v", moved, len(nodes), millis(time.Since(begin)))
		must(t, r.links.AwaitMembers(ctx, nodes, len(nodes)))
		if again := r.deposit(ctx, "addr-1", "open-addr-1", 100); !again.Replayed {
			t.Error("a key was forgotten")
		}
	}
	r.audit()
}
