package gateway

import (
	"context"

	"google.golang.org/grpc"

	nodev1 "writ/proto/writ/node/v1"
)

// Peers calls the [NodeService] of other nodes by node name. Errors are
// *[entity.Error]: NOT_EXECUTED if nothing was sent or the peer says so,
// OUTCOME_UNKNOWN if the link failed after that; or the context's error. It is
// safe for concurrent use.
type Peers struct{ pool *Pool }

// NewPeers makes the caller's side; the pool stays the property of who made it.
func NewPeers(pool *Pool) *Peers { return &Peers{pool: pool} }

// Forward hands a client's call to a node.
func (p *Peers) Forward(ctx context.Context, node string, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
	return invoke(ctx, p.pool, node, commands, req, nodev1.NodeServiceClient.Forward)
}

// Deliver hands a batch of rows to a node.
func (p *Peers) Deliver(ctx context.Context, node string, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
	return invoke(ctx, p.pool, node, events, req, nodev1.NodeServiceClient.Deliver)
}

// Promise asks a node to belong to one cluster for ever.
func (p *Peers) Promise(ctx context.Context, node string, req *nodev1.PromiseRequest) (*nodev1.PromiseResponse, error) {
	return invoke(ctx, p.pool, node, commands, req, nodev1.NodeServiceClient.Promise)
}

// Register asks a node to put the caller into the registry.
func (p *Peers) Register(ctx context.Context, node string, req *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error) {
	return invoke(ctx, p.pool, node, commands, req, nodev1.NodeServiceClient.Register)
}

// ReplicaStatus asks how far a node's replica is.
func (p *Peers) ReplicaStatus(ctx context.Context, node string, req *nodev1.ReplicaStatusRequest) (*nodev1.ReplicaStatusResponse, error) {
	return invoke(ctx, p.pool, node, commands, req, nodev1.NodeServiceClient.ReplicaStatus)
}

// Report asks a node about all its replicas.
func (p *Peers) Report(ctx context.Context, node string, req *nodev1.ReportRequest) (*nodev1.ReportResponse, error) {
	return invoke(ctx, p.pool, node, commands, req, nodev1.NodeServiceClient.Report)
}

// LookupLanes asks a shard's leader about its side of some lanes.
func (p *Peers) LookupLanes(ctx context.Context, node string, req *nodev1.LookupLanesRequest) (*nodev1.LookupLanesResponse, error) {
	return invoke(ctx, p.pool, node, commands, req, nodev1.NodeServiceClient.LookupLanes)
}

// ExchangeCrashes tells a node what has ended the caller's processes, and asks it
// for the same.
func (p *Peers) ExchangeCrashes(ctx context.Context, node string, req *nodev1.ExchangeCrashesRequest) (*nodev1.ExchangeCrashesResponse, error) {
	return invoke(ctx, p.pool, node, commands, req, nodev1.NodeServiceClient.ExchangeCrashes)
}

// Guarantee asks a node for its view of the guarantee.
func (p *Peers) Guarantee(ctx context.Context, node string, req *nodev1.GuaranteeRequest) (*nodev1.GuaranteeResponse, error) {
	return invoke(ctx, p.pool, node, commands, req, nodev1.NodeServiceClient.Guarantee)
}

// TransferLeadership asks a shard's leader to hand over.
func (p *Peers) TransferLeadership(ctx context.Context, node string, req *nodev1.TransferLeadershipRequest) (*nodev1.TransferLeadershipResponse, error) {
	return invoke(ctx, p.pool, node, commands, req, nodev1.NodeServiceClient.TransferLeadership)
}

func invoke[Req, Resp any](ctx context.Context, pool *Pool, node string, t traffic, req *Req,
	method func(nodev1.NodeServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	l, err := pool.acquire(node, t)
	if err != nil {
		return nil, err
	}
	defer pool.release(l)
	callCtx, sent := withSent(ctx)
	resp, err := method(nodev1.NewNodeServiceClient(l.conn), callCtx, req)
	if err != nil {
		return nil, FromStatus(ctx, err, sent.Load())
	}
	return resp, nil
}
