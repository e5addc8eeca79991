package actors

import (
	"context"

	"writ/actors/entity"
	"writ/internal/mutant"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// laneChange is an operator's change of a lane.
type laneChange struct {
	to     entity.Ref
	update *recordv1.LaneUpdate
}

// UpdateLane carries out an operator's change of a lane of a shard that this node
// leads: resume, pause or skip. It returns when the change is committed. A skip is
// committed at the destination first; if the second half is lost, repeating the skip
// completes it, and so does the relay when the lane goes on.
func (r *Runtime) UpdateLane(ctx context.Context, number uint32, update *recordv1.LaneUpdate) (err error) {
	switch update.GetChange().(type) {
	case *recordv1.LaneUpdate_Resume, *recordv1.LaneUpdate_Pause, *recordv1.LaneUpdate_Skip:
	default:
		return entity.Errorf(entity.Invalid, "a lane can be resumed, paused, or one row of it skipped")
	}
	source := fromRef(update.GetSource())
	if !validName(source.Tenant, r.cfg.Limits.Name) || !validName(source.Kind, maxKind) || !validName(source.ID, r.cfg.Limits.Name) {
		return entity.Errorf(entity.Invalid, "the lane's source cannot exist")
	}
	destination := fromRef(update.GetDestination())
	if sequence := update.GetSkip(); sequence != 0 && !mutant.Off(mutant.SkipThere) {
		taken, err := r.skipThere(ctx, number, source, destination, sequence)
		if err != nil {
			return err
		}
		if taken {
			defer func() {
				if err != nil {
					err = entity.Errorf(entity.OutcomeUnknown, "%v has skipped the row, and its lane may not have noted it (%v): repeat the skip", destination, err)
				}
			}()
		}
	}
	c := newCall(ctx)
	c.ref = source
	c.work = &laneChange{to: destination, update: update}
	_, err = r.enter(ctx, number, c, func(s *shard) *gauge { return &s.calls })
	return err
}

// skipThere has the destination of a lane mark the lane's first row as applied and
// skipped. It comes before the lane's own record: copies of the row may be on their
// way, in a mailbox or on a wire, and whichever of them comes first decides. taken
// is false if there is nothing to mark: what the lane's record says then, Apply
// refuses or finds done.
func (r *Runtime) skipThere(ctx context.Context, number uint32, source, destination entity.Ref, sequence uint64) (taken bool, err error) {
	s := r.shard(number)
	if s == nil {
		return false, entity.Errorf(entity.NotExecuted, "node %s has no replica of shard %d", r.cfg.Node, number)
	}
	lane, err := s.store.Lane(source, destination)
	if err != nil || lane.GetConfirmed()+1 != sequence {
		return false, err
	}
	rows, err := s.store.Rows(source, destination, sequence, 1, 0)
	if err != nil || len(rows) == 0 || rows[0].GetLaneSequence() != sequence || rows[0].GetEvent() == nil {
		return false, err
	}
	rows[0].Event = nil
	ctx, cancel := context.WithTimeout(ctx, r.cfg.SendTimeout)
	defer cancel()
	answer, err := r.cfg.Courier.Deliver(ctx, &nodev1.DeliverRequest{Rows: rows})
	switch {
	case err != nil:
		return false, entity.Errorf(entity.OutcomeUnknown, "whether %v has skipped the row is not known (%v): repeat the skip", destination, err)
	case answer.GetApplied() < sequence:
		return false, entity.Errorf(entity.NotExecuted, "%v has applied the lane up to %d only, row %d cannot be skipped there: node audit --deep shows more",
			destination, answer.GetApplied(), sequence)
	case answer.GetSkipped() != sequence:
		return false, entity.Errorf(entity.Invalid, "%v has applied row %d: replay or resume the lane, and it will be confirmed", destination, sequence)
	}
	return true, nil
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
	stored, err := a.shard.store.Lane(a.ref, to)
	if err != nil {
		a.rt.log.Error("cannot read a lane", a.attr(), errAttr(err))
		return entity.Errorf(entity.OutcomeUnknown, "the lane was changed but could not be read again: repeat the change")
	}
	if stored == nil {
		return nil
	}
	state := stateOf(stored)
	if l := a.out.lanes[to]; l != nil { // else nothing waits in it
		a.out.pending -= int(state.confirmed - l.lane.confirmed)
		a.out.update(to, state)
	}
	a.tellRelay(&laneChanged{to: to, lane: state})
	return nil
}
