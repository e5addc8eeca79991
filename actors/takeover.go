package actors

import (
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"writ/actors/entity"
)

const (
	// retryStart is the time before an entity that could not be read, or whose relay
	// failed, is started again.
	retryStart = 5 * time.Second
	// startsMost bounds the activations that the gate starts at once by itself.
	startsMost = 64
	// pageSize is the number of sources read at once.
	pageSize = 256
)

// takeover starts the entities whose outbox holds rows: all of them after a new
// lease, single ones after they have broken. Entities without rows start when
// somebody asks for them, so a takeover costs the same however many there are.
type takeover struct {
	queue    []entity.Ref // to be started
	later    []entity.Ref // to be queued when due
	due      time.Time
	starting int
	after    entity.Ref // where the next page begins
	reading  bool
	read     bool // all pages
}

// begin starts reading the sources of a new term.
func (t *takeover) begin(g *gate) {
	*t = takeover{}
	t.nextPage(g)
}

// nextPage reads on in a goroutine of its own.
func (t *takeover) nextPage(g *gate) {
	if t.reading || t.read {
		return
	}
	t.reading = true
	lease, after, store, to := g.lease, t.after, g.shard.store, g.shard.gate
	g.rt.wg.Go(func() {
		refs, err := store.PendingSources(after, pageSize)
		g.rt.send(to, &page{lease: lease, refs: refs, err: err})
	})
}

// turnPage queues what was read.
func (g *gate) turnPage(c actor.Context, p *page) {
	t := &g.takeover
	if p.lease != g.lease || !g.leads() {
		return
	}
	t.reading = false
	if p.err != nil {
		g.rt.log.Error("cannot read the sources with rows", g.attr(), slog.Any("error", p.err))
		return // the next tick reads again
	}
	if len(p.refs) == 0 {
		t.read = true
	} else {
		t.after = p.refs[len(p.refs)-1]
		t.queue = append(t.queue, p.refs...)
	}
	t.pump(g, c)
}

// pump starts what is queued, as much as the bound allows.
func (t *takeover) pump(g *gate, c actor.Context) {
	for t.starting < startsMost && len(t.queue) > 0 {
		ref := t.queue[0]
		t.queue = t.queue[1:]
		if g.entries[ref] != nil {
			continue // active: it has found its rows by itself
		}
		t.starting++
		if _, err := g.activate(c, ref, true); err != nil {
			t.starting--
			t.add(g, c, ref, true)
			g.rt.log.Error("cannot start an activation", g.attr(), slog.Any("error", err))
		}
	}
	if len(t.queue) < startsMost {
		t.nextPage(g)
	}
}

// started makes room for the next one.
func (g *gate) started(c actor.Context, e *entry) {
	if !e.starting {
		return
	}
	e.starting = false
	if e.state == orphaned {
		return // counted in a term that is over
	}
	g.takeover.starting--
	if g.leads() {
		g.takeover.pump(g, c)
	}
}

// add has an entity started again that has ended with rows in its outbox.
func (t *takeover) add(g *gate, c actor.Context, ref entity.Ref, later bool) {
	if !g.leads() {
		return
	}
	if later {
		if len(t.later) == 0 {
			t.due = g.now.Add(retryStart)
		}
		t.later = append(t.later, ref)
		return
	}
	t.queue = append(t.queue, ref)
	t.pump(g, c)
}

// retry is called with every tick.
func (t *takeover) retry(g *gate, c actor.Context) {
	if len(t.later) > 0 && !g.now.Before(t.due) {
		t.queue = append(t.queue, t.later...)
		t.later = nil
	}
	t.pump(g, c)
}
