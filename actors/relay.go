package actors

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/cenkalti/backoff/v5"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// Bounds of one delivery, and of deliveries in flight in one lane.
const (
	batchRows  = 128
	batchBytes = 1 << 20
	windowMost = 4
	// apartAfterGap is the number of deliveries that travel alone after one has
	// overtaken another: on a way that mixes them up each would be sent twice.
	apartAfterGap = 16
)

// relay drains the outbox of one entity. It is a child of the entity's activation
// and lives only while rows wait in active lanes. Lanes do not wait for each other.
type relay struct {
	rt    *Runtime
	shard *shard
	lease Lease
	ref   entity.Ref
	owner *actor.PID
	self  *actor.PID
	// lanes: all in which there is something to do, and some others. open of them have
	// rows to send.
	lanes map[entity.Ref]*lane
	open  int

	seen    uint64 // messages from the activation
	records int    // lane updates in flight
	idle    bool   // has been said
	ending  bool
	done    bool
	deliver func(*nodev1.DeliverRequest) (*nodev1.DeliverResponse, error)
	stopped func() bool // of the sender's goroutines
	cancel  context.CancelFunc
}

func newRelay(rt *Runtime, s *shard, lease Lease, ref entity.Ref, owner *actor.PID, lanes map[entity.Ref]laneState) *relay {
	life, cancel := context.WithCancel(lease.Context())
	r := &relay{
		rt: rt, shard: s, lease: lease, ref: ref, owner: owner,
		lanes:   map[entity.Ref]*lane{},
		cancel:  cancel,
		stopped: func() bool { return life.Err() != nil },
		deliver: func(req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
			ctx, cancel := context.WithTimeout(life, rt.cfg.SendTimeout)
			defer cancel()
			return rt.cfg.Courier.Deliver(ctx, req)
		},
	}
	for to, state := range lanes {
		r.addLane(to, state)
	}
	return r
}

func (r *relay) addLane(to entity.Ref, state laneState) *lane {
	l := &lane{to: to, delay: backoff.ExponentialBackOff{
		InitialInterval: r.rt.cfg.Retry.First, MaxInterval: r.rt.cfg.Retry.Most,
		Multiplier: 2, RandomizationFactor: r.rt.cfg.Retry.jitter(),
	}}
	r.lanes[to] = l
	r.set(l, state)
	l.acked = state.confirmed
	l.rewind()
	return l
}

// set replaces what is known of a committed lane.
func (r *relay) set(l *lane, state laneState) {
	if l.state.open() {
		r.open--
	}
	if state.open() {
		r.open++
	}
	l.state = state
}

// Receive takes one message. If this package's own code fails, the relay ends and
// the activation starts another from what it knows.
func (r *relay) Receive(c actor.Context) {
	defer func() {
		if p := recover(); p != nil {
			r.rt.log.Error("a relay failed", r.attr(), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			r.stop()
			c.Stop(c.Self())
		}
	}()
	switch m := c.Message().(type) {
	case *actor.Started:
		r.self = c.Self()
		for _, l := range r.lanes {
			r.pump(l)
		}
	case *grown:
		r.seen++
		r.grow(m)
	case *laneChanged:
		r.seen++
		r.change(m)
	case routesChanged:
		r.seen++
		r.idle = false
		for _, l := range r.lanes {
			if l.pause == pauseTrouble {
				r.resume(l)
			}
		}
	case *released:
		r.seen++
		r.idle = false
		r.forget(m)
	case endRelay:
		r.ending = true
		r.stop()
		if m.now {
			r.records = 0
		} else {
			r.hasten()
		}
	case *taken:
		r.taken(m)
	case *sent:
		r.sent(m)
	case *wake:
		if m.nap == m.lane.naps && !r.ending {
			r.resume(m.lane)
		}
	case *marked:
		r.records = max(0, r.records-1)
		r.marked(m)
	case *actor.Stopping:
		r.stop()
	}
	r.rest()
}

func (r *relay) attr() slog.Attr { return slog.String("entity", r.ref.String()) }

// stop ends deliveries and timers. Lane updates in flight get their verdict.
func (r *relay) stop() {
	r.cancel()
	for _, l := range r.lanes {
		l.stopTimer()
		r.shard.troubles.forget(r, l)
	}
}

// recover forgets a lane's troubles.
func (r *relay) recover(l *lane) {
	if l.failures > 0 {
		r.shard.troubles.forget(r, l)
	}
	l.recover()
}

// rest says when there is nothing to do, or nothing in flight when it is to end.
func (r *relay) rest() {
	switch {
	case r.done:
	case r.ending:
		if r.records == 0 {
			r.done = true
			r.tell(&relayDone{})
		}
	case r.open == 0 && r.records == 0:
		if !r.idle {
			r.idle = true
			r.tell(&relayIdle{seen: r.seen})
		}
	default:
		r.idle = false
	}
}

func (r *relay) tell(message any) { r.rt.send(r.owner, message) }

// grow takes in new rows of a lane.
func (r *relay) grow(m *grown) {
	r.idle = false // the activation waits for a new word
	l := r.lanes[m.to]
	if l == nil {
		l = r.addLane(m.to, m.lane)
	} else {
		state := l.state // newer than the activation's, but for the number
		state.numbered = max(state.numbered, m.lane.numbered)
		r.set(l, state)
	}
	r.pump(l)
}

// change takes in what an operator did to a lane and begins it anew.
func (r *relay) change(m *laneChanged) {
	if r.ending {
		return // the activation knows, and may know more by the time it hears from here
	}
	r.idle = false
	if stored, err := r.shard.store.Lane(r.ref, m.to); err == nil && stored != nil {
		m.lane = stateOf(stored) // a decision of this relay may have come behind the change
	}
	l := r.lanes[m.to]
	if l == nil {
		l = r.addLane(m.to, m.lane)
	} else {
		r.set(l, m.lane)
		l.acked = max(l.acked, m.lane.confirmed)
		l.decision = nil
		r.recover(l)
		l.rewind()
	}
	r.tell(&laneMoved{to: m.to, lane: l.state}) // after what was on its way
	r.resume(l)
}

// update proposes a change of a lane's record.
func (r *relay) update(l *lane, u *recordv1.LaneUpdate) {
	u.Source, u.Destination = toRef(r.ref), toRef(l.to)
	r.records++
	rt, self := r.rt, r.self
	rec := &recordv1.Record{Body: &recordv1.Record_Lane{Lane: u}}
	then := func(err error) { rt.send(self, &marked{l, u, err}) }
	if _, confirms := u.GetChange().(*recordv1.LaneUpdate_Confirm); confirms && l.decision == nil {
		// Nothing waits for it, and if it is lost the rows are sent again and
		// confirmed without effect.
		r.lease.ProposeWithin(confirmPatience, rec, then)
		return
	}
	r.lease.Propose(rec, then)
}

// hasten has records that may wait go now.
func (r *relay) hasten() {
	if r.records > 0 {
		r.lease.Barrier(func(error) {}) // calls for an entry, which takes along what is queued
	}
}

// tidy offers to forget a lane, unless there are few. A source may send to ever new
// destinations, faster than its relay comes to rest.
func (r *relay) tidy(l *lane) {
	if len(r.lanes) > lanesKept && l.spent() && !r.ending {
		r.tell(&laneMoved{to: l.to, lane: l.state, spent: true})
	}
}

// forget drops a lane, unless there is something to do again, or something was done
// since it was offered: the activation, which may not have heard of that yet, would
// have the lane taken up again at a row that is gone.
func (r *relay) forget(m *released) {
	l := r.lanes[m.to]
	if l == nil || !l.spent() || l.state.confirmed != m.lane.confirmed || l.state.status != m.lane.status {
		return
	}
	l.stopTimer() // and makes void a wake that is on its way
	r.shard.troubles.forget(r, l)
	delete(r.lanes, m.to)
}

// later pauses a lane.
func (r *relay) later(l *lane, p pause, d time.Duration) {
	l.stopTimer()
	l.pause = p
	l.naps++
	nap, rt, self := l.naps, r.rt, r.self
	l.timer = time.AfterFunc(d, func() { rt.send(self, &wake{l, nap}) })
}
