package actors

import (
	"time"

	"writ/actors/entity"
	"writ/internal/mutant"
	recordv1 "writ/proto/writ/record/v1"
)

// proposal is one thing that an activation waits for: a commit, a lane update
// that an operator asked for, or a barrier. An activation's proposals form a
// queue; they get their verdicts in order.
type proposal struct {
	commit *recordv1.Commit // nil for the others
	after  snapshot         // what a commit leads to
	timers *timerChanges    // nil: none
	lane   bool             // a lane update: neither rests on commits nor they on it
	// then are the answers that wait for the verdict, in order.
	then []func(error)
	next *proposal

	err     error // written by the lease before it hands the proposal back
	settled bool
}

// queue holds an activation's proposals, oldest first.
type queue struct{ first, last *proposal }

func (q *queue) empty() bool { return q.first == nil }

func (q *queue) push(p *proposal) {
	if q.last == nil {
		q.first = p
	} else {
		q.last.next = p
	}
	q.last = p
}

// pop takes the first proposal if its verdict is in.
func (q *queue) pop() *proposal {
	p := q.first
	if p == nil || !p.settled {
		return nil
	}
	q.first = p.next
	if q.first == nil {
		q.last = nil
	}
	return p
}

// propose sends a record to the log and goes on. The proposal comes back as a
// message with its verdict.
func (a *activation) propose(rec *recordv1.Record, p *proposal) {
	if mutant.Off(mutant.OutputGate) {
		for _, then := range p.then {
			then(nil)
		}
		p.then = nil
	}
	a.queue.push(p)
	if len(rec.GetCommit().GetApplied()) > 0 {
		// No client waits for a handled event; a command behind it takes it along.
		a.lease.ProposeWithin(eventPatience, rec, a.verdict(p))
		return
	}
	a.lease.Propose(rec, a.verdict(p))
}

// How long a record that no client waits for may wait for others, to share their
// entry and its sync. The number of entries limits a shard's throughput and its
// clients' latency.
const (
	eventPatience   = time.Millisecond
	confirmPatience = 100 * time.Millisecond
)

// barrier calls then when everything proposed so far has its verdict and the
// lease is known to have held at a moment after the call.
func (a *activation) barrier(then func(error)) {
	if mutant.Off(mutant.ReadBarrier) {
		then(nil)
		return
	}
	p := &proposal{then: []func(error){then}}
	a.queue.push(p)
	a.lease.Barrier(a.verdict(p))
}

// settled calls then when everything proposed so far has its verdict.
func (a *activation) settled(then func(error)) {
	if a.queue.empty() {
		then(nil)
		return
	}
	a.queue.last.then = append(a.queue.last.then, then)
}

func (a *activation) verdict(p *proposal) func(error) {
	rt, self := a.rt, a.self
	return func(err error) {
		p.err = err
		rt.send(self, p)
	}
}

// settle notes a verdict and concludes, in order, all proposals that have theirs. It
// reports whether anybody waited for one of them.
func (a *activation) settle(p *proposal) (answered bool) {
	p.settled = true
	for {
		p := a.queue.pop()
		if p == nil {
			break
		}
		answered = answered || len(p.then) > 0
		a.conclude(p)
	}
	if a.queue.empty() { // idle entities are many: keep nothing that is empty
		a.keys, a.sources, a.timers = nil, nil, nil
	}
	return answered
}

// conclude acts on a verdict: a commit becomes the committed state, a failed one
// takes everything behind it down.
func (a *activation) conclude(p *proposal) {
	err := p.err
	switch {
	case p.commit == nil:
		if err == nil && a.failure != nil && !p.lane {
			err = errEarlier()
		}
	case err == nil && a.failure == nil:
		a.committed = p.after
		a.committedKey(p)
		a.committedMarks(p.commit)
		a.committedRows(p.commit)
		a.committedTimers(p)
		a.serveWaits()
	default:
		err = a.failed(err)
		a.committedKey(p)
	}
	for _, then := range p.then {
		then(err)
	}
}

// failed is the answer to a commit that failed, or that stood behind one.
func (a *activation) failed(err error) error {
	if a.failure == nil {
		a.failure = err
		a.breakOff()
	}
	if entity.ReasonOf(err) == "" { // committed behind one that failed, or no verdict at all
		return entity.Errorf(entity.OutcomeUnknown, "a record of the entity failed: retry with the same key")
	}
	return err
}

// errEarlier is the answer to work that has no record of its own and that rests
// on one that has failed.
func errEarlier() *entity.Error {
	return entity.Errorf(entity.NotExecuted, "the answer rests on a record that failed: retry with the same key")
}

// ownless turns the verdict of another record, or of a barrier, into the answer
// to work that has no record: it was not executed, whatever became of the other.
func ownless(err error) error {
	if err == nil || entity.ReasonOf(err) == entity.NotExecuted {
		return err
	}
	return errEarlier()
}

// abandon answers everything that waits, without waiting for verdicts.
func (a *activation) abandon() {
	for p := a.queue.first; p != nil; p = p.next {
		err := error(errEarlier())
		if p.commit != nil || p.lane {
			err = entity.Errorf(entity.OutcomeUnknown, "the shard was closed here: retry with the same key")
		}
		for _, then := range p.then {
			then(err)
		}
	}
	a.queue = queue{}
	a.keys = nil
}
