package actors

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	recordv1 "writ/proto/writ/record/v1"
)

// How an activation ends without losing work. The gate says retire and holds new
// work back; what it had sent before stands in the mailbox in front of it. The
// activation answers busy, and gets what was held, or finished, and is stopped.
// An activation that breaks says broken first, bounces what stands before retire,
// and finishes when all its records have their verdict. The next one starts only
// after Terminated.

// touch notes that an entity has work.
func (g *gate) touch(e *entry) {
	e.usedAt = g.now
	g.used.MoveToBack(e.place)
}

// sweep asks activations to end that are idle: all that have been unused for long,
// and of the others the longest unused ones if there are more than the limits allow.
// Those that are busy do not count towards the limits: no others would live beside
// them while a destination is away.
func (g *gate) sweep() {
	oldest, limits := g.now.Add(-g.rt.cfg.Passivation), g.rt.cfg.Limits
	tooMany, tooLarge := len(g.entries)-g.busy-limits.Activations, g.shard.states.Load()-g.busyBytes-limits.ActivationBytes
	for range g.used.Len() {
		e := g.used.Front().Value.(*entry)
		if e.usedAt.After(oldest) && tooMany <= 0 && tooLarge <= 0 {
			return
		}
		g.touch(e) // whatever it answers, it has its turn only once
		if e.state == serving && e.calls.items.Load() == 0 && e.events.items.Load() == 0 {
			if !e.busy {
				tooMany, tooLarge = tooMany-1, tooLarge-e.bytes.Load()
			}
			g.retire(e)
		}
	}
}

func (g *gate) retire(e *entry) {
	e.state = ending
	g.markBusy(e, true) // if it still counted, the next sweep would end another one in its place
	g.rt.send(e.pid, retire{})
}

// breakOff holds work back from an activation that takes no more.
func (g *gate) breakOff(e *entry) {
	if e.state == serving {
		g.retire(e)
	}
}

// carryOn gives a busy activation what was held back from it.
func (g *gate) carryOn(e *entry) {
	if e.state != ending {
		return
	}
	e.state = serving
	g.markBusy(e, true)
	for _, call := range e.held {
		g.rt.send(e.pid, call)
	}
	e.held = nil
}

// markBusy notes whether an activation ends, or would not end when it was asked.
func (g *gate) markBusy(e *entry, busy bool) {
	if e.busy == busy {
		return
	}
	if e.busy = busy; busy {
		e.heavy = e.bytes.Load()
		g.busy, g.busyBytes = g.busy+1, g.busyBytes+e.heavy
	} else {
		g.busy, g.busyBytes = g.busy-1, g.busyBytes-e.heavy
	}
}

// takeBack keeps work that an ending activation has not begun.
func (g *gate) takeBack(c actor.Context, e *entry, call *call) {
	if e.state == ending {
		e.bounced = append(e.bounced, call)
		return
	}
	g.take(c, call)
}

// housekeep is what a gate does with time.
func (g *gate) housekeep(c actor.Context, now time.Time) {
	g.now = now
	if !g.leads() {
		return
	}
	g.sweep()
	g.shard.crowded.tidy(g.rt.cfg.Limits.EntityCalls)
	g.takeover.retry(g, c)
	g.timers.relieve(g, now)
	g.timers.look(g)
	g.expire()
}

// expire has the keys forgotten whose time has passed, by a record.
func (g *gate) expire() {
	if g.expiring {
		return
	}
	lease := g.lease
	through, ok := g.shard.store.Expirable(lease.LogTime())
	if !ok {
		return
	}
	g.expiring = true
	rec := &recordv1.Record{Body: &recordv1.Record_Expire{Expire: &recordv1.Expire{ThroughGeneration: through}}}
	// Its verdict does not matter: what was not forgotten now is found again.
	lease.Propose(rec, func(error) { g.rt.send(g.shard.gate, &expired{lease}) })
}
