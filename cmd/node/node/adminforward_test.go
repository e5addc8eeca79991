package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"

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
