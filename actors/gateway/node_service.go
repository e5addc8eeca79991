package gateway

import (
	"context"
	"errors"
	"log/slog"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	"writ/sharding"
)

// Control answers the calls by which nodes form and tend a cluster. Promise and
// Register may come before either side knows the cluster's id, so the control
// checks it in them; in the others it has been checked.
type Control interface {
	Promise(ctx context.Context, req *nodev1.PromiseRequest) (*nodev1.PromiseResponse, error)
	Register(ctx context.Context, req *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error)
	ReplicaStatus(ctx context.Context, req *nodev1.ReplicaStatusRequest) (*nodev1.ReplicaStatusResponse, error)
	Report(ctx context.Context, req *nodev1.ReportRequest) (*nodev1.ReportResponse, error)
	TransferLeadership(ctx context.Context, req *nodev1.TransferLeadershipRequest) (*nodev1.TransferLeadershipResponse, error)
	LookupLanes(ctx context.Context, req *nodev1.LookupLanesRequest) (*nodev1.LookupLanesResponse, error)
	ExchangeCrashes(ctx context.Context, req *nodev1.ExchangeCrashesRequest) (*nodev1.ExchangeCrashesResponse, error)
	Guarantee(ctx context.Context, req *nodev1.GuaranteeRequest) (*nodev1.GuaranteeResponse, error)
}

// NodeConfig holds what a [NodeService] needs. All fields must be set.
type NodeConfig struct {
	// ClusterID is "" until the cluster has formed.
	ClusterID func() string
	// Shards is the cluster's number of shards, 0 until it has formed.
	Shards  func() uint32
	Host    Host
	Control Control
	Limits  Limits
	Logger  *slog.Logger
}

// NodeService is the door for other nodes. What it is given goes to the local
// host and never further: one hop. It is safe for concurrent use.
type NodeService struct {
	nodev1.UnimplementedNodeServiceServer
	cfg       NodeConfig
	admission *admission
}

// NewNodeService makes the service; it must be registered with a [Server].
func NewNodeService(cfg NodeConfig) (*NodeService, error) {
	if cfg.ClusterID == nil || cfg.Shards == nil || cfg.Host == nil || cfg.Control == nil || cfg.Logger == nil {
		return nil, errors.New("node service: cluster id, shards, host, control and logger must be set")
	}
	if err := cfg.Limits.Validate(); err != nil {
		return nil, err
	}
	return &NodeService{cfg: cfg, admission: newAdmission("calls of other nodes", cfg.Limits)}, nil
}

// Forward takes a client's call from another gateway.
func (s *NodeService) Forward(ctx context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
	ref, err := forwardRef(req)
	if err == nil {
		err = s.check(req.GetClusterId(), req.GetShard(), ref)
	}
	if err != nil {
		return nil, s.status(err)
	}
	leave, err := s.admission.enter(req)
	if err != nil {
		return nil, s.status(err)
	}
	defer leave()
	resp, err := s.cfg.Host.Forward(ctx, req)
	return resp, s.status(err)
}

// Deliver takes rows of one lane.
func (s *NodeService) Deliver(ctx context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
	ref, err := deliverRef(req)
	if err == nil {
		err = s.check(req.GetClusterId(), req.GetShard(), ref)
	}
	if err != nil {
		return nil, s.status(err)
	}
	leave, err := s.admission.enter(req)
	if err != nil {
		return nil, s.status(err)
	}
	defer leave()
	resp, err := s.cfg.Host.Deliver(ctx, req)
	return resp, s.status(err)
}

// Promise binds this node to one cluster.
func (s *NodeService) Promise(ctx context.Context, req *nodev1.PromiseRequest) (*nodev1.PromiseResponse, error) {
	resp, err := s.cfg.Control.Promise(ctx, req)
	return resp, s.status(err)
}

// Register takes a node into the registry.
func (s *NodeService) Register(ctx context.Context, req *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error) {
	resp, err := s.cfg.Control.Register(ctx, req)
	return resp, s.status(err)
}

// ReplicaStatus tells how far this node's replica is.
func (s *NodeService) ReplicaStatus(ctx context.Context, req *nodev1.ReplicaStatusRequest) (*nodev1.ReplicaStatusResponse, error) {
	if err := s.checkCluster(req.GetClusterId()); err != nil {
		return nil, s.status(err)
	}
	resp, err := s.cfg.Control.ReplicaStatus(ctx, req)
	return resp, s.status(err)
}

// Report describes all of this node's replicas.
func (s *NodeService) Report(ctx context.Context, req *nodev1.ReportRequest) (*nodev1.ReportResponse, error) {
	if err := s.checkCluster(req.GetClusterId()); err != nil {
		return nil, s.status(err)
	}
	resp, err := s.cfg.Control.Report(ctx, req)
	return resp, s.status(err)
}

// TransferLeadership hands a shard over.
func (s *NodeService) TransferLeadership(ctx context.Context, req *nodev1.TransferLeadershipRequest) (*nodev1.TransferLeadershipResponse, error) {
	if err := s.checkCluster(req.GetClusterId()); err != nil {
		return nil, s.status(err)
	}
	resp, err := s.cfg.Control.TransferLeadership(ctx, req)
	return resp, s.status(err)
}

// LookupLanes tells one side of some lanes.
func (s *NodeService) LookupLanes(ctx context.Context, req *nodev1.LookupLanesRequest) (*nodev1.LookupLanesResponse, error) {
	if err := s.checkCluster(req.GetClusterId()); err != nil {
		return nil, s.status(err)
	}
	resp, err := s.cfg.Control.LookupLanes(ctx, req)
	return resp, s.status(err)
}

// ExchangeCrashes takes what has ended another node's processes.
func (s *NodeService) ExchangeCrashes(ctx context.Context, req *nodev1.ExchangeCrashesRequest) (*nodev1.ExchangeCrashesResponse, error) {
	if err := s.checkCluster(req.GetClusterId()); err != nil {
		return nil, s.status(err)
	}
	resp, err := s.cfg.Control.ExchangeCrashes(ctx, req)
	return resp, s.status(err)
}

// Guarantee tells this node's own view of the guarantee.
func (s *NodeService) Guarantee(ctx context.Context, req *nodev1.GuaranteeRequest) (*nodev1.GuaranteeResponse, error) {
	if err := s.checkCluster(req.GetClusterId()); err != nil {
		return nil, s.status(err)
	}
	resp, err := s.cfg.Control.Guarantee(ctx, req)
	return resp, s.status(err)
}

// check refuses calls that were not meant for this node's cluster, or that
// another count of shards has led to the wrong shard: two leaders would then
// host the same entity.
func (s *NodeService) check(clusterID string, shard uint32, ref entity.Ref) error {
	if err := s.checkCluster(clusterID); err != nil {
		return err
	}
	n := s.cfg.Shards()
	if n == 0 {
		return notFormed()
	}
	if here := sharding.Locate(n, ref); here != shard {
		return entity.Errorf(entity.NotExecuted, "the caller puts the entity into shard %d, this node into shard %d of %d", shard, here, n)
	}
	return nil
}

// checkCluster answers NOT_EXECUTED to strangers. It is no refusal: an address
// may have passed from one cluster to another, and the caller will learn so.
func (s *NodeService) checkCluster(id string) error {
	own := s.cfg.ClusterID()
	if own == "" {
		return notFormed()
	}
	if id != own {
		return entity.Errorf(entity.NotExecuted, "the caller's cluster %q is not this node's cluster", short(id, 64))
	}
	return nil
}

func notFormed() *entity.Error {
	return entity.Errorf(entity.NotExecuted, "the cluster is not formed yet: \"node health\" says which nodes it waits for")
}

func (s *NodeService) status(err error) error {
	if err == nil {
		return nil
	}
	logUntyped(s.cfg.Logger, err)
	return ToStatus(err)
}

// forwardRef names the entity of a client's call.
func forwardRef(req *nodev1.ForwardRequest) (entity.Ref, error) {
	ref := req.GetSubmit().GetEntity()
	switch call := req.GetCall().(type) {
	case *nodev1.ForwardRequest_Read:
		ref = call.Read.GetEntity()
	case *nodev1.ForwardRequest_Outcome:
		ref = call.Outcome.GetEntity()
	case *nodev1.ForwardRequest_Cancel:
		ref = call.Cancel.GetEntity()
	}
	if ref == nil || req.GetTenant() == "" {
		return entity.Ref{}, entity.Errorf(entity.Invalid, "the forwarded call names no tenant or entity")
	}
	return entity.Ref{Tenant: req.GetTenant(), Kind: ref.GetKind(), ID: ref.GetId()}, nil
}

// deliverRef names the destination of a batch.
func deliverRef(req *nodev1.DeliverRequest) (entity.Ref, error) {
	if len(req.GetRows()) == 0 {
		return entity.Ref{}, entity.Errorf(entity.Invalid, "the batch holds no rows")
	}
	to := req.GetRows()[0].GetDestination()
	if to == nil {
		return entity.Ref{}, entity.Errorf(entity.Invalid, "the first row names no destination")
	}
	return entity.Ref{Tenant: to.GetTenant(), Kind: to.GetKind(), ID: to.GetId()}, nil
}
