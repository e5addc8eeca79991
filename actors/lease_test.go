package actors_test

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// log stands for a shard's Raft group of one: what is proposed is applied.
type log struct {
	t     testing.TB
	store *persistence.Store
	poke  func() // wakes tests that wait

	mu    sync.Mutex
	index uint64
	term  uint64
}

// apply appends one entry. One of an earlier term is not taken: no log holds an
// entry behind those of a later term.
func (l *log) apply(term uint64, logTime int64, records ...*recordv1.Record) []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	data, err := proto.Marshal(&recordv1.Entry{Format: 1, LogTime: logTime, Records: records})
	if err != nil {
		l.t.Error(err)
		return make([]error, len(records))
	}
	if term < l.term {
		errs := make([]error, len(records))
		for i := range errs {
			errs[i] = entity.Errorf(entity.NotExecuted, "a later term has begun")
		}
		return errs
	}
	l.index++
	results, err := l.store.Apply(l.index, term, data)
	if err != nil {
		l.t.Errorf("apply: %v", err)
		return make([]error, len(records))
	}
	return results
}

func (l *log) newLease() *lease {
	l.mu.Lock()
	l.term++
	term := l.term
	l.mu.Unlock()
	le := &lease{log: l, term: term, base: l.store.Meta().GetLogTime(), began: time.Now(), more: make(chan struct{}, 1), quit: make(chan struct{})}
	l.t.Cleanup(le.stop)
	ctx, cancel := context.WithCancel(context.Background())
	le.ctx, le.cancel = func() context.Context { return ctx }, cancel
	start := &recordv1.Record{Epoch: 1, Body: &recordv1.Record_TermStart{TermStart: &recordv1.TermStart{Node: "n1"}}}
	if err := l.apply(term, le.LogTime(), start)[0]; err != nil {
		l.t.Errorf("term start: %v", err)
	}
	le.wg.Go(le.run)
	return le
}

// lease applies what is proposed, entry by entry, from one goroutine. A test can
// hold it, fail records, and end it.
type lease struct {
	log    *log
	term   uint64
	base   int64
	began  time.Time
	ctx    func() context.Context
	cancel context.CancelFunc
	more   chan struct{}
	quit   chan struct{}
	once   sync.Once // closes quit
	wg     sync.WaitGroup
	jump   atomic.Int64 // of the log time

	mu      sync.Mutex
	queue   []proposed
	held    func(*recordv1.Record) bool // nil: nothing is held back
	over    error                       // verdict of what is left when the lease ends
	load    int
	verdict func(*recordv1.Record) (err error, apply bool)
}

type proposed struct {
	rec  *recordv1.Record // nil: a barrier
	done func(error)
}

func (l *lease) Context() context.Context { return l.ctx() }
func (l *lease) Epoch() uint64            { return 1 }
func (l *lease) Term() uint64             { return l.term }
func (l *lease) LogTime() int64           { return l.base + int64(time.Since(l.began)) + l.jump.Load() }

func (l *lease) Load() (int, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.load + len(l.queue), 0
}

func (l *lease) Propose(rec *recordv1.Record, done func(error)) {
	rec.Epoch, rec.Term = 1, l.term
	l.add(proposed{rec, done})
}

func (l *lease) ProposeWithin(_ time.Duration, rec *recordv1.Record, done func(error)) {
	l.Propose(rec, done)
}

func (l *lease) Barrier(done func(error)) { l.add(proposed{nil, done}) }

func (l *lease) add(p proposed) {
	l.mu.Lock()
	l.queue = append(l.queue, p)
	l.mu.Unlock()
	l.wake()
	l.log.poke()
}

func (l *lease) wake() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// hold keeps records and barriers back; release lets them go.
func (l *lease) hold() { l.holdOnly(func(*recordv1.Record) bool { return true }) }

// holdOnly keeps some of them back. A barrier has no record.
func (l *lease) holdOnly(which func(*recordv1.Record) bool) { l.set(func() { l.held = which }) }

func (l *lease) release() { l.holdOnly(nil) }

func (l *lease) set(change func()) {
	l.mu.Lock()
	change()
	l.mu.Unlock()
	l.wake()
}

// fail has a function decide on records: an error without apply means that the
// record is not applied.
func (l *lease) fail(verdict func(*recordv1.Record) (err error, apply bool)) {
	l.set(func() { l.verdict = verdict })
}

// waiting is the number of records and barriers that are held back.
func (l *lease) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// end ends the lease. What waits gets the given verdict, NOT_EXECUTED if nil.
func (l *lease) end(verdict error) {
	if verdict == nil {
		verdict = entity.Errorf(entity.NotExecuted, "the lease has ended")
	}
	l.set(func() { l.over = cmp.Or(l.over, verdict) })
	l.cancel()
}

// stop ends the lease's goroutine; what is proposed later has no verdict.
func (l *lease) stop() {
	l.end(nil)
	l.once.Do(func() { close(l.quit) })
	l.wg.Wait()
}

func (l *lease) run() {
	for {
		l.mu.Lock()
		batch, over, verdict := l.queue, l.over, l.verdict
		l.queue = nil
		if l.held != nil && over == nil {
			all := batch
			batch = nil
			for _, p := range all {
				if l.held(p.rec) {
					l.queue = append(l.queue, p)
				} else {
					batch = append(batch, p)
				}
			}
		}
		l.mu.Unlock()
		if len(batch) == 0 {
			select {
			case <-l.more:
			case <-l.quit:
				return
			}
			continue
		}
		l.commit(batch, over, verdict)
	}
}

func (l *lease) commit(batch []proposed, over error, verdict func(*recordv1.Record) (error, bool)) {
	if over != nil {
		for _, p := range batch {
			p.done(over)
		}
		return
	}
	errs := make([]error, len(batch))
	var records []*recordv1.Record
	var at []int
	for i, p := range batch {
		apply := true
		if verdict != nil && p.rec != nil {
			errs[i], apply = verdict(p.rec)
		}
		if p.rec != nil && apply {
			records, at = append(records, p.rec), append(at, i)
		}
	}
	if len(records) > 0 {
		for i, err := range l.log.apply(l.term, l.LogTime(), records...) {
			if errs[at[i]] == nil {
				errs[at[i]] = err
			}
		}
	}
	for i, p := range batch {
		p.done(errs[i])
	}
	l.log.poke()
}
