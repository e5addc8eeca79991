package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// fill takes room on a disk until only so much is left.
func fill(t *testing.T, dir string, left uint64) { t.Helper(); must(t, fillDisk(dir, left)) }

// A leader's disk, a real one, fills up: at the watermark leaderships go, the
// ballast is given up and nobody notices; when there is room again the node goes
// on by itself. Filled to the last byte, the ballast's room too, its replicas fail by
// name, the process lives, the others serve, and after a restart with some room it is whole
// again.
func TestProcessFullDisk(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 23))
	r := prepare(t, ProcessConfig{Args: []string{"--free-min-mb", lowDiskMB}})
	const node = "n2"
	r.smallDisk(node)
	dir := r.process.Dir(node)
	ctx := within(t, 6*time.Minute)
	nodes := r.cluster.Nodes()
	r.up(nodes...)
	r.awaitLeads(ctx, node, true)
	ballast := filepath.Join(dir, "ballast")
	must(t, eventually(ctx, "the ballast", func(context.Context) error { _, err := os.Stat(ballast); return err }))
	w, hedge := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 4, Accounts: 20, Registers: 4, Think: 20 * time.Millisecond})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	defer func() { stop(); wg.Wait() }()

	begin := time.Now()
	fill(t, dir, lowDisk)
	r.awaitLeads(within(t, 45*time.Second), node, false)
	t.Logf("at the watermark: %s leads nothing after %v", node, time.Since(begin).Round(time.Millisecond))
	if ready, text := r.readiness(ctx, node); ready || !strings.Contains(text, "make room") {
		t.Errorf("%s: ready %v: %s", node, ready, text)
	}
	if _, err := os.Stat(ballast); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the ballast is still there: %v", err)
	}
	r.deposits(ctx, "low-", 16)
	must(t, emptyDisk(dir))
	must(t, AwaitReady(within(t, time.Minute), r.cluster, nodes...))
	r.awaitLeads(within(t, time.Minute), node, true)

	// All at once, faster than anybody looks; then the ballast's room as well.
	begin = time.Now()
	fill(t, dir, 0)
	_, err := r.links.Leaders(within(t, 45*time.Second), others(r.cluster, node))
	must(t, err)
	t.Logf("filled to the last byte: every shard is led elsewhere after %v", time.Since(begin).Round(time.Millisecond))
	fill(t, dir, 0)
	r.deposits(ctx, "full-", 64)
	must(t, eventually(within(t, 30*time.Second), "the failure's name", func(ctx context.Context) error {
		if ready, text := Ready(ctx, r.cluster, node); ready || !strings.Contains(text, "no space left on device") {
			return errors.New(text)
		}
		return nil
	}))
	r.wantAlive(ctx, node)
	must(t, emptyDisk(dir))
	stopping, cancel := context.WithTimeout(ctx, 15*time.Second)
	code, took, err := r.cluster.Stop(stopping, node)
	cancel()
	must(t, err)
	t.Logf("%s stopped with exit code %d after %v", node, code, took.Round(time.Millisecond))
	r.up(node)
	must(t, AwaitReady(within(t, time.Minute), r.cluster, nodes...))
	stop()
	wg.Wait()
	r.verify(w, hedge)
}
