package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"writ/actors/entity"
	"writ/internal/fault"
	"writ/internal/mutant"
	recordv1 "writ/proto/writ/record/v1"
)

// Why leases end: the causes of their contexts.
var (
	errLost       = errors.New("leadership is lost")
	errSuperseded = errors.New("a later term has begun")
	errStopped    = errors.New("the replica stops")
	errFailed     = errors.New("the replica has failed")
	errHandOver   = errors.New("raft takes nothing: it still hands over the leadership of an earlier term; the replica has to be opened anew")
)

// Lease is the right to lead a shard under one (epoch, term). It begins when a
// TermStart record has been applied and ends with the first sign that it may no
// longer hold; it never comes back. It is safe for concurrent use.
type Lease struct {
	shard       uint32
	epoch, term uint64
	logTime     int64 // committed log time at began
	began       time.Time
	ctx         context.Context //nolint:containedctx // it is the lease: see Context
	end         context.CancelCauseFunc
	format      func() uint32 // active format: what entries are written in
	batcher     *batcher
}

// newLease begins a lease and the goroutines that carry its proposals.
func newLease(shard uint32, epoch, term uint64, logTime int64, active func() uint32, propose func([]byte) raft.ApplyFuture) *Lease {
	l := &Lease{shard: shard, epoch: epoch, term: term, logTime: logTime, format: active, began: time.Now()}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	l.batcher = newBatcher(l, propose)
	return l
}

// Context ends when the lease ends; its cause says why.
func (l *Lease) Context() context.Context { return l.ctx }

// Epoch and Term are the fencing token of everything done under the lease.
func (l *Lease) Epoch() uint64 { return l.epoch }

// Term is the second half of the fencing token.
func (l *Lease) Term() uint64 { return l.term }

// LogTime is the log time now, nanoseconds: the committed log time at the
// beginning of the lease plus what the monotonic clock has measured since.
func (l *Lease) LogTime() int64 { return l.logTime + int64(time.Since(l.began)) }

// Propose queues a record for the shard's next log entry; it fills in epoch and
// term and keeps no reference to it. It never blocks.
//
// done is called exactly once, in the order of Propose and Barrier calls, from
// one goroutine of the lease; it must not block. Its error is nil (committed and
// applied), or an *entity.Error: NotExecuted and Overloaded (it never will be), or
// OutcomeUnknown.
func (l *Lease) Propose(rec *recordv1.Record, done func(error)) {
	rec.Epoch = l.epoch
	rec.Term = l.term
	l.batcher.add(rec, done, 0)
}

// ProposeWithin is Propose for a record that can wait: it rides with the shard's
// next entry, and gets one of its own only if none comes within the given time.
func (l *Lease) ProposeWithin(patience time.Duration, rec *recordv1.Record, done func(error)) {
	rec.Epoch = l.epoch
	rec.Term = l.term
	l.batcher.add(rec, done, patience)
}

// Barrier calls done, in order with Propose, once everything that was committed
// before the call is applied here and the lease is proven to have held after it:
// what is then read from the store is linearizable. All barriers that wait for
// the same log entry share one record. The errors are those of Propose.
func (l *Lease) Barrier(done func(error)) { l.batcher.add(nil, done, 0) }

// Checkpoint makes every replica remember its state hash at one index under the
// audit's name. It waits until this replica has applied it.
func (l *Lease) Checkpoint(ctx context.Context, audit string) error {
	result := make(chan error, 1)
	l.Propose(&recordv1.Record{Body: &recordv1.Record_Checkpoint{Checkpoint: &recordv1.Checkpoint{Audit: audit}}},
		func(err error) { result <- err })
	select {
	case err := <-result:
		return wrap("checkpoint", err)
	case <-ctx.Done():
		return fmt.Errorf("checkpoint: %w", ctx.Err())
	}
}

// Load is the number of records, and their bytes, in the queue and in flight: what
// admission looks at.
func (l *Lease) Load() (records, bytes int) { return l.batcher.load() }

// observe ends the lease if a later term has been seen in the log.
func (l *Lease) observe(term uint64) {
	if term > l.term {
		l.end(errSuperseded)
	}
}

// leadership hands out the leases of one replica. Its run method is a goroutine of
// the replica.
type leadership struct {
	replica *Replica
	// start proposes a TermStart and waits until it is applied.
	start   func(context.Context) (*Lease, error)
	leading bool
	lease   *Lease
	attempt chan started // the TermStart in progress, nil for none
	stale   bool         // leadership was lost since the attempt began
	cancel  context.CancelFunc
	retry   *time.Timer
	// handing is since when TermStarts are refused for a hand-over of leadership,
	// which only a leader of before can have begun; zero: they are not.
	handing time.Time
}

// started is the outcome of a TermStart.
type started struct {
	lease *Lease
	err   error
}

// retryTermStart is the pause before a TermStart is proposed again.
const retryTermStart = 50 * time.Millisecond

// run drains raft's leadership notices and answers them until the replica stops.
// Every notice is taken at once, whatever else goes on: raft's main loop waits
// for that.
func (l *leadership) run(notices <-chan bool, failed, stop <-chan struct{}) {
	select {
	case <-l.replica.ready:
	case <-stop:
		return
	}
	l.retry = time.NewTimer(0)
	defer l.retry.Stop()
	defer l.finish()
	for {
		select {
		case leading := <-notices:
			if !leading {
				l.lose(errLost)
			}
			l.leading, l.handing = leading, time.Time{}
			l.again(0)
		case <-failed:
			failed = nil
			l.lose(errFailed)
		case s := <-l.attempt:
			l.attempted(s)
		case <-l.drained():
			// Every callback of the ended lease has been called: only now may a new
			// one begin.
			l.lease = nil
			l.again(0)
		case <-l.retry.C:
			l.try()
		case <-stop:
			return
		}
	}
}

// drained is ready when the current lease has ended and answered everything.
func (l *leadership) drained() <-chan struct{} {
	if l.lease == nil {
		return nil
	}
	return l.lease.batcher.drained
}

func (l *leadership) again(after time.Duration) { l.retry.Reset(after) }

// try proposes a TermStart if this replica leads without a lease.
func (l *leadership) try() {
	if !l.leading || l.lease != nil || l.attempt != nil {
		return
	}
	ctx, cancel := context.WithCancel(l.replica.ctx)
	result := make(chan started, 1)
	l.attempt, l.cancel, l.stale = result, cancel, false
	l.replica.goroutine.Go(func() {
		lease, err := l.start(ctx)
		result <- started{lease, err}
	})
}

func (l *leadership) attempted(s started) {
	l.cancel()
	l.attempt = nil
	if !errors.Is(s.err, raft.ErrLeadershipTransferInProgress) {
		l.handing = time.Time{}
	} else if l.handing.IsZero() {
		l.handing = time.Now()
	}
	switch {
	case !l.handing.IsZero() && time.Since(l.handing) > 2*l.replica.timing.RPC:
		// The last call of a hand-over takes Timing.RPC at most; raft may wait for one
		// that ended with an earlier leadership for ever (hashicorp/raft#696).
		l.replica.fail(errHandOver)
	case s.err != nil:
		l.replica.logger.Debug("term start", slog.Any("error", s.err))
		l.again(retryTermStart)
	case l.stale || !l.leading:
		l.discard(s.lease)
		l.again(0)
	default:
		l.lease = s.lease
		l.replica.publish(s.lease)
	}
}

// lose ends whatever leadership there is or is about to be.
func (l *leadership) lose(cause error) {
	l.leading = false
	l.stale = true
	if l.attempt != nil {
		l.cancel()
	}
	if l.lease != nil {
		_ = fault.Point(fault.LeaseLoss)
		l.lease.end(cause)
	}
}

// discard ends a lease that nobody has seen.
func (l *leadership) discard(lease *Lease) {
	if lease != nil {
		lease.end(errLost)
		lease.batcher.close()
	}
}

// finish ends the lease and waits until all its callbacks have been called.
func (l *leadership) finish() {
	l.lose(errStopped)
	if l.attempt != nil {
		l.discard((<-l.attempt).lease)
	}
	if l.lease != nil {
		l.lease.batcher.close()
	}
}

// startTerm proposes a TermStart and makes a lease under the term of its entry.
func (r *Replica) startTerm(ctx context.Context) (*Lease, error) {
	if mutant.Off(mutant.TermStart) {
		return r.newLease(r.raft.CurrentTerm()), nil
	}
	hashIndex, hash := r.store.StateHash()
	rec := &recordv1.Record{Epoch: r.key.epoch, Body: &recordv1.Record_TermStart{TermStart: &recordv1.TermStart{
		Node: r.self.Node, HashIndex: hashIndex, Hash: hash,
	}}}
	entry, err := encodeEntry(r.host.ActiveFormat(), r.store.Meta().GetLogTime(), rec)
	if err != nil {
		return nil, err
	}
	f := r.raft.Apply(entry, r.timing.Enqueue)
	if err := await(ctx, f); err != nil {
		return nil, err
	}
	answer, ok := f.Response().(*applied)
	if !ok || len(answer.results) != 1 {
		return nil, fmt.Errorf("unexpected answer %v", f.Response())
	}
	if err := answer.results[0]; err != nil {
		return nil, fmt.Errorf("term start was refused: %w", err)
	}
	return r.newLease(answer.term), nil
}

// newLease makes the lease of a term that has begun.
func (r *Replica) newLease(term uint64) *Lease {
	return newLease(r.key.shard, r.key.epoch, term, r.store.Meta().GetLogTime(), r.host.ActiveFormat, func(entry []byte) raft.ApplyFuture {
		return r.raft.Apply(entry, r.timing.Enqueue)
	})
}

// answerTo classes what became of a proposed entry, and whether leadership is gone.
func answerTo(err error) (e *entity.Error, lost bool) {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return entity.Errorf(entity.NotExecuted, "not proposed: %v", err), true
	case errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return entity.Errorf(entity.NotExecuted, "not proposed: %v", err), false
	}
	return entity.Errorf(entity.OutcomeUnknown, "proposed, fate unknown: %v", err), true
}
