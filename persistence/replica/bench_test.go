package replica

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The benchmarks write to the folder of temporary files: set TMPDIR to a real
// disk. On two cores, several nodes in one process share them.

// BenchmarkFdatasync is the floor under every commit.
func BenchmarkFdatasync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "probe"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	block := make([]byte, 4096)
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	reportQuantiles(b, took)
}

func BenchmarkOneClient(b *testing.B) {
	for _, nodes := range []int{1, 3} {
		b.Run(fmt.Sprintf("replicas=%d", nodes), func(b *testing.B) {
			c := newCluster(b, nodes, benchTiming)
			c.startAll(1)
			_, l := c.lease(0, 0)
			var took []time.Duration
			version := uint64(0)
			for b.Loop() {
				began := time.Now()
				if err := propose(l, commitOf("e", version, benchValue)); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
				version++
			}
			reportQuantiles(b, took)
		})
	}
}

func BenchmarkSubmitters(b *testing.B) {
	for _, nodes := range []int{1, 3} {
		for _, shards := range []uint32{1, 8} {
			b.Run(fmt.Sprintf("replicas=%d/shards=%d/clients=256", nodes, shards), func(b *testing.B) {
				c := newCluster(b, nodes, benchTiming)
				c.startAll(shards)
				submit(b, c, shards, 256)
			})
		}
	}
}

// submit commits b.N records from many clients, each of which waits for its answer.
func submit(b *testing.B, c *cluster, shards uint32, clients int) {
	b.Helper()
	leases := make([]*Lease, shards)
	for shard := range shards {
		_, leases[shard] = c.lease(shard, 0)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	took := make([][]time.Duration, clients)
	var running sync.WaitGroup
	b.ResetTimer()
	for i := range clients {
		running.Go(func() {
			id := fmt.Sprintf("entity-%d", i)
			for version := uint64(0); left.Add(-1) >= 0; version++ {
				began := time.Now()
				if err := propose(leases[uint32(i)%shards], commitOf(id, version, benchValue)); err != nil {
					b.Errorf("%s: %v", id, err)
					return
				}
				took[i] = append(took[i], time.Since(began))
			}
		})
	}
	running.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
	reportQuantiles(b, slices.Concat(took...))
}

// BenchmarkIdle reports the processor time of 27 idle replicas, nine groups on
// three nodes, in percent of one core.
func BenchmarkIdle(b *testing.B) {
	c := newCluster(b, 3, benchTiming)
	c.startAll(9)
	for shard := range uint32(9) {
		c.lease(shard, 0)
	}
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	before, began := cpu(), time.Now()
	<-ctx.Done()
	used, passed := cpu()-before, time.Since(began)
	b.ReportMetric(100*used.Seconds()/passed.Seconds(), "%core")
	b.ReportMetric(0, "ns/op")
}

const benchValue = "a value of some two hundred bytes ......................................................................................................................................................................"

func benchTiming(c *Config) { c.Timing = DefaultTiming() }

func reportQuantiles(b *testing.B, took []time.Duration) {
	b.Helper()
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	at := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Microseconds()) }
	b.ReportMetric(at(0.5), "p50-µs")
	b.ReportMetric(at(0.99), "p99-µs")
}
