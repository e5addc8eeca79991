package actors

import (
	"log/slog"

	"writ/internal/mutant"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// What a relay writes about its lanes: how far they are confirmed, refused
// attempts, and their parking. All of it goes through the log under the lease,
// after the send that it tells of and before the next one that depends on it.

// confirm has rows removed that the destination has applied. One record is in
// flight at a time; what is applied meanwhile goes with the next.
func (r *relay) confirm(l *lane) {
	if r.ending || l.marking || l.unwell || l.acked <= l.state.confirmed {
		return
	}
	l.marking = true
	r.update(l, &recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Confirm{Confirm: l.acked}})
}

// settle proposes a decision once everything before the row is confirmed: only
// the first row of a lane can be counted.
func (r *relay) settle(l *lane) {
	d := l.decision
	if r.ending || d == nil || d.proposed || l.marking || l.unwell || l.pause != pauseNone || l.acked > l.state.confirmed {
		return
	}
	if l.state.status != recordv1.Lane_ACTIVE || d.sequence <= l.state.confirmed && !d.park {
		l.decision = nil // overtaken by an operator
		return
	}
	d.proposed = true
	if d.skip {
		r.update(l, &recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Skip{Skip: d.sequence}})
		return
	}
	if mutant.Off(mutant.Attempt) && !d.park {
		l.decision = nil
		r.later(l, pauseRefused, l.delay.NextBackOff())
		return
	}
	if d.park || int(l.state.attempts) >= r.most(d) {
		park := &recordv1.Park{LaneSequence: d.sequence, Reason: d.reason}
		r.update(l, &recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Park{Park: park}})
		return
	}
	attempt := &recordv1.Attempt{LaneSequence: d.sequence, Count: l.state.attempts + 1, Reason: d.reason}
	r.update(l, &recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Attempt{Attempt: attempt}})
}

// marked acts on the verdict of a lane update.
func (r *relay) marked(m *marked) {
	l := m.lane
	if _, isConfirm := m.update.GetChange().(*recordv1.LaneUpdate_Confirm); isConfirm {
		l.marking = false
	} else if l.decision != nil {
		l.decision.proposed = false
	}
	if m.err != nil {
		r.unmarked(l, m.err)
		return
	}
	state, counted := l.state, l.decision
	switch change := m.update.GetChange().(type) {
	case *recordv1.LaneUpdate_Confirm:
		if n := change.Confirm; n > state.confirmed { // else an operator's change told it first
			r.rt.cfg.Metrics.Add(Confirms, "", int(n-state.confirmed))
			state.confirmed, state.attempts = n, 0
		}
	case *recordv1.LaneUpdate_Attempt:
		state.attempts = change.Attempt.GetCount()
		r.rt.cfg.Metrics.Add(Attempts, label(counted), 1)
		if int(state.attempts) < r.most(counted) { // else settle parks the lane
			l.decision = nil
			r.later(l, pauseRefused, l.delay.NextBackOff())
		}
	case *recordv1.LaneUpdate_Skip:
		state.attempts = 0
		l.decision = nil
	case *recordv1.LaneUpdate_Park:
		state.status = recordv1.Lane_PARKED
		l.decision = nil
		r.rt.cfg.Metrics.Add(Parks, label(counted), 1)
		r.rt.log.Warn("a lane is parked", r.attr(), slog.String("destination", l.to.String()),
			slog.Uint64("row", change.Park.GetLaneSequence()), slog.String("reason", change.Park.GetReason()))
	}
	r.set(l, state)
	r.tell(&laneMoved{to: l.to, lane: state})
	r.confirm(l)
	r.settle(l)
	r.pump(l)
	r.tidy(l)
}

// most is the number of attempts after which a lane is parked.
func (r *relay) most(d *decisionOnRow) int {
	if d != nil && d.kind == nodev1.Refusal_CRASHED {
		return r.rt.cfg.MaxCrashes
	}
	return r.rt.cfg.MaxAttempts
}

func label(d *decisionOnRow) string {
	if d == nil {
		return ""
	}
	return d.kind.String()
}

// unmarked deals with an update that failed: the lane is read again, and tried
// again after a pause. If the lease has ended the relay will hear of it.
func (r *relay) unmarked(l *lane, err error) {
	if r.ending {
		return
	}
	r.rt.log.Debug("a lane update failed", r.attr(), errAttr(err))
	if stored, err := r.shard.store.Lane(r.ref, l.to); err == nil && stored != nil {
		state := stateOf(stored)
		r.set(l, state)
		l.acked = max(l.acked, state.confirmed)
		r.tell(&laneMoved{to: l.to, lane: state})
	}
	l.failures++
	l.unwell = true
	r.later(l, pauseTrouble, l.delay.NextBackOff())
}

// resume ends a pause.
func (r *relay) resume(l *lane) {
	l.stopTimer()
	l.unwell = false
	r.confirm(l)
	r.settle(l)
	r.pump(l)
}
