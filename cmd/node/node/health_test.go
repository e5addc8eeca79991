package node_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"writ/cmd/node/node"
)

// wantHealth waits until gRPC health says of each name whether it serves.
func (c *testCluster) wantHealth(name string, want map[string]bool) {
	c.t.Helper()
	health := grpc_health_v1.NewHealthClient(c.dial(name))
	eventually(c.t, func(ctx context.Context) (struct{}, error) {
		for service, serving := range want {
			res, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
			if err != nil {
				return struct{}{}, fmt.Errorf("%q: %w", service, err)
			}
			if got := res.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING; got != serving {
				return struct{}{}, fmt.Errorf("%q is %v, readiness %+v", service, res.GetStatus(), c.nodes[name].Readiness())
			}
		}
		return struct{}{}, nil
	})
}

// Liveness, startup and readiness are told apart, and each shard has a name of its
// own: a probe of liveness, or one that names nothing, restarts neither a node that
// waits for others nor one that has lost its quorum.
func TestGRPCHealth(t *testing.T) {
	c := &testCluster{t: t, dir: t.TempDir(), names: []string{"n1", "n2", "n3"}, nodes: map[string]*node.Node{}}
	t.Cleanup(c.stop)
	start := func(name string) {
		t.Helper()
		n, err := node.Start(t.Context(), c.config(name))
		if err != nil {
			t.Fatal(err)
		}
		c.nodes[name] = n
		c.join = append(c.join, n.Addresses().Gossip)
	}
	start("n1")
	c.wantHealth("n1", map[string]bool{"": true, "liveness": true, "startup": false, "readiness": false, "writ.v1.EntityService": false})
	start("n2")
	start("n3")
	c.awaitReady()
	c.wantHealth("n1", map[string]bool{
		"": true, "liveness": true, "startup": true, "readiness": true, "writ.v1.EntityService": true,
		"shard/0": true, "shard/1": true, "shard/2": true, "shard/3": true,
	})
	for _, name := range []string{"n2", "n3"} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if err := c.nodes[name].Stop(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		delete(c.nodes, name)
	}
	c.wantHealth("n1", map[string]bool{
		"": true, "liveness": true, "startup": true, "readiness": false, "writ.v1.EntityService": false,
		"shard/0": false, "shard/1": false, "shard/2": false, "shard/3": false,
	})
}
