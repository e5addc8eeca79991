package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"writ/actors/entity"
	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
)

// hopHeader marks an operator's call that has been forwarded: it goes no further,
// or two nodes that take each other for the leader would pass it on for ever.
const hopHeader = "writ-forwarded"

// clientOf connects to a node, carrying the operator's credential along. The
// node leads what the call is about, a shard or the cluster, as far as it is
// known here.
func (a *admin) clientOf(ctx context.Context, node, what string) (context.Context, nodev1.AdminServiceClient, func(), error) {
	if node == "" || node == a.node.cfg.ID || len(metadata.ValueFromIncomingContext(ctx, hopHeader)) > 0 {
		return nil, nil, nil, entity.Errorf(entity.NotExecuted, "%s has no leader just now: see \"node cluster status\"", what)
	}
	addr, ok := a.node.table.Address(node)
	if !ok {
		return nil, nil, nil, entity.Errorf(entity.NotExecuted, "the address of node %s is not known here: see \"node cluster status\"", node)
	}
	conn, err := dialNext(addr, a.node.cfg.Limits.Gateway.Message)
	if err != nil {
		return nil, nil, nil, entity.Errorf(entity.NotExecuted, "connect to node %s: %v", node, err)
	}
	out := metadata.AppendToOutgoingContext(ctx, hopHeader, a.node.cfg.ID)
	for _, value := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		out = metadata.AppendToOutgoingContext(out, "authorization", value)
	}
	return out, nodev1.NewAdminServiceClient(conn), func() { _ = conn.Close() }, nil
}

const (
	// operatorPing and operatorPingTimeout find a machine that has vanished without a
	// word, as those of other connections do. gRPC's clients send no pings faster.
	operatorPing        = 10 * time.Second
	operatorPingTimeout = 3 * time.Second
	// nextDialTimeout bounds a dial of the next node: the operator's own connection
	// lives, so nothing else would end the wait.
	nextDialTimeout = 2 * time.Second
)

// OperatorPings ends calls to a machine that has vanished. Operators' calls have no
// deadline: an audit takes as long as it takes.
func OperatorPings() grpc.DialOption {
	return grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: operatorPing, Timeout: operatorPingTimeout})
}

// dialNext prepares the connection on which an operator's call is passed on.
func dialNext(addr string, messageMax int, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		OperatorPings(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: nextDialTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageMax)),
	}, more...)...)
}

func forwardUnary[Req, Resp any](ctx context.Context, a *admin, shard uint32, req *Req,
	call func(nodev1.AdminServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	leader, _ := a.node.table.Leader(shard)
	return forwardTo(ctx, a, leader, shardName(shard), req, call)
}

func forwardToNode[Req, Resp any](ctx context.Context, a *admin, node string, req *Req,
	call func(nodev1.AdminServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	return forwardTo(ctx, a, node, "the cluster", req, call)
}

func shardName(shard uint32) string { return fmt.Sprintf("shard %d", shard) }

// unreachable says which node does not answer. gRPC's own text names an address,
// which the operator's own connection could be taken for.
func unreachable(node, what string, err error) error {
	if st := status.Convert(err); st.Code() == codes.Unavailable && len(st.Details()) == 0 {
		return gateway.ToStatus(entity.Errorf(entity.OutcomeUnknown, "node %s, which has to answer for %s, does not; an order may have been carried out: see \"node cluster status\"", node, what))
	}
	return err
}

func forwardTo[Req, Resp any](ctx context.Context, a *admin, node, what string, req *Req,
	call func(nodev1.AdminServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	ctx, client, closeConn, err := a.clientOf(ctx, node, what)
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	defer closeConn()
	res, err := call(client, ctx, req)
	if err != nil {
		return nil, unreachable(node, what, err)
	}
	return res, nil
}

func forwardStream[Req, Resp any](a *admin, out grpc.ServerStreamingServer[Resp], shard uint32, req *Req,
	call func(nodev1.AdminServiceClient, context.Context, *Req, ...grpc.CallOption) (grpc.ServerStreamingClient[Resp], error),
) error {
	leader, _ := a.node.table.Leader(shard)
	ctx, client, closeConn, err := a.clientOf(out.Context(), leader, shardName(shard))
	if err != nil {
		return gateway.ToStatus(err)
	}
	defer closeConn()
	in, err := call(client, ctx, req)
	if err != nil {
		return unreachable(leader, shardName(shard), err)
	}
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return unreachable(leader, shardName(shard), err)
		}
		if err := out.Send(m); err != nil {
			return err
		}
	}
}
