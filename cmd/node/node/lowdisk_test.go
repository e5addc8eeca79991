package node_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"writ/actors/client"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
)

// A node whose disk is low from its start on may be elected all the same, and must
// not keep what it got: it refuses commands.
func TestNodeThatStartsOnALowDiskDoesNotLead(t *testing.T) {
	c := &testCluster{t: t, dir: t.TempDir(), names: []string{"n1", "n2", "n3"}, nodes: map[string]*node.Node{}}
	c.conf = func(cfg *node.Config) {
		if cfg.ID == "n1" {
			cfg.FreeMin = 1 << 50
		}
	}
	t.Cleanup(c.stop)
	for _, name := range c.names { // n1 has a lead
		n, err := node.Start(t.Context(), c.config(name))
		if err != nil {
			t.Fatal(err)
		}
		c.nodes[name] = n
		c.join = append(c.join, n.Addresses().Gossip)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, name := range []string{"n2", "n3"} {
		if err := c.nodes[name].AwaitReady(ctx); err != nil {
			t.Fatalf("%s: %v: %+v", name, err, c.nodes[name].Readiness())
		}
	}
	admin := c.admin()
	eventually(t, func(ctx context.Context) (*nodev1.StatusResponse, error) {
		res, err := admin.Status(ctx, &nodev1.StatusRequest{})
		if err == nil && len(res.GetShards()) == 0 {
			err = errors.New("no shards are reported")
		}
		for _, s := range res.GetShards() {
			if s.GetLeader() == "" || s.GetLeader() == "n1" {
				err = errors.Join(err, fmt.Errorf("shard %d is led by %q", s.GetShard(), s.GetLeader()))
			}
		}
		return res, err
	})
	cl := c.client()
	for i := range 12 {
		if _, err := cl.Submit(t.Context(), "account", fmt.Sprint("a", i), "k", eur(1), client.SubmitOptions{}); err != nil {
			t.Errorf("command %d: %v", i, err)
		}
	}
	if r := c.nodes["n1"].Readiness(); r.Ready || r.Reasons["disk"] == "" {
		t.Errorf("n1 counts as ready: %+v", r)
	}
}
