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
	return r.operate(ctx, number, source, &laneChange{to: fromRef(update.GetDestination()), update: update})
}

// LaneAtRest returns when no delivery of a lane that an operator has paused, or
// that is parked, is on its way any more. Only then does what the destination has
// applied say whether the first row can still be skipped.
func (r *Runtime) LaneAtRest(ctx context.Context, number uint32, source, destination entity.Ref) error {
	return r.operate(ctx, number, source, &laneRest{destination})
}

// operate has an operator's work done by the activation of a source.
func (r *Runtime) operate(ctx context.Context, number uint32, source entity.Ref, work any) error {
	if !validName(source.Tenant, r.cfg.Limits.Name) || !validName(source.Kind, maxKind) || !validName(source.ID, r.cfg.Limits.Name) {
		return entity.Errorf(entity.Invalid, "the lane's source cannot exist")
	}
	c := &call{ref: source, gone: ctx.Done(), deadline: deadline(ctx, 0), work: work}
	_, err := r.enter(ctx, number, c, func(s *shard) *gauge { return &s.calls })
	return err
}

// laneRest asks whether deliveries of a lane are on their way.
type laneRest struct{ to entity.Ref }

func (a *activation) restLane(c *call, rest *laneRest) {
	switch {
	case a.out.lane(rest.to).lane.status == recordv1.Lane_ACTIVE:
		c.refuse(errActiveLane())
	case a.out.relay == nil:
		c.answer(nil, nil)
	case a.out.stops: // its deliveries have been called off, but may not know yet
		c.refuse(errRelayEnds())
	default:
		a.tellRelay(&restAsked{rest.to, c})
	}
}

func errRelayEnds() *entity.Error {
	return entity.Errorf(entity.NotExecuted, "the entity's relay is ending: try again")
}

func errActiveLane() *entity.Error {
	return entity.Errorf(entity.Invalid, "the lane is active, its rows are on their way: pause it first")
}

// changeLane proposes the change and then takes over what has come of it. One
// change of a lane is in flight at a time: a skip must not meet a lane that is
// about to be active.
func (a *activation) changeLane(c *call, change *laneChange) {
	l := a.out.lane(change.to)
	_, skips := change.update.GetChange().(*recordv1.LaneUpdate_Skip)
	switch {
	case l.changing:
		c.refuse(entity.Errorf(entity.NotExecuted, "another change of the lane is in flight: try again"))
		return
	case skips && l.lane.status == recordv1.Lane_ACTIVE:
		c.refuse(errActiveLane())
		return
	}
	l.changing = true
	p := &proposal{lane: true, then: []func(error){func(err error) {
		l.changing = false
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
