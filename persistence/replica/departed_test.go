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
		config.Timing.Dial, config.Timing.RPC = 500*time.Millisecond, 800*time.Millisecond // the pace of parting
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
	connections := func(to func(server string) bool) (n int) {
		for _, name := range []string{"a", "b"} {
			s := c.host(name).Replica(0).trans.streams
			s.mu.Lock()
			for conn := range s.open {
				if to(conn.to) {
					n++
				}
			}
			s.mu.Unlock()
		}
		return n
	}
	for generation := uint64(2); generation < 6; generation++ {
		third := c.server("c", generation)
		c.open("c", shardConfig(0, generation, nil))
		step := func(what string, change func(*Replica) error) {
			eventually(t, what, func() bool {
				node, _ := c.lease(0, 0)
				return change(c.host(node).Replica(0)) == nil
			})
		}
		step("a learner", func(r *Replica) error { return r.AddLearner(ctx, third) })
		eventually(t, "appends and heartbeats to it", func() bool {
			return connections(func(to string) bool { return to == third.String() }) >= 2
		})
		step("its removal", func(r *Replica) error { return r.Remove(ctx, third) })
		if err := c.host("c").Drop(0); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the end of connections to replicas that are gone", func() bool {
		return connections(func(to string) bool { return strings.HasPrefix(to, "c#") }) == 0
	})
	c.write(0, "e", 1, "1")
	c.wantEverywhere(0, "e", "1")
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
	connected := func() bool { return len(r.trans.streams.peers()) > 0 }
	eventually(t, "appends to it", connected)
	if absent := r.part(map[string]bool{second.String(): true}); absent[second.String()] || !connected() {
		t.Error("parted from a member")
	}
	if err := r.Remove(ctx, second); err != nil {
		t.Fatal(err)
	}
	absent := r.part(nil)
	if !absent[second.String()] || !connected() {
		t.Errorf("after one look: absent are %v, connected: %v", absent, connected())
	}
	if r.part(absent); connected() {
		t.Error("still connected after two looks")
	}
}
