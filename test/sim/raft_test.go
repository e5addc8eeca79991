package sim_test

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/internal/mutant"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// Raft's times.
const (
	beat       = 40 * time.Millisecond
	loyalty    = 250 * time.Millisecond // with a leader heard of within it, nobody votes for another
	patienceOf = 250 * time.Millisecond // the most that is added by chance
	leaderless = 300 * time.Millisecond // without answers of a majority a leader steps down
	batchMost  = 16                     // entries of a message
)

type role int

const (
	follower role = iota
	candidate
	leader
)

// peer is one replica of a shard: the Raft protocol as in its paper, over a disk of
// its own and the real store. All of its state belongs to one goroutine, which
// takes what comes through the inbox. A crash ends the peer; its disk remains.
type peer struct {
	*disk
	world  *world
	node   *node
	shard  uint32
	store  *persistence.Store
	inbox  chan func()
	closed chan struct{} // the process's
	over   chan struct{}
	dice   *rand.Rand

	role     role
	votes    [nodes]bool
	next     [nodes]uint64
	match    [nodes]uint64
	answered [nodes]time.Time
	led      bool      // a leader of this term is known
	heard    time.Time // of it
	patience time.Duration
	commit   uint64
	applied  uint64
	lagging  bool
	syncing  bool
	waiting  []waiter
	pending  map[uint64]func([]error, error)
	lease    *lease
}

func newPeer(n *node, shard uint32, d *disk, store *persistence.Store, closed chan struct{}) *peer {
	w := n.world
	return &peer{
		disk: d, world: w, node: n, shard: shard, store: store, closed: closed,
		inbox: make(chan func(), 4096), over: make(chan struct{}),
		dice: w.dice("peer %d %d %d", n.number, shard, n.starts), pending: map[uint64]func([]error, error){},
	}
}

// open reads the log and compares it with the shard file: the rules of a replica's
// start in persistence/replica. It is false for a replica that must not serve.
func (p *peer) open() (sound bool) {
	p.read()
	sound = true
	index, term := p.store.FlushedIndex()
	odd := func(format string, args ...any) {
		p.fail(format, args...)
		sound = false
	}
	switch {
	case index < p.baseIndex:
		odd("the log begins behind %d, the file ends at %d: what lies between is lost", p.baseIndex, index)
	case (index > p.last() || p.termAt(index) != term) && index == p.installed:
		p.reset(index, term)
	case index > p.last():
		odd("the log ends at %d, the file at %d: the end of the log is lost", p.last(), index)
	case p.termAt(index) != term:
		odd("entry %d has term %d in the log and %d in the file", index, p.termAt(index), term)
	}
	p.commit, p.applied = index, index
	p.heard = time.Now()
	p.patience = p.chance(patienceOf)
	return sound
}

func (p *peer) fail(format string, args ...any) {
	p.world.fail("n%d, shard %d: %s", p.node.number, p.shard, fmt.Sprintf(format, args...))
}

// run is the peer's goroutine.
func (p *peer) run() {
	defer close(p.over)
	p.tick()
	for {
		select {
		case f := <-p.inbox:
			if !isClosed(p.closed) {
				f()
			}
		case <-p.closed:
			return
		}
	}
}

// do hands something to the peer's goroutine. A peer that has ended forgets it.
func (p *peer) do(f func()) {
	select {
	case p.inbox <- f:
	case <-p.closed:
	}
}

func (p *peer) after(d time.Duration, f func()) { time.AfterFunc(d, func() { p.do(f) }) }

// chance is a time below most.
func (p *peer) chance(most time.Duration) time.Duration {
	return time.Duration(p.dice.Int64N(int64(most)))
}

// waiter goes on when the first bytes of the disk's file are synced.
type waiter struct {
	upTo int
	then func()
}

// durably goes on when everything written so far is synced. One sync serves all
// who have waited for it to begin.
func (p *peer) durably(then func()) {
	if len(p.file) == p.synced {
		then()
		return
	}
	if mutant.Off(mutant.Sync) {
		then()
		then = func() {}
	}
	p.waiting = append(p.waiting, waiter{len(p.file), then})
	if !p.syncing {
		p.sync()
	}
}

func (p *peer) sync() {
	p.syncing = true
	upTo, delay := len(p.file), 100*time.Microsecond+p.chance(time.Millisecond)
	if p.world.slow || p.dice.IntN(30) == 0 && !p.world.settings.calm {
		delay += p.chance(30 * time.Millisecond)
	}
	p.after(delay, func() {
		p.synced = max(p.synced, upTo)
		n := 0
		for n < len(p.waiting) && p.waiting[n].upTo <= p.synced {
			n++
		}
		done := p.waiting[:n:n]
		p.waiting = p.waiting[n:]
		if p.syncing = len(p.waiting) > 0; p.syncing {
			p.sync()
		}
		for _, w := range done {
			w.then()
		}
	})
}

// send carries a message to another replica of the shard: late, lost or twice.
func (p *peer) send(to int, f func(*peer)) {
	w := p.world
	lost, twice := w.lucky(p.dice, 40), w.lucky(p.dice, 20)
	delay, second := 100*time.Microsecond+p.chance(2*time.Millisecond), p.chance(300*time.Millisecond)
	if w.lucky(p.dice, 30) {
		delay += p.chance(100 * time.Millisecond)
	}
	if lost || w.silent(p.shard) {
		return
	}
	arrive := func() {
		if !w.reach(p.node.number, to) {
			return
		}
		if q := w.nodes[to].peer(p.shard); q != nil {
			q.do(func() { f(q) })
		}
	}
	time.AfterFunc(delay, arrive)
	if twice {
		time.AfterFunc(second, arrive)
	}
}

func (p *peer) others(f func(to int)) {
	for to := range nodes {
		if to != p.node.number {
			f(to)
		}
	}
}

// tick is the heart of a peer.
func (p *peer) tick() {
	p.after(beat+p.chance(beat/8), p.tick)
	if p.dice.IntN(4) == 0 {
		p.trim()
	}
	if p.role != leader {
		if time.Since(p.heard) > loyalty+p.patience {
			p.stand(false)
		}
		return
	}
	recent := 1
	p.others(func(to int) {
		if time.Since(p.answered[to]) < leaderless {
			recent++
		}
	})
	if recent <= nodes/2 {
		p.follow(p.term)
		return
	}
	p.others(p.replicate)
}

// stand begins an election. A forced one asks for votes even where a leader is
// known: a planned change of leadership.
func (p *peer) stand(forced bool) {
	if p.role == leader {
		return
	}
	p.role, p.led = candidate, false
	p.heard, p.patience = time.Now(), p.chance(patienceOf)
	p.setVote(p.term+1, p.node.number)
	p.votes = [nodes]bool{}
	p.votes[p.node.number] = true
	term := p.term
	p.durably(func() {
		if p.role != candidate || p.term != term {
			return
		}
		from, last, lastTerm := p.node.number, p.last(), p.termAt(p.last())
		p.others(func(to int) {
			p.send(to, func(q *peer) { q.asked(from, term, last, lastTerm, forced) })
		})
	})
}

// asked answers a candidate.
func (p *peer) asked(from int, term, last, lastTerm uint64, forced bool) {
	if !forced && p.led && time.Since(p.heard) < loyalty {
		return
	}
	if term > p.term {
		p.follow(term)
	}
	own := p.termAt(p.last())
	granted := term == p.term && (p.vote < 0 || p.vote == from) && (lastTerm > own || (lastTerm == own && last >= p.last()))
	if granted && p.vote != from {
		p.setVote(term, from)
		p.heard = time.Now()
	}
	now, self := p.term, p.node.number
	p.durably(func() {
		p.send(from, func(q *peer) { q.voted(self, now, granted) })
	})
}

func (p *peer) voted(by int, term uint64, granted bool) {
	if term > p.term {
		p.follow(term)
	}
	if p.role != candidate || p.term != term || !granted {
		return
	}
	p.votes[by] = true
	count := 0
	for _, v := range p.votes {
		if v {
			count++
		}
	}
	if count > nodes/2 {
		p.lead()
	}
}

// lead takes the leadership of the term. What gives out leases hears of it a
// little later.
func (p *peer) lead() {
	w := p.world
	p.role, p.led = leader, true
	w.note("n%d leads shard %d in term %d", p.node.number, p.shard, p.term)
	w.count("elections")
	now := time.Now()
	for n := range nodes {
		p.next[n], p.match[n], p.answered[n] = p.last()+1, 0, now
	}
	p.append(entry{p.last() + 1, p.term, nil}) // as Raft does: it commits what lies before
	p.stored()
	term := p.term
	notice := p.chance(10 * time.Millisecond)
	if p.dice.IntN(2) == 0 {
		notice = p.chance(200 * time.Millisecond)
	}
	p.after(notice, func() { p.begin(term) })
	p.others(p.replicate)
}

// stored counts what is on the leader's own disk.
func (p *peer) stored() {
	term, last := p.term, p.last()
	p.durably(func() {
		if p.role == leader && p.term == term {
			p.match[p.node.number] = max(p.match[p.node.number], last)
			p.advance()
			p.others(p.replicate)
		}
	})
}

// follow ends a leadership or candidature, and takes over a later term.
func (p *peer) follow(term uint64) {
	if term > p.term {
		p.setVote(term, -1)
		p.led = false
	}
	led := p.role == leader
	p.role = follower
	if !led {
		return
	}
	p.heard = time.Now()
	p.world.note("n%d leads shard %d no more", p.node.number, p.shard)
	p.abandon()
	// The notice of it takes its time: until then the lease goes on.
	if l := p.lease; l != nil {
		notice := p.chance(10 * time.Millisecond)
		if p.dice.IntN(2) == 0 {
			notice = p.chance(400 * time.Millisecond)
		}
		p.after(notice, func() { l.end(entity.Errorf(entity.NotExecuted, "the leadership is lost")) })
	}
}

// abandon answers proposals whose fate is not known.
func (p *peer) abandon() {
	var open []uint64
	for index := range p.pending {
		open = append(open, index)
	}
	slices.Sort(open)
	for _, index := range open {
		p.world.count("unknown outcomes")
		p.pending[index](nil, entity.Errorf(entity.OutcomeUnknown, "leadership lost while committing"))
	}
	clear(p.pending)
}

// begin gives out a lease for the term, after the one before has answered
// everything: the rules of leadership in persistence/replica.
func (p *peer) begin(term uint64) {
	if p.role != leader || p.term != term {
		return
	}
	if old := p.lease; old != nil {
		old.end(entity.Errorf(entity.NotExecuted, "a later term has begun"))
		p.world.wg.Go(func() {
			<-old.over
			p.do(func() {
				if p.lease == old {
					p.lease = nil
				}
				p.begin(term)
			})
		})
		return
	}
	if mutant.Off(mutant.TermStart) {
		p.grant(term)
		return
	}
	index, hash := p.store.StateHash()
	start := &recordv1.Record{Epoch: 1, Body: &recordv1.Record_TermStart{TermStart: &recordv1.TermStart{
		Node: fmt.Sprint("n", p.node.number), HashIndex: index, Hash: hash,
	}}}
	p.propose(encode(p.store.Meta().GetLogTime(), start), func(_ []error, err error) {
		switch {
		case err == nil:
			p.grant(term)
		case p.role == leader && p.term == term:
			p.after(beat, func() { p.begin(term) })
		}
	})
}

func (p *peer) grant(term uint64) {
	w := p.world
	p.lease = newLease(p, term)
	w.note("n%d has the lease of shard %d, term %d", p.node.number, p.shard, term)
	w.setHint(p.shard, p.node.number)
	w.wg.Go(p.lease.run)
	w.wg.Go(p.lease.settle)
	p.node.rt.Lead(p.shard, p.lease)
	for _, other := range w.nodes {
		if rt, _ := other.process(); rt != nil {
			rt.RoutesChanged()
		}
	}
}

// propose appends an entry if this is the leader. done is called once, from the
// peer's goroutine.
func (p *peer) propose(data []byte, done func([]error, error)) {
	switch {
	case p.role != leader:
		done(nil, entity.Errorf(entity.NotExecuted, "not the leader"))
		return
	case p.world.lucky(p.dice, 12):
		p.world.count("proposals refused")
		done(nil, errBusy)
		return
	}
	index := p.last() + 1
	p.append(entry{index, p.term, data})
	p.pending[index] = done
	p.stored()
}

// replicate sends a follower what it lacks, as far as is known.
func (p *peer) replicate(to int) {
	if p.role != leader {
		return
	}
	from, term, commit, prev := p.node.number, p.term, p.commit, p.next[to]-1
	if prev < p.baseIndex {
		p.sendFile(to)
		return
	}
	prevTerm := p.termAt(prev)
	// Only what is on the own disk: raft writes before it sends.
	most := min(batchMost, int(max(p.match[from], prev)-prev))
	entries := p.behind(prev, most)
	p.send(to, func(q *peer) { q.take(from, term, prev, prevTerm, entries, commit) })
}

// sendFile sends a copy of the shard file, as of its last flush.
func (p *peer) sendFile(to int) {
	path, meta, err := p.store.CopyFile(p.world.dir)
	if err != nil {
		p.fail("copy: %v", err)
		return
	}
	file, err := os.ReadFile(path)
	if err != nil || os.Remove(path) != nil {
		p.fail("read copy: %v", err)
		return
	}
	from, term := p.node.number, p.term
	p.next[to] = meta.GetIndex() + 1
	p.send(to, func(q *peer) { q.install(from, term, meta.GetIndex(), meta.GetTerm(), file) })
}

// hear takes notice of a leader's message; it is false for one of the past.
func (p *peer) hear(term uint64) bool {
	if term < p.term {
		return false
	}
	if term > p.term || p.role != follower {
		p.follow(term)
	}
	p.led, p.heard = true, time.Now()
	return true
}

// take appends what a leader sends, if it continues the own log.
func (p *peer) take(from int, term, prev, prevTerm uint64, entries []entry, commit uint64) {
	self := p.node.number
	if !p.hear(term) {
		now := p.term
		p.send(from, func(q *peer) { q.took(self, now, false, 0) })
		return
	}
	if prev > p.last() || (prev >= p.baseIndex && p.termAt(prev) != prevTerm) {
		hint := min(p.last(), prev-1)
		p.send(from, func(q *peer) { q.took(self, term, false, hint) })
		return
	}
	last := prev + uint64(len(entries))
	for _, e := range entries {
		if e.index <= p.baseIndex || p.termAt(e.index) == e.term {
			continue
		}
		if e.index <= p.last() {
			if e.index <= p.commit {
				p.fail("entry %d is committed and would be overwritten", e.index)
			}
			p.world.tell("uncommitted entries overwritten", int(p.last()-e.index)+1)
			p.cutAfter(e.index - 1)
		}
		p.append(e)
	}
	p.durably(func() {
		if p.term != term || p.role != follower {
			return
		}
		p.commit = max(p.commit, min(commit, last))
		p.lag()
		p.send(from, func(q *peer) { q.took(self, term, true, last) })
	})
}

// took hears how far a follower is.
func (p *peer) took(by int, term uint64, ok bool, index uint64) {
	if term > p.term {
		p.follow(term)
	}
	if p.role != leader || p.term != term {
		return
	}
	p.answered[by] = time.Now()
	if !ok {
		p.next[by] = max(1, min(p.next[by], index+1))
		p.replicate(by)
		return
	}
	p.match[by] = max(p.match[by], index)
	p.next[by] = p.match[by] + 1
	p.advance()
	if p.next[by] <= p.match[p.node.number] {
		p.replicate(by)
	}
}

// advance commits what a majority has, if it is of the own term.
func (p *peer) advance() {
	sorted := slices.Sorted(slices.Values(p.match[:]))
	index := sorted[nodes-nodes/2-1]
	if index > p.commit && p.termAt(index) == p.term {
		p.commit = index
		p.apply(p.commit)
	}
}

// lag applies what is committed, some time later.
func (p *peer) lag() {
	if p.lagging || p.applied >= p.commit {
		return
	}
	p.lagging = true
	p.after(time.Millisecond+p.chance(30*time.Millisecond), func() {
		p.lagging = false
		p.apply(p.commit)
	})
}

// apply applies what is committed, and then tells who waits for it: who is told of
// one entry would else see the next one or not, as Go pleases.
func (p *peer) apply(through uint64) {
	var tell []func()
	defer func() {
		for _, f := range tell {
			f()
		}
	}()
	for p.applied < through {
		e := p.behind(p.applied, 1)[0]
		if e.data == nil {
			p.applied = e.index
			continue
		}
		results, err := p.store.Apply(e.index, e.term, e.data)
		if err != nil {
			p.fail("apply: %v", err)
			return
		}
		p.applied = e.index
		p.world.ledgers[p.shard].applied(p, e, results)
		if done := p.pending[e.index]; done != nil {
			delete(p.pending, e.index)
			tell = append(tell, func() { done(results, nil) })
		}
	}
}

// install swaps a file that the leader has sent in for the own one.
func (p *peer) install(from int, term, index, indexTerm uint64, file []byte) {
	if !p.hear(term) {
		return
	}
	self := p.node.number
	if index > p.commit {
		path := p.node.path(int(p.shard)) + ".received"
		if err := os.WriteFile(path, file, 0o600); err != nil {
			p.fail("receive: %v", err)
			return
		}
		p.setInstalled(index)
		wait(p.closed, 100*time.Microsecond+p.chance(5*time.Millisecond))
		if isClosed(p.closed) {
			return
		}
		p.synced = len(p.file)
		p.node.replacing(p.shard)
		if err := p.store.Replace(path); err != nil {
			if !isClosed(p.closed) {
				p.fail("replace: %v", err)
			}
			return
		}
		if p.termAt(index) == indexTerm {
			p.cutBefore(index)
		} else {
			p.reset(index, indexTerm)
		}
		p.commit, p.applied = index, index
		p.world.ledgers[p.shard].restored(p, index)
		p.world.count("snapshots installed")
		p.world.note("n%d has the file of shard %d at %d", self, p.shard, index)
	}
	p.durably(func() { p.send(from, func(q *peer) { q.took(self, term, true, index) }) })
}

// trim cuts the log behind what the shard file stands for.
func (p *peer) trim() {
	keep := uint64(1 + p.dice.IntN(8))
	floor, _ := p.store.FlushedIndex()
	if mutant.Off(mutant.LogFloor) {
		floor = p.applied
	}
	if index := min(floor, p.applied, p.last()-min(p.last(), keep)); index > p.baseIndex {
		p.cutBefore(index)
		p.world.count("logs cut")
	}
}

func encode(logTime int64, records ...*recordv1.Record) []byte {
	data, err := proto.Marshal(&recordv1.Entry{Format: 1, LogTime: logTime, Records: records})
	if err != nil {
		panic(err)
	}
	return data
}

func sum(parts ...[]byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(bytes.Join(parts, []byte{0})) // never fails
	return h.Sum64()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
