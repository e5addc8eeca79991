package node

import (
	"context"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

// replicaStatus describes this node's replica of a shard. With an audit's name
// it waits until the replica has applied the audit's checkpoint.
func (p *parts) replicaStatus(ctx context.Context, req *nodev1.ReplicaStatusRequest) (*nodev1.ReplicaStatusResponse, error) {
	r := p.host.Replica(req.GetShard())
	if r == nil {
		return nil, entity.Errorf(entity.NotExecuted, "node %s holds no replica of shard %d", p.node, req.GetShard())
	}
	st := r.Status()
	res := &nodev1.ReplicaStatusResponse{
		Node: p.node, ReplicaGeneration: st.Generation, AppliedIndex: st.AppliedIndex, CommitIndex: st.CommitIndex,
		LastLogIndex: st.LastLogIndex, Term: st.Term, Leader: st.Leader, State: string(st.State), Reason: st.Reason,
	}
	if req.GetAudit() == "" {
		return res, nil
	}
	store := r.Store()
	if store == nil {
		return nil, entity.Errorf(entity.NotExecuted, "the replica of shard %d on node %s is %s: %s", req.GetShard(), p.node, st.State, st.Reason)
	}
	var err error
	res.CheckpointIndex, res.Hash, err = store.WaitCheckpoint(ctx, req.GetAudit())
	return res, err
}

// transferLeadership hands a shard that this node leads to another one.
func (p *parts) transferLeadership(ctx context.Context, req *nodev1.TransferLeadershipRequest) (*nodev1.TransferLeadershipResponse, error) {
	r := p.host.Replica(req.GetShard())
	if r == nil || r.Lease() == nil {
		return nil, entity.Errorf(entity.NotExecuted, "node %s does not lead shard %d", p.node, req.GetShard())
	}
	if err := r.TransferLeadership(ctx, req.GetTo()); err != nil {
		return nil, err
	}
	return &nodev1.TransferLeadershipResponse{}, nil
}
