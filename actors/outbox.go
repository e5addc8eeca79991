package actors

import (
	"github.com/asynkron/protoactor-go/actor"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// outbox is an activation's side of its lanes: it gives out lane sequences and
// keeps a relay running while rows wait. What becomes of the rows is the relay's.
type outbox struct {
	// lanes: all in which rows wait or are in flight, and some others. The store has
	// them all: a source may have had very many.
	lanes map[entity.Ref]*outLane
	// found: what the store says of lanes that the message in hand emits to.
	found map[entity.Ref]laneState
	// pending: rows that are not confirmed, those in flight included.
	pending int
	// open: lanes in which committed rows wait to be sent.
	open int

	relay    *actor.PID // nil: none
	starting bool       // startRelay is on its way
	told     uint64     // messages to the relay
	stops    bool       // the relay has been asked to end
	fails    bool       // a relay has ended by itself
	// grown: lanes that have got rows since the relay was last told.
	grown []entity.Ref
}

// outLane is one lane.
type outLane struct {
	numbered uint64    // ahead of what is committed
	lane     laneState // committed
}

// laneState is a committed lane as activation and relay know it.
type laneState struct {
	numbered  uint64
	confirmed uint64
	attempts  uint32
	status    recordv1.Lane_Status
}

// open reports whether rows of the lane wait to be sent.
func (l laneState) open() bool {
	return l.status == recordv1.Lane_ACTIVE && l.numbered > l.confirmed
}

func stateOf(l *recordv1.Lane) laneState {
	return laneState{l.GetNumbered(), l.GetConfirmed(), l.GetAttempts(), l.GetStatus()}
}

func (o *outbox) load(lanes map[entity.Ref]*recordv1.Lane) {
	for to, l := range lanes {
		state := stateOf(l)
		o.add(to, laneState{}).numbered = state.numbered
		o.pending += int(state.numbered - state.confirmed)
		o.update(to, state)
	}
}

func (o *outbox) add(to entity.Ref, state laneState) *outLane {
	if o.lanes == nil {
		o.lanes = map[entity.Ref]*outLane{}
	}
	l := &outLane{numbered: state.numbered, lane: state}
	o.lanes[to] = l
	return l
}

// numbered is the last lane sequence given out. number must follow before the next
// message, or none of the rows may come to be.
func (a *activation) numbered(to entity.Ref) (uint64, error) {
	o := &a.out
	if l := o.lanes[to]; l != nil {
		return l.numbered, nil
	}
	stored, err := a.shard.store.Lane(a.ref, to)
	if err != nil {
		a.rt.log.Error("cannot read a lane", a.attr(), errAttr(err))
		return 0, entity.Errorf(entity.NotExecuted, "a lane could not be read: retry with the same key; the log of node %s says why", a.rt.cfg.Node)
	}
	if o.found == nil {
		o.found = map[entity.Ref]laneState{}
	}
	o.found[to] = stateOf(stored)
	return stored.GetNumbered(), nil
}

// number takes note of rows that were given their numbers.
func (o *outbox) number(rows []*recordv1.Row) {
	for _, row := range rows {
		to := fromRef(row.GetDestination())
		l := o.lanes[to]
		if l == nil {
			l = o.add(to, o.found[to])
		}
		l.numbered = row.GetLaneSequence()
	}
	o.pending += len(rows)
	o.found = nil
}

// update replaces what is known of a committed lane. Of those in which nothing is
// left it keeps a few, which busy entities emit to again.
func (o *outbox) update(to entity.Ref, state laneState) {
	l := o.lanes[to]
	if l.lane.open() {
		o.open--
	}
	if state.open() {
		o.open++
	}
	l.lane = state
	if l.numbered == state.confirmed && len(o.lanes) > lanesKept {
		delete(o.lanes, to)
	}
}

// lanesKept is the number of lanes up to which those without rows are kept.
const lanesKept = 64

// quiet reports whether there is nothing to send and nobody sending.
func (o *outbox) quiet() bool { return o.relay == nil && o.open == 0 }

// committedRows takes in rows that are there to be sent now.
func (a *activation) committedRows(commit *recordv1.Commit) {
	for _, row := range commit.GetRows() {
		to := fromRef(row.GetDestination())
		l := a.out.lanes[to]
		if l == nil { // confirmed as well, and the store told that first
			continue
		}
		state := l.lane
		state.numbered = max(state.numbered, row.GetLaneSequence())
		a.out.update(to, state)
		if state.open() && a.out.relay != nil {
			a.out.grown = append(a.out.grown, to)
		}
	}
}

// wakeRelay schedules the start of a relay if rows wait and there is none, or tells
// the relay of new rows. It is called after every message.
func (a *activation) wakeRelay() {
	o := &a.out
	switch {
	case o.relay == nil && !o.starting && a.mayRelay():
		o.starting = true
		a.rt.turns.wait(a.self)
	case o.relay != nil && len(o.grown) > 0 && !o.stops:
		for _, to := range o.grown {
			a.tellRelay(&grown{to, o.lanes[to].lane})
		}
		o.grown = o.grown[:0]
	}
}

// mayRelay reports whether rows wait and this activation is to send them.
func (a *activation) mayRelay() bool {
	return a.out.open > 0 && a.phase == active && a.lease.Context().Err() == nil
}

// startRelay starts a relay if rows still wait.
func (a *activation) startRelay(c actor.Context) {
	o := &a.out
	o.starting = false
	if o.relay != nil || !a.mayRelay() {
		return
	}
	lanes := map[entity.Ref]laneState{}
	for to, l := range o.lanes {
		if l.lane.open() {
			lanes[to] = l.lane
		}
	}
	r := newRelay(a.rt, a.shard, a.lease, a.ref, a.self, lanes)
	pid, err := c.SpawnNamed(a.rt.props(func() actor.Actor { return r }), a.rt.name("relay"))
	if err != nil {
		a.rt.log.Error("cannot start a relay", a.attr(), errAttr(err))
		return // it is tried again
	}
	o.relay, o.told, o.stops, o.grown = pid, 0, false, nil
	a.entry.relays.Store(true)
}

// tellRelay sends to the relay, if there is one, and counts it.
func (a *activation) tellRelay(message any) {
	if a.out.relay == nil {
		return
	}
	a.out.told++
	a.rt.send(a.out.relay, message)
}

// endRelay asks the relay to end, once. now: without waiting for its records.
func (a *activation) endRelay(now bool) {
	if a.out.relay == nil || (a.out.stops && !now) {
		return
	}
	a.out.stops = true
	a.tellRelay(endRelay{now: now})
}

// laneMoved takes in what the relay has changed.
func (a *activation) laneMoved(m *laneMoved) {
	if m.spent {
		a.tellRelay(&released{to: m.to, lane: m.lane})
	}
	l := a.out.lanes[m.to]
	if l == nil {
		return // nothing waits in it
	}
	// The relay that ends takes no more word of what operators change: the store has
	// both. After the lease's end the store may be the next term's.
	if a.out.stops && a.phase != revoked {
		if stored, err := a.shard.store.Lane(a.ref, m.to); err == nil && stored != nil {
			m.lane = stateOf(stored)
		}
	}
	a.out.pending -= int(m.lane.confirmed - l.lane.confirmed)
	m.lane.numbered = l.lane.numbered // here it is known first
	a.out.update(m.to, m.lane)
}

// relayIdle ends a relay that has nothing to do, unless it was told of something
// meanwhile.
func (a *activation) relayIdle(m *relayIdle) {
	if m.seen == a.out.told {
		a.endRelay(false)
	}
}

// relayEnded takes note that the relay is gone. If rows wait, a new one starts.
func (a *activation) relayEnded() {
	if !a.out.stops { // read everything anew, but not at once
		a.rt.log.Error("a relay ended by itself", a.attr())
		a.out.fails = true
		a.breakOff()
	}
	a.out.relay, a.out.stops, a.out.grown = nil, false, nil
	a.entry.relays.Store(false)
}
