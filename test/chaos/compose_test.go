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
	small := withSmallDisk(derived, "n2")
	for _, want := range []string{"\nvolumes:\n  n1:\n  n2:\n    driver_opts:\n      type: tmpfs\n", "\n  disk-n2:\n    <<: *node\n", "      - n2:/data\n\nvolumes:\n", "WRIT_FREE_MIN_MB"} {
		if !strings.Contains(small, want) {
			t.Errorf("no %q in\n%s", want, small)
		}
	}
	next, err := withImage(derived, "n4", "writ:next")
	must(t, err)
	if !strings.Contains(next, "\n  n4:\n    <<: *node\n    image: writ:next\n") || strings.Count(next, "writ:next") != 1 {
		t.Errorf("n4 has no image of its own in\n%s", next)
	}
	if _, err := withImage(derived, "n9", "writ:next"); err == nil {
		t.Error("a node that is missing gets an image")
	}
	if _, _, err := withNodes("services:\n", nil); err == nil {
		t.Error("a file without nodes passes")
	}
}

// prepareCompose makes a cluster of containers that does not run yet. The test is
// skipped where there is no Docker. It runs with CHAOS_LONG=1 only; "make
// compose-smoke" is the usual run's.
func prepareCompose(t *testing.T, config ComposeConfig) (*rig, *Compose) {
	t.Helper()
	onlyLong(t)
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		t.Skipf("SKIP: no Docker engine answers: docker info: %v: %s", err, out)
	}
	if err := exec.Command("docker", "compose", "version").Run(); err != nil {
		if _, err := exec.LookPath("docker-compose"); err != nil {
			t.Skip("SKIP: neither \"docker compose\" nor docker-compose is here")
		}
	}
	binary, err := buildNode()
	must(t, err)
	repository, err := filepath.Abs(filepath.Join("..", ".."))
	must(t, err)
	if config.Binary == "" {
		config.Binary = binary
	}
	config.Repository, config.Dir, config.Project = repository, folder(t), fmt.Sprintf("writ-chaos-%08x", rand.Uint32())
	c, err := NewCompose(within(t, 2*time.Minute), config)
	must(t, err)
	return rigOf(t, c, nil), c
}

// startCompose makes a cluster of containers and waits until it is ready.
func startCompose(t *testing.T, config ComposeConfig) (*rig, *Compose) {
	t.Helper()
	r, c := prepareCompose(t, config)
	first := c.Nodes()
	r.up(first[:len(first)-len(config.Extra)]...)
	return r, c
}

func TestComposeTransfersUnderKills(t *testing.T) {
	r, _ := startCompose(t, ComposeConfig{})
	transfersUnderKills(r)
}

// hurt runs a schedule of faults under load, and then all checkers.
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
// gossip remembers the dead.
func TestComposeDisconnect(t *testing.T) {
	r, _ := startCompose(t, ComposeConfig{})
	var steps []Step
	for _, node := range r.cluster.Nodes() {
		steps = append(steps, Step{Fault: FaultCut, Node: node, After: 2 * time.Second, Hold: 40 * time.Second})
	}
	r.hurt(WorkloadConfig{Seed: seed(t), Clients: 8, Accounts: 60, Registers: 10, Think: 50 * time.Millisecond}, steps)
}

// Each node in turn loses its link: nothing tells the others that it has gone, but
// clients notice, since the forwarder of the published port hangs up. The node that
// gets the call next may still take the lost one for the leader and forward it; it
// sends it to the successor, and the client notices nothing.
func TestComposeHostLost(t *testing.T) {
	r, c := startCompose(t, ComposeConfig{})
	r.hostLost(2, c.Disconnect, c.Connect)
}

// A node is frozen again and again.
func TestComposePause(t *testing.T) {
	r, _ := startCompose(t, ComposeConfig{})
	var steps []Step
	for i := range 6 {
		steps = append(steps, Step{Fault: FaultPause, Node: r.cluster.Nodes()[i%3], After: 5 * time.Second, Hold: 20 * time.Second})
	}
	r.hurt(WorkloadConfig{Seed: seed(t), Clients: 8, Accounts: 60, Registers: 10, Think: 50 * time.Millisecond}, steps)
}

// Each node in turn loses its volume and is filled again.
func TestComposeWipe(t *testing.T) {
	r, _ := startCompose(t, ComposeConfig{})
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

// All containers go away and come back in another order, each with another address
// than before: each must find another's place taken.
func TestComposeAddressesChange(t *testing.T) {
	r, c := startCompose(t, ComposeConfig{})
	ctx := within(t, 5*time.Minute)
	r.deposits(ctx, "addr-", 20)
	nodes := c.Nodes()
	addresses := func() map[string]string {
		all := map[string]string{}
		for _, node := range nodes {
			ip, err := c.IP(node)
			must(t, err)
			if ip == "" {
				t.Fatalf("%s has no address", node)
			}
			all[node] = ip
		}
		return all
	}
	before := addresses()
	for round := range 3 {
		var moved []string
		begin := time.Now()
		// Docker gives addresses in the order of starts, and promises nothing.
		for attempt := 0; len(moved) < len(nodes); attempt++ {
			if attempt == 4 {
				t.Fatalf("round %d: of %v only %v have other addresses, four times", round, before, moved)
			}
			must(t, c.Down())
			nodes = append(nodes[1:], nodes[0])
			begin = time.Now()
			for _, node := range nodes {
				must(t, c.Start(node))
			}
			moved = nil
			for node, ip := range addresses() {
				if ip != before[node] {
					moved = append(moved, node)
				}
			}
		}
		must(t, AwaitReady(within(t, time.Minute), c, nodes...))
		after := addresses()
		t.Logf("round %d: addresses %v, were %v; ready after %v", round, after, before, millis(time.Since(begin)))
		before = after
		if again := r.deposit(ctx, "addr-1", "open-addr-1", 100); !again.Replayed {
			t.Error("a key was forgotten")
		}
		r.awaitSettled(within(t, time.Minute), c.Nodes())
	}
	r.audit()
}

// From three containers to five and back to three under load, then one dies.
func TestComposeScale(t *testing.T) {
	r, c := startCompose(t, ComposeConfig{Extra: []string{"n4", "n5"}})
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

// Two nodes are in trouble at a time. Wires are not among it: a container that is
// started again has a fresh one.
func TestComposeOverlaps(t *testing.T) {
	r, _ := startCompose(t, ComposeConfig{})
	random := rand.New(rand.NewPCG(seed(t), 22))
	steps := PlanPairs(random.Uint64(), r.cluster.Nodes(), []Fault{FaultCut, FaultPause}, []Fault{FaultKill, FaultStorm, FaultPause}, 6, 8*time.Second)
	r.hurt(WorkloadConfig{Seed: random.Uint64(), Clients: 8, Accounts: 60, Registers: 10, Think: 50 * time.Millisecond}, steps)
}

// Connections go bad one by one: half and one-way partitions, loss, slow links.
func TestComposeWires(t *testing.T) {
	if err := WireTools(); err != nil {
		t.Skipf("SKIP: %v", err)
	}
	r, _ := startCompose(t, ComposeConfig{})
	random := rand.New(rand.NewPCG(seed(t), 21))
	steps := Plan(random.Uint64(), r.cluster.Nodes(), []Fault{FaultOneWay, FaultHalf, FaultLoss, FaultSlow}, 8, 10*time.Second)
	r.hurt(WorkloadConfig{Seed: random.Uint64(), Clients: 8, Accounts: 60, Registers: 10, Think: 50 * time.Millisecond}, steps)
}

// startWithOwnFaults makes a cluster of containers whose nodes can be made to fail
// from within, one of them by its disk. It returns these faults; what is not allowed
// here is left out, by name.
func startWithOwnFaults(t *testing.T) (*rig, []Fault) {
	t.Helper()
	onlyLong(t)
	binary, err := buildFaults()
	must(t, err)
	r, c := startCompose(t, ComposeConfig{Binary: binary, Small: "n2"})
	faults := []Fault{FaultClock, FaultSlowDisk}
	if _, err := c.smallFolder(); err != nil {
		t.Logf("SKIP %s: %v", FaultFullDisk, err)
		return r, faults
	}
	return r, append(faults, FaultFullDisk)
}

// Clocks step, disks are slow or full, one after the other.
func TestComposeClocksAndDisks(t *testing.T) {
	r, kinds := startWithOwnFaults(t)
	random := rand.New(rand.NewPCG(seed(t), 23))
	steps := Plan(random.Uint64(), r.cluster.Nodes(), kinds, 2*len(kinds), 4*time.Second)
	r.hurt(WorkloadConfig{Seed: random.Uint64(), Clients: 8, Accounts: 60, Registers: 10, Think: 50 * time.Millisecond}, steps)
}

// Random faults, the network's among them, and clocks and disks.
func TestComposeNemesis(t *testing.T) {
	r, own := startWithOwnFaults(t)
	kinds := append([]Fault{FaultKill, FaultPause, FaultCut, FaultStorm, FaultRolling, FaultAll}, own...)
	random := rand.New(rand.NewPCG(seed(t), 20))
	steps := Plan(random.Uint64(), r.cluster.Nodes(), kinds, 27, 6*time.Second)
	r.hurt(WorkloadConfig{Seed: random.Uint64(), Clients: 12, Accounts: 60, Registers: 30, Think: 50 * time.Millisecond}, steps)
}
