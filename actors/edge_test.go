package actors_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"writ/actors"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	writv1 "writ/proto/writ/v1"
)

// A handler that fails costs the activation, for commands and for events.
func TestFailureDropsActivation(t *testing.T) {
	w := newWorld(t, worldConfig{
		kinds: []entity.Definer{
			emitter("a"),
			kind("b", hooks{
				command: func(*entity.Context, *num, string) error { panic("no") },
				event:   func(*entity.Context, *num, int64) error { panic("no") },
			}),
		},
		change: func(c *actors.Config) { c.MaxAttempts = 3 },
	})
	b := ref("b", "1")
	w.must(b, "1", &num{Value: 1})
	for i := range 3 {
		_, err := w.submit(submitted{ref: b, key: "k", command: &text{}})
		wantReason(t, err, entity.HandlerPanic)
		w.must(b, fmt.Sprint("after", i), &num{Value: 1})
	}
	if n := w.metrics.get("activations"); n != 4 {
		t.Errorf("%d activations", n)
	}
	w.must(ref("a", "1"), "k", &text{Value: "b/1"})
	w.metrics.until(t, func() bool { return w.metrics.get("parks") == 1 })
	w.must(b, "last", &num{Value: 1})
	if n := w.metrics.get("activations"); n != 8 { // a's, and one more after each panic
		t.Errorf("%d activations", n)
	}
	if value, _ := w.read(b); value != 5 {
		t.Errorf("value %d", value)
	}
}

// What a handler did to the state before it rejected is dropped, and what is
// committed is not touched by what comes after it.
func TestStatesAreApart(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{kind("counter", hooks{command: func(c *entity.Context, s *num, _ string) error {
		s.Value = 666
		return c.Reject(entity.NotFound, "NO", "no")
	}})}})
	e := ref("counter", "a")
	w.must(e, "1", &num{Value: 1})
	lease := w.leases[0]
	lease.hold()
	reads := make(chan int64, 1)
	go func() {
		value, _ := w.read(e)
		reads <- value
	}()
	w.held(0, 1)
	calls := []<-chan result{w.later(submitted{ref: e, key: "2", command: &text{}})}
	w.held(0, 2)
	calls = append(calls, w.later(submitted{ref: e, key: "3", command: &num{Value: 1}}))
	w.held(0, 3)
	lease.release()
	if value := <-reads; value != 1 {
		t.Errorf("read %d", value)
	}
	for _, call := range calls {
		if r := <-call; r.err != nil {
			t.Error(r.err)
		}
	}
	if value, _ := w.read(e); value != 2 {
		t.Errorf("value %d", value)
	}
}

// rowsOf makes a source emit n rows that are not delivered, and returns them.
func (w *world) rowsOf(from, to entity.Ref, n int) []*recordv1.Row {
	w.t.Helper()
	w.courier.set(func(*nodev1.DeliverRequest, deliverFunc) (*nodev1.DeliverResponse, error) {
		return nil, errors.New("no way")
	})
	w.must(from, "rows", &text{Value: strings.Repeat(to.Kind+"/"+to.ID+" ", n)})
	rows, err := w.stores[w.shard(from)].Rows(from, to, 1, n, 0)
	if err != nil || len(rows) != n {
		w.t.Fatal(len(rows), err)
	}
	return rows
}

// A batch is answered with what is committed, not with what is on its way.
func TestConfirmsCommittedOnly(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{})}})
	rows := w.rowsOf(ref("a", "1"), ref("b", "1"), 3)
	lease := w.leases[0]
	lease.hold()
	lease.fail(func(rec *recordv1.Record) (error, bool) {
		if marks := rec.GetCommit().GetApplied(); len(marks) == 1 && marks[0].GetLaneSequence() == 3 {
			return entity.Errorf(entity.NotExecuted, "no"), false
		}
		return nil, true
	})
	type delivered struct {
		answer *nodev1.DeliverResponse
		err    error
	}
	deliver := func(rows []*recordv1.Row) <-chan delivered {
		done := make(chan delivered, 1)
		go func() {
			answer, err := w.rt.Deliver(t.Context(), &nodev1.DeliverRequest{Rows: rows})
			done <- delivered{answer, err}
		}()
		return done
	}
	first := deliver(rows[:2])
	w.held(0, 2)
	second := deliver(rows[2:])
	w.held(0, 3)
	repeat := deliver(rows[:3])
	lease.release()
	if d := <-first; d.err != nil || d.answer.GetApplied() != 2 {
		t.Errorf("first batch: %v, %v", d.answer, d.err)
	}
	if d := <-second; d.err == nil {
		t.Errorf("second batch: %v", d.answer)
	}
	if d := <-repeat; d.err == nil {
		t.Errorf("repeated batch: %v", d.answer)
	}
	lease.fail(nil)
	w.courier.set(nil)
	w.drained(ref("a", "1"), ref("b", "1"), 3)
}

// A full outbox refuses commands, and nothing else; it opens again as rows are
// confirmed.
func TestOutboxBound(t *testing.T) {
	limits := actors.DefaultLimits()
	limits.Outbox = 3
	w := newWorld(t, worldConfig{
		kinds:  []entity.Definer{emitter("a"), kind("b", hooks{})},
		change: func(c *actors.Config) { c.Limits = limits },
	})
	a, b := ref("a", "1"), ref("b", "1")
	rows := w.rowsOf(a, b, 3)
	_, err := w.submit(submitted{ref: a, key: "more", command: &text{Value: "b/1"}})
	wantReason(t, err, entity.Overloaded)
	event := &recordv1.Row{
		Source: &recordv1.Ref{Tenant: "t", Kind: "b", Id: "9"}, Destination: rows[0].GetSource(), Epoch: 1, Sequence: 1,
		LaneSequence: 1, Event: rows[0].GetEvent(), Hops: 1,
	}
	if answer, err := w.rt.Deliver(t.Context(), &nodev1.DeliverRequest{Rows: []*recordv1.Row{event}}); err != nil || answer.GetApplied() != 1 {
		t.Errorf("event: %v, %v", answer, err)
	}
	w.courier.set(nil)
	w.drained(a, b, 3)
	w.metrics.until(t, func() bool { return w.metrics.get("confirms") == 3 })
	for i := range 3 {
		s := submitted{ref: a, key: fmt.Sprint("again", i), command: &text{Value: "b/1"}}
		w.metrics.until(t, func() bool { _, err = w.submit(s); return err == nil })
		w.drained(a, b, uint64(4+i))
	}
}

// A destination that claims to have more than it was sent is believed only as far
// as it was sent something.
func TestAppliedBeyondBatch(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{})}})
	a, b := ref("a", "1"), ref("b", "1")
	w.courier.set(func(_ *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error) {
		answer, err := deliver()
		if err == nil {
			answer.Applied += 1000
		}
		return answer, err
	})
	for i := range 50 {
		w.must(a, fmt.Sprint(i), &text{Value: "b/1"})
	}
	w.drained(a, b, 50)
	if value, _ := w.read(b); value != 50 || w.metrics.get("parks") != 0 {
		t.Errorf("value %d", value)
	}
}

// A source that was restored counts on from its backup in a higher epoch.
func TestRestoredSource(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{})}})
	rows := w.rowsOf(ref("a", "1"), ref("b", "1"), 4)
	deliver := func(epoch, from uint64, n int) *nodev1.DeliverResponse {
		t.Helper()
		var batch []*recordv1.Row
		for i := range n {
			row := &recordv1.Row{
				Source: rows[0].GetSource(), Destination: rows[0].GetDestination(), Event: rows[0].GetEvent(),
				Epoch: epoch, Sequence: from + uint64(i), LaneSequence: from + uint64(i), Hops: 1,
			}
			batch = append(batch, row)
		}
		answer, err := w.rt.Deliver(t.Context(), &nodev1.DeliverRequest{Rows: batch})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for i, step := range []struct {
		epoch, from uint64
		n           int
		applied     uint64
		gap         bool
		value       int64
	}{
		{1, 1, 4, 4, false, 4},
		{2, 3, 1, 3, false, 5}, // another row 3
		{2, 3, 1, 3, false, 5}, // the same again
		{1, 4, 1, 3, true, 5},  // what the old epoch had
		{1, 2, 2, 3, false, 5},
		{2, 4, 3, 6, false, 8},
		{3, 9, 1, 6, true, 8},
		{3, 7, 1, 7, false, 9},
	} {
		answer := deliver(step.epoch, step.from, step.n)
		if answer.GetApplied() != step.applied || answer.GetGap() != step.gap {
			t.Errorf("step %d: %v", i, answer)
		}
		if value, _ := w.read(ref("b", "1")); value != step.value {
			t.Errorf("step %d: value %d, want %d", i, value, step.value)
		}
	}
}

// restored is a store whose rows from the 300th on are of a higher epoch.
type restored struct{ actors.Store }

func (r restored) Rows(from, to entity.Ref, first uint64, most, bytes int) ([]*recordv1.Row, error) {
	rows, err := r.Store.Rows(from, to, first, most, bytes)
	for _, row := range rows {
		if row.GetLaneSequence() >= 300 {
			row.Epoch = 2
		}
	}
	return rows, err
}

// The first rows of a new epoch overtake nothing: the destination could not tell
// them from a restored source's.
func TestEpochBoundary(t *testing.T) {
	w := newWorld(t, worldConfig{
		shards: 2,
		kinds:  []entity.Definer{emitter("a"), kind("b", hooks{})},
		wrap:   func(s actors.Store) actors.Store { return restored{s} },
	})
	a, b := ref("a", "1"), ref("b", "1")
	w.rowsOf(a, b, 1000)
	var mu sync.Mutex
	inFlight, crossed := 0, 0
	w.courier.set(func(req *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error) {
		rows := req.GetRows()
		mixed := slices.ContainsFunc(rows, func(r *recordv1.Row) bool { return r.GetEpoch() != rows[0].GetEpoch() })
		mu.Lock()
		inFlight++
		if rows[0].GetLaneSequence() == 300 {
			crossed++
			if inFlight != 1 {
				t.Error("rows of another epoch are in flight")
			}
		}
		mu.Unlock()
		if mixed {
			t.Error("a batch has rows of two epochs")
		}
		answer, err := deliver()
		mu.Lock()
		inFlight--
		mu.Unlock()
		return answer, err
	})
	w.drained(a, b, 1000)
	if value, version := w.read(b); value != 1000 || version != 1000 || crossed != 1 {
		t.Errorf("value %d, version %d, crossed %d times", value, version, crossed)
	}
}

// failing is a store that can be made to fail.
type failing struct {
	actors.Store
	mu   sync.Mutex
	fail bool
}

func (f *failing) set(fail bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

func (f *failing) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail {
		return errors.New("the disk is gone")
	}
	return nil
}

func (f *failing) Entity(e entity.Ref) (*recordv1.EntityRecord, error) {
	if err := f.err(); err != nil {
		return nil, err
	}
	return f.Store.Entity(e)
}

func (f *failing) Key(e entity.Ref, command string, key []byte) (*recordv1.KeyRecord, error) {
	if err := f.err(); err != nil {
		return nil, err
	}
	return f.Store.Key(e, command, key)
}

func TestStoreFails(t *testing.T) {
	var store *failing
	w := newWorld(t, worldConfig{wrap: func(s actors.Store) actors.Store {
		store = &failing{Store: s}
		return store
	}})
	a, b := ref("counter", "a"), ref("counter", "b")
	w.must(a, "1", &num{Value: 1})
	store.set(true)
	for range 3 {
		_, err := w.submit(submitted{ref: a, key: "2", command: &num{Value: 1}}) // the key cannot be read
		wantReason(t, err, entity.NotExecuted)
		_, err = w.submit(submitted{ref: b, key: "2", command: &num{Value: 1}}) // nor the entity
		wantReason(t, err, entity.NotExecuted)
	}
	store.set(false)
	w.must(a, "2", &num{Value: 1})
	w.metrics.until(t, func() bool {
		_, err := w.submit(submitted{ref: b, key: "2", command: &num{Value: 1}})
		return err == nil
	})
	if value, _ := w.read(a); value != 2 {
		t.Errorf("value %d", value)
	}
}

// A record whose fate is unknown may have been applied: a read behind it does not
// answer from before it.
func TestReadBehindUnknown(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	w.must(e, "1", &num{Value: 1})
	lease := w.leases[0]
	lease.hold()
	lease.fail(func(*recordv1.Record) (error, bool) { return entity.Errorf(entity.OutcomeUnknown, "lost"), true })
	write := w.later(submitted{ref: e, key: "2", command: &num{Value: 1}})
	w.held(0, 1)
	read := make(chan error, 1)
	go func() {
		answer, err := w.readWith(e, nil)
		if err == nil && unpack(t, answer.GetState()) != 2 {
			t.Errorf("read %v", answer)
		}
		read <- err
	}()
	w.held(0, 2)
	lease.release()
	wantReason(t, (<-write).err, entity.OutcomeUnknown)
	wantReason(t, <-read, entity.NotExecuted)
	if value, _ := w.read(e); value != 2 {
		t.Errorf("value %d", value)
	}
}

// Lane updates that fail are proposed again, and nothing is lost or counted twice.
func TestMarksFail(t *testing.T) {
	var mu sync.Mutex
	tries := 0
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{event: func(c *entity.Context, s *num, n int64) error {
		mu.Lock()
		defer mu.Unlock()
		if tries++; tries%3 == 1 {
			return c.Reject(entity.NotFound, "NO", "not now")
		}
		s.Value += n
		return nil
	}})}})
	failures := 0
	w.leases[0].fail(func(rec *recordv1.Record) (error, bool) {
		if rec.GetLane() == nil {
			return nil, true
		}
		failures++
		return []error{
			nil, entity.Errorf(entity.NotExecuted, "no"), entity.Errorf(entity.OutcomeUnknown, "?"),
		}[failures%3], failures%3 != 1
	})
	a, b := ref("a", "1"), ref("b", "1")
	for i := range 30 {
		w.must(a, fmt.Sprint(i), &text{Value: "b/1"})
	}
	w.drained(a, b, 30)
	if value, _ := w.read(b); value != 30 || w.metrics.get("parks") != 0 {
		t.Errorf("value %d, %d parks", value, w.metrics.get("parks"))
	}
}

// Attempts are in the log: a new leader counts on.
func TestAttemptsSurviveTerms(t *testing.T) {
	var mu sync.Mutex
	calls := 0
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{event: func(c *entity.Context, _ *num, _ int64) error {
		mu.Lock()
		defer mu.Unlock()
		calls++
		return c.Reject(entity.NotFound, "NO", "never")
	}})}})
	a, b := ref("a", "1"), ref("b", "1")
	w.must(a, "k", &text{Value: "b/1"})
	for n := range 3 {
		w.metrics.until(t, func() bool { return w.lane(a, b).GetAttempts() > uint32(2*n) })
		w.leases[0].end(nil)
		w.lead(0)
	}
	w.metrics.until(t, func() bool { return w.lane(a, b).GetStatus() == recordv1.Lane_PARKED })
	mu.Lock()
	defer mu.Unlock()
	if l := w.lane(a, b); l.GetAttempts() != 8 || calls < 8 || calls > 8+3 { // one per change may not have been counted
		t.Errorf("%d calls, lane %v", calls, l)
	}
}

// typed is a store whose states are of a message that the kind does not have.
type typed struct{ actors.Store }

func (s typed) Entity(ref entity.Ref) (*recordv1.EntityRecord, error) {
	rec, err := s.Store.Entity(ref)
	if rec.GetState() != nil {
		rec = proto.CloneOf(rec)
		rec.State.Type = "old.State"
	}
	return rec, err
}

// The caller is told that another version of the program wrote the state: nothing
// else about this node would explain it.
func TestStateOfAnotherMessage(t *testing.T) {
	w := newWorld(t, worldConfig{wrap: func(s actors.Store) actors.Store { return typed{s} }})
	a := ref("counter", "a")
	w.must(a, "1", &num{Value: 1})
	i := int(w.shard(a))
	w.leases[i].end(nil)
	w.lead(i)
	_, submitErr := w.submit(submitted{ref: a, key: "2", command: &num{Value: 1}})
	_, readErr := w.readWith(a, func(r *writv1.ReadRequest) { r.Consistency = writv1.Consistency_STALE })
	for _, err := range []error{submitErr, readErr} {
		wantReason(t, err, entity.NotExecuted)
		if !strings.Contains(err.Error(), "old.State") {
			t.Errorf("%v does not say what is wrong", err)
		}
	}
}
