package sim_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// inFlight is how many entries of a lease may be on their way at once.
const inFlight = 2

// errBusy is a refusal that leaves the lease as it is.
var errBusy = entity.Errorf(entity.NotExecuted, "not proposed: the log is busy")

// lease is the right to lead as a runtime sees it: the contract of
// persistence/replica over a modelled log.
type lease struct {
	peer  *peer
	term  uint64
	base  int64
	began time.Time
	dice  *rand.Rand

	ctx    context.Context //nolint:containedctx // it is the lease: see Context
	cancel context.CancelFunc
	more   chan struct{}
	sent   chan *flight
	over   chan struct{} // everything is answered

	mu      sync.Mutex
	queue   []proposed
	verdict error // of what is left when the lease ends
	done    bool
}

type proposed struct {
	rec  *recordv1.Record // nil: a barrier
	done func(error)
	at   time.Duration // of the lease
}

// order is the one in which an entry has what was proposed at one instant: by entity,
// an entity's decisions before its relay's lanes. Whose goroutine came first is Go's
// choice, and would make another history of a seed.
func order(a, b proposed) int {
	lane := func(p proposed) int {
		if p.rec.GetLane() != nil {
			return 1
		}
		return 0
	}
	name := func(r *recordv1.Ref) string { return r.GetKind() + "/" + r.GetId() }
	of := func(p proposed) string {
		return name(cmp.Or(p.rec.GetCommit().GetEntity(), p.rec.GetLane().GetSource()))
	}
	to := func(p proposed) string { return name(p.rec.GetLane().GetDestination()) }
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(of(a), of(b)), cmp.Compare(lane(a), lane(b)), cmp.Compare(to(a), to(b)))
}

// flight is an entry on its way.
type flight struct {
	batch   []proposed
	landed  chan struct{}
	results []error
	err     error
}

func newLease(p *peer, term uint64) *lease {
	l := &lease{
		peer: p, term: term, base: p.store.Meta().GetLogTime(), began: time.Now(),
		dice: p.world.dice("lease %d %d", p.shard, term), more: make(chan struct{}, 1),
		sent: make(chan *flight, inFlight-1), over: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

func (l *lease) Context() context.Context { return l.ctx }
func (l *lease) Epoch() uint64            { return 1 }
func (l *lease) Term() uint64             { return l.term }
func (l *lease) LogTime() int64           { return l.base + int64(time.Since(l.began)) }

func (l *lease) Load() (records, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue), 0
}

func (l *lease) Propose(rec *recordv1.Record, done func(error)) {
	rec.Epoch, rec.Term = 1, l.term
	l.add(proposed{rec, done, time.Since(l.began)})
}

func (l *lease) ProposeWithin(_ time.Duration, rec *recordv1.Record, done func(error)) {
	l.Propose(rec, done)
}

func (l *lease) Barrier(done func(error)) { l.add(proposed{nil, done, time.Since(l.began)}) }

func (l *lease) add(p proposed) {
	l.mu.Lock()
	if l.done {
		verdict := l.verdict
		l.mu.Unlock()
		p.done(verdict)
		return
	}
	l.queue = append(l.queue, p)
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

func (l *lease) end(verdict error) {
	l.mu.Lock()
	if l.verdict == nil {
		l.verdict = verdict
	}
	l.mu.Unlock()
	l.cancel()
}

// run proposes batch after batch until the lease ends.
func (l *lease) run() {
	defer close(l.sent)
	for {
		select {
		case <-l.more:
		case <-l.ctx.Done():
		}
		if isClosed(l.ctx.Done()) {
			return // whatever else is ready: Go would choose
		}
		if l.empty() {
			continue // what has rung was taken along with the batch before
		}
		// Where two things are ready at once Go chooses one: what ends the lease must
		// end it at that instant whatever is chosen.
		wait(l.ctx.Done(), 100*time.Microsecond+l.peer.world.span(l.dice, 1500*time.Microsecond))
		l.mu.Lock()
		batch := l.queue
		l.queue = nil
		l.mu.Unlock()
		often := 15
		if l.peer.world.busy {
			often = 3
		}
		if l.peer.world.lucky(l.dice, often) {
			// A processor that has other things to do: terms pass meanwhile.
			wait(l.peer.closed, l.peer.world.span(l.dice, 300*time.Millisecond))
		}
		slices.SortStableFunc(batch, order)
		if len(batch) > 0 {
			l.sent <- l.launch(batch)
		}
	}
}

func (l *lease) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) == 0
}

func (l *lease) launch(batch []proposed) *flight {
	var records []*recordv1.Record
	for _, p := range batch {
		if p.rec != nil {
			records = append(records, p.rec)
		} else { // a barrier is a record without effect
			records = append(records, &recordv1.Record{Epoch: 1, Term: l.term, Body: &recordv1.Record_Checkpoint{Checkpoint: &recordv1.Checkpoint{}}})
		}
	}
	f := &flight{batch: batch, landed: make(chan struct{})}
	data := encode(l.LogTime(), records...)
	l.peer.do(func() {
		l.peer.propose(data, func(results []error, err error) {
			f.results, f.err = results, err
			close(f.landed)
		})
	})
	return f
}

// settle answers batch after batch, then what is left in the queue.
func (l *lease) settle() {
	defer close(l.over)
	for f := range l.sent {
		select {
		case <-f.landed:
		case <-l.peer.over:
			// The last thing that the peer did may have been to answer.
			if !isClosed(f.landed) {
				f.err = entity.Errorf(entity.OutcomeUnknown, "the process has ended")
			}
		}
		if f.err != nil && !errors.Is(f.err, errBusy) {
			l.end(entity.Errorf(entity.NotExecuted, "the leadership is lost"))
		}
		for i, p := range f.batch {
			if f.err == nil {
				p.done(f.results[i])
			} else {
				p.done(f.err)
			}
		}
	}
	for {
		l.mu.Lock()
		batch, verdict := l.queue, l.verdict
		l.queue = nil
		l.done = len(batch) == 0
		l.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, p := range batch {
			p.done(verdict)
		}
	}
}
