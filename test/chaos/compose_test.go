package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"writ/test/check"
)

func TestComposeFileIsDerived(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docker-compose.yml"))
	must(t, err)
	derived, order, err := withNodes(string(text), []string{"n4", "n5"})
	must(t, err)
	if diff := cmp.Diff([]string{"n1", "n2", "n3", "n4", "n5"}, order); diff != "" {
		t.Fatal(diff)
	}
	derived, addrs := withPorts(derived, order, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	if diff := cmp.Diff(Addrs{GRPC: "127.0.0.1:9", HTTP: "127.0.0.1:10"}, addrs["n5"]); diff != "" {
		t.Error(diff)
	}
	for _, want := range []string{"WRIT_ID: n5\n      WRIT_INITIAL_NODES: \"\"\n", "127.0.0.1:1:7400", "127.0.0.1:10:7401", "n4:/data", "\n  n5:\n"} {
		if !strings.Contains(derived, want) {
			t.Errorf("no %q in\n%s", want, derived)
		}
	}
	if strings.Contains(derived, "127.0.0.1:7400:") {
		t.Error("a published port was not replaced")
	}
	if _, _, err := withNodes("services:\n", nil); err == nil {
		t.Error("a file without nodes passes")
	}
}

// startCompose makes a cluster of containers and waits until it is ready. The
// test is skipped where there is no Docker. It runs with CHAOS_LONG=1 only; "make
// compose-smoke" is the usual run's.
func startCompose(t *testing.T, extra ...string) (*rig, *Compose) {
	t.Helper()
	onlyLong(t)
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		t.Skipf("SKIP: no Docker engine answers: docker info: %v: %s", err, out)
	}
	binary, err := buildNode()
	must(t, err)
	repository, err := filepath.Abs(filepath.Join("..", ".."))
	must(t, err)
	c, err := NewCompose(within(t, 2*time.Minute), ComposeConfig{
		Binary: binary, Repository: repository, Dir: folder(t), Project: fmt.Sprintf("writ-chaos-%08x", rand.Uint32()), Extra: extra,
	})
	must(t, err)
	r := &rig{t: t, cluster: c, cli: CLI{Binary: binary}, side: check.NewHistory()}
	t.Cleanup(r.close)
	r.connect()
	first := c.Nodes()
	r.up(first[:len(first)-len(extra)]...)
	return r, c
}

func TestComposeTransfersUnderKills(t *testing.T) {
	r, _ := startCompose(t)
	transfersUnderKills(r)
}

// hurt runs a schedule of faults under load, and all checkers behind it.
func (r *rig) hurt(config WorkloadConfig, steps []Step) {
	r.t.Helper()
	ctx := within(r.t, 90*time.Minute)
	w, hedge := r.load(config)
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	n := &Nemesis{Cluster: r.cluster, Steps: steps, Ready: 2 * time.Minute}
	err := n.Run(ctx)
	stop()
	wg.Wait()
	r.t.Logf("what was done: %v\n%s", n.Faults(), n.Report())
	r.check("faults", err)
	must(r.t, r.links.AwaitMembers(within(r.t, time.Minute), r.cluster.Nodes(), len(r.cluster.Nodes())))
	r.verify(w, hedge)
}

// Every node in turn, the seed too, is cut off from the network for longer than
// gossip remembers the dead (C004).
func TestComposeDisconnect(t *testing.T) {
	r, _ := startCompose(t)
	var steps []Step
	for _, node := range r.cluster.Nodes() {
		steps = append(steps, Step{Fault: FaultCut, Node: node, After: 2 * time.Second, Hold: 40 * time.Second})
	}
	r.hurt(WorkloadConfig{Seed: seed(t), Clients: 8, Accounts: 60, Registers: 10, Think: 50 * time.Millisecond}, steps)
}

// A node is frozen again and again (C064).
func TestComposePause(t *testing.T) {
	r, _ := startCompose(t)
	var steps []Step
	for i := range 6 {
		steps = append(steps, Step{Fault: FaultPause, Node: r.cluster.Nodes()[i%3], After: 5 * time.Second, Hold: 20 * time.Second})
	}
	r.hurt(WorkloadConfig{Seed: seed(t), Clients: 8, Accounts: 60, Registers: 10, Think: 50 * time.Millisecond}, steps)
}

// Each node in turn loses its volume and is filled again (C002, C010).
func TestComposeWipe(t *testing.T) {
	r, _ := startCompose(t)
	ctx := within(t, 10*time.Minute)
	w, hedge := r.load(WorkloadConfig{Seed: seed(t), Clients: 4, Accounts: 60, Registers: 10, Think: 50 * time.Millisecond})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	defer func() { stop(); wg.Wait() }()
	for _, node := range r.cluster.Nodes() {
		r.kill(node)
		must(t, r.cluster.Wipe(node))
		begin := time.Now()
		must(t, r.cluster.Start(node))
		must(t, AwaitReady(within(t, 2*time.Minute), r.cluster, r.cluster.Nodes()...))
		r.awaitSettled(within(t, 2*time.Minute), r.cluster.Nodes())
		t.Logf("%s lost its volume: filled again after %v", node, time.Since(begin).Round(time.Millisecond))
	}
	stop()
	wg.Wait()
	r.verify(w, hedge)
}

// All containers go away and come back in the reverse order, with each other's
// addresses (C003, C070).
func TestComposeAddressesChange(t *testing.T) {
	r, c := startCompose(t)
	ctx := within(t, 5*time.Minute)
	r.deposits(ctx, "addr-", 20)
	nodes := c.Nodes()
	for round := range 3 {
		before := map[string]string{}
		for _, node := range nodes {
			ip, err := c.IP(node)
			must(t, err)
			before[node] = ip
		}
		must(t, c.Down())
		nodes[0], nodes[2] = nodes[2], nodes[0]
		begin := time.Now()
		r.up(nodes...)
		moved := 0
		for _, node := range nodes {
			ip, err := c.IP(node)
			must(t, err)
			if ip != before[node] {
				moved++
			}
		}
		t.Logf("round %d: %d nodes have other addresses; ready after %v", round, moved, time.Since(begin).Round(time.Millisecond))
		if again := r.deposit(ctx, "addr-1", "open-addr-1", 100); !again.Replayed {
			t.Error("a key was forgotten")
		}
		status, err := r.links.Status(ctx, nodes[0])
		must(t, err)
		must(t, settled(status, nodes, 3))
	}
	r.audit()
}

// From three containers to five and back to three under load, then one dies (C059).
func TestComposeScale(t *testing.T) {
	r, c := startCompose(t, "n4", "n5")
	ctx := within(t, 10*time.Minute)
	w, hedge := r.load(WorkloadConfig{Seed: seed(t), Clients: 4, Accounts: 60, Registers: 10, Think: 50 * time.Millisecond})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	defer func() { stop(); wg.Wait() }()
	r.up("n4", "n5")
	r.awaitSettled(within(t, 3*time.Minute), c.Nodes())
	for _, node := range []string{"n5", "n4"} {
		res, err := r.cli.Run(within(t, 3*time.Minute), "cluster", "remove", "--addr", r.addr(), "--wait", "2m", node)
		must(t, err)
		if res.Code != 0 {
			t.Fatalf("remove %s: exit %d: %s%s", node, res.Code, res.Stdout, res.Stderr)
		}
		_, _, err = c.Stop(ctx, node)
		must(t, err)
		c.Remove(node)
	}
	r.awaitSettled(within(t, 2*time.Minute), c.Nodes())
	r.kill("n2")
	pause(ctx, 5*time.Second)
	r.up("n2")
	stop()
	wg.Wait()
	r.verify(w, hedge)
}

// Connections go bad one by one: half and one-way partitions, loss, slow links (C064).
func TestComposeWires(t *testing.T) {
	if err := WireTools(); err != nil {
		t.Skipf("SKIP: %v", err)
	}
	r, _ := startCompose(t)
	random := rand.New(rand.NewPCG(seed(t), 21))
	steps := Plan(random.Uint64(), r.cluster.Nodes(), []Fault{FaultOneWay, FaultHalf, FaultLoss, FaultSlow}, 16, 15*time.Second)
	r.hurt(WorkloadConfig{Seed: random.Uint64(), Clients: 8, Accounts: 60, Registers: 10, Think: 50 * time.Millisecond}, steps)
}

// Random faults, the network's among them.
func TestComposeNemesis(t *testing.T) {
	r, _ := startCompose(t)
	random := rand.New(rand.NewPCG(seed(t), 20))
	steps := Plan(random.Uint64(), r.cluster.Nodes(),
		[]Fault{FaultKill, FaultPause, FaultCut, FaultStorm, FaultRolling, FaultAll}, 40, 8*time.Second)
	r.hurt(WorkloadConfig{Seed: random.Uint64(), Clients: 12, Accounts: 60, Registers: 30, Think: 50 * time.Millisecond}, steps)
}
