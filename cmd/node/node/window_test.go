package node_test

import (
	"context"
	"fmt"
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
func brief(acts *acting) func(*node.Config) {
	return func(cfg *node.Config) {
		acts.conf(cfg)
		cfg.Window, cfg.RetryHorizon = shortWindow, shortWindow
	}
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
// forgotten is not executed again (C048).
func TestWindowEdge(t *testing.T) {
	for name, between := range map[string]func(c *testCluster){
		"nothing": func(*testCluster) {},
		"leadership moved": func(c *testCluster) {
			shard, leader := c.leader("brief", "a")
			to := c.names[0]
			if leader == to {
				to = c.names[1]
			}
			eventually(c.t, func(ctx context.Context) (*nodev1.MoveShardResponse, error) {
				return c.admin().MoveShard(ctx, &nodev1.MoveShardRequest{Shard: shard, To: to})
			})
		},
		"everything restarted": func(c *testCluster) { c.stop(); c.start() },
		"leader stopped": func(c *testCluster) {
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
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, brief(newActing()))
			req := command(t, "brief", "a", "k", orderOf(1, nil))
			req.IssuedAt = timestamppb.Now()
			send := func(req *writv1.SubmitRequest) answer {
				return eventually(t, func(ctx context.Context) (answer, error) {
					got := submit(ctx, writv1.NewEntityServiceClient(c.dial(c.names[0])), req)
					if got.code == codes.Unavailable || got.code == codes.DeadlineExceeded {
						return got, fmt.Errorf("%v", got)
					}
					return got, nil
				})
			}
			accepted := time.Now()
			if got := send(req); got.code != codes.OK || got.replayed {
				t.Fatalf("first: %v", got)
			}
			between(c)
			// Until the window has passed every retry is a replay; log time may run
			// late, so after it both may be, until the key is gone.
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for {
				asked := time.Now()
				got := send(req)
				switch {
				case got.code == codes.OK && got.replayed:
				case got.code == codes.FailedPrecondition && got.reason == "EXPIRED":
					if forgotten := time.Since(accepted); forgotten < shortWindow {
						t.Errorf("forgotten after %v, the window is %v", forgotten, shortWindow)
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
	if got := send(fresh); got.code != codes.OK || got.replayed {
		t.Errorf("a command issued now: %v", got)
	}
	undated := command(t, "brief", "a", "k", orderOf(1, nil))
	if got := send(undated); got.code != codes.OK || got.replayed {
		t.Errorf("the forgotten key without its time: %v, want an execution", got)
	}
	if len(c.nodes) == 3 { // the audit compares all replicas
		c.audit()
	}
}
