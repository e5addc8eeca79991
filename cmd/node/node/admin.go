package node

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"writ/actors/entity"
	"writ/actors/gateway"
	"writ/internal/format"
	"writ/persistence"
	"writ/persistence/replica"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	"writ/sharding/cluster"
	"writ/sharding/membership"
)

// admin answers operators. What only a shard's leader can tell is asked there:
// any node will do as the door.
type admin struct {
	nodev1.UnimplementedAdminServiceServer
	node *Node
}

const (
	// probeSamplesMax and probePauseMax bound a disk probe.
	probeSamplesMax = 2000
	probePauseMax   = 10 * time.Millisecond
	// hashWait is how long an audit waits for one replica to reach its checkpoint.
	hashWait = 10 * time.Second
)

// Status implements AdminService. For a shard without a replica here, or with one that
// does not serve, it reports whom the shard's leader knows as its replicas.
func (a *admin) Status(ctx context.Context, _ *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	n := a.node
	readiness := n.Readiness()
	res := &nodev1.StatusResponse{Node: n.cfg.ID, ClusterId: n.clusterID(), Version: Version, Ready: readiness.Ready, FormatMax: format.Max, Kinds: n.registry.Kinds()}
	for _, m := range n.gossip.Members() {
		res.Members = append(res.Members, memberStatus(m))
	}
	p := n.parts()
	if p == nil {
		return res, nil
	}
	res.Meta, res.MetaLeader = p.meta.State(), p.meta.Leader()
	voters, learners := p.meta.Members()
	res.MetaVoters, res.MetaLearners = serverNodes(voters), serverNodes(learners)
	for _, placed := range res.GetMeta().GetShards() {
		res.Shards = append(res.Shards, a.shardStatus(p, placed.GetShard()))
	}
	askLeaders(ctx, reporter{n}, n.cfg.ID, res.GetShards())
	return res, nil
}

// reportWait bounds the time that one node's report may take.
const reportWait = time.Second

// askLeaders completes the lines of shards that other nodes lead: who votes there, this
// node's own replica, if it has one, may not have heard yet. A leader that does not
// answer, or that does not take itself for one, leaves them as they are.
func askLeaders(ctx context.Context, nodes cluster.Reporter, self string, shards []*nodev1.ShardStatus) {
	elsewhere := map[string][]*nodev1.ShardStatus{}
	for _, s := range shards {
		switch s.GetLeader() {
		case "":
		case self:
			s.ByLeader = len(s.GetVoters()) > 0
		default:
			elsewhere[s.GetLeader()] = append(elsewhere[s.GetLeader()], s)
		}
	}
	var wg sync.WaitGroup
	for leader, lines := range elsewhere {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, reportWait)
			defer cancel()
			report, err := nodes.Shards(ctx, leader)
			if err != nil {
				return
			}
			for _, line := range lines {
				for _, there := range report {
					if there.GetShard() == line.GetShard() && there.GetLeader() == leader && len(there.GetVoters()) > 0 {
						complete(line, there)
					}
				}
			}
		})
	}
	wg.Wait()
}

// complete adds what the leader says. How far the log is applied stays the local
// replica's word, if there is one.
func complete(line, leader *nodev1.ShardStatus) {
	line.Voters, line.Learners, line.ByLeader = leader.GetVoters(), leader.GetLearners(), true
	if !line.GetLocal() {
		line.AppliedIndex, line.CommitIndex, line.Epoch = leader.GetAppliedIndex(), leader.GetCommitIndex(), leader.GetEpoch()
	}
}

func memberStatus(m membership.Member) *nodev1.MemberStatus {
	return &nodev1.MemberStatus{Name: m.Name, Incarnation: m.Incarnation, Grpc: m.GRPC, Http: m.HTTP, Raft: m.Raft, Gossip: m.Gossip, Zone: m.Zone, Alive: m.Alive}
}

// shardStatus is the local replica's view, with the newest word on the leader.
func (a *admin) shardStatus(p *parts, shard uint32) *nodev1.ShardStatus {
	out := &nodev1.ShardStatus{Shard: shard}
	if r := p.host.Replica(shard); r != nil {
		out = replicaView(r)
	}
	if leader, term := a.node.table.Leader(shard); term >= out.GetTerm() {
		out.Leader, out.Term = leader, term
	}
	return out
}

func serverNodes(servers []replica.Server) []string {
	names := make([]string, 0, len(servers))
	for _, s := range servers {
		names = append(names, s.Node)
	}
	return names
}

// AuditShard implements AdminService.
func (a *admin) AuditShard(ctx context.Context, req *nodev1.AuditShardRequest) (*nodev1.AuditShardResponse, error) {
	p, lease, err := a.leading(req.GetShard())
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	if lease == nil {
		return forwardUnary(ctx, a, req.GetShard(), req, nodev1.AdminServiceClient.AuditShard)
	}
	// A name of its own for each try: whoever asks again, because the leader has
	// changed, say, would find the checkpoint of the first try at replicas that have
	// not applied the second yet, and equal replicas would seem to differ.
	id := req.GetAudit() + "-" + rand.Text()
	if err := lease.Checkpoint(ctx, id); err != nil {
		return nil, gateway.ToStatus(err)
	}
	r := p.host.Replica(req.GetShard())
	if r == nil || r.Store() == nil {
		return nil, gateway.ToStatus(p.errGone(req.GetShard()))
	}
	found, err := r.Store().Audit(ctx)
	if err != nil {
		return nil, gateway.ToStatus(fmt.Errorf("audit of shard %d: %w", req.GetShard(), err))
	}
	res := &nodev1.AuditShardResponse{
		Shard: req.GetShard(), Index: found.Index, Entities: found.Entities,
		KeysLive: found.KeysLive, KeysExpired: found.KeysExpired, Effects: found.Effects,
		RowsNumbered: found.Numbered, RowsPending: found.Pending, RowsSkipped: found.Skipped,
		LanesParked: found.Parked, Applied: found.Applied, Findings: append(found.Differences, found.Findings...),
	}
	a.compareReplicas(ctx, p, r, id, res)
	return res, nil
}

// compareReplicas asks every replica for its state hash at the audit's
// checkpoint: one log index, so equal content means equal hashes.
func (a *admin) compareReplicas(ctx context.Context, p *parts, r *replica.Replica, audit string, res *nodev1.AuditShardResponse) {
	st := r.Status()
	res.ReplicasEqual = true
	var first *nodev1.ReplicaHash
	for _, s := range append(st.Voters, st.Learners...) {
		h := a.replicaHash(ctx, p, s.Node, res.GetShard(), audit)
		res.Replicas = append(res.Replicas, h)
		if first == nil {
			first = h
		}
		if h.GetError() != "" || h.GetIndex() != first.GetIndex() || string(h.GetHash()) != string(first.GetHash()) {
			res.ReplicasEqual = false
		}
	}
}

func (a *admin) replicaHash(ctx context.Context, p *parts, node string, shard uint32, audit string) *nodev1.ReplicaHash {
	ctx, cancel := context.WithTimeout(ctx, hashWait)
	defer cancel()
	req := &nodev1.ReplicaStatusRequest{ClusterId: a.node.clusterID(), Shard: shard, Audit: audit}
	var (
		st  *nodev1.ReplicaStatusResponse
		err error
	)
	if node == a.node.cfg.ID {
		st, err = p.replicaStatus(ctx, req)
	} else {
		st, err = a.node.peers.ReplicaStatus(ctx, node, req)
	}
	if err != nil {
		return &nodev1.ReplicaHash{Node: node, Error: err.Error()}
	}
	return &nodev1.ReplicaHash{Node: node, Index: st.GetCheckpointIndex(), Hash: st.GetHash()}
}

// AuditLanes implements AdminService.
func (a *admin) AuditLanes(req *nodev1.AuditLanesRequest, stream grpc.ServerStreamingServer[nodev1.AuditLane]) error {
	store, err := a.storeIfLeading(stream.Context(), req.GetShard())
	if err != nil {
		return gateway.ToStatus(err)
	}
	if store == nil {
		return forwardStream(a, stream, req.GetShard(), req, nodev1.AdminServiceClient.AuditLanes)
	}
	var failed error
	send := func(l *nodev1.AuditLane) bool {
		failed = stream.Send(l)
		return failed == nil
	}
	if req.GetAsDestination() {
		err = store.ScanApplied(func(destination, source entity.Ref, applied *recordv1.Applied) bool {
			return send(&nodev1.AuditLane{Source: protoRef(source), Destination: protoRef(destination), Applied: applied.GetLaneSequence()})
		})
	} else {
		err = store.ScanLanes(func(source, destination entity.Ref, lane *recordv1.Lane, pending uint64) bool {
			return send(&nodev1.AuditLane{
				Source: protoRef(source), Destination: protoRef(destination),
				Numbered: lane.GetNumbered(), Confirmed: lane.GetConfirmed(), Skipped: lane.GetSkipped(), Pending: pending,
			})
		})
	}
	if failed != nil {
		return failed
	}
	return gateway.ToStatus(err)
}

// ListLanes implements AdminService.
func (a *admin) ListLanes(req *nodev1.ListLanesRequest, stream grpc.ServerStreamingServer[nodev1.LaneInfo]) error {
	store, err := a.storeIfLeading(stream.Context(), req.GetShard())
	if err != nil {
		return gateway.ToStatus(err)
	}
	if store == nil {
		return forwardStream(a, stream, req.GetShard(), req, nodev1.AdminServiceClient.ListLanes)
	}
	which := persistence.OpenLanes
	switch {
	case req.GetParkedOnly():
		which = persistence.StandingLanes
	case req.GetDrained():
		which = persistence.EveryLane
	}
	for at := (persistence.Pair{}); ; {
		lanes, err := store.LanesOf(which, at, pageRows)
		if err != nil || len(lanes) == 0 {
			return gateway.ToStatus(err)
		}
		for _, l := range lanes {
			at = l.Pair
			info := laneInfo(at, l.Lane)
			info.Trouble = a.troubleOf(req.GetShard(), at, l.Lane)
			if !picks(req.GetFilter(), at, l.Lane.GetReason(), info.GetTrouble()) {
				continue
			}
			if err := stream.Send(info); err != nil {
				return err
			}
		}
	}
}

// DiskProbe implements AdminService.
func (a *admin) DiskProbe(ctx context.Context, req *nodev1.DiskProbeRequest) (*nodev1.DiskProbeResponse, error) {
	pause := min(max(time.Duration(req.GetPause()), 0), probePauseMax)
	p50, p99, err := probeDisk(ctx, a.node.cfg.Dir, int(min(max(req.GetSamples(), 1), probeSamplesMax)), pause)
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	return &nodev1.DiskProbeResponse{FdatasyncP50: int64(p50), FdatasyncP99: int64(p99)}, nil
}

// leading returns the lease if this node leads the shard, else nil.
func (a *admin) leading(shard uint32) (*parts, *replica.Lease, error) {
	p := a.node.parts()
	if p == nil {
		return nil, nil, errNotFormed()
	}
	if n := a.node.table.Shards(); shard >= n {
		return nil, nil, entity.Errorf(entity.Invalid, "shard %d does not exist: there are %d, numbered from 0", shard, n)
	}
	if r := p.host.Replica(shard); r != nil {
		return p, r.Lease(), nil
	}
	return p, nil, nil
}

// storeIfLeading returns the shard's store if this node leads the shard, else nil.
// It waits for the read barrier first, so that everything acknowledged before the
// call is in the store.
func (a *admin) storeIfLeading(ctx context.Context, shard uint32) (*persistence.Store, error) {
	p, lease, err := a.leading(shard)
	if err != nil || lease == nil {
		return nil, err
	}
	if err := awaitBarrier(ctx, lease); err != nil {
		return nil, err
	}
	return p.store(shard)
}

// store is a shard's store, after a wait in which its replica may have left.
func (p *parts) store(shard uint32) (*persistence.Store, error) {
	if r := p.host.Replica(shard); r != nil && r.Store() != nil {
		return r.Store(), nil
	}
	return nil, p.errGone(shard)
}

func (p *parts) errGone(shard uint32) error {
	return entity.Errorf(entity.NotExecuted, "shard %d is not open on node %s any more", shard, p.node)
}

// limitOf is how many items a listing returns: as many as were asked for, or the
// usual number if none was given, but never more than most.
func limitOf(asked uint32, usual, most int) int {
	if asked == 0 {
		return usual
	}
	return min(int(asked), most)
}

// awaitBarrier waits for the shard's read barrier.
func awaitBarrier(ctx context.Context, lease *replica.Lease) error {
	done := make(chan error, 1)
	lease.Barrier(func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func protoRef(r entity.Ref) *recordv1.Ref {
	return &recordv1.Ref{Tenant: r.Tenant, Kind: r.Kind, Id: r.ID}
}

// SetNodeState implements AdminService. The registry is changed on the leader of
// the meta group.
func (a *admin) SetNodeState(ctx context.Context, req *nodev1.SetNodeStateRequest) (*nodev1.SetNodeStateResponse, error) {
	p := a.node.parts()
	if p == nil {
		return nil, gateway.ToStatus(errNotFormed())
	}
	if !p.meta.IsLeader() {
		return forwardToNode(ctx, a, p.meta.Leader(), req, nodev1.AdminServiceClient.SetNodeState)
	}
	if err := p.control.SetNodeState(ctx, req); err != nil {
		return nil, gateway.ToStatus(err)
	}
	return &nodev1.SetNodeStateResponse{Version: p.meta.State().GetVersion()}, nil
}

// MoveShard implements AdminService.
func (a *admin) MoveShard(ctx context.Context, req *nodev1.MoveShardRequest) (*nodev1.MoveShardResponse, error) {
	p := a.node.parts()
	if p == nil {
		return nil, gateway.ToStatus(errNotFormed())
	}
	if !p.meta.IsLeader() {
		return forwardToNode(ctx, a, p.meta.Leader(), req, nodev1.AdminServiceClient.MoveShard)
	}
	if err := p.control.MoveShard(ctx, req); err != nil {
		return nil, gateway.ToStatus(err)
	}
	return &nodev1.MoveShardResponse{Version: p.meta.State().GetVersion()}, nil
}

// Upgrade implements AdminService.
func (a *admin) Upgrade(ctx context.Context, req *nodev1.UpgradeRequest) (*nodev1.UpgradeResponse, error) {
	p := a.node.parts()
	if p == nil {
		return nil, gateway.ToStatus(errNotFormed())
	}
	if !p.meta.IsLeader() {
		return forwardToNode(ctx, a, p.meta.Leader(), req, nodev1.AdminServiceClient.Upgrade)
	}
	from, to, err := p.control.Upgrade(ctx)
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	return &nodev1.UpgradeResponse{From: from, To: to}, nil
}
