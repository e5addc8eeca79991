package actors

import (
	"context"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// laneChange is an operator's change of a lane.
type laneChange struct {
	to     entity.Ref
	update *recordv1.LaneUpdate
}

// UpdateLane carries out an operator's change of a lane of a shard that this node
// leads: resume, pause or skip. It returns when the change is committed.
func (r *Runtime) UpdateLane(ctx context.Context, number uint32, update *recordv1.LaneUpdate) error {
	switch update.GetChange().(type) {
	case *recordv1.LaneUpdate_Resume, *recordv1.LaneUpdate_Pause, *recordv1.LaneUpdate_Skip:
	default:
		return entity.Errorf(entity.Invalid, "a lane can be resumed, paused, or one row of it skipped")
	}
	source := fromRef(update.GetSource())
	if !validName(source.Tenant, r.cfg.Limits.Name) || !validName(source.Kind, maxKind) || !validName(source.ID, r.cfg.Limits.Name) {
		return entity.Errorf(entity.Invalid, "the lane's source cannot exist")
	}
	c := &call{ref: source, gone: ctx.Done(), deadline: deadline(ctx, 0)}
	c.work = &laneChange{to: fromRef(update.GetDestination()), update: update}
	_, err := r.enter(ctx, number, c, func(s *shard) *gauge { return &s.calls })
	return err
}

// changeLane proposes the change and then takes over what has come of it.
func (a *activation) changeLane(c *call, change *laneChange) {
	p := &proposal{lane: true, then: []func(error){func(err error) {
		if err == nil {
			err = a.reloadLane(change.to)
		}
		c.answer(nil, err)
	}}}
	a.propose(&recordv1.Record{Body: &recordv1.Record_Lane{Lane: change.update}}, p)
}

func (a *activation) reloadLane(to entity.Ref) error {
	lanes, err := a.shard.store.Lanes(a.ref)
	if err != nil {
		a.rt.log.Error("cannot read lanes", a.attr(), errAttr(err))
		return entity.Errorf(entity.OutcomeUnknown, "the lane was changed but could not be read again")
	}
	if stored := lanes[to]; stored != nil {
		l := a.out.lane(to)
		state := stateOf(stored)
		a.out.pending -= int(state.confirmed - l.lane.confirmed)
		a.out.update(to, state)
		a.tellRelay(&laneChanged{to: to, lane: state})
	}
	return nil
}
