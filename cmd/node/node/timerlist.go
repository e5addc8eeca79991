package node

import (
	"google.golang.org/grpc"

	"writ/actors/entity"
	"writ/actors/gateway"
	"writ/persistence"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// timersShown is how many timers an operator gets unless more are asked for;
// pageTimers is what is read at once.
const (
	timersShown = 1000
	pageTimers  = 256
)

// timerAt is a timer with its name and its place in a walk.
type timerAt struct {
	position string
	ref      entity.Ref
	name     string
	timer    *recordv1.Timer // without its message's bytes: a page of them can be large
	bytes    uint64
}

// ListTimers implements AdminService.
func (a *admin) ListTimers(req *nodev1.ListTimersRequest, stream grpc.ServerStreamingServer[nodev1.TimerInfo]) error {
	store, err := a.storeIfLeading(stream.Context(), req.GetShard())
	if err != nil {
		return gateway.ToStatus(err)
	}
	if store == nil {
		return forwardStream(a, stream, req.GetShard(), req, nodev1.AdminServiceClient.ListTimers)
	}
	left := limitOf(req.GetLimit(), timersShown, rowsMax)
	now := a.node.cfg.Clock().UnixNano()
	for position := ""; ; {
		page, err := timerPage(store, req, position, now)
		if err != nil {
			return gateway.ToStatus(err)
		}
		for _, t := range page {
			position = t.position
			if !picksTimer(req, t, now) {
				continue
			}
			if err := stream.Send(timerInfo(t, now)); err != nil {
				return err
			}
			if left--; left == 0 {
				return nil
			}
		}
		if len(page) < pageTimers {
			return nil
		}
	}
}

// timerPage reads the next page after a position: in the order of due times, or in
// the order of names if one entity's timers or parked ones are asked for, since parked
// timers have no due time.
func timerPage(store *persistence.Store, req *nodev1.ListTimersRequest, position string, now int64) (page []timerAt, err error) {
	add := func(position string, ref entity.Ref, name string, t *recordv1.Timer) {
		bytes := uint64(len(t.GetMessage().GetData()))
		if t.GetMessage() != nil {
			t.Message.Data = nil
		}
		page = append(page, timerAt{position, ref, name, t, bytes})
	}
	one := req.GetTenant() != "" && req.GetKind() != "" && req.GetId() != ""
	if one || req.GetParkedOnly() {
		of := entity.Ref{}
		if one {
			of = entity.Ref{Tenant: req.GetTenant(), Kind: req.GetKind(), ID: req.GetId()}
		}
		err = store.TimersAfter(of, position, pageTimers, add)
		return page, err
	}
	until := int64(1<<63 - 1)
	if req.GetLateOnly() {
		until = now
	}
	_, err = store.DueTimers(position, until, pageTimers, add)
	return page, err
}

func picksTimer(req *nodev1.ListTimersRequest, t timerAt, now int64) bool {
	for _, part := range []struct{ want, have string }{
		{req.GetTenant(), t.ref.Tenant}, {req.GetKind(), t.ref.Kind}, {req.GetId(), t.ref.ID},
	} {
		if part.want != "" && part.want != part.have {
			return false
		}
	}
	return (!req.GetParkedOnly() || t.timer.GetNext() == 0) && (!req.GetLateOnly() || t.timer.GetDue() <= now)
}

func timerInfo(t timerAt, now int64) *nodev1.TimerInfo {
	return &nodev1.TimerInfo{
		Entity: protoRef(t.ref), Name: t.name, Timer: t.timer, Bytes: t.bytes, Late: max(0, now-t.timer.GetDue()),
	}
}
