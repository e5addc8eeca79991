package replica

import (
	"context"
	"strings"
	"testing"
	"time"
)

// Replicas come and go under ever new generations. Connections to those that have
// gone do not stay: nobody would ever use them again, or notice that they have ended.
func TestConnectionsToRemovedReplicasEnd(t *testing.T) {
	c := newCluster(t, 3, func(config *Config) {
		config.Timing.Dial, config.Timing.RPC = 500*time.Millisecond, 1600*time.Millisecond // the pace of parting
	})
	for _, name := range c.nodes {
		c.start(name)
	}
	first := []Server{c.server("a", 1), c.server("b", 1)}
	for _, name := range []string{"a", "b"} {
		c.open(name, shardConfig(0, 1, first))
	}
	c.write(0, "e", 0, "0")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	count := func(to func(server string) bool) (n int) {
		for _, name := range []string{"a", "b"} {
			n += connections(c.host(name).Replica(0), to)
		}
		return n
	}
	for generation := uint64(2); generation < 6; generation++ {
		third := c.server("c", generation)
		c.open("c", shardConfig(0, generation, nil))
		c.onLeader("a learner", func(r *Replica) error { return r.AddLearner(ctx, third) })
		eventually(t, "appends and heartbeats to it", func() bool {
			return count(func(to string) bool { return to == third.String() }) >= 2
		})
		c.onLeader("its removal", func(r *Replica) error { return r.Remove(ctx, third) })
		if err := c.host("c").Drop(0); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the end of connections to replicas that are gone", func() bool {
		return count(func(to string) bool { return strings.HasPrefix(to, "c#") }) == 0
	})
	c.write(0, "e", 1, "1")
	c.wantEverywhere(0, "e", "1")
}

// connections are the outgoing connections of a replica to servers of a kind.
func connections(r *Replica, to func(server string) bool) int {
	s := r.trans.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.those(func(conn *groupConn) bool { return to(conn.to) }))
}

// A server may be on the point of being told of its removal when it is first found to
// be absent.
func TestPartingTakesTwoLooks(t *testing.T) {
	c := newCluster(t, 2, func(config *Config) { config.Timing.RPC = patience }) // the looks of the group itself
	for _, name := range c.nodes {
		c.start(name)
	}
	r := c.open("a", shardConfig(0, 1, []Server{c.server("a", 1)}))
	c.lease(0, 0)
	second := c.server("b", 2)
	c.open("b", shardConfig(0, 2, nil))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	eventually(t, "a learner", func() bool { return r.AddLearner(ctx, second) == nil })
	count := func() int { return connections(r, func(to string) bool { return to == second.String() }) }
	connected := func() bool { return count() > 0 }
	// Of these the removal ends one, that of the pipeline.
	eventually(t, "appends and heartbeats to it", func() bool { return count() >= 2 })
	if absent := r.part(map[string]bool{second.String(): true}); absent[second.String()] || !connected() {
		t.Error("parted from a member")
	}
	eventually(t, "its removal", func() bool { return r.Remove(ctx, second) == nil })
	absent := r.part(nil)
	if !absent[second.String()] || !connected() {
		t.Errorf("after one look: absent are %v, connected: %v", absent, connected())
	}
	eventually(t, "the end of the connections after two looks", func() bool { // a call in progress may make one more
		r.part(absent)
		return !connected()
	})
}
