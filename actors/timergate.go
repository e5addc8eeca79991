package actors

import (
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

const (
	// firingMost bounds the timers of a shard that fire at once.
	firingMost = 256
	// timerPage is the number of timers read at once.
	timerPage = 128
	// retryTimer is the time before a timer that could not be tried is tried again.
	retryTimer = time.Second
	// slowTimers is how long a pass waits for room before it goes on without those
	// who take it up.
	slowTimers = time.Second
)

// timers is the gate's side of durable timers. It knows when the next one is due,
// from the store after a new lease and from commits afterwards, and asks the store
// only then: without timers it does nothing at all. A pass goes over all timers
// that are due, in order of their time; those that fire already are passed over,
// and looked at again when they are done.
type timers struct {
	next     int64 // wall clock, nanoseconds; 0: none known
	looked   int64 // what the clock said last
	wake     *time.Timer
	passing  bool
	reading  bool
	stalled  bool      // the pass waits for room
	since    time.Time // it has waited since then
	again    bool      // another pass is due
	position string
	later    int64 // earliest time that the pass has left over
	// firing: true if a pass has met the timer again meanwhile. It may have been
	// moved, or set anew, and its time is then known to nobody else.
	firing map[timerID]bool
	// fires: how many of an entity's timers are firing. slow: entities whose timers
	// take up the room and do not get on; true if a pass has passed over one.
	fires map[entity.Ref]int
	slow  map[entity.Ref]bool
}

// timerID names a timer.
type timerID struct {
	ref  entity.Ref
	name string
}

type dueTimer struct {
	timerID
	timer *recordv1.Timer
}

// Messages about timers, to a gate.
type (
	// timerSet: a commit has set timers, the next at this time.
	timerSet struct {
		lease Lease
		next  int64
	}
	// timerDue: the time of the next one has come.
	timerDue struct{ lease Lease }
	// timerRead brings timers that are due.
	timerRead struct {
		lease    Lease
		due      []dueTimer
		position string
		next     int64
		err      error
	}
	// timerDone: a timer was done, or could not be.
	timerDone struct {
		lease Lease
		id    timerID
		err   error
	}
)

// begin begins a term with a pass.
func (t *timers) begin(g *gate) {
	*t = timers{firing: map[timerID]bool{}, fires: map[entity.Ref]int{}, slow: map[entity.Ref]bool{}}
	t.pass(g)
}

// end ends a term.
func (t *timers) end() {
	if t.wake != nil {
		t.wake.Stop()
	}
	*t = timers{}
}

// arm sees to it that a pass begins at a time.
func (t *timers) arm(g *gate, at int64) {
	if at == 0 || (t.next != 0 && t.next <= at) {
		return
	}
	t.next = at
	if t.wake != nil {
		t.wake.Stop()
	}
	lease, rt, to := g.lease, g.rt, g.shard.gate
	t.wake = time.AfterFunc(time.Unix(0, at).Sub(rt.cfg.Clock()), func() { rt.send(to, &timerDue{lease}) })
}

// look begins a pass if its time has come. It is called with every tick as well,
// since clocks can be set. If the clock was set back, what is to be tried again
// would wait for a time that is far away now, and only the store knows what else is
// due.
func (t *timers) look(g *gate) {
	now := g.rt.cfg.Clock().UnixNano()
	back := now < t.looked
	t.looked = now
	if !back && (t.next == 0 || now < t.next) {
		return
	}
	t.next = 0
	t.pass(g)
}

func (t *timers) pass(g *gate) {
	if t.passing {
		t.again = true
		return
	}
	t.passing, t.again, t.position, t.later = true, false, "", 0
	t.read(g)
}

// read reads on in a goroutine of its own.
func (t *timers) read(g *gate) {
	t.reading, t.stalled = true, false
	lease, store, to, behind, until := g.lease, g.shard.store, g.shard.gate, t.position, g.rt.cfg.Clock().UnixNano()
	g.rt.wg.Go(func() {
		page := &timerRead{lease: lease}
		page.next, page.err = store.DueTimers(behind, until, timerPage, func(position string, ref entity.Ref, name string, timer *recordv1.Timer) {
			page.position, timer.Message = position, nil // the entity reads it when its turn comes: a page of them can be large
			page.due = append(page.due, dueTimer{timerID{ref, name}, timer})
		})
		g.rt.send(to, page)
	})
}

// timersRead fires what was read and goes on with the pass.
func (g *gate) timersRead(c actor.Context, p *timerRead) {
	t := &g.timers
	if p.lease != g.lease || !g.leads() {
		return
	}
	t.reading = false
	if p.err != nil {
		g.rt.log.Error("cannot read timers", g.attr(), slog.Any("error", p.err))
		t.leave(g.rt.cfg.Clock().Add(retryTimer).UnixNano())
		t.conclude(g)
		return
	}
	for _, due := range p.due {
		g.fire(c, due)
	}
	if len(p.due) < timerPage {
		t.leave(p.next)
		t.conclude(g)
		return
	}
	t.position = p.position
	t.goOn(g)
}

// goOn reads on if there is room.
func (t *timers) goOn(g *gate) {
	room := firingMost - timerPage - len(t.firing)
	for ref := range t.slow {
		room += t.fires[ref]
	}
	if t.stalled = room < 0; !t.stalled {
		t.read(g)
		return
	}
	t.since = time.Now()
}

// relieve is called with every tick. If the pass has waited for room for long, the
// entity that takes up most of it is slow: its timers no longer count, and those
// that are not firing yet are passed over until the others have fired. Else one
// handler that does not come back would stop all timers of the shard.
func (t *timers) relieve(g *gate, now time.Time) {
	if !t.passing || !t.stalled || t.reading || now.Sub(t.since) < slowTimers {
		return
	}
	var slowest entity.Ref
	most := 0
	for ref, n := range t.fires {
		if _, known := t.slow[ref]; !known && (n > most || n == most && ref.String() < slowest.String()) {
			slowest, most = ref, n
		}
	}
	if most == 0 {
		return
	}
	t.slow[slowest] = false
	g.rt.log.Warn("an entity's timers take long: the others of the shard no longer wait for them", g.attr(), slog.String("entity", slowest.String()), slog.Int("firing", most))
	t.goOn(g)
}

// leave notes a time at which something is left to do.
func (t *timers) leave(at int64) {
	if at != 0 && (t.later == 0 || at < t.later) {
		t.later = at
	}
}

// conclude ends a pass.
func (t *timers) conclude(g *gate) {
	t.passing = false
	t.arm(g, t.later)
	if t.again {
		t.pass(g)
	}
}

// fire has a timer's entity do what it says.
func (g *gate) fire(c actor.Context, due dueTimer) {
	t := &g.timers
	if _, fires := t.firing[due.timerID]; fires {
		t.firing[due.timerID] = true
		return
	}
	if _, slow := t.slow[due.ref]; slow {
		t.slow[due.ref] = true
		return
	}
	if at := effective(due.timer, g.lease.Term(), g.rt.cfg.TimerSkew); at > g.rt.cfg.Clock().UnixNano() {
		t.leave(at)
		return
	}
	t.firing[due.timerID] = false
	t.fires[due.ref]++
	id, lease, rt, to := due.timerID, g.lease, g.rt, g.shard.gate
	g.shard.timers.items.Add(1)
	g.take(c, &call{
		ref: due.ref, work: &firing{name: due.name, set: due.timer.GetSet()}, shard: &g.shard.timers, metrics: g.rt.cfg.Metrics,
		done: func(a answer) { rt.send(to, &timerDone{lease, id, a.err}) },
	})
}

// timerDone takes note of a timer that was done, or could not be.
func (g *gate) timerDone(m *timerDone) {
	t := &g.timers
	if m.lease != g.lease || t.firing == nil {
		return
	}
	met := t.firing[m.id]
	delete(t.firing, m.id)
	if t.fires[m.id.ref]--; t.fires[m.id.ref] == 0 {
		met = met || t.slow[m.id.ref]
		delete(t.fires, m.id.ref)
		delete(t.slow, m.id.ref)
	}
	switch now := g.rt.cfg.Clock(); {
	case m.err != nil:
		t.arm(g, now.Add(retryTimer).UnixNano())
	case met:
		t.arm(g, now.UnixNano())
	}
	if t.passing && t.stalled && !t.reading && g.leads() {
		t.goOn(g)
	}
}
