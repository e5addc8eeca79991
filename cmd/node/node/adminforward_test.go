package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/account"
	"writ/actors/client"
	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// TestWithoutALeaderVerbsSayOfWhat: an operator who looks for the trouble is told
// which shard has none, and where to look, not of a refused connection.
func TestWithoutALeaderVerbsSayOfWhat(t *testing.T) {
	c := newCluster(t, 3, nil)
	admin := c.admin() // of n1
	for _, name := range []string{"n2", "n3"} {
		if err := c.nodes[name].Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	alice := &recordv1.Ref{Tenant: "default", Kind: "account", Id: "alice"}
	for name, call := range map[string]struct {
		do   func(context.Context) error
		want string
	}{
		"of a shard": {func(ctx context.Context) error {
			_, err := admin.Inspect(ctx, &nodev1.InspectRequest{Entity: alice})
			return err
		}, "shard "},
		"of a stream": {func(ctx context.Context) error { return firstLane(ctx, admin) }, "shard 0"},
		"of the cluster": {func(ctx context.Context) error {
			_, err := admin.SetContract(ctx, &nodev1.SetContractRequest{})
			return err
		}, "the cluster"},
	} {
		eventually(t, func(ctx context.Context) (struct{}, error) {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			err := call.do(ctx)
			text := status.Convert(err).Message()
			if strings.HasPrefix(text, call.want) && strings.Contains(text, "has no leader just now: see \"node cluster status\"") {
				return struct{}{}, nil
			}
			return struct{}{}, fmt.Errorf("%s: it says %q", name, text)
		})
	}
}

func firstLane(ctx context.Context, admin nodev1.AdminServiceClient) error {
	stream, err := admin.ListLanes(ctx, &nodev1.ListLanesRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

// TestLargestEventIsShownThroughAnyNode: what a node may answer, another one passes on.
func TestLargestEventIsShownThroughAnyNode(t *testing.T) {
	kind := entity.NewKind[*wrapperspb.StringValue]("large")
	entity.Handle(kind, func(c *entity.Context, s *wrapperspb.StringValue, cmd *wrapperspb.Int64Value) (*wrapperspb.StringValue, error) {
		c.Emit(entity.To("nobody", "x"), &wrapperspb.StringValue{Value: strings.Repeat("x", int(cmd.GetValue()))})
		return s, nil
	})
	c := newCluster(t, 3, func(cfg *node.Config) { cfg.Kinds = append(account.Kinds(), kind) })
	const size = 4<<20 - 10
	if _, err := c.client().Submit(t.Context(), "large", "a", "k", &wrapperspb.Int64Value{Value: size}, client.SubmitOptions{}); err != nil {
		t.Fatal(err)
	}
	lane := &nodev1.LaneName{
		Source:      &recordv1.Ref{Tenant: "default", Kind: "large", Id: "a"},
		Destination: &recordv1.Ref{Tenant: "default", Kind: "nobody", Id: "x"},
	}
	for _, name := range c.names {
		res, err := patiently(t, func(ctx context.Context) (*nodev1.ShowLaneResponse, error) {
			return c.adminOf(name).ShowLane(ctx, &nodev1.ShowLaneRequest{Lane: lane, Payloads: true}, grpc.MaxCallRecvMsgSize(16<<20))
		})
		if rows := res.GetRows(); err != nil || len(rows) != 1 || len(rows[0].GetEvent().GetData()) < size {
			t.Errorf("through %s: %d rows, %v", name, len(rows), err)
		}
	}
}
