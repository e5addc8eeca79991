package replica

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/internal/fault"
	"writ/internal/format"
	"writ/internal/mutant"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// Bounds of group commit.
const (
	batchRecords = 1024
	batchBytes   = 1 << 20
	// batchesInFlight is the number of entries proposed but not answered; what
	// arrives meanwhile goes together into the next one. More, smaller entries
	// are much slower.
	batchesInFlight = 2
	// queueBytes bounds the queue: beyond it records are refused as Overloaded.
	queueBytes = 64 << 20
	// answerGrace is how long an ended lease waits for the answers to its entries
	// in flight before it calls them unknown. They may never come.
	answerGrace = 100 * time.Millisecond
)

// item is one Propose or Barrier. Without bytes it is a barrier.
type item struct {
	record  []byte
	refused error // decided before it was queued
	done    func(error)
}

// batch is the items of one log entry and the future of its proposal; no future
// if it was never proposed.
type batch struct {
	items   []item
	records int // not counting the shared checkpoint
	bytes   int
	future  raft.ApplyFuture
	err     error
}

// live reports whether anything of the batch needs an entry.
func (b *batch) live() bool {
	for _, it := range b.items {
		if it.refused == nil {
			return true
		}
	}
	return false
}

// batcher packs a lease's records into log entries and brings the answers back.
// Two goroutines do it: propose hands entries to raft, settle waits for the
// answers and makes all callbacks. They end after the lease has.
type batcher struct {
	lease  *Lease
	submit func([]byte) raft.ApplyFuture

	wake     chan struct{} // the queue is not empty
	slots    chan struct{} // one value for each entry in flight
	proposed chan *batch
	drained  chan struct{} // closed when everything queued before the end is answered

	mu       sync.Mutex
	queue    []item
	records  int // queued and in flight
	bytes    int
	closed   bool          // settle has ended: add answers through a goroutine of its own
	draining chan struct{} // closed when that goroutine ends; nil if there is none
	overdue  time.Time     // when a patient record will call for an entry; zero: none waits
}

func newBatcher(l *Lease, submit func([]byte) raft.ApplyFuture) *batcher {
	b := &batcher{
		lease: l, submit: submit,
		wake:     make(chan struct{}, 1),
		slots:    make(chan struct{}, batchesInFlight),
		proposed: make(chan *batch, batchesInFlight),
		drained:  make(chan struct{}),
	}
	go b.propose()
	go b.settle()
	return b
}

// add queues a record, or a barrier if it is nil. With patience it calls for an
// entry only if none has come by then.
func (b *batcher) add(rec *recordv1.Record, done func(error), patience time.Duration) {
	it := item{done: done}
	if rec != nil {
		encoded, err := proto.Marshal(rec)
		if err != nil {
			it.refused = entity.Errorf(entity.NotExecuted, "record cannot be encoded: %v", err)
		}
		it.record = encoded
	}
	b.mu.Lock()
	if b.bytes+len(it.record) > queueBytes && it.refused == nil {
		it.refused = entity.Overload("bytes of records that wait in a replica", queueBytes, "%d bytes wait for shard %d", b.bytes, b.lease.shard)
	}
	if it.refused != nil {
		it.record = nil
	}
	b.queue = append(b.queue, it)
	b.records++
	b.bytes += len(it.record)
	var draining chan struct{}
	if b.closed && b.draining == nil {
		draining = make(chan struct{})
		b.draining = draining
	}
	due := time.Now().Add(patience)
	call := patience > 0 && draining == nil && (b.overdue.IsZero() || due.Before(b.overdue))
	if call {
		b.overdue = due
	}
	b.mu.Unlock()
	switch {
	case draining != nil:
		go b.drain(draining)
	case call:
		time.AfterFunc(patience, b.callOverdue)
	case patience <= 0:
		b.rouse()
	}
}

// callOverdue is called when a patient record has waited long enough.
func (b *batcher) callOverdue() {
	b.mu.Lock()
	b.overdue = time.Time{}
	b.mu.Unlock()
	b.rouse()
}

func (b *batcher) rouse() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *batcher) load() (records, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records, b.bytes
}

// close waits until everything queued before the call is answered. The lease must
// have ended.
func (b *batcher) close() {
	<-b.drained
	b.mu.Lock()
	draining := b.draining
	b.mu.Unlock()
	if draining != nil {
		<-draining
	}
}

// propose runs until the lease ends.
func (b *batcher) propose() {
	defer close(b.proposed)
	for {
		select {
		case <-b.wake:
		case <-b.lease.ctx.Done():
			return
		}
		for {
			select {
			case b.slots <- struct{}{}:
			case <-b.lease.ctx.Done():
				return
			}
			next := b.take()
			if len(next.items) == 0 {
				<-b.slots
				break
			}
			switch {
			case b.lease.ctx.Err() != nil:
				next.err = b.ended()
			case next.live():
				if err := fault.Point(fault.BeforePropose); err != nil {
					next.err = entity.Errorf(entity.NotExecuted, "not proposed: %v", err)
					break
				}
				next.future = b.submit(b.encode(next))
			}
			b.proposed <- next
		}
	}
}

// take removes the next entry's items from the queue.
func (b *batcher) take() *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := &batch{}
	n := 0
	for n < len(b.queue) && n < batchRecords {
		size := len(b.queue[n].record)
		if n > 0 && next.bytes+size > batchBytes {
			break
		}
		next.bytes += size
		n++
	}
	next.items = b.queue[:n:n]
	next.records = n
	if b.queue = b.queue[n:]; len(b.queue) == 0 {
		b.queue = nil
	}
	return next
}

// encode makes the Entry of a batch: its records, then one checkpoint if there are
// barriers.
func (b *batcher) encode(next *batch) []byte {
	active := b.lease.format()
	if mutant.Off(mutant.ActiveFormat) {
		active = format.Max + 1
	}
	out := entryHeader(make([]byte, 0, next.bytes+8*next.records+64), active, b.lease.LogTime())
	barrier := false
	for _, it := range next.items {
		switch {
		case it.refused != nil:
		case it.record == nil:
			barrier = true
		default:
			out = protowire.AppendTag(out, 3, protowire.BytesType)
			out = protowire.AppendBytes(out, it.record)
		}
	}
	if format.Max >= format.Note && active >= format.Note {
		// Behind the items' records and before the checkpoint: deliver counts so.
		out = b.append(out, &recordv1.Record{Body: &recordv1.Record_Note{Note: &recordv1.Note{}}})
	}
	if barrier {
		out = b.append(out, &recordv1.Record{Body: &recordv1.Record_Checkpoint{Checkpoint: &recordv1.Checkpoint{}}})
	}
	return out
}

// append adds a record of the lease's own to an entry.
func (b *batcher) append(out []byte, rec *recordv1.Record) []byte {
	rec.Epoch, rec.Term = b.lease.epoch, b.lease.term
	encoded, _ := proto.Marshal(rec) // it has no text that could be invalid
	out = protowire.AppendTag(out, 3, protowire.BytesType)
	return protowire.AppendBytes(out, encoded)
}

// settle answers batch after batch, then what is left in the queue.
func (b *batcher) settle() {
	for next := range b.proposed {
		results := b.wait(next)
		if err := fault.Point(fault.AfterCommit); err != nil {
			next.err = entity.Errorf(entity.OutcomeUnknown, "the verdict is lost: %v", err)
		}
		<-b.slots
		b.deliver(next, results)
	}
	for b.deliverQueued() {
	}
	close(b.drained)
}

// drain answers what was queued after the end.
func (b *batcher) drain(done chan struct{}) {
	defer close(done)
	for b.deliverQueued() {
	}
}

// deliverQueued refuses what is queued. It is false, with closed set, once there
// is nothing.
func (b *batcher) deliverQueued() bool {
	b.mu.Lock()
	left := &batch{items: b.queue, records: len(b.queue)}
	for _, it := range b.queue {
		left.bytes += len(it.record)
	}
	b.queue = nil
	if left.records == 0 {
		b.closed, b.draining = true, nil
	}
	b.mu.Unlock()
	if left.records == 0 {
		return false
	}
	left.err = b.ended()
	b.deliver(left, nil)
	return true
}

// wait returns the results of a batch's records, or sets its error. An answer that
// speaks of lost leadership ends the lease.
func (b *batcher) wait(next *batch) []error {
	if next.err != nil || next.future == nil {
		return nil
	}
	answered, err := b.outcome(next.future)
	if !answered {
		next.err = entity.Errorf(entity.OutcomeUnknown, "the lease has ended: %v", context.Cause(b.lease.ctx))
		return nil
	}
	if err != nil {
		e, lost := answerTo(err)
		if lost {
			b.lease.end(errLost)
		}
		next.err = e
		return nil
	}
	response, ok := next.future.Response().(*applied)
	if !ok {
		next.err = entity.Errorf(entity.OutcomeUnknown, "unexpected answer %v", next.future.Response())
		return nil
	}
	return response.results
}

// outcome waits for a future; after the end of the lease only for a grace period.
func (b *batcher) outcome(f raft.ApplyFuture) (answered bool, err error) {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return true, err
	case <-b.lease.ctx.Done():
	}
	timer := time.NewTimer(answerGrace)
	defer timer.Stop()
	select {
	case err := <-done:
		return true, err
	case <-timer.C:
		return false, nil
	}
}

// deliver calls the callbacks of a batch in order.
func (b *batcher) deliver(next *batch, results []error) {
	b.mu.Lock()
	b.records -= next.records
	b.bytes -= next.bytes
	b.mu.Unlock()
	at := 0
	for _, it := range next.items {
		err := next.err
		switch {
		case it.refused != nil:
			err = it.refused
		case err != nil:
		case it.record == nil: // the shared checkpoint is the last record
			err = b.result(results, len(results)-1)
		default:
			err = b.result(results, at)
			at++
		}
		it.done(err)
	}
}

// result is the state machine's answer to one record. A refusal for its term means
// that the lease is over.
func (b *batcher) result(results []error, i int) error {
	if i < 0 || i >= len(results) {
		return entity.Errorf(entity.OutcomeUnknown, "the state machine gave no answer to record %d", i)
	}
	if results[i] != nil && persistence.Refused(results[i]) == "term" {
		b.lease.end(errSuperseded)
	}
	return results[i]
}

func (b *batcher) ended() error {
	return entity.Errorf(entity.NotExecuted, "the lease of shard %d has ended: %v", b.lease.shard, context.Cause(b.lease.ctx))
}

// entryHeader begins an Entry: format and log time.
func entryHeader(out []byte, active uint32, logTime int64) []byte {
	out = protowire.AppendTag(out, 1, protowire.VarintType)
	out = protowire.AppendVarint(out, uint64(active))
	out = protowire.AppendTag(out, 2, protowire.VarintType)
	return protowire.AppendVarint(out, uint64(logTime))
}

// encodeEntry makes an entry of one record.
func encodeEntry(active uint32, logTime int64, rec *recordv1.Record) ([]byte, error) {
	return proto.Marshal(&recordv1.Entry{Format: active, LogTime: logTime, Records: []*recordv1.Record{rec}})
}
