package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"writ/cmd/node/node"
)

// Two clusters under one name take commands for the same entities, and know
// nothing of each other's keys: the smaller one must not look healthy, nor either
// of two equal ones; a stray node must not take a whole cluster down.
func TestTwoClustersOfOneNameAreNotBothReady(t *testing.T) {
	for name, size := range map[string]int{"as large": 1, "larger": 2} {
		t.Run(name, func(t *testing.T) {
			ours := newCluster(t, size, nil)
			var join []string
			theirs := newCluster(t, 1, func(cfg *node.Config) {
				cfg.ID, cfg.InitialNodes, cfg.Join = "stray", []string{"stray"}, join
			})
			// They meet only now: before it had formed, the stray would have joined.
			theirs.stop()
			join = []string{ours.nodes["n1"].Addresses().Gossip}
			stray, err := node.Start(t.Context(), theirs.config("n1"))
			if err != nil {
				t.Fatal(err)
			}
			theirs.nodes["n1"] = stray
			blames := func(n *node.Node, other string) error {
				r := n.Readiness()
				if reason := r.Reasons["cluster"]; r.Ready || !strings.Contains(reason, "keep one cluster") || !strings.Contains(reason, other) {
					return fmt.Errorf("%s: %+v, want it to blame %s", r.Node, r, other)
				}
				return nil
			}
			eventually(t, func(context.Context) (struct{}, error) { return struct{}{}, blames(stray, "n1") })
			eventually(t, func(context.Context) (struct{}, error) {
				if size == 1 {
					return struct{}{}, blames(ours.nodes["n1"], "stray")
				}
				// n2 may be held for dead for a moment.
				if r := ours.nodes["n1"].Readiness(); r.Reasons["cluster"] != "" {
					return struct{}{}, fmt.Errorf("one stray node makes a cluster of two not ready: %+v", r)
				}
				return struct{}{}, nil
			})
		})
	}
}
