package node

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"

	"writ/actors/entity"
	"writ/persistence/replica"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
	"writ/sharding/cluster"
	"writ/sharding/membership"
)

// localHost is this node's runtime for the gateway; before the cluster is
// formed it answers that nothing was executed.
type localHost struct{ node *Node }

// Forward implements gateway.Host.
func (h localHost) Forward(ctx context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
	p := h.node.parts()
	if p == nil {
		return nil, errNotFormed()
	}
	if read := req.GetRead(); read.GetConsistency() == writv1.Consistency_STALE {
		res, err := p.runtime.ReadStale(req.GetShard(), req.GetTenant(), read)
		if err != nil {
			return nil, err
		}
		return &nodev1.ForwardResponse{Answer: &nodev1.ForwardResponse_Read{Read: res}}, nil
	}
	res, err := p.runtime.Forward(ctx, req)
	return res, h.redirected(req.GetShard(), err)
}

// Deliver implements gateway.Host.
func (h localHost) Deliver(ctx context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
	p := h.node.parts()
	if p == nil {
		return nil, errNotFormed()
	}
	res, err := p.runtime.Deliver(ctx, req)
	return res, h.redirected(req.GetShard(), err)
}

// redirected names the leader in a refusal, if it is another node: the caller's
// table may be older than this node's.
func (h localHost) redirected(shard uint32, err error) error {
	refused, ok := errors.AsType[*entity.Error](err)
	if !ok || refused.Reason != entity.NotExecuted {
		return err
	}
	leader, term := h.node.table.Leader(shard)
	if leader == "" || leader == h.node.cfg.ID {
		return err
	}
	named := *refused // answers may be shared
	named.Details = maps.Clone(refused.Details)
	return named.With("leader", leader).With("term", strconv.FormatUint(term, 10))
}

func errNotFormed() *entity.Error {
	return entity.Errorf(entity.NotExecuted, "the cluster is not formed yet: \"node health\" says which nodes it waits for")
}

// control answers other nodes.
type control struct{ node *Node }

// Promise implements gateway.Control.
func (c control) Promise(ctx context.Context, req *nodev1.PromiseRequest) (*nodev1.PromiseResponse, error) {
	return c.node.formation.Promise(ctx, req)
}

// Register implements gateway.Control.
func (c control) Register(ctx context.Context, req *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error) {
	p := c.node.parts()
	if p == nil {
		return nil, errNotFormed()
	}
	return p.control.Register(ctx, req)
}

// ReplicaStatus implements gateway.Control.
func (c control) ReplicaStatus(ctx context.Context, req *nodev1.ReplicaStatusRequest) (*nodev1.ReplicaStatusResponse, error) {
	p := c.node.parts()
	if p == nil {
		return nil, errNotFormed()
	}
	return p.replicaStatus(ctx, req)
}

// Report implements gateway.Control.
func (c control) Report(context.Context, *nodev1.ReportRequest) (*nodev1.ReportResponse, error) {
	p := c.node.parts()
	if p == nil {
		return nil, errNotFormed()
	}
	return p.report(), nil
}

// TransferLeadership implements gateway.Control.
func (c control) TransferLeadership(ctx context.Context, req *nodev1.TransferLeadershipRequest) (*nodev1.TransferLeadershipResponse, error) {
	p := c.node.parts()
	if p == nil {
		return nil, errNotFormed()
	}
	return p.transferLeadership(ctx, req)
}

// LookupLanes implements gateway.Control.
func (c control) LookupLanes(ctx context.Context, req *nodev1.LookupLanesRequest) (*nodev1.LookupLanesResponse, error) {
	p := c.node.parts()
	if p == nil {
		return nil, errNotFormed()
	}
	return p.lookupLanes(ctx, req)
}

// Guarantee implements gateway.Control.
func (c control) Guarantee(context.Context, *nodev1.GuaranteeRequest) (*nodev1.GuaranteeResponse, error) {
	return &nodev1.GuaranteeResponse{Guarantee: c.node.watcher.view()}, nil
}

// directory is gossip as package cluster sees it.
type directory struct{ gossip *membership.Gossip }

// Members implements cluster.Directory.
func (d directory) Members() []cluster.Member {
	var list []cluster.Member
	for _, m := range d.gossip.Members() {
		list = append(list, cluster.Member{Name: m.Name, Incarnation: m.Incarnation, ClusterID: m.ClusterID, Alive: m.Alive})
	}
	return list
}

// reporter asks other nodes about their replicas.
type reporter struct{ node *Node }

// Shards implements cluster.Reporter.
func (r reporter) Shards(ctx context.Context, node string) ([]*nodev1.ShardStatus, error) {
	res, err := r.Report(ctx, node)
	return res.GetShards(), err
}

// Report implements cluster.NodeReporter.
func (r reporter) Report(ctx context.Context, node string) (*nodev1.ReportResponse, error) {
	if node == r.node.cfg.ID {
		return control(r).Report(ctx, nil)
	}
	return r.node.peers.Report(ctx, node, &nodev1.ReportRequest{ClusterId: r.node.clusterID()})
}

// replicas opens and drops replicas together with their gates.
type replicas struct {
	parts *parts

	// dropped is told of replicas that are no more.
	dropped func(shard uint32)

	mu     sync.Mutex
	leases map[uint32]*replica.Lease // last one handed over
}

func newReplicas(p *parts, dropped func(shard uint32)) *replicas {
	return &replicas{parts: p, dropped: dropped, leases: map[uint32]*replica.Lease{}}
}

// lead hands a lease to the gate, each one once. A lease that comes before its
// gate is open is handed over by Open.
func (r *replicas) lead(shard uint32, lease *replica.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, open := r.leases[shard]; open {
		r.hand(shard, lease)
	}
}

// hand is lead for a shard whose gate is open. The caller holds mu.
func (r *replicas) hand(shard uint32, lease *replica.Lease) {
	if lease == nil || r.leases[shard] == lease {
		return
	}
	r.leases[shard] = lease
	r.parts.runtime.Lead(shard, r.parts.meter.lease(lease, shard))
}

// Open implements cluster.Replicas.
func (r *replicas) Open(c cluster.ReplicaConfig) error {
	err := r.parts.host.Open(shardConfig(c))
	if errors.Is(err, replica.ErrDropped) {
		return cluster.ErrOutOfDate
	}
	if err != nil {
		return err
	}
	return r.gate(c)
}

// Reopen implements cluster.Replicas. The gate of the failed replica goes first:
// it has the old store.
func (r *replicas) Reopen(c cluster.ReplicaConfig) (opened bool, err error) {
	if !r.parts.host.Reopenable(c.Shard) {
		return false, nil
	}
	r.mu.Lock()
	delete(r.leases, c.Shard)
	r.mu.Unlock()
	r.parts.runtime.Drop(c.Shard)
	if err := r.parts.host.Reopen(shardConfig(c)); err != nil {
		if r.parts.host.Replica(c.Shard) == nil {
			r.dropped(c.Shard) // nobody corrects its last word
		}
		return false, err
	}
	return true, r.gate(c)
}

func shardConfig(c cluster.ReplicaConfig) replica.ShardConfig {
	return replica.ShardConfig{
		Shard: c.Shard, Range: c.Range, Epoch: c.Epoch, Generation: c.Generation,
		GenerationWidth: c.GenerationWidth, Bootstrap: replicaServers(c.Bootstrap),
	}
}

// gate opens the gate of a replica that has just been opened.
func (r *replicas) gate(c cluster.ReplicaConfig) error {
	opened := r.parts.host.Replica(c.Shard)
	if opened == nil || opened.Store() == nil {
		return nil // quarantined: it has no gate
	}
	if err := r.parts.runtime.Open(c.Shard, opened.Store()); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leases[c.Shard] = nil
	r.hand(c.Shard, opened.Lease()) // read under the lock: a newer one may come through lead
	return nil
}

// Kept implements cluster.Replicas.
func (r *replicas) Kept(shard uint32, epoch uint64) uint64 { return r.parts.host.Kept(shard, epoch) }

// Drop implements cluster.Replicas.
func (r *replicas) Drop(shard uint32) error {
	r.mu.Lock()
	delete(r.leases, shard)
	r.mu.Unlock()
	r.parts.runtime.Drop(shard)
	err := r.parts.host.Drop(shard)
	if r.parts.host.Replica(shard) == nil { // also if its file could not be deleted
		r.dropped(shard) // after the last word of the replica
	}
	return err
}

// Statuses implements cluster.Replicas.
func (r *replicas) Statuses() []*nodev1.ShardStatus { return r.parts.statuses() }

// Group implements cluster.Replicas.
func (r *replicas) Group(shard uint32) cluster.Group {
	if opened := r.parts.host.Replica(shard); opened != nil {
		return group{opened}
	}
	return nil
}

// States of a replica that is sound, on a node that should lead nothing: others
// give a replica that is not "serving" no leadership and no vote.
const (
	stateLowDisk  = cluster.StateLowDisk
	stateStopping = "stopping"
)

// unfit says why this node should lead nothing, "" if it may.
func (p *parts) unfit() (state, reason string) {
	if p.stopping.Load() {
		return stateStopping, "the node is stopping"
	}
	if reason := p.disk.reason(); reason != "" {
		return stateLowDisk, reason
	}
	return "", ""
}

// report describes the local replicas, that of the meta group too.
func (p *parts) report() *nodev1.ReportResponse {
	return &nodev1.ReportResponse{Shards: p.statuses(), MetaLeader: p.meta.Leader(), MetaVersion: p.meta.State().GetVersion()}
}

// statuses describes the local replicas of shards.
func (p *parts) statuses() []*nodev1.ShardStatus {
	var list []*nodev1.ShardStatus
	state, reason := p.unfit()
	for _, r := range p.host.Replicas() {
		view := replicaView(r)
		if state != "" && view.GetReason() == "" {
			view.State, view.Reason = state, reason
		}
		list = append(list, view)
	}
	return list
}

func replicaView(r *replica.Replica) *nodev1.ShardStatus {
	st := r.Status()
	view := &nodev1.ShardStatus{
		Shard: r.Shard(), Leader: st.Leader, Term: st.Term, Epoch: st.Epoch, Local: true, ReplicaGeneration: st.Generation,
		AppliedIndex: st.AppliedIndex, CommitIndex: st.CommitIndex, State: string(st.State), Reason: st.Reason,
		Voters: serverNodes(st.Voters), Learners: serverNodes(st.Learners), FileBytes: st.FileBytes, Format: st.Format,
	}
	if store := r.Store(); store != nil {
		view.HashIndex, view.Hash = store.StateHash()
	}
	return view
}

// group is a replica as package cluster sees it.
type group struct{ replica *replica.Replica }

// Members implements cluster.Group.
func (g group) Members() (voters, learners []cluster.Server) {
	st := g.replica.Status()
	return clusterServers(st.Voters), clusterServers(st.Learners)
}

// AddLearner implements cluster.Group.
func (g group) AddLearner(ctx context.Context, s cluster.Server) error {
	return g.replica.AddLearner(ctx, replica.Server(s))
}

// Promote implements cluster.Group.
func (g group) Promote(ctx context.Context, s cluster.Server) error {
	return g.replica.Promote(ctx, replica.Server(s))
}

// Remove implements cluster.Group.
func (g group) Remove(ctx context.Context, s cluster.Server) error {
	return g.replica.Remove(ctx, replica.Server(s))
}

// TransferLeadership implements cluster.Group.
func (g group) TransferLeadership(ctx context.Context, to string) error {
	return g.replica.TransferLeadership(ctx, to)
}

// metaMembers is the meta group's configuration as package cluster sees it.
type metaMembers struct{ meta *replica.Meta }

// Members implements cluster.MetaMembers.
func (m metaMembers) Members() (voters, learners []cluster.Server) {
	v, l := m.meta.Members()
	return clusterServers(v), clusterServers(l)
}

// AddLearner implements cluster.MetaMembers.
func (m metaMembers) AddLearner(ctx context.Context, s cluster.Server) error {
	return m.meta.AddLearner(ctx, replica.Server(s))
}

// AddVoter implements cluster.MetaMembers.
func (m metaMembers) AddVoter(ctx context.Context, s cluster.Server) error {
	return m.meta.AddVoter(ctx, replica.Server(s))
}

// Remove implements cluster.MetaMembers.
func (m metaMembers) Remove(ctx context.Context, s cluster.Server) error {
	return m.meta.Remove(ctx, replica.Server(s))
}

// TransferLeadership implements cluster.MetaMembers.
func (m metaMembers) TransferLeadership(ctx context.Context, to string) error {
	return m.meta.TransferLeadership(ctx, to)
}

func clusterServers(list []replica.Server) []cluster.Server {
	out := make([]cluster.Server, 0, len(list))
	for _, s := range list {
		out = append(out, cluster.Server(s))
	}
	return out
}

func replicaServers(list []cluster.Server) []replica.Server {
	out := make([]replica.Server, 0, len(list))
	for _, s := range list {
		out = append(out, replica.Server(s))
	}
	return out
}
