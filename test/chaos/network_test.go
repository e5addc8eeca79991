package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// skipWithoutLAN skips a test where no LAN can be made, and says why.
func skipWithoutLAN(t *testing.T) {
	t.Helper()
	if err := LANTools(); err != nil {
		t.Skipf("SKIP: no network of namespaces: %v", err)
	}
}

// prepareNetworked makes a cluster of processes in a LAN that does not run yet.
func prepareNetworked(t *testing.T) (*rig, *Networked) {
	t.Helper()
	skipWithoutLAN(t)
	n, err := NewNetworked(withDefaults(t, ProcessConfig{}))
	must(t, err)
	return rigOf(t, n, n.Process), n
}

// startNetworked makes such a cluster and waits until it is ready.
func startNetworked(t *testing.T) (*rig, *Networked) {
	t.Helper()
	r, n := prepareNetworked(t)
	r.up(r.cluster.Nodes()...)
	return r, n
}

// The driver's network by itself: each fault does what it says, can be undone, and
// outlives a node; a signal reaches the node.
func TestDriverNetwork(t *testing.T) {
	skipWithoutLAN(t)
	self, err := os.Executable()
	must(t, err)
	n, err := NewNetworked(ProcessConfig{Binary: self, Dir: t.TempDir(), Nodes: []string{"a", "b"}})
	must(t, err)
	t.Cleanup(func() { must(t, n.Close()) })
	ctx := within(t, 2*time.Minute)
	for _, node := range n.Nodes() {
		must(t, n.Start(node))
	}
	must(t, AwaitReady(ctx, n, n.Nodes()...))
	// hears tells whether a node can connect to the other one, within a second.
	hears := func(from, to string) bool {
		ip, err := n.IP(to)
		must(t, err)
		return n.inside(from, "timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/"+ip+"/7401") == nil
	}
	awaitBothHear := func() {
		must(t, eventually(ctx, "nodes that hear each other", func(context.Context) error {
			if !hears("a", "b") || !hears("b", "a") {
				return errors.New("one does not hear the other")
			}
			return nil
		}))
	}
	awaitBothHear()

	must(t, n.Disconnect("a"))
	if hears("a", "b") || hears("b", "a") || Alive(ctx, n, "a") {
		t.Error("a node without a cable is heard")
	}
	must(t, n.Connect("a"))
	must(t, AwaitReady(ctx, n, "a"))

	// A connection needs both ways; what is lost on one of them is counted there.
	must(t, n.Drop("a", "b"))
	must(t, n.Kill("b"))
	must(t, n.Start("b"))
	must(t, AwaitReady(ctx, n, "b"))
	if hears("a", "b") {
		t.Error("b hears a over a cut wire")
	}
	must(t, n.inside("b", "sh", "-c", "iptables -w -nvxL INPUT | awk '$3 == \"DROP\" && $1 > 0 { lost = 1 } END { exit !lost }'"))
	if n.inside("a", "sh", "-c", "iptables -w -nL INPUT | grep -q DROP") == nil {
		t.Error("a loses what comes from b, too")
	}
	must(t, n.Lose("a"))
	how, err := n.Throttle("a")
	must(t, err)
	t.Logf("a slow link: %s", how)
	must(t, n.inside("a", "sh", "-c", "tc qdisc show dev eth0 | grep -E 'netem|tbf'"))
	must(t, n.Mend())
	must(t, n.Mend()) // nothing to mend, no error
	awaitBothHear()
	if n.inside("a", "sh", "-c", "tc qdisc show dev eth0 | grep -E 'netem|tbf'") == nil {
		t.Error("the link is still slow")
	}

	must(t, n.Pause("a"))
	if Alive(ctx, n, "a") {
		t.Error("a frozen node answers")
	}
	must(t, n.Resume("a"))
	code, _, err := n.Stop(ctx, "a")
	must(t, err)
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// lanStandIn is this test binary with a LAN, until it is killed.
func lanStandIn() {
	lan, err := NewLAN()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if _, err := lan.Seat(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString(lan.leg() + "\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// A LAN is gone once its process is, even if that is killed; nothing has to sweep.
func TestDriverNetworkEndsWithItsProcess(t *testing.T) {
	skipWithoutLAN(t)
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self, "lan")
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, childAttributes()
	in, err := cmd.StdinPipe()
	must(t, err)
	defer func() { _ = in.Close() }()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	leg, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	leg = strings.TrimSpace(leg)
	if _, err := net.InterfaceByName(leg); err != nil {
		t.Fatalf("%s: %v", leg, err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	must(t, eventually(within(t, 30*time.Second), "the end of "+leg, func(context.Context) error {
		if _, err := net.InterfaceByName(leg); err == nil {
			return errors.New("it is still there")
		}
		return nil
	}))
}

// Faults of the network over processes, one by one, and together with others that
// begin before they are healed, under load with all checkers.
func TestProcessNetworkNemesis(t *testing.T) {
	r, _ := startNetworked(t)
	random := rand.New(rand.NewPCG(seed(t), 30))
	nodes := r.cluster.Nodes()
	singles := []Fault{FaultCut, FaultOneWay, FaultHalf, FaultLoss, FaultSlow}
	if long() {
		singles = append(singles, FaultKill, FaultPause, FaultStorm, FaultRolling, FaultAll)
	}
	steps := slices.Concat(
		Plan(random.Uint64(), nodes, singles, pick(5, 20), pick(2*time.Second, 6*time.Second)),
		PlanPairs(random.Uint64(), nodes, []Fault{FaultSlow, FaultHalf, FaultOneWay, FaultCut, FaultLoss, FaultPause, FaultKill},
			[]Fault{FaultKill, FaultPause, FaultStorm}, pick(4, 9), pick(2*time.Second, 6*time.Second)))
	r.hurt(WorkloadConfig{
		Seed: random.Uint64(), Clients: pick(6, 12), Accounts: 60, Registers: pick(8, 30), Think: pick(20*time.Millisecond, 50*time.Millisecond),
	}, steps)
}

// Each node in turn loses its cable: nothing tells anybody that it has gone.
func TestProcessNetworkHostLost(t *testing.T) {
	onlyLong(t)
	r, n := startNetworked(t)
	r.hostLost(2, n.Disconnect, n.Connect)
}

// The first start of three nodes that do not all hear each other, or stop hearing
// each other in the middle of it: when they do again there is one cluster.
func TestProcessNetworkFormation(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 31))
	// The wires that are cut, by places in a random order of the nodes.
	ways := []struct {
		name  string
		lost  [][2]int
		apart bool // no cluster can form
	}{
		{"one apart", [][2]int{{0, 1}, {1, 0}, {0, 2}, {2, 0}}, true},
		{"all apart", [][2]int{{0, 1}, {1, 0}, {0, 2}, {2, 0}, {1, 2}, {2, 1}}, true},
		{"half", [][2]int{{0, 1}, {1, 0}}, false},
		{"one way", [][2]int{{0, 1}}, false},
	}
	for range pick(1, 5) {
		for _, way := range ways {
			for _, late := range []bool{false, true} {
				if !long() && (way.name == "one way" || late && way.name != "all apart") {
					continue
				}
				name := way.name
				if late {
					name += ", late"
				}
				t.Run(name, func(t *testing.T) {
					r, n := prepareNetworked(t)
					r.formApart(n, rand.New(rand.NewPCG(random.Uint64(), 0)), way.lost, late, way.apart && !late)
				})
			}
		}
	}
}

// formApart starts three nodes, cuts wires before that or late, during it, mends
// them after a while, and wants one cluster.
func (r *rig) formApart(n *Networked, random *rand.Rand, lost [][2]int, late, apart bool) {
	t := r.t
	ctx := within(t, 2*time.Minute)
	nodes := r.cluster.Nodes()
	random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	cut := func() {
		for _, wire := range lost {
			must(t, n.Drop(nodes[wire[0]], nodes[wire[1]]))
		}
	}
	if !late {
		cut()
	}
	for _, node := range nodes {
		must(t, r.cluster.Start(node))
	}
	if late {
		after := time.Duration(random.Int64N(int64(3 * time.Second)))
		pause(ctx, after)
		t.Logf("cut %v after the start", after.Round(time.Millisecond))
		cut()
	}
	must(t, eventually(ctx, "life", func(ctx context.Context) error {
		for _, node := range nodes {
			if !Alive(ctx, r.cluster, node) {
				return fmt.Errorf("%s is not alive", node)
			}
		}
		return nil
	}))
	ids := map[string]bool{}
	look := func(ctx context.Context) {
		for id, by := range r.clusterIDs(ctx) {
			if ids[id] = true; len(ids) > 1 {
				t.Fatalf("%v have formed a second cluster: %v", by, ids)
			}
		}
	}
	hold := pick(time.Second, 5*time.Second) + time.Duration(random.Int64N(int64(pick(2*time.Second, 20*time.Second))))
	until, cancel := context.WithTimeout(ctx, hold)
	defer cancel()
	for until.Err() == nil {
		look(until)
		for _, node := range nodes {
			if ok, text := Ready(until, r.cluster, node); ok && apart {
				t.Fatalf("%s is ready without all of %v: %s", node, nodes, text)
			}
		}
		pause(until, pollInterval)
	}
	before := len(ids)
	must(t, n.Mend())
	begin := time.Now()
	must(t, AwaitReady(within(t, time.Minute), r.cluster, nodes...))
	look(ctx)
	must(t, eventually(within(t, 30*time.Second), "an answer of all", func(ctx context.Context) error {
		for id, by := range r.clusterIDs(ctx) {
			if len(by) != len(nodes) {
				return fmt.Errorf("%s is the cluster of %v only", id, by)
			}
		}
		return nil
	}))
	r.oneCluster(ctx)
	t.Logf("cut for %v in the order %v: %d cluster ids until then, one after it; ready %v after the end", hold.Round(time.Millisecond), nodes, before, time.Since(begin).Round(time.Millisecond))
	r.deposits(ctx, "apart-", 10)
	r.audit()
}
