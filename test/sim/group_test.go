package sim_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// group models a shard's Raft group: one log, the entries of which are committed
// in order; every replica applies them some time later. A proposal may be
// committed, never be, or have its fate decided only after the next election.
type group struct {
	world *world
	shard uint32

	mu      sync.Mutex
	log     []logEntry // committed; index i+1
	limbo   []logEntry // appended by a leader that could not commit them
	term    uint64
	leader  int
	lease   [nodes]*lease
	applied [nodes]int
}

type logEntry struct {
	term uint64
	data []byte
}

func newGroup(w *world, shard uint32) *group { return &group{world: w, shard: shard, leader: -1} }

// guess is where a message for the shard's leader is sent: mostly to the leader.
func (g *group) guess(dice *rand.Rand) int {
	g.mu.Lock()
	leader := g.leader
	g.mu.Unlock()
	if leader < 0 || g.world.luck(dice, 10) {
		return g.world.roll(dice, nodes)
	}
	return leader
}

// replay applies to a node what it has not applied, from its file's index on.
func (g *group) replay(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.applied[n] = int(g.world.nodes[n].store(g.shard).Meta().GetIndex())
	g.catchUp(n, len(g.log))
}

// follow lets a running node apply some more.
func (g *group) follow(n, entries int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if rt, _ := g.world.nodes[n].process(); rt != nil {
		g.catchUp(n, min(g.applied[n]+entries, len(g.log)))
	}
}

// catchUp returns the results of the last entry. The caller holds mu.
func (g *group) catchUp(n, through int) (results []error) {
	for g.applied[n] < through {
		e := g.log[g.applied[n]]
		g.applied[n]++
		var err error
		if results, err = g.world.nodes[n].store(g.shard).Apply(uint64(g.applied[n]), e.term, e.data); err != nil {
			g.world.t.Errorf("seed %d: apply: %v", g.world.seed, err)
		}
	}
	return results
}

// elect gives the leadership to a node. The lease before goes on until its node
// hears of it.
func (g *group) elect(n int) {
	w := g.world
	dice := w.dice("election %d", g.shard)
	if !w.majority(n) {
		return
	}
	g.mu.Lock()
	own := g.lease[n]
	g.mu.Unlock()
	if own != nil { // its callbacks come first
		own.end(entity.Errorf(entity.NotExecuted, "a later term has begun"))
		<-own.over
	}
	g.mu.Lock()
	rt, _ := w.nodes[n].process()
	if rt == nil {
		g.mu.Unlock()
		return
	}
	if old := g.leader; old >= 0 && old != n && g.lease[old] != nil {
		stale, late := g.lease[old], time.Duration(w.roll(dice, 400))*time.Millisecond
		w.wg.Go(func() {
			pause(late)
			stale.end(entity.Errorf(entity.NotExecuted, "the leadership is lost"))
		})
	}
	for _, e := range g.limbo { // the new leader may have them or not
		if w.roll(dice, 2) == 0 {
			g.log = append(g.log, e)
			w.count("entries of an earlier term committed")
		}
	}
	g.limbo = nil
	g.term++
	g.leader = n
	g.log = append(g.log, logEntry{g.term, encode(0, &recordv1.Record{Epoch: 1, Body: &recordv1.Record_TermStart{TermStart: &recordv1.TermStart{Node: "n"}}})})
	g.catchUp(n, len(g.log))
	l := &lease{
		group: g, node: n, term: g.term, base: w.nodes[n].store(g.shard).Meta().GetLogTime(), began: time.Now(),
		more: make(chan struct{}, 1), over: make(chan struct{}), dice: w.dice("lease %d %d", g.shard, g.term),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	g.lease[n] = l
	g.mu.Unlock()
	w.count("elections")
	w.wg.Go(l.run)
	rt.Lead(g.shard, l)
	for _, other := range w.nodes {
		if rt, _ := other.process(); rt != nil {
			rt.RoutesChanged()
		}
	}
}

// lose takes the leadership from a node that has crashed.
func (g *group) lose(n int) {
	g.mu.Lock()
	l := g.lease[n]
	g.lease[n] = nil
	if g.leader == n {
		g.leader = -1
	}
	g.mu.Unlock()
	if l != nil {
		l.end(entity.Errorf(entity.OutcomeUnknown, "the process has ended"))
	}
}

// commit brings an entry of a lease into the log, or not.
func (g *group) commit(l *lease, data []byte) ([]error, error) {
	w := g.world
	unknown := entity.Errorf(entity.OutcomeUnknown, "leadership lost while committing")
	rt, _ := w.nodes[l.node].process()
	able := w.majority(l.node)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case rt == nil, g.leader != l.node && able, w.luck(l.dice, 60):
		return nil, entity.Errorf(entity.NotExecuted, "not the leader")
	case g.leader != l.node || !able || w.luck(l.dice, 60):
		// Appended here at most: whoever leads next decides.
		if g.leader == l.node {
			g.limbo = append(g.limbo, logEntry{g.term, data})
			g.leader = -1
		}
		w.count("unknown outcomes")
		go l.end(unknown)
		return nil, unknown
	}
	// It reaches the log in the term of now, which may not be the lease's.
	g.log = append(g.log, logEntry{g.term, data})
	results := g.catchUp(l.node, len(g.log))
	if w.luck(l.dice, 60) {
		g.leader = -1
		w.count("answers of the log lost")
		go l.end(unknown)
		return nil, unknown
	}
	return results, nil
}

func encode(logTime int64, records ...*recordv1.Record) []byte {
	data, err := proto.Marshal(&recordv1.Entry{Format: 1, LogTime: logTime, Records: records})
	if err != nil {
		panic(err)
	}
	return data
}

// lease is the right to lead as a runtime sees it.
type lease struct {
	group  *group
	node   int
	term   uint64
	base   int64
	began  time.Time
	dice   *rand.Rand
	ctx    context.Context //nolint:containedctx // it is the lease: see Context
	cancel context.CancelFunc
	more   chan struct{}
	over   chan struct{} // everything is answered

	mu      sync.Mutex
	queue   []proposed
	verdict error // of what is left when the lease ends
	done    bool
}

type proposed struct {
	rec  *recordv1.Record // nil: a barrier
	done func(error)
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
	l.add(proposed{rec, done})
}

func (l *lease) ProposeWithin(_ time.Duration, rec *recordv1.Record, done func(error)) {
	l.Propose(rec, done)
}

func (l *lease) Barrier(done func(error)) { l.add(proposed{nil, done}) }

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

func (l *lease) run() {
	defer close(l.over)
	for {
		select {
		case <-l.more:
		case <-l.ctx.Done():
			l.finish()
			return
		}
		pause(time.Duration(300+l.group.world.roll(l.dice, 3000)) * time.Microsecond)
		l.mu.Lock()
		batch := l.queue
		l.queue = nil
		l.mu.Unlock()
		l.commit(batch)
	}
}

// finish answers what is left; what comes later is answered at once.
func (l *lease) finish() {
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

func (l *lease) commit(batch []proposed) {
	if len(batch) == 0 {
		return
	}
	var records []*recordv1.Record
	for _, p := range batch {
		if p.rec != nil {
			records = append(records, p.rec)
		} else { // a barrier is a record without effect
			records = append(records, &recordv1.Record{Epoch: 1, Term: l.term, Body: &recordv1.Record_Checkpoint{Checkpoint: &recordv1.Checkpoint{}}})
		}
	}
	results, err := l.group.commit(l, encode(l.LogTime(), records...))
	for i, p := range batch {
		verdict := err
		if err == nil {
			verdict = results[i]
		}
		p.done(verdict)
	}
}
