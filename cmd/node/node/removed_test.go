package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
)

// A removed node says so, also after a restart, when nobody tells it anything any
// more; "no leader is known" would send its operator looking for an outage.
func TestRemovedNodeSaysThatItIsRemoved(t *testing.T) {
	c := newCluster(t, 4, nil)
	admin := c.admin()
	eventually(t, func(ctx context.Context) (*nodev1.SetNodeStateResponse, error) {
		return admin.SetNodeState(ctx, &nodev1.SetNodeStateRequest{Node: "n4", State: nodev1.NodeEntry_REMOVED})
	})
	says := func(context.Context) (struct{}, error) {
		r := c.nodes["n4"].Readiness()
		if reason := r.Reasons["registry"]; r.Ready || !strings.Contains(reason, "has been removed: stop it and clear its data folder") {
			return struct{}{}, fmt.Errorf("%+v", r)
		}
		return struct{}{}, nil
	}
	eventually(t, says)
	if err := c.nodes["n4"].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	n, err := node.Start(t.Context(), c.config("n4"))
	if err != nil {
		t.Fatal(err)
	}
	c.nodes["n4"] = n
	eventually(t, says)
	eventually(t, func(context.Context) (struct{}, error) { // it takes over what n4 held
		if r := c.nodes["n1"].Readiness(); !r.Ready {
			return struct{}{}, fmt.Errorf("n1: %+v", r)
		}
		return struct{}{}, nil
	})
}
