package node

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"writ/actors/entity"
	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
)

// hopHeader marks an operator's call that has been forwarded: it goes no further,
// or two nodes that take each other for the leader would pass it on for ever.
const hopHeader = "writ-forwarded"

// clientOf connects to a node, carrying the operator's credential along. The
// node leads what the call is about, as far as it is known here.
func (a *admin) clientOf(ctx context.Context, node string) (context.Context, nodev1.AdminServiceClient, func(), error) {
	if node == "" || node == a.node.cfg.ID || len(metadata.ValueFromIncomingContext(ctx, hopHeader)) > 0 {
		return nil, nil, nil, entity.Errorf(entity.NotExecuted, "there is no leader just now: try again")
	}
	addr, ok := a.node.table.Address(node)
	if !ok {
		return nil, nil, nil, entity.Errorf(entity.NotExecuted, "the address of node %s, the leader, is not known here", node)
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return nil, nil, nil, entity.Errorf(entity.NotExecuted, "connect to node %s: %v", node, err)
	}
	out := metadata.AppendToOutgoingContext(ctx, hopHeader, a.node.cfg.ID)
	for _, value := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		out = metadata.AppendToOutgoingContext(out, "authorization", value)
	}
	return out, nodev1.NewAdminServiceClient(conn), func() { _ = conn.Close() }, nil
}

func forwardUnary[Req, Resp any](ctx context.Context, a *admin, shard uint32, req *Req,
	call func(nodev1.AdminServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	leader, _ := a.node.table.Leader(shard)
	return forwardToNode(ctx, a, leader, req, call)
}

func forwardToNode[Req, Resp any](ctx context.Context, a *admin, node string, req *Req,
	call func(nodev1.AdminServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	ctx, client, closeConn, err := a.clientOf(ctx, node)
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	defer closeConn()
	return call(client, ctx, req)
}

func forwardStream[Req, Resp any](a *admin, out grpc.ServerStreamingServer[Resp], shard uint32, req *Req,
	call func(nodev1.AdminServiceClient, context.Context, *Req, ...grpc.CallOption) (grpc.ServerStreamingClient[Resp], error),
) error {
	leader, _ := a.node.table.Leader(shard)
	ctx, client, closeConn, err := a.clientOf(out.Context(), leader)
	if err != nil {
		return gateway.ToStatus(err)
	}
	defer closeConn()
	in, err := call(client, ctx, req)
	if err != nil {
		return err
	}
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := out.Send(m); err != nil {
			return err
		}
	}
}
