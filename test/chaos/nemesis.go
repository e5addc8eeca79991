package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// Fault is a kind of harm.
type Fault string

// Faults. The first three hurt one node, the others all of them.
const (
	// FaultKill ends a node with SIGKILL and starts it after a while.
	FaultKill Fault = "kill"
	// FaultPause freezes a node for a while.
	FaultPause Fault = "pause"
	// FaultStorm kills one node several times, each time it has hardly begun.
	FaultStorm Fault = "restart storm"
	// FaultRolling stops each node in an orderly way and waits until it is ready.
	FaultRolling Fault = "rolling restart"
	// FaultAll kills all nodes at once and starts them in any order.
	FaultAll Fault = "kill all"
	// FaultCut cuts a node off from the network for a while; the driver must
	// have one.
	FaultCut Fault = "disconnect"
	// The following spoil connections for a while; the driver must have wires.
	// FaultOneWay: what a node sends to the next one is lost.
	FaultOneWay Fault = "one-way partition"
	// FaultHalf: a node and the next one do not hear each other, the third
	// hears both.
	FaultHalf Fault = "half partition"
	// FaultLoss: a node loses two of five gossip datagrams.
	FaultLoss Fault = "datagram loss"
	// FaultSlow: a node's link is slow.
	FaultSlow Fault = "slow link"
	// The following are a node's own; the nodes must have fault points, for the last
	// one a small disk.
	// FaultClock: a node's clock is set forward and back.
	FaultClock Fault = "clock steps"
	// FaultSlowDisk: each write and each flush of a node takes long.
	FaultSlowDisk Fault = "slow disk"
	// FaultFullDisk: the disk of the node with the small one is full.
	FaultFullDisk Fault = "full disk"
)

// Step is one planned fault.
type Step struct {
	Fault Fault
	Node  string
	// After is the quiet before it, Hold how long it lasts.
	After, Hold time.Duration
	// Seed chooses what is random within it.
	Seed uint64
	// Second is a fault of another node that begins before this one is undone, its
	// After behind this one's beginning, and may outlast it. One of the two may spoil
	// wires, not both: wires are mended together.
	Second *Step
}

// Plan is a seeded schedule of n faults out of the given kinds: each kind comes
// up before one repeats, in a random order.
func Plan(seed uint64, nodes []string, kinds []Fault, n int, hold time.Duration) []Step {
	random := rand.New(rand.NewPCG(seed, 0x6e656d65736973))
	var steps []Step
	var order []int
	for range n {
		if len(order) == 0 {
			order = random.Perm(len(kinds))
		}
		steps = append(steps, Step{
			Fault: kinds[order[0]], Node: nodes[random.IntN(len(nodes))],
			After: time.Duration(random.Int64N(int64(hold))), Hold: hold/4 + time.Duration(random.Int64N(int64(hold))),
			Seed: random.Uint64(),
		})
		order = order[1:]
	}
	return steps
}

// PlanPairs is a seeded schedule of n pairs of faults that overlap in time on
// different nodes, the first out of firsts, the second out of seconds.
func PlanPairs(seed uint64, nodes []string, firsts, seconds []Fault, n int, hold time.Duration) []Step {
	steps, others := Plan(seed, nodes, firsts, n, hold), Plan(seed+1, nodes, seconds, n, hold)
	for i := range steps {
		first, second := &steps[i], &others[i]
		if second.Node == first.Node {
			second.Node = nodes[(slices.Index(nodes, first.Node)+1)%len(nodes)]
		}
		second.After %= first.Hold/2 + 1
		first.Second = second
	}
	return steps
}

// Event is one thing that was done.
type Event struct {
	At   time.Duration
	What string
}

// Nemesis does harm to a cluster. Run may be called once.
type Nemesis struct {
	Cluster Cluster
	Steps   []Step
	// Ready bounds the wait for readiness after a fault; 0 means 60 s.
	Ready time.Duration

	start  time.Time
	mu     sync.Mutex
	events []Event
	counts map[Fault]int
	wrong  []error // what went wrong without ending the run
}

// Run executes the schedule until it is over or ctx ends, and heals everything
// before it returns. It fails at once if a node does not come back, and at the
// end if one did not stop as it should.
func (n *Nemesis) Run(ctx context.Context) error {
	n.start, n.counts = time.Now(), map[Fault]int{}
	if n.Ready == 0 {
		n.Ready = time.Minute
	}
	for _, step := range n.Steps {
		if pause(ctx, step.After); ctx.Err() != nil {
			break
		}
		if err := n.step(context.WithoutCancel(ctx), step); err != nil {
			n.note("%s: %v", step.Fault, err)
			return fmt.Errorf("%s %s: %w", step.Fault, step.Node, err)
		}
		n.counts[step.Fault]++
		if step.Second != nil {
			n.counts[step.Second.Fault]++
		}
	}
	return errors.Join(n.wrong...)
}

// step does a step's harm, undoes it, and waits until all nodes are ready.
func (n *Nemesis) step(ctx context.Context, s Step) error {
	var wg sync.WaitGroup
	var errSecond error
	if second := s.Second; second != nil {
		n.note("two at once: %s of %s, and %v later %s of %s", s.Fault, s.Node, second.After.Round(time.Millisecond), second.Fault, second.Node)
		wg.Go(func() {
			pause(ctx, second.After)
			errSecond = n.do(ctx, *second)
		})
	}
	err := n.do(ctx, s)
	wg.Wait()
	if err := errors.Join(err, errSecond); err != nil {
		return err
	}
	return n.whole(ctx)
}

func (n *Nemesis) do(ctx context.Context, s Step) error {
	random := rand.New(rand.NewPCG(s.Seed, 0))
	switch s.Fault {
	case FaultKill:
		return n.kill(ctx, s)
	case FaultPause:
		return n.hold(ctx, s, "froze", n.Cluster.Pause, n.Cluster.Resume)
	case FaultCut:
		network, ok := n.Cluster.(Network)
		if !ok {
			return errors.New("this driver has no network")
		}
		return n.hold(ctx, s, "cut off", network.Disconnect, network.Connect)
	case FaultOneWay, FaultHalf, FaultLoss, FaultSlow:
		return n.wire(ctx, s)
	case FaultStorm:
		return n.storm(ctx, s, random)
	case FaultRolling:
		return n.rolling(ctx, random)
	case FaultAll:
		return n.all(ctx, s, random)
	case FaultClock:
		return n.clock(ctx, s, random)
	case FaultSlowDisk:
		return n.slowDisk(ctx, s, random)
	case FaultFullDisk:
		return n.fullDisk(ctx, s, random)
	}
	return fmt.Errorf("unknown fault %q", s.Fault)
}

func (n *Nemesis) kill(ctx context.Context, s Step) error {
	if err := n.Cluster.Kill(s.Node); err != nil {
		return err
	}
	n.note("killed %s", s.Node)
	pause(ctx, s.Hold)
	return n.revive(s.Node)
}

func (n *Nemesis) revive(nodes ...string) error {
	for _, node := range nodes {
		if err := n.Cluster.Start(node); err != nil {
			return err
		}
	}
	n.note("started %s", strings.Join(nodes, ", "))
	return nil
}

// whole waits until all nodes are ready.
func (n *Nemesis) whole(ctx context.Context) error {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, n.Ready)
	defer cancel()
	if err := AwaitReady(ctx, n.Cluster, n.Cluster.Nodes()...); err != nil {
		return err
	}
	n.note("all ready after %v", time.Since(begin).Round(time.Millisecond))
	return nil
}

func (n *Nemesis) hold(ctx context.Context, s Step, what string, do, undo func(string) error) error {
	if err := do(s.Node); err != nil {
		return err
	}
	n.note("%s %s for %v", what, s.Node, s.Hold.Round(time.Millisecond))
	pause(ctx, s.Hold)
	if err := undo(s.Node); err != nil {
		return err
	}
	n.note("let %s go on", s.Node)
	return nil
}

// wire spoils connections between a node and the next one, or all of the node's.
func (n *Nemesis) wire(ctx context.Context, s Step) error {
	w, ok := n.Cluster.(Wire)
	if !ok {
		return errors.New("this driver has no wires")
	}
	nodes := n.Cluster.Nodes()
	next := nodes[(slices.Index(nodes, s.Node)+1)%len(nodes)]
	spoil := func(node string) error {
		switch s.Fault {
		case FaultOneWay:
			return w.Drop(node, next)
		case FaultHalf:
			return errors.Join(w.Drop(node, next), w.Drop(next, node))
		case FaultLoss:
			return w.Lose(node)
		case FaultSlow:
			how, err := w.Throttle(node)
			if err == nil {
				n.note("slow: %s", how)
			}
			return err
		case FaultKill, FaultPause, FaultStorm, FaultRolling, FaultAll, FaultCut, FaultClock, FaultSlowDisk, FaultFullDisk:
		}
		return fmt.Errorf("%s does not spoil a wire", s.Fault)
	}
	return n.hold(ctx, s, string(s.Fault)+" of", spoil, func(string) error { return w.Mend() })
}

func (n *Nemesis) storm(ctx context.Context, s Step, random *rand.Rand) error {
	for range 3 + random.IntN(4) {
		if err := n.Cluster.Kill(s.Node); err != nil {
			return err
		}
		if err := n.Cluster.Start(s.Node); err != nil {
			return err
		}
		up := time.Duration(random.Int64N(int64(time.Second)))
		n.note("killed and started %s, up for %v", s.Node, up.Round(time.Millisecond))
		pause(ctx, up)
	}
	if err := n.Cluster.Kill(s.Node); err != nil {
		return err
	}
	return n.revive(s.Node)
}

func (n *Nemesis) rolling(ctx context.Context, random *rand.Rand) error {
	nodes := n.Cluster.Nodes()
	for _, i := range random.Perm(len(nodes)) {
		stopping, cancel := context.WithTimeout(ctx, 15*time.Second)
		code, took, err := n.Cluster.Stop(stopping, nodes[i])
		cancel()
		if err != nil {
			return err
		}
		n.note("stopped %s: exit %d after %v", nodes[i], code, took.Round(time.Millisecond))
		if code != 0 {
			n.wrong = append(n.wrong, fmt.Errorf("%s ended with exit code %d after %v: %s", nodes[i], code, took, n.Cluster.Logs(nodes[i], 1)))
		}
		if err := n.revive(nodes[i]); err != nil {
			return err
		}
		if err := n.whole(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (n *Nemesis) all(ctx context.Context, s Step, random *rand.Rand) error {
	nodes := n.Cluster.Nodes()
	for _, node := range nodes {
		if err := n.Cluster.Kill(node); err != nil {
			return err
		}
	}
	n.note("killed all nodes")
	pause(ctx, s.Hold/4)
	random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	return n.revive(nodes...)
}

func (n *Nemesis) note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, Event{At: time.Since(n.start), What: fmt.Sprintf(format, args...)})
}

// Report says what was done when.
func (n *Nemesis) Report() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var b strings.Builder
	for _, e := range n.events {
		fmt.Fprintf(&b, "%8.3f s  %s\n", e.At.Seconds(), e.What)
	}
	return b.String()
}

// Faults counts the faults of each kind.
func (n *Nemesis) Faults() map[Fault]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts
}
