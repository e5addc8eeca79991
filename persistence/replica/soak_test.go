package replica

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestRollingRestartsUnderLoad restarts node after node while clients write, with
// logs so short that returning replicas need the whole file. Every acknowledged
// write must be there, once, on equal replicas, and none may be quarantined.
// WRIT_SOAK_ROUNDS makes it longer.
func TestRollingRestartsUnderLoad(t *testing.T) {
	rounds := 4
	if n, err := strconv.Atoi(os.Getenv("WRIT_SOAK_ROUNDS")); err == nil {
		rounds = n
	}
	const shards = 2
	c := newCluster(t, 3, func(config *Config) {
		config.Timing.TrailingLogs, config.Timing.SnapshotThreshold = trailingMin, 10
		config.Timing.SnapshotInterval = 50 * time.Millisecond
		config.Store.FlushInterval = 50 * time.Millisecond
	})
	c.startAll(shards)
	stop := make(chan struct{})
	var acknowledged [shards]atomic.Uint64
	var clients sync.WaitGroup
	for shard := range uint32(shards) {
		clients.Go(func() {
			for version := uint64(0); ; version++ {
				select {
				case <-stop:
					acknowledged[shard].Store(version)
					return
				default:
					c.write(shard, "e", version, fmt.Sprint(version))
				}
			}
		})
	}
	progress := func(shard uint32) uint64 {
		for _, name := range c.nodes {
			if h := c.host(name); h != nil {
				if rec, err := h.Replica(shard).Store().Entity(refOf("e")); err == nil {
					return rec.GetVersion()
				}
			}
		}
		return 0
	}
	for round := range rounds {
		name := c.nodes[round%len(c.nodes)]
		if err := c.stop(name); err != nil {
			t.Errorf("round %d: stop %s: %v", round, name, err)
		}
		for shard := range uint32(shards) {
			was := progress(shard)
			eventually(t, "writes without "+name, func() bool { return progress(shard) > was+80 })
		}
		c.start(name)
		for shard := range uint32(shards) {
			r := c.open(name, shardConfig(shard, 1, c.servers(1)))
			if s := r.Status(); s.State != Serving {
				t.Fatalf("round %d: shard %d on %s is %s: %s", round, shard, name, s.State, s.Reason)
			}
			eventually(t, name+" to catch up", func() bool {
				ok, _ := r.Ready()
				return ok
			})
		}
	}
	close(stop)
	clients.Wait()
	for shard := range uint32(shards) {
		c.wantEverywhere(shard, "e", fmt.Sprint(acknowledged[shard].Load()-1))
		c.wantEqualHashes(shard, "end")
	}
}
