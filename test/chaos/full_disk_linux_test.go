package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// smallDisk gives a node that does not run yet a disk of its own, in memory.
func (r *rig) smallDisk(node, size string) string {
	r.t.Helper()
	dir := r.process.Dir(node)
	must(r.t, os.MkdirAll(dir, 0o750))
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		r.t.Skipf("SKIP: a small disk cannot be mounted here: %v", err)
	}
	// Detached: the node may still run when the test ends.
	r.t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill takes room on a disk until only so much is left.
func fill(t *testing.T, dir, name string, left uint64) (remove func()) {
	t.Helper()
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	must(t, err)
	defer func() { must(t, f.Close()) }()
	var at int64
	for step := int64(1 << 20); step >= 4096; {
		free := freeOf(t, dir)
		if free < left+uint64(step) {
			step /= 2
			continue
		}
		err := syscall.Fallocate(int(f.Fd()), 0, at, step)
		switch {
		case errors.Is(err, syscall.ENOSPC):
			step /= 2
		case !errors.Is(err, syscall.EINTR):
			must(t, err)
			at += step
		}
	}
	return func() { must(t, os.Remove(path)) }
}

func freeOf(t *testing.T, dir string) uint64 {
	t.Helper()
	var st syscall.Statfs_t
	must(t, syscall.Statfs(dir, &st))
	return st.Bavail * uint64(st.Bsize)
}

// A leader's disk, a real one, fills up: at the watermark leaderships go, the
// ballast is given up and nobody notices; when there is room again the node goes
// on by itself. Filled to the last byte, the ballast's room too, its replicas fail by
// name, the process lives, the others serve, and after a restart with some room it is whole
// again (C022, C023).
func TestProcessFullDisk(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 23))
	r := prepare(t, ProcessConfig{Args: []string{"--free-min-mb", "48"}})
	const node = "n2"
	dir := r.smallDisk(node, "384m")
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
	makeRoom := fill(t, dir, "filler", 40<<20)
	r.awaitLeads(within(t, 15*time.Second), node, false)
	t.Logf("at the watermark: %s leads nothing after %v", node, time.Since(begin).Round(time.Millisecond))
	if ready, text := Ready(ctx, r.cluster, node); ready || !strings.Contains(text, "make room") {
		t.Errorf("%s: ready %v: %s", node, ready, text)
	}
	if _, err := os.Stat(ballast); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the ballast is still there: %v", err)
	}
	r.deposits(ctx, "low-", 16)
	makeRoom()
	must(t, AwaitReady(within(t, 20*time.Second), r.cluster, nodes...))
	r.awaitLeads(within(t, time.Minute), node, true)

	// All at once, faster than anybody looks; then the ballast's room as well.
	begin = time.Now()
	makeRoom = fill(t, dir, "filler", 0)
	_, err := r.links.Leaders(within(t, 30*time.Second), others(r.cluster, node))
	must(t, err)
	t.Logf("filled to the last byte: every shard is led elsewhere after %v", time.Since(begin).Round(time.Millisecond))
	moreRoom := fill(t, dir, "more", 0)
	r.deposits(ctx, "full-", 64)
	must(t, eventually(within(t, 30*time.Second), "the failure's name", func(ctx context.Context) error {
		if ready, text := Ready(ctx, r.cluster, node); ready || !strings.Contains(text, "no space left on device") {
			return errors.New(text)
		}
		return nil
	}))
	if !Alive(ctx, r.cluster, node) {
		t.Errorf("%s has ended: %s", node, r.cluster.Logs(node, 20))
	}
	makeRoom()
	moreRoom()
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
