package actors_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors"
	"writ/actors/entity"
	"writ/persistence"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	writv1 "writ/proto/writ/v1"
	"writ/sharding"
)

// Short names for the messages of the kinds under test.
type (
	num  = wrapperspb.Int64Value  // state; command: add; event
	text = wrapperspb.StringValue // command: whatever the test makes of it
	flag = wrapperspb.BoolValue   // command without deduplication; query
)

// hooks are the handlers that a test wants to write itself.
type hooks struct {
	command func(c *entity.Context, s *num, what string) error
	event   func(c *entity.Context, s *num, n int64) error
}

// kind is a counter with hooks.
func kind(name string, h hooks) *entity.Kind[*num] {
	k := entity.NewKind[*num](name)
	entity.Handle(k, func(c *entity.Context, s *num, cmd *num) (*num, error) {
		if s.GetValue()+cmd.GetValue() < 0 {
			return nil, c.Reject(entity.OutOfRange, "NEGATIVE", "%d is not enough", s.GetValue())
		}
		s.Value += cmd.GetValue()
		return s, nil
	})
	entity.Handle(k, func(c *entity.Context, s *num, cmd *text) (*num, error) {
		if h.command == nil {
			return s, nil
		}
		if err := h.command(c, s, cmd.GetValue()); err != nil {
			return nil, err
		}
		return s, nil
	})
	entity.Handle(k, func(_ *entity.Context, s *num, cmd *flag) (*num, error) {
		if cmd.GetValue() {
			s.Value++
		}
		return s, nil
	}, entity.AtLeastOnce())
	entity.On(k, func(c *entity.Context, s *num, e *num) error {
		if h.event != nil {
			return h.event(c, s, e.GetValue())
		}
		s.Value += e.GetValue()
		return nil
	})
	entity.Read(k, func(s *num, q *flag) (*num, error) {
		if !q.GetValue() {
			return nil, errors.New("no")
		}
		s.Value *= 2 // a query gets a copy
		return s, nil
	})
	return k
}

// world is a node with its shards, stores and leases, without a log between them.
type world struct {
	t       testing.TB
	rt      *actors.Runtime
	shards  uint32
	stores  []*persistence.Store
	logs    []*log
	leases  []*lease
	courier *courier
	metrics *metrics
}

type worldConfig struct {
	shards uint32
	kinds  []entity.Definer
	change func(*actors.Config)
	wrap   func(actors.Store) actors.Store // comes between runtime and store
	// generation is the log time whose keys are forgotten together; 1 ms if 0. A
	// long run needs more: each has a filter of its own in memory.
	generation time.Duration
}

func newWorld(tb testing.TB, c worldConfig) *world {
	tb.Helper()
	if c.shards == 0 {
		c.shards = 1
	}
	if c.generation == 0 {
		c.generation = time.Millisecond
	}
	if c.kinds == nil {
		c.kinds = []entity.Definer{kind("counter", hooks{})}
	}
	registry, err := entity.NewRegistry(c.kinds...)
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{t: tb, shards: c.shards, metrics: newMetrics()}
	w.courier = &courier{world: w}
	cfg := actors.Config{
		Node: "n1", Registry: registry, Shards: func() uint32 { return c.shards }, Courier: w.courier, Metrics: w.metrics,
		Retry:  actors.Retry{First: time.Millisecond, Most: 4 * time.Millisecond},
		Logger: slog.New(slog.DiscardHandler),
	}
	if c.change != nil {
		c.change(&cfg)
	}
	if w.rt, err = actors.New(cfg); err != nil {
		tb.Fatal(err)
	}
	for i, r := range sharding.Split(c.shards) {
		store, err := persistence.Create(persistence.Config{
			Path: filepath.Join(tb.TempDir(), "shard"), ClusterID: "test", Shard: uint32(i), Range: r,
			Epoch: 1, Generation: 1, GenerationWidth: c.generation, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			tb.Fatal(err)
		}
		w.stores = append(w.stores, store)
		w.logs = append(w.logs, &log{t: tb, store: store, poke: w.metrics.poke})
		w.leases = append(w.leases, nil)
		seen := actors.Store(store)
		if c.wrap != nil {
			seen = c.wrap(store)
		}
		if err := w.rt.Open(uint32(i), seen); err != nil {
			tb.Fatal(err)
		}
		w.lead(i)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := w.rt.Close(ctx); err != nil {
			tb.Error(err)
		}
		for i := range w.stores {
			w.leases[i].stop() // what it has in hand goes into the store before that is closed
			w.check(i)
			if err := w.stores[i].Close(); err != nil {
				tb.Error(err)
			}
		}
	})
	return w
}

// check has the store audited: every test ends with a sound store.
func (w *world) check(i int) {
	w.t.Helper()
	audit, err := w.stores[i].Audit(context.Background())
	if err != nil {
		w.t.Errorf("audit: %v", err)
		return
	}
	for _, finding := range audit.Findings {
		w.t.Errorf("shard %d: %s", i, finding)
	}
}

// lead begins a new term of a shard.
func (w *world) lead(i int) *lease {
	w.leases[i] = w.logs[i].newLease()
	w.rt.Lead(uint32(i), w.leases[i])
	return w.leases[i]
}

// held waits until n records and barriers of a shard's lease are held back.
func (w *world) held(i, n int) {
	w.t.Helper()
	w.metrics.until(w.t, func() bool { return w.leases[i].waiting() >= n })
}

func (w *world) shard(ref entity.Ref) uint32 { return sharding.Locate(w.shards, ref) }

func ref(kind, id string) entity.Ref { return entity.Ref{Tenant: "t", Kind: kind, ID: id} }

func pack(tb testing.TB, m proto.Message) *anypb.Any {
	tb.Helper()
	a, err := anypb.New(m)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// submitted is a command as tests write it.
type submitted struct {
	ref     entity.Ref
	key     string
	command proto.Message
	change  func(*writv1.SubmitRequest)
}

func (w *world) request(s submitted) *nodev1.ForwardRequest {
	req := &writv1.SubmitRequest{
		Entity:         &writv1.EntityRef{Kind: s.ref.Kind, Id: s.ref.ID},
		IdempotencyKey: s.key, Command: pack(w.t, s.command),
	}
	if s.change != nil {
		s.change(req)
	}
	return &nodev1.ForwardRequest{Shard: w.shard(s.ref), Tenant: s.ref.Tenant, Call: &nodev1.ForwardRequest_Submit{Submit: req}}
}

func (w *world) submit(s submitted) (*writv1.SubmitResponse, error) {
	answer, err := w.rt.Forward(w.t.Context(), w.request(s))
	return answer.GetSubmit(), err
}

// must submits a command that has to be executed.
func (w *world) must(ref entity.Ref, key string, command proto.Message) *writv1.SubmitResponse {
	w.t.Helper()
	answer, err := w.submit(submitted{ref: ref, key: key, command: command})
	if err != nil || answer.GetRejection() != nil {
		w.t.Fatalf("submit %v %q: %v, %v", ref, key, answer, err)
	}
	return answer
}

// later submits in the background.
func (w *world) later(s submitted) <-chan result {
	done := make(chan result, 1)
	go func() {
		answer, err := w.submit(s)
		done <- result{answer, err}
	}()
	return done
}

type result struct {
	answer *writv1.SubmitResponse
	err    error
}

func (w *world) read(ref entity.Ref) (int64, uint64) {
	w.t.Helper()
	answer, err := w.readWith(ref, nil)
	if err != nil {
		w.t.Fatalf("read %v: %v", ref, err)
	}
	return unpack(w.t, answer.GetState()), answer.GetVersion()
}

func (w *world) readWith(ref entity.Ref, change func(*writv1.ReadRequest)) (*writv1.ReadResponse, error) {
	req := &writv1.ReadRequest{Entity: &writv1.EntityRef{Kind: ref.Kind, Id: ref.ID}}
	if change != nil {
		change(req)
	}
	answer, err := w.rt.Forward(w.t.Context(), &nodev1.ForwardRequest{
		Shard: w.shard(ref), Tenant: ref.Tenant, Call: &nodev1.ForwardRequest_Read{Read: req},
	})
	return answer.GetRead(), err
}

func unpack(tb testing.TB, a *anypb.Any) int64 {
	tb.Helper()
	n := &num{}
	if err := a.UnmarshalTo(n); err != nil {
		tb.Fatal(err)
	}
	return n.GetValue()
}

// stored is what the store holds of an entity's value.
func (w *world) stored(ref entity.Ref) (value int64, rec *recordv1.EntityRecord) {
	w.t.Helper()
	rec, err := w.stores[w.shard(ref)].Entity(ref)
	if err != nil {
		w.t.Fatal(err)
	}
	n := &num{}
	if err := proto.Unmarshal(rec.GetState().GetData(), n); err != nil {
		w.t.Fatal(err)
	}
	return n.GetValue(), rec
}

func (w *world) lane(from, to entity.Ref) *recordv1.Lane {
	w.t.Helper()
	lane, err := w.stores[w.shard(from)].Lane(from, to)
	if err != nil {
		w.t.Fatal(err)
	}
	return lane
}

// drained waits until a lane has n confirmed rows.
func (w *world) drained(from, to entity.Ref, n uint64) {
	w.t.Helper()
	w.metrics.until(w.t, func() bool { return w.lane(from, to).GetConfirmed() >= n })
}

func wantReason(tb testing.TB, err error, want entity.Reason) {
	tb.Helper()
	if got := entity.ReasonOf(err); got != want {
		tb.Errorf("error is %v, want %s", err, want)
	}
}

// wantGone checks how a call ends whose caller has left or whose time is over. The
// refusal of what nobody waits for may be there at the same moment: then either goes.
func wantGone(tb testing.TB, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) && entity.ReasonOf(err) != entity.NotExecuted {
		tb.Errorf("error is %v, want %v or %s", err, want, entity.NotExecuted)
	}
}

// metrics counts, and wakes tests that wait for something to happen.
type metrics struct {
	mu     sync.Mutex
	counts map[string]int
	woken  chan struct{}
}

func newMetrics() *metrics { return &metrics{counts: map[string]int{}, woken: make(chan struct{})} }

func (m *metrics) Add(c actors.Counter, label string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[string(c)] += n
	if label != "" {
		m.counts[string(c)+" "+label] += n
	}
	m.wake()
}

// poke wakes tests that wait for something that is not counted.
func (m *metrics) poke() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wake()
}

func (m *metrics) wake() {
	close(m.woken)
	m.woken = make(chan struct{})
}

func (m *metrics) get(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[name]
}

// until waits for a condition, which is looked at whenever something is counted.
func (m *metrics) until(tb testing.TB, condition func() bool) {
	tb.Helper()
	timeout := time.After(20 * time.Second)
	for {
		m.mu.Lock()
		woken := m.woken
		m.mu.Unlock()
		if condition() {
			return
		}
		select {
		case <-woken:
		case <-timeout:
			tb.Fatalf("waited in vain; counts: %v", m.counts)
		}
	}
}

// courier delivers within the world; a test can come in between.
type courier struct {
	world *world
	mu    sync.Mutex
	via   func(req *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error)
}

type deliverFunc func() (*nodev1.DeliverResponse, error)

func (c *courier) set(via func(*nodev1.DeliverRequest, deliverFunc) (*nodev1.DeliverResponse, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.via = via
}

func (c *courier) Deliver(ctx context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
	to := req.GetRows()[0].GetDestination()
	req.Shard = c.world.shard(entity.Ref{Tenant: to.GetTenant(), Kind: to.GetKind(), ID: to.GetId()})
	deliver := func() (*nodev1.DeliverResponse, error) { return c.world.rt.Deliver(ctx, req) }
	c.mu.Lock()
	via := c.via
	c.mu.Unlock()
	if via != nil {
		return via(req, deliver)
	}
	return deliver()
}
