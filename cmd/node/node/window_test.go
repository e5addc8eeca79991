package node_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
	"writ/sharding"
)

// brief is a cluster whose keys of kind "brief" are remembered for 3 s; the
// generations are as fine as those of such a window.
func brief(acts *acting, wrong *clocks) func(*node.Config) {
	return func(cfg *node.Config) {
		acts.conf(cfg)
		cfg.Window, cfg.RetryHorizon = shortWindow, shortWindow
		cfg.Clock = wrong.of(cfg.ID)
	}
}

// clocks are the wall clocks of nodes.
type clocks struct {
	mu  sync.Mutex
	off map[string]time.Duration // by so much they are wrong
}

// of is a node's clock. It has no monotonic reading.
func (w *clocks) of(name string) func() time.Time {
	return func() time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return time.Now().Round(0).Add(w.off[name])
	}
}

// set says by how much each node's clock is off; the others are right.
func (w *clocks) set(off map[string]time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.off = off
}

// moveLead has another node lead a shard, and returns its name.
func (c *testCluster) moveLead(shard uint32, leader string) (to string) {
	c.t.Helper()
	to = c.names[0]
	if leader == to {
		to = c.names[1]
	}
	eventually(c.t, func(ctx context.Context) (*nodev1.MoveShardResponse, error) {
		return c.admin().MoveShard(ctx, &nodev1.MoveShardRequest{Shard: shard, To: to})
	})
	return to
}

// leader is who leads the shard of an entity.
func (c *testCluster) leader(kind, id string) (shard uint32, leader string) {
	c.t.Helper()
	shard = sharding.Locate(4, entity.Ref{Tenant: "default", Kind: kind, ID: id})
	status := eventually(c.t, func(ctx context.Context) (*nodev1.StatusResponse, error) {
		st, err := c.admin().Status(ctx, &nodev1.StatusRequest{})
		if err == nil && st.GetShards()[shard].GetLeader() == "" {
			err = fmt.Errorf("shard %d has no leader", shard)
		}
		return st, err
	})
	return shard, status.GetShards()[shard].GetLeader()
}

// TestWindowEdge covers that no key is forgotten before its window has passed,
// whatever happens in between, and that a command that was issued before what is
// forgotten is not executed again, while one that is issued now is.
func TestWindowEdge(t *testing.T) {
	type edge struct {
		before, between func(c *testCluster, wrong *clocks) // the first submit
		retried         func(wrong *clocks, times int)
	}
	off := func(by time.Duration) func(*testCluster, *clocks) {
		return func(c *testCluster, wrong *clocks) {
			_, leader := c.leader("brief", "a")
			wrong.set(map[string]time.Duration{leader: by})
		}
	}
	for name, e := range map[string]edge{
		"nothing":                   {},
		"leadership moved":          {between: func(c *testCluster, _ *clocks) { c.moveLead(c.leader("brief", "a")) }},
		"clock of the leader ahead": {before: off(2 * time.Hour)},
		"clock of the leader stepped": {
			before: off(2 * time.Hour), between: off(-time.Hour),
			retried: func(wrong *clocks, times int) {
				if times == 10 {
					wrong.set(nil)
				}
			},
		},
		"leadership moved between clocks that differ": {
			before: func(c *testCluster, wrong *clocks) {
				_, leader := c.leader("brief", "a")
				differ := map[string]time.Duration{}
				for i, name := range c.names {
					differ[name] = []time.Duration{-2 * time.Minute, 2 * time.Minute, -2 * time.Minute}[i]
				}
				differ[leader] = 0 // else it takes the client's for wrong
				wrong.set(differ)
			},
			between: func(c *testCluster, _ *clocks) { c.moveLead(c.leader("brief", "a")) },
			retried: func(wrong *clocks, times int) {
				if times == 10 {
					wrong.set(nil)
				}
			},
		},
		"everything restarted": {between: func(c *testCluster, _ *clocks) { c.stop(); c.start() }},
		"leader stopped": {between: func(c *testCluster, _ *clocks) {
			_, leader := c.leader("brief", "a")
			if err := c.nodes[leader].Stop(c.t.Context()); err != nil {
				c.t.Error(err)
			}
			delete(c.nodes, leader)
			for i, name := range c.names {
				if name == leader {
					c.names = append(c.names[:i:i], c.names[i+1:]...)
					break
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wrong := &clocks{}
			c := newCluster(t, 3, brief(newActing(), wrong))
			if e.before != nil {
				e.before(c, wrong)
			}
			req := command(t, "brief", "a", "k", orderOf(1, nil))
			req.IssuedAt = timestamppb.Now()
			send := func(req *writv1.SubmitRequest) answer {
				return insist(t, func(ctx context.Context) answer {
					return submit(ctx, writv1.NewEntityServiceClient(c.dial(c.names[0])), req)
				})
			}
			accepted := time.Now()
			got := send(req)
			for range 5 { // leadership went, by itself, to a node that takes the client's clock for wrong
				if got.reason != "INVALID" || e.before == nil {
					break
				}
				e.before(c, wrong)
				accepted = time.Now()
				got = send(req)
			}
			if !got.first() {
				t.Fatalf("first: %v", got)
			}
			if e.between != nil {
				e.between(c, wrong)
			}
			// Until the window has passed every retry is a replay; log time may run
			// late, so after it both may be, until the key is gone.
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for times := 0; ; times++ {
				if e.retried != nil {
					e.retried(wrong, times)
				}
				asked := time.Now()
				got := send(req)
				switch {
				case got.code == codes.OK && got.replayed:
				case got.code == codes.FailedPrecondition && got.reason == "EXPIRED":
					if forgotten := time.Since(accepted); forgotten < shortWindow {
						t.Errorf("forgotten after %v, the window is %v", forgotten, shortWindow)
					}
					if e.retried != nil {
						wrong.set(nil) // if the rounds before were fewer than thought
					}
					checkForgotten(t, c, send, req)
					return
				default:
					t.Fatalf("retry after %v: %v, want a replay or EXPIRED", asked.Sub(accepted), got)
				}
				if time.Since(accepted) > 30*time.Second {
					t.Fatal("the key is never forgotten")
				}
				<-tick.C
			}
		})
	}
}

// checkForgotten covers what becomes of a key that is forgotten: a late retry that
// says when it was issued is refused, one that does not is a new command, as the
// contract says.
func checkForgotten(t *testing.T, c *testCluster, send func(*writv1.SubmitRequest) answer, req *writv1.SubmitRequest) {
	t.Helper()
	if got := send(req); got.reason != "EXPIRED" {
		t.Errorf("late retry: %v, want EXPIRED for ever", got)
	}
	fresh := command(t, "brief", "a", "fresh", orderOf(1, nil))
	fresh.IssuedAt = timestamppb.New(time.Now().Add(shortWindow / 8)) // of a clock that runs ahead
	if got := send(fresh); !got.first() {
		t.Errorf("a command issued now: %v", got)
	}
	undated := command(t, "brief", "a", "k", orderOf(1, nil))
	if got := send(undated); !got.first() {
		t.Errorf("the forgotten key without its time: %v, want an execution", got)
	}
	if len(c.nodes) == 3 { // the audit compares all replicas
		c.audit()
	}
}
