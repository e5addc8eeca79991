package actors_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/actors"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	writv1 "writ/proto/writ/v1"
)

func TestNoLease(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	w.must(e, "1", &num{Value: 1})
	w.leases[0].end(nil)
	_, err := w.submit(submitted{ref: e, key: "2", command: &num{Value: 1}})
	wantReason(t, err, entity.NotExecuted)
	_, err = w.submit(submitted{ref: e, key: "1", command: &num{Value: 1}}) // not even a replay
	wantReason(t, err, entity.NotExecuted)
	_, err = w.readWith(e, nil)
	wantReason(t, err, entity.NotExecuted)
	_, err = w.rt.Forward(t.Context(), &nodev1.ForwardRequest{Shard: 7, Tenant: "t", Call: w.request(submitted{ref: e, key: "3", command: &num{}}).Call})
	wantReason(t, err, entity.NotExecuted)

	w.lead(0)
	if answer := w.must(e, "1", &num{Value: 1}); !answer.GetReplayed() {
		t.Error("executed again in the next term")
	}
	w.must(e, "2", &num{Value: 1})
	if value, _ := w.read(e); value != 2 {
		t.Errorf("value %d", value)
	}
}

// A lease that is handed over after a newer one does not take its place.
func TestLateLease(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	old := w.leases[0]
	w.lead(0)
	w.must(e, "1", &num{Value: 1})
	old.end(nil)
	w.rt.Lead(0, old)
	w.must(e, "2", &num{Value: 1})
}

// What is in flight when the lease ends gets its verdict; the next term begins
// with what is stored, whatever was in memory.
func TestLeaseEndsInFlight(t *testing.T) {
	for _, verdict := range []*entity.Error{
		entity.Errorf(entity.NotExecuted, "never logged"), entity.Errorf(entity.OutcomeUnknown, "leadership lost"),
	} {
		w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("counter")}})
		e := ref("counter", "a")
		w.must(e, "0", &num{Value: 1})
		old := w.leases[0]
		old.hold()
		var calls []<-chan result
		for i := range 10 {
			calls = append(calls, w.later(submitted{ref: e, key: fmt.Sprint("k", i), command: &text{Value: "counter/b"}}))
		}
		w.held(0, 10)
		old.end(verdict)
		for _, call := range calls {
			wantReason(t, (<-call).err, verdict.Reason)
		}
		w.lead(0)
		for i := range 10 {
			if answer := w.must(e, fmt.Sprint("k", i), &text{Value: "counter/b"}); answer.GetReplayed() || unpack(t, answer.GetReply()) != int64(i+2) {
				t.Errorf("key %d: %v", i, answer)
			}
		}
		w.drained(e, ref("counter", "b"), 10)
	}
}

// A leader that another one has replaced, and that does not know yet, refuses nothing
// for good: the key may have been executed under the other one.
func TestReplacedLeaderRefusesNothingForGood(t *testing.T) {
	limits := actors.DefaultLimits()
	limits.State = 100
	for name, s := range map[string]submitted{
		"too large": {ref: ref("big", "a"), key: "k", command: &text{}},
		"issued ahead of the leader's clock": {ref: ref("counter", "a"), key: "k", command: &num{}, change: func(r *writv1.SubmitRequest) {
			r.IssuedAt = timestamppb.New(time.Now().Add(12 * time.Hour))
		}},
		"another version": {ref: ref("counter", "a"), key: "k", command: &num{}, change: func(r *writv1.SubmitRequest) {
			r.IfVersion = proto.Uint64(7)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldConfig{
				kinds:  []entity.Definer{kind("counter", hooks{}), bigKind()},
				change: func(c *actors.Config) { c.Limits = limits },
			})
			old := w.leases[0]
			old.hold()
			call := w.later(s)
			w.metrics.until(t, func() bool { return old.waiting() > 0 || len(call) > 0 })
			old.end(nil)
			wantReason(t, (<-call).err, entity.NotExecuted)
		})
	}
}

// A handler that outlives the lease decides nothing.
func TestHandlerOutlivesLease(t *testing.T) {
	begun, free := make(chan struct{}, 1), make(chan struct{})
	var slowOnce atomic.Bool
	w := newWorld(t, worldConfig{kinds: []entity.Definer{kind("counter", hooks{command: func(_ *entity.Context, s *num, _ string) error {
		if !slowOnce.Swap(true) {
			begun <- struct{}{}
			<-free
		}
		s.Value++
		return nil
	}})}})
	e := ref("counter", "a")
	slow := w.later(submitted{ref: e, key: "k", command: &text{}})
	<-begun
	w.leases[0].end(nil)
	w.lead(0)
	if answer := w.must(e, "k", &text{}); answer.GetReplayed() || answer.GetVersion() != 1 {
		t.Errorf("answer %v", answer)
	}
	close(free)
	wantReason(t, (<-slow).err, entity.NotExecuted)
	if value, version := w.read(e); value != 1 || version != 1 {
		t.Errorf("value %d, version %d", value, version)
	}
}

// A new lease starts the relays of all entities with rows, and of no others.
func TestTakeover(t *testing.T) {
	const sources = 300
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{})}})
	w.courier.set(func(*nodev1.DeliverRequest, deliverFunc) (*nodev1.DeliverResponse, error) {
		return nil, errors.New("no way")
	})
	var wg sync.WaitGroup
	for i := range sources {
		wg.Go(func() { w.must(ref("a", fmt.Sprint(i)), "k", &text{Value: "b/1 b/2"}) })
		wg.Go(func() { w.must(ref("a", fmt.Sprint("silent", i)), "k", &num{Value: 1}) })
	}
	wg.Wait()
	w.leases[0].end(nil)
	w.courier.set(nil)
	before := w.metrics.get("activations")
	w.lead(0)
	w.metrics.until(t, func() bool {
		_, one := w.stored(ref("b", "1"))
		_, two := w.stored(ref("b", "2"))
		return one.GetVersion() == sources && two.GetVersion() == sources
	})
	for i := range sources {
		w.drained(ref("a", fmt.Sprint(i)), ref("b", "1"), 1)
	}
	if n := w.metrics.get("activations") - before; n > sources+2 {
		t.Errorf("%d activations for %d sources", n, sources)
	}
}

// slowEntities is a store whose entities of kind "a" cannot be read, once that is
// slow, until free is closed. It counts how many are being read.
type slowEntities struct {
	actors.Store
	world     **world
	slow      *atomic.Bool
	free      <-chan struct{}
	now, peak *atomic.Int64
}

func (s slowEntities) Entity(ref entity.Ref) (*recordv1.EntityRecord, error) {
	if ref.Kind != "a" || !s.slow.Load() {
		return s.Store.Entity(ref)
	}
	now := s.now.Add(1)
	defer s.now.Add(-1)
	for peak := s.peak.Load(); now > peak && !s.peak.CompareAndSwap(peak, now); peak = s.peak.Load() {
	}
	(*s.world).metrics.poke()
	<-s.free
	return s.Store.Entity(ref)
}

// A takeover starts no more than 64 entities at once, however many have rows, and
// others get their turn beside them.
func TestTakeoverStartsFewAtOnce(t *testing.T) {
	const sources, atOnce = 300, 64 // as docs/limits.md says
	free := make(chan struct{})
	var w *world
	slow := slowEntities{world: &w, slow: new(atomic.Bool), free: free, now: new(atomic.Int64), peak: new(atomic.Int64)}
	w = newWorld(t, worldConfig{
		kinds: []entity.Definer{emitter("a"), kind("b", hooks{})},
		wrap: func(s actors.Store) actors.Store {
			slow.Store = s
			return slow
		},
	})
	w.courier.set(func(*nodev1.DeliverRequest, deliverFunc) (*nodev1.DeliverResponse, error) {
		return nil, errors.New("no way")
	})
	for i := range sources {
		w.must(ref("a", fmt.Sprint(i)), "k", &text{Value: "b/1"})
	}
	w.leases[0].end(nil)
	w.courier.set(nil)
	slow.slow.Store(true)
	w.lead(0)
	w.metrics.until(t, func() bool { return slow.now.Load() >= atOnce })
	for i := range 20 { // the gate has turns, and so have entities: one more would have begun
		w.must(ref("b", fmt.Sprint("other", i)), "k", &num{Value: 1})
	}
	if now := slow.now.Load(); now != atOnce {
		t.Errorf("%d entities start at once", now)
	}
	close(free)
	for i := range sources {
		w.drained(ref("a", fmt.Sprint(i)), ref("b", "1"), 1)
	}
	if peak := slow.peak.Load(); peak != atOnce {
		t.Errorf("%d entities started at once, want %d", peak, atOnce)
	}
}

// Late results of an old term change nothing: they carry the old token.
func TestLateAnswers(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{})}})
	a, b := ref("a", "1"), ref("b", "1")
	begun, free := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	first.Store(true)
	w.courier.set(func(_ *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error) {
		if first.Swap(false) {
			close(begun)
			<-free
			return &nodev1.DeliverResponse{Applied: 1}, nil
		}
		return deliver()
	})
	w.must(a, "1", &text{Value: "b/1"})
	<-begun
	w.leases[0].end(nil)
	w.lead(0)
	w.drained(a, b, 1)
	close(free)
	w.must(a, "2", &text{Value: "b/1"})
	w.drained(a, b, 2)
	if value, _ := w.read(b); value != 2 {
		t.Errorf("value %d", value)
	}
}

// An entity that is not used ends; calls at that very moment are not lost.
func TestPassivation(t *testing.T) {
	w := newWorld(t, worldConfig{change: func(c *actors.Config) { c.Passivation = time.Millisecond }})
	const entities, rounds = 20, 40
	var wg sync.WaitGroup
	for i := range entities {
		wg.Go(func() {
			e := ref("counter", fmt.Sprint(i))
			for k := range rounds {
				n := w.metrics.get("passivations")
				w.must(e, fmt.Sprint(k), &num{Value: 1})
				if k%8 == i%8 { // wait for a sweep and meet it
					w.metrics.until(t, func() bool { return w.metrics.get("passivations") > n })
				}
			}
		})
	}
	wg.Wait()
	for i := range entities {
		if value, version := w.read(ref("counter", fmt.Sprint(i))); value != rounds || version != rounds {
			t.Errorf("entity %d: value %d, version %d", i, value, version)
		}
	}
	if w.metrics.get("passivations") == 0 {
		t.Error("nothing was passivated")
	}
}

// More entities than may stay in memory, or larger ones: those end that have been
// unused for longest.
func TestMoreThanMayLive(t *testing.T) {
	note := entity.NewKind[*text]("note")
	entity.Handle(note, func(_ *entity.Context, s, cmd *text) (*text, error) {
		s.Value = cmd.GetValue()
		return s, nil
	})
	const entities, most = 50, 10
	for _, test := range []struct {
		name   string
		change func(*actors.Limits)
	}{
		{"count", func(l *actors.Limits) { l.Activations = most }},
		{"bytes", func(l *actors.Limits) { l.ActivationBytes = most * 1010 }}, // a state is 1,000 bytes and a few
	} {
		t.Run(test.name, func(t *testing.T) {
			limits := actors.DefaultLimits()
			test.change(&limits)
			w := newWorld(t, worldConfig{
				kinds:  []entity.Definer{note},
				change: func(c *actors.Config) { c.Limits, c.Passivation = limits, 80*time.Hour }, // a tick is a second
			})
			id := func(i int) entity.Ref { return ref("note", fmt.Sprint(i)) }
			for i := range entities {
				w.must(id(i), "k", &text{Value: strings.Repeat("x", 1000)})
			}
			w.metrics.until(t, func() bool { return w.metrics.get("activations")-w.metrics.get("passivations") == most })
			for i := entities - most; i < entities; i++ {
				w.must(id(i), "k", &text{Value: strings.Repeat("x", 1000)}) // replayed
			}
			if n := w.metrics.get("activations"); n != entities {
				t.Errorf("the last %d entities to be used have been passivated, the others not: %d activations of %d entities", most, n, entities)
			}
			w.must(id(0), "k2", &text{Value: "y"})
			if n := w.metrics.get("activations"); n != entities+1 {
				t.Errorf("%d activations, want %d: the first entity was not passivated, or another one too", n, entities+1)
			}
		})
	}
}

// Entities that cannot end, since their destination is away, take nobody else's place.
func TestBusyOnesTakeNoPlace(t *testing.T) {
	const busy, idle = 50, 10
	limits := actors.DefaultLimits()
	limits.Activations = idle
	w := newWorld(t, worldConfig{
		kinds:  []entity.Definer{emitter("a"), kind("b", hooks{})},
		change: func(c *actors.Config) { c.Limits, c.Passivation = limits, 80*time.Hour }, // a tick is a second
	})
	w.courier.set(func(*nodev1.DeliverRequest, deliverFunc) (*nodev1.DeliverResponse, error) {
		return nil, errors.New("no way")
	})
	for i := range busy {
		w.must(ref("a", fmt.Sprint(i)), "k", &text{Value: "b/1"})
	}
	for i := range idle {
		w.must(ref("b", fmt.Sprint(i)), "k", &num{Value: 1})
	}
	for more := range 3 {
		w.must(ref("b", fmt.Sprint(idle+more)), "k", &num{Value: 1})
		w.metrics.until(t, func() bool { return w.metrics.get("passivations") > more })
		if live := w.metrics.get("activations") - w.metrics.get("passivations"); live != busy+idle {
			t.Fatalf("%d entities live, want %d that are busy and %d others", live, busy, idle)
		}
	}
	w.courier.set(nil)
}

// Work in the mailbox is activity, and rows in the outbox are too.
func TestBusyIsNotIdle(t *testing.T) {
	free := make(chan struct{})
	w := newWorld(t, worldConfig{
		kinds: []entity.Definer{kind("counter", hooks{command: func(c *entity.Context, s *num, what string) error {
			if what == "slow" {
				<-free
			} else {
				c.Emit(entity.To("counter", "c"), &num{Value: 1})
			}
			return nil
		}})},
		change: func(c *actors.Config) { c.Passivation = time.Millisecond },
	})
	slow, idle, sends := ref("counter", "slow"), ref("counter", "idle"), ref("counter", "sends")
	w.courier.set(func(*nodev1.DeliverRequest, deliverFunc) (*nodev1.DeliverResponse, error) {
		return nil, errors.New("no way")
	})
	w.must(sends, "k", &text{})
	calls := []<-chan result{w.later(submitted{ref: slow, key: "slow", command: &text{Value: "slow"}})}
	for i := range 50 {
		calls = append(calls, w.later(submitted{ref: slow, key: fmt.Sprint(i), command: &num{Value: 1}}))
	}
	for range 3 { // the others come and go
		n := w.metrics.get("passivations")
		w.must(idle, fmt.Sprint("k", n), &num{Value: 1})
		w.metrics.until(t, func() bool { return w.metrics.get("passivations") > n })
	}
	close(free)
	for _, call := range calls {
		if r := <-call; r.err != nil {
			t.Error(r.err)
		}
	}
	w.courier.set(nil)
	w.drained(sends, ref("counter", "c"), 1)
}

func TestDropAndClose(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	w.must(e, "0", &num{Value: 1})
	w.leases[0].hold()
	inFlight := w.later(submitted{ref: e, key: "1", command: &num{Value: 1}})
	w.held(0, 1)
	w.rt.Drop(0)
	wantReason(t, (<-inFlight).err, entity.OutcomeUnknown)
	_, err := w.submit(submitted{ref: e, key: "1", command: &num{Value: 1}})
	wantReason(t, err, entity.NotExecuted)
	w.leases[0].release()
	if err := w.rt.Open(0, w.stores[0]); err != nil {
		t.Fatal(err)
	}
	if err := w.rt.Open(0, w.stores[0]); err == nil {
		t.Error("opened twice")
	}
	w.leases[0].end(nil)
	w.lead(0)
	w.must(e, "1", &num{Value: 1})
	if value, _ := w.read(e); value != 2 {
		t.Errorf("value %d", value)
	}
	for range 2 {
		if err := w.rt.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	_, err = w.submit(submitted{ref: e, key: "1", command: &num{Value: 1}})
	wantReason(t, err, entity.NotExecuted)
	wantReason(t, w.rt.Open(0, w.stores[0]), entity.NotExecuted)
}

// A handler that does not come back is named, keeps no shard from being dropped
// and opened again, and what it decides in the end has no effect.
func TestDropWithHangingHandler(t *testing.T) {
	begun, hang := make(chan struct{}), make(chan struct{})
	var told lines
	w := newWorld(t, worldConfig{
		kinds: []entity.Definer{kind("counter", hooks{command: func(_ *entity.Context, s *num, what string) error {
			if what == "hang" {
				close(begun)
				<-hang
			}
			s.Value += 100
			return nil
		}})},
		change: func(c *actors.Config) {
			c.Patience, c.Passivation = 50*time.Millisecond, 80*time.Millisecond
			c.Logger = slog.New(slog.NewTextHandler(&told, nil))
		},
	})
	e := ref("counter", "a")
	hung := w.later(submitted{ref: e, key: "1", command: &text{Value: "hang"}})
	<-begun
	w.metrics.until(t, func() bool { return w.metrics.get("handlers_hung") == 1 })
	w.rt.Drop(0)
	wantReason(t, (<-hung).err, entity.OutcomeUnknown)
	for _, want := range []string{"does not come back: its entity stands still", "is dropped without waiting", "t/counter/", "google.protobuf.StringValue"} {
		if !told.has(want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	if err := w.rt.Open(0, w.stores[0]); err != nil {
		t.Fatal(err)
	}
	w.leases[0].end(nil)
	w.lead(0)
	w.must(e, "2", &num{Value: 1})
	close(hang)
	w.must(e, "1", &text{Value: "fine"}) // the key was never used
	if value, version := w.read(e); value != 101 || version != 2 {
		t.Errorf("value %d, version %d", value, version)
	}
}

// A query that does not come back is named as one, and its entity goes on.
func TestHangingQuery(t *testing.T) {
	begun, hang := make(chan struct{}), make(chan struct{})
	var told lines
	asked := kind("counter", hooks{})
	entity.Read(asked, func(s *num, _ *text) (*num, error) {
		close(begun)
		<-hang
		return s, nil
	})
	w := newWorld(t, worldConfig{kinds: []entity.Definer{asked}, change: func(c *actors.Config) {
		c.Patience, c.Passivation = 50*time.Millisecond, 80*time.Millisecond
		c.Logger = slog.New(slog.NewTextHandler(&told, nil))
	}})
	e := ref("counter", "a")
	answered := make(chan error, 1)
	go func() {
		_, err := w.readWith(e, func(r *writv1.ReadRequest) { r.Query = pack(t, &text{}) })
		answered <- err
	}()
	<-begun
	w.metrics.until(t, func() bool { return w.metrics.get("handlers_hung") == 1 })
	w.must(e, "1", &num{Value: 1})
	if !told.has("it is a query, and holds up nobody but its caller") || told.has("stands still") {
		t.Errorf("the log says %q", told.text.String())
	}
	close(hang)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// lines is a log that can be looked into.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

// Load, terms that change, panics and passivation at once: every key takes effect
// once and every event is applied once.
func TestStorm(t *testing.T) {
	w := newWorld(t, worldConfig{
		shards: 3,
		kinds: []entity.Definer{
			kind("a", hooks{command: func(c *entity.Context, s *num, _ string) error {
				s.Value++
				if c.Time().UnixNano()%7 == 0 {
					panic("now and then")
				}
				c.Emit(entity.To("b", fmt.Sprint(s.GetValue()%3)), &num{Value: 1})
				return nil
			}}),
			kind("b", hooks{event: func(c *entity.Context, s *num, n int64) error {
				if c.Time().UnixNano()%11 == 0 {
					panic("now and then")
				}
				s.Value += n
				return nil
			}}),
		},
		change: func(c *actors.Config) { c.Passivation, c.MaxAttempts = time.Millisecond, 1000 },
	})
	const entities, keys = 10, 100
	stop := make(chan struct{})
	var terms sync.WaitGroup
	terms.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			verdict := []entity.Reason{entity.NotExecuted, entity.OutcomeUnknown}[i%2]
			w.leases[i%3].end(entity.Errorf(verdict, "the term is over"))
			w.lead(i % 3)
		}
	})
	var load sync.WaitGroup
	for i := range entities {
		for k := range keys {
			load.Go(func() {
				s := submitted{ref: ref("a", fmt.Sprint(i)), key: fmt.Sprint(k), command: &text{Value: "x"}}
				for {
					_, err := w.submit(s)
					if r := entity.ReasonOf(err); r == entity.NotExecuted || r == entity.OutcomeUnknown || r == entity.HandlerPanic {
						continue
					}
					if err != nil {
						t.Error(err)
					}
					return
				}
			})
		}
	}
	load.Wait()
	close(stop)
	terms.Wait()
	total := func() (sum int64) {
		for i := range 3 {
			value, _ := w.stored(ref("b", fmt.Sprint(i)))
			sum += value
		}
		return sum
	}
	w.metrics.until(t, func() bool { return total() >= entities*keys })
	for i := range entities {
		a := ref("a", fmt.Sprint(i))
		if value, version := w.read(a); value != keys || version != keys {
			t.Errorf("entity %d: value %d, version %d", i, value, version)
		}
		for j := range 3 {
			b := ref("b", fmt.Sprint(j))
			w.metrics.until(t, func() bool { l := w.lane(a, b); return l.GetConfirmed() == l.GetNumbered() })
		}
	}
	if n := total(); n != entities*keys {
		t.Errorf("%d events applied, want %d", n, entities*keys)
	}
}
