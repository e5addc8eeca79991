package actors

import (
	"sync"

	"writ/actors/entity"
	"writ/sharding"
)

// senders runs deliveries on a bounded number of goroutines: so many for each
// destination shard, and so many of those for each destination. Without the first
// bound one node that does not answer would hold up rows to all others, without
// the second one slow entity would hold up its shard. Destinations take turns.
// Waiting costs a closure, not a goroutine and not the rows. Goroutines start on
// demand and end when there is nothing to do.
type senders struct {
	shards func() uint32 // 0: not known, all destinations count as one shard's
	most   int           // at once to a shard
	each   int           // at once to a destination
	wg     sync.WaitGroup

	mu     sync.Mutex
	pools  map[uint32]*pool
	closed bool
}

// pool is what is sent to one shard.
type pool struct {
	workers      int
	destinations map[entity.Ref]*target
	ready        []*target // those that may send now
}

// target is what is sent to one destination. It is ready while it has jobs and not
// too many of them run.
type target struct {
	to      entity.Ref
	jobs    []func()
	running int
	ready   bool
}

func newSenders(shards func() uint32, most int) *senders {
	return &senders{shards: shards, most: most, each: max(1, most/4), pools: map[uint32]*pool{}}
}

// run queues a job. It is dropped if the senders are closed.
func (s *senders) run(to entity.Ref, job func()) {
	var shard uint32
	if n := s.shards(); n > 0 {
		shard = sharding.Locate(n, to)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	p := s.pools[shard]
	if p == nil {
		p = &pool{destinations: map[entity.Ref]*target{}}
		s.pools[shard] = p
	}
	q := p.destinations[to]
	if q == nil {
		q = &target{to: to}
		p.destinations[to] = q
	}
	q.jobs = append(q.jobs, job)
	s.offer(p, q)
	if len(p.ready) > 0 && p.workers < s.most {
		p.workers++
		s.wg.Go(func() { s.work(p) })
	}
}

// offer has a destination take its turn. The caller holds mu.
func (s *senders) offer(p *pool, q *target) {
	if !q.ready && len(q.jobs) > 0 && q.running < s.each {
		q.ready = true
		p.ready = append(p.ready, q)
	}
}

func (s *senders) work(p *pool) {
	var q *target
	for {
		var job func()
		if q, job = s.next(p, q); job == nil {
			return
		}
		job()
	}
}

// next takes note that a job for before has ended, and takes another; none ends
// the worker that asks.
func (s *senders) next(p *pool, before *target) (q *target, job func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before != nil {
		before.running--
		s.offer(p, before)
		if before.running == 0 && len(before.jobs) == 0 {
			delete(p.destinations, before.to)
		}
	}
	if len(p.ready) == 0 {
		p.workers--
		return nil, nil
	}
	q = p.ready[0]
	p.ready[0] = nil
	p.ready = p.ready[1:]
	q.ready = false
	job = q.jobs[0]
	q.jobs[0] = nil
	q.jobs = q.jobs[1:]
	q.running++
	s.offer(p, q)
	return q, job
}

// close drops what waits and waits for what runs.
func (s *senders) close() {
	s.mu.Lock()
	s.closed = true
	for _, p := range s.pools {
		p.ready = nil
		for _, q := range p.destinations {
			q.jobs = nil
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
}
