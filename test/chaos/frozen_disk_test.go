package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// arm arms a fault point of a running node, or disarms it with the action none.
func (r *rig) arm(node, point, action string) {
	r.t.Helper()
	must(r.t, Arm(r.cluster, node, point, action, 0))
}

// The disk of a leader freezes: writes to the log hang, or flushes of the shard
// files, or both. The process goes on, so do its heartbeats, and yet leadership
// moves; the node says which shards are suspended and why, never answers from its
// old state, and comes back when the disk answers.
func TestProcessFrozenDisk(t *testing.T) {
	t.Parallel()
	binary, err := buildFaults()
	must(t, err)
	random := rand.New(rand.NewPCG(seed(t), 22))
	cases := []struct {
		name   string
		points []string
	}{
		{"all", []string{"before-append", "before-flush"}},
		{"shard files", []string{"before-flush"}},
		{"log", []string{"before-append"}},
	}
	for _, c := range cases[:pick(2, 3)] {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			r := startWith(t, ProcessConfig{}, binary)
			ctx := within(t, 4*time.Minute)
			nodes := r.cluster.Nodes()
			const account = "cold-0"
			home := r.deposits(ctx, "cold-", 64)
			leaders, err := r.links.Leaders(ctx, nodes)
			must(t, err)
			node := leaders[home[account]]
			w, hedge := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 4, Accounts: 20, Registers: 4, Think: 20 * time.Millisecond, Patience: 40 * time.Second})
			loading, stop := context.WithCancel(ctx)
			var wg sync.WaitGroup
			wg.Go(func() { w.Run(loading) })
			defer func() { stop(); wg.Wait() }()

			for _, point := range c.points {
				r.arm(node, point, "hold")
			}
			begin := time.Now()
			// The watchdog's limit of 5 s or 10 s, and an election; on a busy machine the
			// two that are left may need several.
			_, err = r.links.Leaders(within(t, 45*time.Second), others(r.cluster, node))
			must(t, err)
			t.Logf("%s frozen: every shard is led elsewhere after %v", node, time.Since(begin).Round(time.Millisecond))

			// The others serve, and the frozen node does not contradict them.
			f := &frozen{rig: r, node: node, account: account, key: "while-frozen"}
			op := Op{Action: Deposit, Account: account, Key: f.key, Amount: 7}
			if a := (&Rounds{Links: r.links, Nodes: others(r.cluster, node), Patience: 20 * time.Second}).Do(ctx, op); a.Verdict != Executed {
				t.Fatalf("write while %s is frozen: %+v", node, a)
			} else {
				op.Answer = a
				r.side.Add(op)
			}
			f.read(ctx, 20)
			f.ask(ctx, 20)
			r.wantAlive(ctx, node)
			ready, text := r.readiness(ctx, node)
			if ready || !strings.Contains(text, "suspended: a ") || !strings.Contains(text, "hanging") {
				t.Errorf("%s: ready %v: %s", node, ready, text)
			}
			status, err := r.links.Status(ctx, node)
			must(t, err)
			suspended := 0
			for _, s := range status.GetShards() {
				if s.GetState() == "suspended" && s.GetReason() != "" {
					suspended++
				}
			}
			if suspended == 0 {
				t.Errorf("no shard of %s stands as suspended: %v", node, status.GetShards())
			}

			for _, point := range c.points {
				r.arm(node, point, "none")
			}
			f.read(ctx, 50)
			f.ask(ctx, 20)
			f.wait()
			t.Logf("%d shards stood as suspended; %d answers of %s, %d of them definite", suspended, len(f.answers), node, f.verdict(107))
			begin = time.Now()
			must(t, AwaitReady(within(t, time.Minute), r.cluster, nodes...))
			t.Logf("ready again %v after the thaw", time.Since(begin).Round(time.Millisecond))
			stop()
			wg.Wait()
			r.verify(w, hedge)
		})
	}
}

// startWith starts a cluster whose nodes have another program.
func startWith(t *testing.T, config ProcessConfig, binary string) *rig {
	t.Helper()
	r := prepare(t, config)
	for _, node := range r.cluster.Nodes() {
		r.process.SetBinary(node, binary)
	}
	r.up(r.cluster.Nodes()...)
	return r
}

// leads counts the shards that a node leads.
func (r *rig) leads(ctx context.Context, node string) (int, error) {
	leaders, err := r.links.Leaders(ctx, r.cluster.Nodes())
	n := 0
	for _, leader := range leaders {
		if leader == node {
			n++
		}
	}
	return n, err
}

// awaitLeads waits until a node leads something, or nothing.
func (r *rig) awaitLeads(ctx context.Context, node string, something bool) {
	r.t.Helper()
	must(r.t, eventually(ctx, fmt.Sprintf("%s leads something: %v", node, something), func(ctx context.Context) error {
		one, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		n, err := r.leads(one, node)
		if err == nil && (n > 0) != something {
			err = fmt.Errorf("it leads %d", n)
		}
		return err
	}))
}

// A node whose disk hangs is told to stop: it hands its leaderships over, ends in
// time with exit code 0 and says what it left undone; the next start replays it.
func TestProcessStopOnAFrozenDisk(t *testing.T) {
	t.Parallel()
	binary, err := buildFaults()
	must(t, err)
	random := rand.New(rand.NewPCG(seed(t), 24))
	r := startWith(t, ProcessConfig{}, binary)
	ctx := within(t, 8*time.Minute)
	nodes := r.cluster.Nodes()
	w, hedge := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 4, Accounts: 20, Registers: 4, Think: 100 * time.Millisecond, Patience: 40 * time.Second})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	defer func() { stop(); wg.Wait() }()
	machine := watchMachine(t)
	named := false // the files that were not flushed
	for i := 0; i < pick(1, 2) || !named && i < tries; i++ {
		points := [][]string{{"before-flush", "before-append"}, {"before-flush"}}[i%2]
		node := nodes[i%len(nodes)]
		before := w.History().Tally().Executed
		must(t, eventually(ctx, "some load", func(context.Context) error {
			if done := w.History().Tally().Executed - before; done < 20 {
				return fmt.Errorf("%d executed", done)
			}
			return nil
		}))
		r.arm(node, points[0], "hold")
		r.deposits(ctx, fmt.Sprintf("stop-%d-", i), 64) // something to flush in every shard
		for _, point := range points[1:] {
			r.arm(node, point, "hold")
		}
		begin := time.Now()
		stopping, cancel := context.WithTimeout(ctx, 3*stopWithin)
		code, took, err := r.cluster.Stop(stopping, node)
		cancel()
		must(t, err)
		// The steps before the files may take most of the time, and on a busy machine all.
		_, step, cut := strings.Cut(r.process.Since(node), "stopped before the end, while ")
		files := strings.HasPrefix(step, "files were closed")
		named = named || files
		if code != 0 || took > stopWithin+turns*machine.slowest(begin) || !cut || files && !strings.HasPrefix(step, "files were closed: not flushed are shards") {
			t.Errorf("%s: exit code %d after %v: %s", node, code, took, r.cluster.Logs(node, 5))
		}
		t.Logf("%s, hanging at %v, stopped in %v; while files were closed: %v", node, points, took.Round(time.Millisecond), files)
		r.up(node)
	}
	must(t, AwaitReady(ctx, r.cluster, nodes...))
	stop()
	wg.Wait()
	r.verify(w, hedge)
	if !named {
		t.Skip("SKIP: the machine was held up each time: no stop came as far as the files")
	}
}

// A flush fails once: that replica fails by name, the others of the node go on, and
// a moment later it is opened anew in the same process and has missed nothing.
func TestProcessFailedFlush(t *testing.T) {
	t.Parallel()
	binary, err := buildFaults()
	must(t, err)
	r := startWith(t, ProcessConfig{}, binary)
	ctx := within(t, 3*time.Minute)
	nodes := r.cluster.Nodes()
	r.deposits(ctx, "flush-", 64)
	const node, reopened = "n2", "a failed replica is opened anew"
	r.arm(node, "before-flush", "error")
	var wg sync.WaitGroup
	defer wg.Wait()
	// Something to flush. Not all at once: the failure lasts for some seconds only.
	wg.Go(func() {
		for i := range 64 {
			op := Op{Action: Deposit, Account: fmt.Sprintf("fail-%d", i), Key: "open", Amount: 100}
			op.Answer = (&Library{Client: r.client}).Do(ctx, op)
			if op.Answer.Verdict != Executed {
				t.Errorf("%+v", op)
			}
			r.side.Add(op)
		}
	})
	must(t, eventually(within(t, time.Minute), "the failure", func(ctx context.Context) error {
		if strings.Contains(r.process.Since(node), reopened) { // nobody was quick enough to look
			return nil
		}
		status, err := r.links.Status(ctx, node)
		if err != nil {
			return err
		}
		failed, serving := 0, 0
		for _, s := range status.GetShards() {
			switch {
			case s.GetState() == "failed" && strings.Contains(s.GetReason(), "injected"):
				failed++
			case s.GetState() == "serving":
				serving++
			}
		}
		if failed != 1 || serving != len(status.GetShards())-1 {
			return fmt.Errorf("%d failed, %d serve", failed, serving)
		}
		return nil
	}))
	wg.Wait()
	begin := time.Now()
	r.deposits(ctx, "meanwhile-", 64)
	must(t, AwaitReady(within(t, time.Minute), r.cluster, nodes...))
	t.Logf("%s is ready again after %v", node, time.Since(begin).Round(time.Millisecond))
	text := r.process.Since(node)
	failed := 0
	for line := range strings.Lines(text) {
		if strings.Contains(line, "replica failed") && strings.Contains(line, "injected") {
			failed++
		}
	}
	if failed != 1 || !strings.Contains(text, reopened) || strings.Contains(text, "quarantined") {
		t.Errorf("%s tells of %d failed replicas: %s", node, failed, r.cluster.Logs(node, 20))
	}
	r.audit()
	r.contents(ctx)
}
