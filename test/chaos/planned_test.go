package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// What a planned move may cost: a stop, a drain, a move of a shard.
const (
	// plannedPause is how long the 99th percentile of the shards' pauses may be.
	plannedPause = 500 * time.Millisecond
	// heldUp tells a machine that is held up by something else: a sync of the disk
	// and a turn of the processor, which take a few ms together, take as long. Such
	// a round is run again. It is measured beside Writ, so a move that holds shards
	// up is never taken for a disturbance.
	heldUp = 100 * time.Millisecond
	// turns of the machine, one after the other, are what a move or a transfer takes:
	// messages between processes and syncs of the disk. So many of the longest it may
	// cost more.
	turns = 3
)

// machine looks how long one thread waits for the processor and the disk.
type machine struct {
	mu    sync.Mutex
	turns []turn
}

type turn struct{ from, to time.Time }

// watchMachine begins to look, until the test ends.
func watchMachine(t *testing.T) *machine {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "machine"))
	must(t, err)
	m, ctx := &machine{}, t.Context()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() { _ = f.Close() }()
		block := make([]byte, 4096)
		for last := time.Now(); ctx.Err() == nil; {
			pause(ctx, 10*time.Millisecond)
			_, err := f.WriteAt(block, 0)
			if err = errors.Join(err, f.Sync()); err != nil {
				t.Errorf("watch the machine: %v", err)
				return
			}
			now := time.Now()
			m.mu.Lock()
			m.turns = append(m.turns, turn{last, now})
			m.mu.Unlock()
			last = now
		}
	})
	t.Cleanup(wg.Wait)
	return m
}

// since are the turns that ended after the moment, and the one that goes on.
func (m *machine) since(from time.Time) (took []time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.turns {
		if t.to.After(from) {
			took = append(took, t.to.Sub(t.from))
		}
	}
	if n := len(m.turns); n > 0 {
		took = append(took, time.Since(m.turns[n-1].to))
	}
	return took
}

// slowest is the longest turn since the moment.
func (m *machine) slowest(from time.Time) time.Duration {
	_, slowest := spread(m.since(from))
	return slowest
}

// planned collects the pauses of planned moves, and the machine's longest turn in the
// rounds that count.
type planned struct {
	*rig
	machine *machine
	probes  map[uint32]*Probe
	pauses  []time.Duration
	slowest time.Duration
}

func (r *rig) planned(probes map[uint32]*Probe) *planned {
	r.t.Helper()
	return &planned{rig: r, machine: watchMachine(r.t), probes: probes}
}

// round makes one move, again if the machine was held up meanwhile, and notes the
// pause of each shard from its begin to the answers that follow its end.
func (p *planned) round(ctx context.Context, name string, move func() (what string)) {
	p.t.Helper()
	for range tries {
		begin := time.Now()
		what := move()
		end := time.Now()
		must(p.t, eventually(ctx, "answers behind "+name, func(context.Context) error {
			for shard, probe := range p.probes {
				if !probe.Past(end) {
					return fmt.Errorf("shard %d: none", shard)
				}
			}
			return nil
		}))
		var pauses []time.Duration
		for _, probe := range p.probes {
			pauses = append(pauses, probe.Pause(begin))
		}
		median, greatest := spread(pauses)
		slowest := p.machine.slowest(begin)
		p.t.Logf("%s: %s; pause per shard: median %v, greatest %v; the machine's longest turn %v", name, what, millis(median), millis(greatest), millis(slowest))
		if slowest <= heldUp {
			p.pauses, p.slowest = append(p.pauses, pauses...), max(p.slowest, slowest)
			return
		}
		p.t.Logf("%s: the machine was held up: once more", name)
	}
}

// judge ends the test's look at pauses: it skips the test if there was none.
func (p *planned) judge() {
	p.t.Helper()
	if len(p.pauses) == 0 {
		p.t.Skip("SKIP: something else held the machine up in every round: pauses were not judged")
	}
	median, greatest := spread(p.pauses)
	at99 := nearest(p.pauses, 99)
	limit := plannedPause + turns*p.slowest
	p.t.Logf("planned moves: %d pauses, median %v, p99 %v (at most %v), greatest %v", len(p.pauses), millis(median), millis(at99), millis(limit), millis(greatest))
	if at99 > limit {
		p.t.Errorf("the p99 of the pauses per shard was %v; want at most %v", at99, limit)
	}
	if greatest > 3*time.Second {
		p.t.Errorf("a planned move paused a shard for %v", greatest)
	}
}

// nearest is a percentile by its nearest rank: of fewer than a hundred, the 99th is
// the greatest.
func nearest(all []time.Duration, percent int) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[(len(all)*percent+99)/100-1]
}

func TestNearest(t *testing.T) {
	var all []time.Duration
	for i := range 200 {
		all = append(all, time.Duration(i+1))
	}
	for n, want := range map[int]time.Duration{1: 1, 24: 24, 100: 99, 101: 100, 200: 198} {
		if got := nearest(all[:n], 99); got != want {
			t.Errorf("of %d: %v, want %v", n, got, want)
		}
	}
}

// health of gRPC, by the names of probes.
func (r *rig) wantHealth(ctx context.Context, node string, want map[string]bool) {
	r.t.Helper()
	must(r.t, eventually(ctx, "gRPC health of "+node, func(ctx context.Context) error {
		for service, serving := range want {
			got, err := r.links.Serving(ctx, node, service)
			if err != nil {
				return err
			}
			if got != serving {
				return fmt.Errorf("%q serves: %v", service, got)
			}
		}
		return nil
	}))
}
