package actors_test

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	writv1 "writ/proto/writ/v1"
)

func TestSubmitOnce(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	first := w.must(e, "k1", &num{Value: 5})
	if unpack(t, first.GetReply()) != 5 || first.GetVersion() != 1 || first.GetReplayed() || first.GetAcceptedAt() == nil {
		t.Errorf("first answer is %v", first)
	}
	again := w.must(e, "k1", &num{Value: 5})
	if !again.GetReplayed() {
		t.Error("the second answer is not flagged")
	}
	again.Replayed = false
	if !proto.Equal(first, again) {
		t.Errorf("replay %v is not verbatim %v", again, first)
	}
	w.must(e, "k2", &num{Value: 1})
	if value, version := w.read(e); value != 6 || version != 2 {
		t.Errorf("value %d, version %d", value, version)
	}
	if _, rec := w.stored(e); rec.GetDecided() != 2 {
		t.Errorf("%d decided", rec.GetDecided())
	}
}

// The scope of a key is (tenant, kind, id, command type).
func TestKeyScope(t *testing.T) {
	w := newWorld(t, worldConfig{})
	other := ref("counter", "a")
	other.Tenant = "t2"
	calls := []submitted{
		{ref: ref("counter", "a"), key: "1", command: &num{Value: 5}},
		{ref: other, key: "1", command: &num{Value: 7}},
		{ref: ref("counter", "b"), key: "1", command: &num{Value: 9}},
		{ref: ref("counter", "a"), key: "1", command: &text{Value: "x"}},
	}
	for round := range 2 {
		for i, call := range calls {
			answer, err := w.submit(call)
			if err != nil || answer.GetReplayed() != (round == 1) {
				t.Errorf("round %d, call %d: %v, %v", round, i, answer, err)
			}
			if want := []int64{5, 7, 9, 5}[i]; unpack(t, answer.GetReply()) != want {
				t.Errorf("round %d, call %d: reply %v", round, i, answer.GetReply())
			}
		}
	}
	_, err := w.submit(submitted{ref: ref("counter", "a"), key: "1", command: &num{Value: 6}})
	wantReason(t, err, entity.KeyReused)
}

func TestOneKeyAtOnce(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	w.leases[0].hold()
	var calls []<-chan result
	for range 50 {
		calls = append(calls, w.later(submitted{ref: e, key: "k", command: &num{Value: 1}}))
	}
	w.held(0, 1)
	for range 5 { // everybody has been taken in before the barrier of a read
		go func() { _, _ = w.readWith(e, nil) }()
	}
	w.held(0, 6)
	w.leases[0].release()
	executed := 0
	for _, call := range calls {
		r := <-call
		if r.err != nil || unpack(t, r.answer.GetReply()) != 1 {
			t.Fatalf("%v, %v", r.answer, r.err)
		}
		if !r.answer.GetReplayed() {
			executed++
		}
	}
	if value, version := w.read(e); executed != 1 || value != 1 || version != 1 {
		t.Errorf("executed %d times: value %d, version %d", executed, value, version)
	}
}

func TestInFlight(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	w.leases[0].hold()
	first := w.later(submitted{ref: e, key: "k", command: &num{Value: 1}})
	w.held(0, 1)
	_, err := w.submit(submitted{ref: e, key: "k", command: &num{Value: 1}, change: func(r *writv1.SubmitRequest) { r.NoWait = true }})
	wantReason(t, err, entity.InFlight)

	reused := w.later(submitted{ref: e, key: "k", command: &num{Value: 2}})
	behind := w.later(submitted{ref: e, key: "k2", command: &num{Value: 2}})
	w.held(0, 2)
	select {
	case r := <-reused:
		t.Fatalf("answered before the record: %v", r.err)
	default:
	}
	w.leases[0].release()
	wantReason(t, (<-reused).err, entity.KeyReused)
	if r := <-first; r.err != nil {
		t.Error(r.err)
	}
	if r := <-behind; r.err != nil {
		t.Error(r.err)
	}
}

// The entity does not wait for the log: commands work on the state before them,
// whether it is committed or not, and none is answered before its record.
func TestPipelining(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	lease := w.leases[0]
	lease.hold()
	var calls []<-chan result
	for i := range 20 {
		calls = append(calls, w.later(submitted{ref: e, key: fmt.Sprint(i), command: &num{Value: 1}}))
		w.held(0, i+1)
	}
	for i, call := range calls {
		select {
		case r := <-call:
			t.Fatalf("command %d was answered before its record: %v", i, r)
		default:
		}
	}
	lease.release()
	for i, call := range calls {
		r := <-call
		if r.err != nil || unpack(t, r.answer.GetReply()) != int64(i+1) || r.answer.GetVersion() != uint64(i+1) {
			t.Errorf("command %d: %v, %v", i, r.answer, r.err)
		}
	}
}

func TestFailedRecord(t *testing.T) {
	unknown := entity.Errorf(entity.OutcomeUnknown, "lost")
	refused := entity.Errorf(entity.NotExecuted, "refused")
	tests := []struct {
		name    string
		verdict error
		applied bool
		want    entity.Reason
		value   int64 // in the end, when all keys were tried again
	}{
		{"not executed", refused, false, entity.NotExecuted, 4},
		{"unknown, and not applied", unknown, false, entity.OutcomeUnknown, 4},
		{"unknown, but applied", unknown, true, entity.OutcomeUnknown, 4},
		{"an error without a reason", errors.New("?"), false, entity.OutcomeUnknown, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, worldConfig{})
			e := ref("counter", "a")
			lease := w.leases[0]
			w.must(e, "0", &num{Value: 1})
			lease.hold()
			lease.fail(func(rec *recordv1.Record) (error, bool) {
				if string(rec.GetCommit().GetKey().GetKey()) == "1" {
					return tt.verdict, tt.applied
				}
				return nil, true
			})
			var calls []<-chan result
			for i := range 3 {
				calls = append(calls, w.later(submitted{ref: e, key: fmt.Sprint(i + 1), command: &num{Value: 1}}))
				w.held(0, i+1)
			}
			late := w.later(submitted{ref: e, key: "1", command: &num{Value: 7}}) // reuse, in flight
			go func() { _, _ = w.readWith(e, nil) }()
			w.held(0, 4)
			lease.release()
			wantReason(t, (<-calls[0]).err, tt.want)
			err := (<-late).err // or its turn came later and found the key stored
			if r := entity.ReasonOf(err); r != entity.NotExecuted && r != entity.OutcomeUnknown && (r != entity.KeyReused || !tt.applied) {
				t.Errorf("another payload: %v", err)
			}
			for _, call := range calls[1:] {
				err := (<-call).err
				if r := entity.ReasonOf(err); r != entity.NotExecuted && r != entity.OutcomeUnknown {
					t.Errorf("a later record: %v", err)
				}
			}
			lease.fail(nil)
			for i := range 4 {
				w.must(e, fmt.Sprint(i), &num{Value: 1})
			}
			if value, _ := w.read(e); value != tt.value {
				t.Errorf("value is %d, want %d", value, tt.value)
			}
		})
	}
}

func TestRejection(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	first, err := w.submit(submitted{ref: e, key: "k", command: &num{Value: -1}})
	if err != nil || first.GetRejection().GetCode() != int32(entity.OutOfRange) || first.GetRejection().GetMessage() != "0 is not enough" {
		t.Fatalf("%v, %v", first, err)
	}
	w.must(e, "fund", &num{Value: 10})
	again, err := w.submit(submitted{ref: e, key: "k", command: &num{Value: -1}})
	if err != nil || !again.GetReplayed() {
		t.Fatalf("%v, %v", again, err)
	}
	again.Replayed = false
	if !proto.Equal(first, again) {
		t.Errorf("%v, replayed as %v", first, again)
	}
	if value, version := w.read(e); value != 10 || version != 2 {
		t.Errorf("value %d, version %d", value, version)
	}
}

func TestHandlerFails(t *testing.T) {
	long := strings.Repeat("x", 5000)
	w := newWorld(t, worldConfig{kinds: []entity.Definer{kind("counter", hooks{command: func(c *entity.Context, s *num, what string) error {
		s.Value = 666 // dropped with all else
		switch what {
		case "panic":
			panic("no")
		case "error":
			return errors.New("no")
		case "code":
			return c.Reject(entity.Code(13), "INTERNAL", "no")
		case "reason for people":
			return c.Reject(entity.NotFound, "NOT found", "no")
		case "rejection is not UTF-8":
			return c.Reject(entity.NotFound, "X", "\xff")
		case "nil event":
			c.Emit(entity.To("counter", "b"), nil)
		case "typed nil event":
			c.Emit(entity.To("counter", "b"), (*num)(nil))
		case "no destination":
			c.Emit(entity.To("counter", ""), &num{Value: 1})
		case "long destination":
			c.Emit(entity.To("counter", long), &num{Value: 1})
		case "event is not UTF-8":
			c.Emit(entity.To("counter", "b"), &text{Value: "\xff"})
		}
		return nil
	}})}})
	e := ref("counter", "a")
	w.must(e, "0", &num{Value: 1})
	how := map[string]string{"panic": "panicked", "error": "c.Reject"}
	for _, what := range []string{
		"panic", "error", "code", "reason for people", "rejection is not UTF-8", "nil event", "typed nil event",
		"no destination", "long destination", "event is not UTF-8",
	} {
		for range 2 { // nothing is stored under the key
			_, err := w.submit(submitted{ref: e, key: "k", command: &text{Value: what}})
			wantReason(t, err, entity.HandlerPanic)
			if want := cmp.Or(how[what], "may not make"); !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "see the log of node") {
				t.Errorf("%s: %v does not say %q", what, err, want)
			}
		}
	}
	if value, version := w.read(e); value != 1 || version != 1 {
		t.Errorf("value %d, version %d", value, version)
	}
	w.must(e, "k", &text{Value: "fine"})
	w.must(e, "1", &num{Value: 1})
	if value, _ := w.read(e); value != 667 {
		t.Errorf("value %d", value)
	}
}

// A panic is answered as soon as what is in flight before it has committed: only then
// is it known that nothing is stored. What comes after it runs on state read anew.
func TestPanicAmongOthers(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{kind("counter", hooks{command: func(*entity.Context, *num, string) error {
		panic("no")
	}})}})
	e := ref("counter", "a")
	w.leases[0].hold()
	before := w.later(submitted{ref: e, key: "before", command: &num{Value: 1}})
	w.held(0, 1)
	panics := w.later(submitted{ref: e, key: "panic", command: &text{}})
	after := w.later(submitted{ref: e, key: "after", command: &num{Value: 1}})
	w.must2(ref("counter", "b"), w.leases[0])
	if r := <-before; r.err != nil {
		t.Error(r.err)
	}
	wantReason(t, (<-panics).err, entity.HandlerPanic)
	if r := <-after; r.err != nil || unpack(t, r.answer.GetReply()) != 2 {
		t.Errorf("%v, %v", r.answer, r.err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			_, err := w.submit(submitted{ref: e, key: fmt.Sprint("panic", i), command: &text{}})
			wantReason(t, err, entity.HandlerPanic)
		})
		wg.Go(func() { w.must(e, fmt.Sprint("good", i), &num{Value: 1}) })
		wg.Go(func() { w.must(ref("counter", fmt.Sprint("other", i)), "k", &num{Value: 1}) })
	}
	wg.Wait()
	if value, _ := w.read(e); value != 22 {
		t.Errorf("value %d", value)
	}
}

// A leader whose lease ends cannot know that nothing is stored: its successor may have
// executed the key.
func TestPanicWithoutLease(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{kind("counter", hooks{command: func(*entity.Context, *num, string) error {
		panic("no")
	}})}})
	w.leases[0].hold()
	panics := w.later(submitted{ref: ref("counter", "a"), key: "panic", command: &text{}})
	w.held(0, 1)
	w.leases[0].end(nil)
	wantReason(t, (<-panics).err, entity.NotExecuted)
}

// must2 submits to another entity of a held shard and lets everything go.
func (w *world) must2(other entity.Ref, l *lease) {
	w.t.Helper()
	done := w.later(submitted{ref: other, key: "k", command: &num{Value: 1}})
	w.held(0, 2)
	l.release()
	if r := <-done; r.err != nil {
		w.t.Error(r.err)
	}
}

func TestInvalid(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	unknownField := &anypb.Any{TypeUrl: "type.googleapis.com/google.protobuf.Int64Value", Value: []byte{0x98, 0x06, 0x01}}
	tests := []struct {
		name   string
		change func(*writv1.SubmitRequest)
		want   entity.Reason
	}{
		{"no key", func(r *writv1.SubmitRequest) { r.IdempotencyKey = "" }, entity.Invalid},
		{"long key", func(r *writv1.SubmitRequest) { r.IdempotencyKey = strings.Repeat("k", 256) }, entity.TooLarge},
		{"longest key", func(r *writv1.SubmitRequest) { r.IdempotencyKey = strings.Repeat("k", 255) }, ""},
		{"unknown kind", func(r *writv1.SubmitRequest) { r.Entity.Kind = "x" }, entity.Invalid},
		{"no id", func(r *writv1.SubmitRequest) { r.Entity.Id = "" }, entity.Invalid},
		{"long id", func(r *writv1.SubmitRequest) { r.Entity.Id = strings.Repeat("i", 256) }, entity.TooLarge},
		{"no command", func(r *writv1.SubmitRequest) { r.Command = nil }, entity.Invalid},
		{"unknown command", func(r *writv1.SubmitRequest) { r.Command = pack(t, wrapperspb.Double(1)) }, entity.Invalid},
		{"other bytes", func(r *writv1.SubmitRequest) { r.Command.Value = []byte{0xff} }, entity.Invalid},
		{"unknown field", func(r *writv1.SubmitRequest) { r.Command = unknownField }, entity.Invalid},
		{"issued never", func(r *writv1.SubmitRequest) { r.IssuedAt = &timestamppb.Timestamp{Nanos: -1} }, entity.Invalid},
		{"wrong version", func(r *writv1.SubmitRequest) { r.IfVersion = proto.Uint64(9) }, entity.VersionMismatch},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := w.submit(submitted{ref: e, key: "k", command: &num{Value: 1}, change: tt.change})
			wantReason(t, err, tt.want)
		})
	}
	w.must(e, "k", &num{Value: 2}) // none of them has used up the key
}

func TestIfVersion(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	at := func(version uint64) func(*writv1.SubmitRequest) {
		return func(r *writv1.SubmitRequest) { r.IfVersion = new(version) }
	}
	for i := range 3 {
		s := submitted{ref: e, key: fmt.Sprint(i), command: &num{Value: 1}, change: at(uint64(i))}
		for range 2 { // the replay does not look at the version
			if _, err := w.submit(s); err != nil {
				t.Error(err)
			}
		}
	}
	_, err := w.submit(submitted{ref: e, key: "x", command: &num{Value: 1}, change: at(2)})
	wantReason(t, err, entity.VersionMismatch)
}

func TestAtLeastOnce(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	for _, key := range []string{"", "k", "k"} {
		answer := w.must(e, key, &flag{Value: true})
		if answer.GetReplayed() {
			t.Error("replayed")
		}
	}
	if value, rec := w.stored(e); value != 3 || rec.GetVersion() != 3 || rec.GetDecided() != 0 {
		t.Errorf("value %d, %v", value, rec)
	}
}

func TestExpired(t *testing.T) {
	w := newWorld(t, worldConfig{change: func(c *actors.Config) {
		c.Window = func(string) time.Duration { return 20 * time.Millisecond }
		c.Passivation = 80 * time.Millisecond // a quick tick
	}})
	e := ref("counter", "a")
	issued := func(at time.Time) func(*writv1.SubmitRequest) {
		return func(r *writv1.SubmitRequest) { r.IssuedAt = timestamppb.New(at) }
	}
	begun := time.Now()
	if _, err := w.submit(submitted{ref: e, key: "k", command: &num{Value: 1}, change: issued(begun)}); err != nil {
		t.Fatal(err)
	}
	w.metrics.until(t, func() bool { return w.stores[0].ExpiredThrough() != 0 })
	_, err := w.submit(submitted{ref: e, key: "k", command: &num{Value: 1}, change: issued(begun)})
	wantReason(t, err, entity.Expired)
	w.must(e, "new", &num{Value: 1})
	for _, at := range []time.Time{time.Now().Add(time.Hour), time.Now().AddDate(300, 0, 0), time.Unix(-1, 0)} { // in 300 years nanoseconds have wrapped
		_, err = w.submit(submitted{ref: e, key: "ahead", command: &num{Value: 1}, change: issued(at)})
		wantReason(t, err, entity.Invalid)
	}
	if value, _ := w.read(e); value != 2 {
		t.Errorf("value is %d", value)
	}
}

// Whatever the wall clocks of clients and leaders say, a command that was executed
// is not executed again when its key has been forgotten.
func TestExpiredAcrossClocks(t *testing.T) {
	offsets := []time.Duration{-7 * time.Hour, -5 * time.Hour, 0, 5 * time.Minute, 48 * time.Hour}
	for _, first := range offsets {
		for _, second := range offsets {
			t.Run(fmt.Sprintf("leaders at %v and %v", first, second), func(t *testing.T) { executedOnce(t, first, second) })
		}
	}
}

func executedOnce(t *testing.T, first, second time.Duration) {
	t.Helper()
	var offset atomic.Int64 // of the leader's wall clock
	offset.Store(int64(first))
	w := newWorld(t, worldConfig{change: func(c *actors.Config) {
		c.Clock = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
		c.Passivation = 80 * time.Millisecond // a quick tick
	}})
	e, issued := ref("counter", "a"), time.Now()
	s := submitted{ref: e, key: "k", command: &num{Value: 1}, change: func(r *writv1.SubmitRequest) { r.IssuedAt = timestamppb.New(issued) }}
	switch _, err := w.submit(s); {
	case first < -6*time.Hour: // more than a quarter of the window: it may be the client's clock that is wrong
		wantReason(t, err, entity.Invalid)
		return
	case err != nil:
		t.Fatal(err)
	}
	w.leases[0].end(nil)
	offset.Store(int64(second))
	w.lead(0)
	if answer, err := w.submit(s); err != nil || !answer.GetReplayed() || answer.GetAcceptedAt().AsTime().Before(issued) {
		t.Errorf("a stored key: %v, %v", answer, err)
	}
	w.leases[0].jump.Store(int64(48 * time.Hour))
	w.metrics.until(t, func() bool { return w.stores[0].ExpiredThrough() != 0 })
	_, err := w.submit(s)
	wantReason(t, err, entity.Expired)
	if value, rec := w.stored(e); value != 1 || rec.GetDecided() != 1 {
		t.Errorf("value %d, %v", value, rec)
	}
	// Nor is it known to a question or a cancel that says when it was issued. One
	// that does not is told of the window only.
	body := &writv1.OutcomeRequest{
		Entity: &writv1.EntityRef{Kind: "counter", Id: "a"}, IdempotencyKey: "k", CommandType: "google.protobuf.Int64Value", IssuedAt: timestamppb.New(issued),
	}
	ask := &nodev1.ForwardRequest{Tenant: "t", Call: &nodev1.ForwardRequest_Outcome{Outcome: body}}
	if answer, err := w.rt.Forward(t.Context(), ask); err != nil || answer.GetOutcome().GetState() != writv1.OutcomeResponse_EXPIRED {
		t.Errorf("outcome: %v, %v", answer, err)
	}
	_, err = w.rt.Forward(t.Context(), &nodev1.ForwardRequest{Tenant: "t", Call: &nodev1.ForwardRequest_Cancel{Cancel: body}})
	wantReason(t, err, entity.Expired)
	body.IssuedAt = timestamppb.New(time.Now().Add(min(max(first, 0), 24*time.Hour) + time.Hour))
	if answer, err := w.rt.Forward(t.Context(), ask); err != nil || answer.GetOutcome().GetState() != writv1.OutcomeResponse_NEVER_SEEN {
		t.Errorf("outcome of a later command: %v, %v", answer, err)
	}
	body.IssuedAt = nil
	if answer, err := w.rt.Forward(t.Context(), ask); err != nil || answer.GetOutcome().GetState() != writv1.OutcomeResponse_NEVER_SEEN {
		t.Errorf("outcome without a time of issue: %v, %v", answer, err)
	}
}

// A leader whose clock is far ahead, or was, has no command refused as EXPIRED that
// was issued after what is forgotten.
func TestExpiredOnlyWhenRight(t *testing.T) {
	for name, later := range map[string]time.Duration{"still ahead": 3 * time.Hour, "set back": 0} {
		t.Run(name, func(t *testing.T) {
			var offset atomic.Int64
			offset.Store(int64(3 * time.Hour))
			w := newWorld(t, worldConfig{change: func(c *actors.Config) {
				c.Window = func(string) time.Duration { return 200 * time.Millisecond }
				c.Clock = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
				c.Passivation = 80 * time.Millisecond // a quick tick
			}})
			e, begun := ref("counter", "a"), time.Now()
			issuedNow := func(r *writv1.SubmitRequest) { r.IssuedAt = timestamppb.Now() }
			first := submitted{ref: e, key: "k", command: &num{Value: 1}, change: func(r *writv1.SubmitRequest) { r.IssuedAt = timestamppb.New(begun) }}
			// Both are taken before either is committed: nothing can be forgotten yet.
			w.leases[0].hold()
			executed := w.later(first)
			w.held(0, 1)
			cancel := &writv1.OutcomeRequest{
				Entity: &writv1.EntityRef{Kind: "counter", Id: "a"}, IdempotencyKey: "cancelled",
				CommandType: "google.protobuf.Int64Value", IssuedAt: timestamppb.New(begun),
			}
			cancelled := make(chan error, 1)
			go func() {
				_, err := w.rt.Forward(t.Context(), &nodev1.ForwardRequest{Tenant: "t", Call: &nodev1.ForwardRequest_Cancel{Cancel: cancel}})
				cancelled <- err
			}()
			w.held(0, 2)
			w.leases[0].release()
			if err := cmp.Or((<-executed).err, <-cancelled); err != nil {
				t.Fatal(err)
			}
			offset.Store(int64(later))
			w.metrics.until(t, func() bool { return w.stores[0].ExpiredThrough() != 0 })
			if _, err := w.submit(submitted{ref: e, key: "new", command: &num{Value: 1}, change: issuedNow}); err != nil {
				t.Errorf("a command that is issued now: %v", err)
			}
			_, err := w.submit(first)
			wantReason(t, err, entity.Expired)
			if value, _ := w.read(e); value != 2 {
				t.Errorf("value is %d", value)
			}
		})
	}
}

// A key is bytes: text and bytes that are the same are one key, and bytes that are
// no text are a key as well.
func TestBinaryKeys(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	for _, key := range []string{"k", "\xff\x00\n"} {
		for i := range 2 {
			answer, err := w.submit(submitted{ref: e, command: &num{Value: 1}, change: func(r *writv1.SubmitRequest) { r.IdempotencyKeyBytes = []byte(key) }})
			if err != nil || answer.GetReplayed() != (i == 1) {
				t.Errorf("key %q: %v, %v", key, answer, err)
			}
		}
	}
	if answer := w.must(e, "k", &num{Value: 1}); !answer.GetReplayed() {
		t.Error("the key as text is another one than as bytes")
	}
}

// takes notes what was in hand.
type takes struct {
	mu    sync.Mutex
	names []string
}

func (h *takes) Take(what string) func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names = append(h.names, what)
	return func() {}
}
func (*takes) Crashes(string) int { return 0 }
func (*takes) Count(string) bool  { return false }

// A command without a key is known by what it says: else one that ends the process
// could not be told from the others of its type, which take its count away.
func TestKeylessCommandInHand(t *testing.T) {
	hands := &takes{}
	w := newWorld(t, worldConfig{change: func(c *actors.Config) { c.Hands = hands }})
	for _, value := range []bool{true, false, true} {
		w.must(ref("counter", "a"), "", &flag{Value: value})
	}
	if n := hands.names; len(n) != 3 || n[0] == n[1] || n[0] != n[2] || !actors.ClientsCall(n[0]) {
		t.Errorf("in hand were %q", n)
	}
}
