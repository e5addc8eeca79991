package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
)

// TestFindingsLeaveWithTheShard covers that what the auditor found in a shard counts
// against the guarantee on the node that led it only until the replica has left it.
func TestFindingsLeaveWithTheShard(t *testing.T) {
	c := newCluster(t, 4, func(cfg *node.Config) {
		cfg.AuditInterval = time.Hour // no round by itself, but for one soon after a lease begins
		cfg.Shards = 1                // of more, the planner moves some by itself
	})
	c.settle()
	const shard = 0
	st, err := c.admin().Status(t.Context(), &nodev1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var holders []string
	for _, r := range st.GetMeta().GetShards()[shard].GetReplicas() {
		holders = append(holders, r.GetNode())
	}
	from := st.GetShards()[shard].GetLeader()
	next := holders[slices.IndexFunc(holders, func(name string) bool { return name != from })]
	free := c.names[slices.IndexFunc(c.names, func(name string) bool { return !slices.Contains(holders, name) })]

	n := c.nodes[from]
	eventually(t, func(ctx context.Context) (any, error) { // that one round: it would mend what is found below
		if text := c.metrics(ctx, from); text == "" || strings.Contains(text, "\nwrit_audit_recounts_total 0\n") {
			return nil, errors.New("not recounted yet")
		}
		return nil, nil
	})
	n.Recount(t.Context()) // and it is over
	n.FindReplicasDiffer(shard)
	c.awaitPrecondition(from, "replicas_equal", false)

	eventually(t, func(ctx context.Context) (any, error) {
		return c.admin().MoveShard(ctx, &nodev1.MoveShardRequest{Shard: shard, To: next})
	})
	eventually(t, func(ctx context.Context) (any, error) {
		return c.admin().MoveShard(ctx, &nodev1.MoveShardRequest{Shard: shard, From: from, To: free})
	})
	eventually(t, func(ctx context.Context) (any, error) {
		if strings.Contains(c.metrics(ctx, from), fmt.Sprintf(`writ_shard_applied_index{shard="%d"}`, shard)) {
			return nil, errors.New("the replica is still there")
		}
		return nil, nil
	})
	n.Recount(t.Context())
	if known := n.Audited(); slices.Contains(known, shard) {
		t.Errorf("the auditor of %s remembers shards %v", from, known)
	}
	c.awaitPrecondition(from, "replicas_equal", true)

	// The next round may be far away: until then it is not shown.
	n.FindReplicasDiffer(shard)
	if text := c.metrics(t.Context(), from); !strings.Contains(text, `writ_audit_findings{finding="replicas"} 0`) {
		t.Errorf("the finding is shown in\n%s", text)
	}
}
