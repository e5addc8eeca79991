package actors

import (
	"container/list"
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"writ/actors/entity"
)

// gate is the permanent actor of one hosted shard. It alone knows which entities
// are active, and it alone gives them work.
type gate struct {
	rt    *Runtime
	shard *shard
	lease Lease // nil: none
	// epoch and term are those of the newest lease so far.
	epoch, term uint64
	// entries: entities that are active or ending in this term.
	entries map[entity.Ref]*entry
	// children: every child that has not terminated, by the id of its PID; also
	// those of terms that have ended.
	children map[string]*entry
	// used: entries by the time of their last work, oldest first.
	used *list.List
	// busy and busyBytes are how many of the entries are busy, and their bytes then.
	busy      int
	busyBytes int64
	now       time.Time // of the last tick: good enough for idle times
	takeover  takeover
	timers    timers
	expiring  bool // an Expire record is in flight
	closing   bool
	// entities are the props of all activations: spawning takes the next one.
	entities *actor.Props
	next     *activation
}

// entry is the gate's side of one activation.
type entry struct {
	ref entity.Ref
	pid *actor.PID
	// Work in progress, counted down by whoever answers it.
	calls  gauge
	events gauge
	// relays is set by the activation while it has a relay.
	relays atomic.Bool
	// bytes of its encoded state, as the activation knows them.
	bytes atomic.Int64

	// The rest belongs to the gate.
	state    entryState
	held     []*call // work that came while the activation was ending
	bounced  []*call // work that it gave back: older than what is held
	usedAt   time.Time
	place    *list.Element
	starting bool  // counts against the bound of takeover
	busy     bool  // ends, or would not end when it was last asked, and has had no call since
	heavy    int64 // its bytes in busyBytes
	again    bool  // start it again when it has ended
	later    bool  // … but not at once
}

// entryState is what the gate does with work for the entity.
type entryState int

const (
	// serving: work is passed on. Next: ending, orphaned.
	serving entryState = iota
	// ending: work is held back until the activation has ended. Next: serving if
	// it turns out busy, gone, orphaned.
	ending
	// orphaned: of a term that has ended; the gate only waits for its end.
	orphaned
)

func newGate(rt *Runtime, s *shard) *gate {
	g := &gate{
		rt:       rt,
		shard:    s,
		entries:  map[entity.Ref]*entry{},
		children: map[string]*entry{},
		used:     list.New(),
		now:      time.Now(),
	}
	g.entities = rt.props(func() actor.Actor { return g.next })
	return g
}

// props are how all actors of this package run.
func (r *Runtime) props(producer actor.Producer) *actor.Props {
	return actor.PropsFromProducer(producer,
		actor.WithMailbox(actor.UnboundedLockfree()), actor.WithDispatcher(r.actors), actor.WithSupervisor(stopAlways()))
}

// stopAlways is the supervision of every child: what failed is stopped and
// started anew from the store, never restarted with what it had in memory.
func stopAlways() actor.SupervisorStrategy {
	return actor.NewOneForOneStrategy(0, 0, func(any) actor.Directive { return actor.StopDirective })
}

// Receive takes one message. A gate must not die: what goes wrong costs the
// message, never the shard.
func (g *gate) Receive(c actor.Context) {
	defer func() {
		if p := recover(); p != nil {
			g.rt.log.Error("a gate failed", g.attr(), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			if call, ok := c.Message().(*call); ok {
				call.refuse(entity.Errorf(entity.OutcomeUnknown, "the node failed while it took the call: retry with the same key"))
			}
		}
	}()
	switch m := c.Message().(type) {
	case *call:
		g.take(c, m)
	case *lead:
		g.begin(m.lease)
	case *leaseEnded:
		if g.lease == m.lease {
			g.endTerm(false)
		}
	case *loaded:
		g.started(c, m.entry)
	case *broken:
		g.breakOff(m.entry)
	case *busy:
		g.carryOn(m.entry)
	case *bounced:
		g.takeBack(c, m.entry, m.call)
	case *finished:
		m.entry.again, m.entry.later = m.rows || m.failed, m.failed
		if m.idle {
			g.rt.cfg.Metrics.Add(Passivations, "", 1)
		}
		c.Stop(m.entry.pid)
	case *actor.Terminated:
		g.buried(c, m.Who)
	case *page:
		g.turnPage(c, m)
	case *timerSet:
		if m.lease == g.lease {
			g.timers.arm(g, m.next)
		}
	case *timerDue:
		if m.lease == g.lease && g.leads() {
			g.timers.look(g)
		}
	case *timerRead:
		g.timersRead(c, m)
	case *timerDone:
		g.timerDone(m)
	case *expired:
		g.expiring = g.expiring && m.lease != g.lease
	case tick:
		g.housekeep(c, m.now)
	case routesChanged:
		for _, e := range g.entries {
			if e.relays.Load() {
				g.rt.send(e.pid, m)
			}
		}
	case shutdown:
		g.closing = true
		g.endTerm(true)
		g.rest(c)
	}
}

func (g *gate) attr() slog.Attr { return slog.Uint64("shard", uint64(g.shard.number)) }

// leads reports whether the gate may work now.
func (g *gate) leads() bool { return g.lease != nil && g.lease.Context().Err() == nil && !g.closing }

// refusal is the answer to work that cannot be taken.
func (g *gate) refusal() *entity.Error {
	if g.closing {
		return errClosed()
	}
	return notLeading(g.rt.cfg.Node, g.shard.number)
}

func notLeading(node string, shard uint32) *entity.Error {
	return entity.Errorf(entity.NotExecuted, "node %s does not lead shard %d", node, shard)
}

// begin begins a term. Leases may be handed over late: an older one has ended, and
// in the place of the newer one it would have all work refused until the next term.
func (g *gate) begin(lease Lease) {
	epoch, term := lease.Epoch(), lease.Term()
	if epoch < g.epoch || epoch == g.epoch && term < g.term {
		return
	}
	g.endTerm(false)
	if g.closing {
		return
	}
	g.lease, g.epoch, g.term = lease, epoch, term
	// Ends by itself when the lease ends, as every lease does; the message finds
	// a later lease, or no gate, and is then void.
	context.AfterFunc(lease.Context(), func() { g.rt.send(g.shard.gate, &leaseEnded{lease}) })
	g.takeover.begin(g)
	g.timers.begin(g)
	g.rt.log.Info("shard is led", g.attr(), slog.Uint64("epoch", epoch), slog.Uint64("term", term))
}

// endTerm ends all activations and refuses what waits for them. now: without
// waiting for records in flight.
func (g *gate) endTerm(now bool) {
	if g.lease != nil {
		g.rt.log.Info("shard is no longer led", g.attr(), slog.Uint64("term", g.lease.Term()))
	}
	g.lease, g.expiring = nil, false
	g.takeover = takeover{}
	g.timers.end()
	for _, e := range g.entries {
		e.state = orphaned
		g.rt.send(e.pid, revoke{now: now})
		g.refuseHeld(e)
	}
	if now { // those of earlier terms may still wait for their records
		for _, e := range g.children {
			g.rt.send(e.pid, revoke{now: true})
		}
	}
	clear(g.entries)
	g.busy, g.busyBytes = 0, 0
	g.shard.crowded.clear()
	g.used.Init()
}

func (g *gate) refuseHeld(e *entry) {
	for _, c := range append(e.bounced, e.held...) {
		c.refuse(g.refusal())
	}
	e.bounced, e.held = nil, nil
}

// take routes one call to the activation of its entity.
func (g *gate) take(c actor.Context, call *call) {
	if !g.leads() {
		call.refuse(g.refusal())
		return
	}
	if call.abandoned() {
		call.refuse(errAbandoned())
		return
	}
	e := g.entries[call.ref]
	if e == nil {
		var err error
		if e, err = g.activate(c, call.ref, false); err != nil {
			g.rt.log.Error("cannot start an activation", g.attr(), slog.Any("error", err))
			call.refuse(entity.Errorf(entity.NotExecuted, "the entity could not be started: retry with the same key; the log of node %s says why", g.rt.cfg.Node))
			return
		}
	}
	count, limits := &e.calls, g.rt.cfg.Limits
	if _, isEvent := call.work.(*delivery); isEvent {
		count = &e.events
	}
	call.leave()
	if full := count.enter(call.size, limits.entityCalls(), bound{"EntityBytes", limits.EntityBytes}); full != nil {
		if count == &e.calls && full.field == limits.entityCalls().field {
			g.shard.crowded.add(e, limits.EntityCalls)
		}
		call.refuse(errCrowded(*full))
		return
	}
	call.entity = count
	g.touch(e)
	g.markBusy(e, false)
	if e.state == serving {
		g.rt.send(e.pid, call)
	} else {
		e.held = append(e.held, call)
	}
}

// activate starts the activation of an entity.
func (g *gate) activate(c actor.Context, ref entity.Ref, starting bool) (*entry, error) {
	e := &entry{ref: ref, starting: starting}
	g.next = newActivation(g.rt, g.shard, g.lease, e)
	pid, err := c.SpawnNamed(g.entities, g.rt.name("e"))
	g.next = nil
	if err != nil {
		return nil, fmt.Errorf("spawn: %w", err)
	}
	e.pid = pid
	e.usedAt = g.now
	e.place = g.used.PushBack(e)
	g.entries[ref] = e
	g.children[pid.Id] = e
	g.rt.cfg.Metrics.Add(Activations, "", 1)
	return e, nil
}

// buried takes note of a child's end and starts it again if there is work.
func (g *gate) buried(c actor.Context, who *actor.PID) {
	e := g.children[who.Id]
	if e == nil {
		return
	}
	delete(g.children, who.Id)
	g.shard.states.Add(-e.bytes.Load())
	if e.starting {
		g.started(c, e)
	}
	if e.state == orphaned {
		g.rest(c)
		return
	}
	if e.state == serving {
		g.rt.log.Error("an activation ended by itself", g.attr(), slog.String("entity", e.ref.String()))
	}
	delete(g.entries, e.ref)
	g.markBusy(e, false)
	g.shard.crowded.forget(e)
	g.used.Remove(e.place)
	calls := append(e.bounced, e.held...)
	for _, call := range calls {
		g.take(c, call)
	}
	if e.again && g.entries[e.ref] == nil {
		g.takeover.add(g, c, e.ref, e.later)
	}
}

// rest ends a closing gate when its last child has ended.
func (g *gate) rest(c actor.Context) {
	if !g.closing || len(g.children) > 0 {
		return
	}
	select {
	case <-g.shard.ended:
	default:
		c.Stop(c.Self())
		close(g.shard.ended)
	}
}
