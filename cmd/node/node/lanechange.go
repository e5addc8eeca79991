package node

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"

	"writ/actors/entity"
	"writ/actors/gateway"
	"writ/persistence"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	"writ/sharding"
)

const (
	// showRows and outboxRows are how many rows an operator gets unless more are
	// asked for; rowsMax is the most, and pageRows what is read at once.
	showRows   = 100
	outboxRows = 1000
	rowsMax    = 100_000
	reasonMost = 1024 // of a pause, bytes
	pageRows   = 256
	pageBytes  = 4 << 20
)

// picks reports whether a lane passes an operator's filter.
func picks(f *nodev1.LaneFilter, at persistence.Pair, reasons ...string) bool {
	for _, part := range []struct{ want, have string }{
		{f.GetTenant(), at.Source.Tenant},
		{f.GetSourceKind(), at.Source.Kind},
		{f.GetSourceId(), at.Source.ID},
		{f.GetDestinationKind(), at.Destination.Kind},
		{f.GetDestinationId(), at.Destination.ID},
	} {
		if part.want != "" && part.want != part.have {
			return false
		}
	}
	return slices.ContainsFunc(reasons, func(reason string) bool { return strings.Contains(reason, f.GetReason()) })
}

// laneOf finds the lane that an operator names, on the leader of its source's
// shard and after a read barrier. lease is nil on any other node.
func (a *admin) laneOf(ctx context.Context, name *nodev1.LaneName) (p *parts, shard uint32, at persistence.Pair, lane *recordv1.Lane, err error) {
	at = pairOf(name)
	for _, ref := range []entity.Ref{at.Source, at.Destination} {
		if ref.Tenant == "" || ref.Kind == "" || ref.ID == "" {
			return nil, 0, at, nil, entity.Errorf(entity.Invalid, "name the lane by tenant, kind and id of its source and of its destination")
		}
	}
	if a.node.table.Shards() == 0 {
		return nil, 0, at, nil, errNotFormed()
	}
	shard = sharding.Locate(a.node.table.Shards(), at.Source)
	p, lease, err := a.leading(shard)
	if err != nil || lease == nil {
		return nil, shard, at, nil, err
	}
	if err := awaitBarrier(ctx, lease); err != nil {
		return nil, shard, at, nil, err
	}
	store, err := p.store(shard)
	if err != nil {
		return nil, shard, at, nil, err
	}
	if lane, err = store.Lane(at.Source, at.Destination); err == nil && lane == nil {
		if err = a.findKinds(at.Source.Kind, at.Destination.Kind); err == nil {
			err = entity.Errorf(entity.Invalid, "there is no lane from %v to %v", at.Source, at.Destination)
		}
	}
	return p, shard, at, lane, err
}

// ChangeLane implements AdminService.
func (a *admin) ChangeLane(ctx context.Context, req *nodev1.ChangeLaneRequest) (*nodev1.ChangeLaneResponse, error) {
	p, shard, at, lane, err := a.laneOf(ctx, req.GetLane())
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	if p == nil {
		return forwardUnary(ctx, a, shard, req, nodev1.AdminServiceClient.ChangeLane)
	}
	store, err := p.store(shard)
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	update, err := updateFor(req, lane)
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	if update != nil { // else the lane is as it should be
		update.Source, update.Destination = protoRef(at.Source), protoRef(at.Destination)
		if err := p.runtime.UpdateLane(ctx, shard, update); err != nil {
			return nil, gateway.ToStatus(err)
		}
		if lane, err = store.Lane(at.Source, at.Destination); err != nil {
			return nil, gateway.ToStatus(err)
		}
	}
	return &nodev1.ChangeLaneResponse{Lane: laneInfo(at, lane)}, nil
}

func laneInfo(at persistence.Pair, lane *recordv1.Lane) *nodev1.LaneInfo {
	return &nodev1.LaneInfo{Source: protoRef(at.Source), Destination: protoRef(at.Destination), Lane: lane}
}

// troubleOf is what an active lane with rows waits for.
func (a *admin) troubleOf(shard uint32, at persistence.Pair, lane *recordv1.Lane) string {
	p := a.node.parts()
	if p == nil || lane.GetStatus() != recordv1.Lane_ACTIVE || waiting(lane) == 0 {
		return ""
	}
	return p.runtime.LaneTrouble(shard, at.Source, at.Destination)
}

// updateFor makes the record of an operator's verb; nil if nothing is to be done.
func updateFor(req *nodev1.ChangeLaneRequest, lane *recordv1.Lane) (*recordv1.LaneUpdate, error) {
	resume := &recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Resume{Resume: true}}
	status := lane.GetStatus()
	switch verb := req.GetVerb(); {
	case verb == nodev1.ChangeLaneRequest_SKIP:
		return skipFor(req.GetSequence(), lane)
	case verb == nodev1.ChangeLaneRequest_REPLAY && status == recordv1.Lane_PAUSED:
		return nil, entity.Errorf(entity.Invalid, "the lane is paused (%s): resume it", lane.GetReason())
	case verb == nodev1.ChangeLaneRequest_RESUME && status == recordv1.Lane_PARKED:
		return nil, entity.Errorf(entity.Invalid, "the lane is parked (%s): replay it, or skip its first row", lane.GetReason())
	case verb == nodev1.ChangeLaneRequest_PAUSE && status == recordv1.Lane_PARKED:
		return nil, entity.Errorf(entity.Invalid, "the lane is parked (%s) and stands still already", lane.GetReason())
	case verb == nodev1.ChangeLaneRequest_PAUSE && status == recordv1.Lane_PAUSED:
		return nil, nil
	case verb == nodev1.ChangeLaneRequest_PAUSE:
		return &recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: cut(req.GetReason(), reasonMost)}}}, nil
	case verb == nodev1.ChangeLaneRequest_REPLAY || verb == nodev1.ChangeLaneRequest_RESUME:
		if status == recordv1.Lane_ACTIVE {
			return nil, nil
		}
		return resume, nil
	}
	return nil, entity.Errorf(entity.Invalid, "say what to do with the lane")
}

// skipFor lets the first row of a standing lane be skipped. Whether it has taken
// effect already its destination says, when the skip comes there.
func skipFor(sequence uint64, lane *recordv1.Lane) (*recordv1.LaneUpdate, error) {
	first := lane.GetConfirmed() + 1
	switch {
	case lane.GetStatus() == recordv1.Lane_ACTIVE:
		return nil, entity.Errorf(entity.Invalid, "the lane is active, its rows are on their way: pause it first")
	case sequence != first || first > lane.GetNumbered():
		return nil, entity.Errorf(entity.Invalid, "row %d is not the first of the lane: it is confirmed up to %d of %d", sequence, lane.GetConfirmed(), lane.GetNumbered())
	}
	return &recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Skip{Skip: sequence}}, nil
}

// appliedThere asks the destination how far it is.
func (a *admin) appliedThere(ctx context.Context, p *parts, at persistence.Pair) (uint64, error) {
	there, err := a.node.auditor.lookup(ctx, p, sharding.Locate(a.node.table.Shards(), at.Destination), true, []persistence.Pair{at})
	if err != nil {
		return 0, err
	}
	return there[0].GetApplied(), nil
}

// ShowLane implements AdminService.
func (a *admin) ShowLane(ctx context.Context, req *nodev1.ShowLaneRequest) (*nodev1.ShowLaneResponse, error) {
	p, shard, at, lane, err := a.laneOf(ctx, req.GetLane())
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	if p == nil {
		return forwardUnary(ctx, a, shard, req, nodev1.AdminServiceClient.ShowLane)
	}
	limit := limitOf(req.GetLimit(), showRows, pageRows)
	store, err := p.store(shard)
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	rows, err := store.Rows(at.Source, at.Destination, lane.GetConfirmed()+1, limit, pageBytes)
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	if !req.GetPayloads() {
		for i, row := range rows {
			rows[i], _ = bare(row)
		}
	}
	res := &nodev1.ShowLaneResponse{Lane: laneInfo(at, lane), Rows: rows}
	res.Lane.Trouble = a.troubleOf(shard, at, lane)
	if applied, err := a.appliedThere(ctx, p, at); err == nil {
		res.Applied = &applied
	}
	return res, nil
}

// bare is a row without its event's bytes, and their number. The row is the
// caller's own copy.
func bare(row *recordv1.Row) (out *recordv1.Row, bytes uint64) {
	if row.GetEvent() != nil {
		bytes = uint64(len(row.GetEvent().GetData()))
		row.Event.Data = nil
	}
	return row, bytes
}

// ListOutbox implements AdminService.
func (a *admin) ListOutbox(req *nodev1.ListOutboxRequest, stream grpc.ServerStreamingServer[nodev1.OutboxRow]) error {
	store, err := a.storeIfLeading(stream.Context(), req.GetShard())
	if err != nil {
		return gateway.ToStatus(err)
	}
	if store == nil {
		return forwardStream(a, stream, req.GetShard(), req, nodev1.AdminServiceClient.ListOutbox)
	}
	left := limitOf(req.GetLimit(), outboxRows, rowsMax)
	for at := (persistence.Pair{}); left > 0; {
		lanes, err := store.LanesOf(persistence.OpenLanes, at, pageRows)
		if err != nil || len(lanes) == 0 {
			return gateway.ToStatus(err)
		}
		at = lanes[len(lanes)-1].Pair
		for _, l := range lanes {
			if waiting(l.Lane) == 0 || !picks(req.GetFilter(), l.Pair, l.Lane.GetReason(), a.troubleOf(req.GetShard(), l.Pair, l.Lane)) {
				continue
			}
			sent, err := sendRows(store, l, left, stream)
			if err != nil {
				return err
			}
			if left -= sent; left <= 0 {
				break
			}
		}
	}
	return nil
}

// sendRows sends the rows of one lane, at most limit of them.
func sendRows(store *persistence.Store, l persistence.LaneState, limit int, stream grpc.ServerStreamingServer[nodev1.OutboxRow]) (sent int, err error) {
	for from := l.Lane.GetConfirmed() + 1; sent < limit; {
		rows, err := store.Rows(l.Source, l.Destination, from, min(limit-sent, pageRows), pageBytes)
		if err != nil {
			return sent, gateway.ToStatus(err)
		}
		if len(rows) == 0 {
			break
		}
		for _, row := range rows {
			out, bytes := bare(row)
			if err := stream.Send(&nodev1.OutboxRow{Row: out, Bytes: bytes, Status: l.Lane.GetStatus()}); err != nil {
				return sent, err
			}
		}
		sent += len(rows)
		from = rows[len(rows)-1].GetLaneSequence() + 1
	}
	return sent, nil
}
