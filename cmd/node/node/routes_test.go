package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"writ/actors/client"
	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// TestRefusalNamesTheLeader covers that a node which does not lead says who does,
// so that a caller whose table is older need not ask around.
func TestRefusalNamesTheLeader(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.settle()
	ref := entity.Ref{Tenant: "default", Kind: "account", ID: "a"}
	st, err := c.admin().Status(t.Context(), &nodev1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) (any, error) {
		shard, leader := c.leader(ref.Kind, ref.ID)
		follower := c.names[0]
		if follower == leader {
			follower = c.names[1]
		}
		read := &nodev1.ForwardRequest{
			ClusterId: st.GetClusterId(), Shard: shard, Tenant: ref.Tenant,
			Call: &nodev1.ForwardRequest_Read{Read: &writv1.ReadRequest{Entity: &writv1.EntityRef{Kind: ref.Kind, Id: ref.ID}}},
		}
		_, err := nodev1.NewNodeServiceClient(c.dial(follower)).Forward(ctx, read)
		for _, detail := range status.Convert(err).Details() {
			if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetReason() == string(entity.NotExecuted) && info.GetMetadata()["leader"] == leader {
				return nil, nil
			}
		}
		return nil, fmt.Errorf("the refusal does not name %s: %w", leader, err)
	})
}

// TestReplicaMovedAwayIsForgotten covers that a node whose replica was moved away
// still knows who leads the shard.
func TestReplicaMovedAwayIsForgotten(t *testing.T) {
	c := newCluster(t, 4, func(cfg *node.Config) { cfg.Shards = 1 }) // of more, the planner moves some by itself
	c.settle()
	const shard = 0
	st, err := c.admin().Status(t.Context(), &nodev1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	leader := eventually(t, func(ctx context.Context) (string, error) {
		st, err = c.admin().Status(ctx, &nodev1.StatusRequest{})
		if err != nil || st.GetShards()[shard].GetLeader() == "" {
			return "", fmt.Errorf("no leader: %w", err)
		}
		return st.GetShards()[shard].GetLeader(), nil
	})
	from, holders := "", map[string]bool{}
	for _, r := range st.GetMeta().GetShards()[shard].GetReplicas() {
		holders[r.GetNode()] = true
		if r.GetNode() != leader {
			from = r.GetNode()
		}
	}
	to := c.names[slices.IndexFunc(c.names, func(name string) bool { return !holders[name] })]
	eventually(t, func(ctx context.Context) (any, error) {
		return c.admin().MoveShard(ctx, &nodev1.MoveShardRequest{Shard: shard, From: from, To: to})
	})
	eventually(t, func(ctx context.Context) (any, error) {
		st, err := nodev1.NewAdminServiceClient(c.dial(from)).Status(ctx, &nodev1.StatusRequest{})
		if err != nil {
			return nil, err
		}
		text := c.metrics(ctx, from)
		switch s := st.GetShards()[shard]; {
		case strings.Contains(text, `writ_shard_applied_index{shard="0"}`):
			return nil, errors.New("the replica is still there")
		case s.GetLeader() == "":
			return nil, errors.New("no leader is known")
		}
		return nil, nil
	})
}

// TestEventsAreMeasured covers that commits of events count as the clients' do, and
// that confirmations, which may wait long, do not.
func TestEventsAreMeasured(t *testing.T) {
	c := newCluster(t, 1, nil)
	if _, err := c.client().Submit(t.Context(), "account", "a", "1", eur(1), client.SubmitOptions{}); err != nil {
		t.Fatal(err)
	}
	c.audit() // until the event is confirmed
	text := c.metrics(t.Context(), "n1")
	const name = "writ_commit_seconds_count "
	_, after, found := strings.Cut(text, name)
	if !found {
		t.Fatalf("no %sin\n%s", name, text)
	}
	var n float64
	if _, err := fmt.Sscan(after, &n); err != nil || n != 2 {
		t.Errorf("%v commits measured (%v), want those of the command and the event", n, err)
	}
}
