package node

import (
	"context"

	"writ/actors/entity"
	"writ/persistence"
	"writ/persistence/replica"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// lookupMax bounds the lanes of one look-up.
const lookupMax = 1000

// lookupLanes tells this shard's side of some lanes, after a read barrier: all
// that was acknowledged before the call is in it.
func (p *parts) lookupLanes(ctx context.Context, req *nodev1.LookupLanesRequest) (*nodev1.LookupLanesResponse, error) {
	var lease *replica.Lease
	r := p.host.Replica(req.GetShard())
	if r != nil {
		lease = r.Lease()
	}
	if lease == nil || r.Store() == nil {
		return nil, entity.Errorf(entity.NotExecuted, "node %s does not lead shard %d", p.node, req.GetShard())
	}
	if len(req.GetLanes()) > lookupMax {
		return nil, entity.Errorf(entity.Invalid, "%d lanes are asked for, the limit is %d", len(req.GetLanes()), lookupMax)
	}
	if err := awaitBarrier(ctx, lease); err != nil {
		return nil, err
	}
	res := &nodev1.LookupLanesResponse{}
	for _, name := range req.GetLanes() {
		lane, err := laneSide(r.Store(), pairOf(name), req.GetAsDestination())
		if err != nil {
			return nil, err
		}
		res.Lanes = append(res.Lanes, lane)
	}
	return res, nil
}

// laneSide is one side of a lane as a store has it.
func laneSide(store *persistence.Store, at persistence.Pair, asDestination bool) (*nodev1.AuditLane, error) {
	out := &nodev1.AuditLane{Source: protoRef(at.Source), Destination: protoRef(at.Destination)}
	if asDestination {
		mark, err := store.Applied(at.Destination, at.Source)
		out.Applied = mark.GetLaneSequence()
		return out, err
	}
	lane, err := store.Lane(at.Source, at.Destination)
	out.Numbered, out.Confirmed, out.Skipped = lane.GetNumbered(), lane.GetConfirmed(), lane.GetSkipped()
	out.Pending = lane.GetNumbered() - lane.GetConfirmed()
	return out, err
}

func pairOf(name *nodev1.LaneName) persistence.Pair {
	return persistence.Pair{Source: refOf(name.GetSource()), Destination: refOf(name.GetDestination())}
}

func laneName(at persistence.Pair) *nodev1.LaneName {
	return &nodev1.LaneName{Source: protoRef(at.Source), Destination: protoRef(at.Destination)}
}

func refOf(r *recordv1.Ref) entity.Ref {
	return entity.Ref{Tenant: r.GetTenant(), Kind: r.GetKind(), ID: r.GetId()}
}
