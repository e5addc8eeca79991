package actors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"writ/actors"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// emitter emits the event 1 to each "kind/id" that a command names.
func emitter(name string) *entity.Kind[*num] {
	return kind(name, hooks{command: func(c *entity.Context, s *num, what string) error {
		s.Value++
		for to := range strings.FieldsSeq(what) {
			kind, id, _ := strings.Cut(to, "/")
			c.Emit(entity.To(kind, id), &num{Value: 1})
		}
		return nil
	}})
}

func TestChain(t *testing.T) {
	w := newWorld(t, worldConfig{shards: 4, kinds: []entity.Definer{
		emitter("a"),
		kind("b", hooks{event: func(c *entity.Context, s *num, n int64) error {
			s.Value += n
			c.Emit(entity.To("c", "1"), &num{Value: 10 * n})
			return nil
		}}),
		kind("c", hooks{}),
	}})
	// Every answer is lost once, every second one twice.
	var mu sync.Mutex
	lost := map[string]int{}
	ids := map[string]string{} // lane and lane sequence → event id
	w.courier.set(func(req *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error) {
		answer, err := deliver()
		mu.Lock()
		defer mu.Unlock()
		for _, row := range req.GetRows() {
			at := fmt.Sprint(row.GetSource(), row.GetDestination(), row.GetLaneSequence())
			id := fmt.Sprint(row.GetSource(), row.GetEpoch(), row.GetSequence(), row.GetParent(), row.GetHops(), row.GetTrace())
			if before, sent := ids[at]; sent && before != id {
				t.Errorf("row %s was %s, is %s", at, before, id)
			}
			ids[at] = id
		}
		first := fmt.Sprint(req.GetRows()[0].GetSource(), req.GetRows()[0].GetLaneSequence())
		if lost[first]++; lost[first] <= 1+len(lost)%2 {
			return nil, errors.New("the answer is lost")
		}
		return answer, err
	})
	const n = 40
	for i := range n {
		w.must(ref("a", "1"), fmt.Sprint(i), &text{Value: "b/1"})
	}
	w.drained(ref("a", "1"), ref("b", "1"), n)
	w.drained(ref("b", "1"), ref("c", "1"), n)
	if value, _ := w.read(ref("b", "1")); value != n {
		t.Errorf("b is %d", value)
	}
	if value, version := w.read(ref("c", "1")); value != 10*n || version != n {
		t.Errorf("c is %d at version %d", value, version)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ids) != 2*n {
		t.Errorf("%d events", len(ids))
	}
}

// What a row tells about where it comes from.
func TestRows(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{
		emitter("a"),
		kind("b", hooks{event: func(c *entity.Context, _ *num, _ int64) error {
			c.Emit(entity.To("a", c.Source().ID), &num{Value: 1})
			return nil
		}}),
	}})
	var mu sync.Mutex
	var rows []*recordv1.Row
	w.courier.set(func(req *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error) {
		mu.Lock()
		rows = append(rows, req.GetRows()...)
		mu.Unlock()
		return deliver()
	})
	req := w.request(submitted{ref: ref("a", "1"), key: "k", command: &text{Value: "b/1"}})
	req.Trace = "00-trace"
	if _, err := w.rt.Forward(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	w.drained(ref("b", "1"), ref("a", "1"), 1)
	mu.Lock()
	defer mu.Unlock()
	out, back := rows[0], rows[1]
	if out.GetHops() != 1 || out.GetParent() != nil || out.GetTrace() != "00-trace" || out.GetAcceptedAt() == 0 {
		t.Errorf("first row: %v", out)
	}
	if back.GetHops() != 2 || back.GetTrace() != "00-trace" || back.GetAcceptedAt() != out.GetAcceptedAt() {
		t.Errorf("second row: %v", back)
	}
	want := &recordv1.EventId{Source: out.GetSource(), Epoch: out.GetEpoch(), Sequence: out.GetSequence()}
	if !proto.Equal(back.GetParent(), want) {
		t.Errorf("parent is %v, want %v", back.GetParent(), want)
	}
}

func TestOrder(t *testing.T) {
	var mu sync.Mutex
	var seen []int64
	w := newWorld(t, worldConfig{shards: 2, kinds: []entity.Definer{
		kind("a", hooks{command: func(c *entity.Context, s *num, _ string) error {
			for range 500 {
				s.Value++
				c.Emit(entity.To("b", "1"), &num{Value: s.GetValue()})
			}
			return nil
		}}),
		kind("b", hooks{event: func(_ *entity.Context, s *num, n int64) error {
			mu.Lock()
			seen = append(seen, n)
			mu.Unlock()
			s.Value = n
			return nil
		}}),
	}})
	for i := range 10 {
		w.must(ref("a", "1"), fmt.Sprint(i), &text{})
	}
	w.drained(ref("a", "1"), ref("b", "1"), 5000)
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 5000 || !slices.IsSorted(seen) {
		t.Errorf("%d events, sorted %v", len(seen), slices.IsSorted(seen))
	}
}

func TestGap(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{})}})
	w.courier.set(func(*nodev1.DeliverRequest, deliverFunc) (*nodev1.DeliverResponse, error) {
		return nil, errors.New("no way")
	})
	for i := range 5 {
		w.must(ref("a", "1"), fmt.Sprint(i), &text{Value: "b/1"})
	}
	rows, err := w.stores[0].Rows(ref("a", "1"), ref("b", "1"), 1, 10, 1<<20)
	if err != nil || len(rows) != 5 {
		t.Fatal(rows, err)
	}
	deliver := func(rows []*recordv1.Row) *nodev1.DeliverResponse {
		t.Helper()
		answer, err := w.rt.Deliver(t.Context(), &nodev1.DeliverRequest{Rows: rows})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for _, tt := range []struct {
		from, to int
		applied  uint64
		gap      bool
	}{
		{1, 3, 0, true}, {0, 1, 1, false}, {0, 1, 1, false}, {2, 4, 1, true}, {0, 3, 3, false}, {1, 5, 5, false}, {0, 5, 5, false},
	} {
		answer := deliver(rows[tt.from:tt.to])
		if answer.GetApplied() != tt.applied || answer.GetGap() != tt.gap || answer.GetRefusal() != nil {
			t.Errorf("rows %d to %d: %v", tt.from+1, tt.to, answer)
		}
	}
	// A batch that overtakes the one before it waits for it a moment.
	if value, version := w.read(ref("b", "1")); value != 5 || version != 5 {
		t.Errorf("value %d, version %d", value, version)
	}
	w.courier.set(nil)
	w.drained(ref("a", "1"), ref("b", "1"), 5)
}

// The destination has lost what was confirmed: the lane is parked, not skipped.
func TestLostDestination(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{})}})
	a, b := ref("a", "1"), ref("b", "1")
	w.must(a, "1", &text{Value: "b/1"})
	w.drained(a, b, 1)
	w.courier.set(func(*nodev1.DeliverRequest, deliverFunc) (*nodev1.DeliverResponse, error) {
		return &nodev1.DeliverResponse{Gap: true}, nil
	})
	w.must(a, "2", &text{Value: "b/1"})
	w.metrics.until(t, func() bool { return w.lane(a, b).GetStatus() == recordv1.Lane_PARKED })
	if reason := w.lane(a, b).GetReason(); !strings.Contains(reason, "lost") {
		t.Errorf("reason is %q", reason)
	}
}

// A relay that never comes to rest, since one destination is out of reach, forgets the
// lanes in which nothing is left, and takes them up again.
func TestMoreDestinationsThanAreKept(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{}), kind("away", hooks{})}})
	a := ref("a", "1")
	w.courier.set(func(req *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error) {
		if req.GetRows()[0].GetDestination().GetKind() == "away" {
			return nil, errors.New("no way")
		}
		return deliver()
	})
	w.must(a, "away", &text{Value: "away/1"})
	const destinations, rounds = 200, 4
	for round := range rounds {
		for i := range destinations {
			w.must(a, fmt.Sprint(round, "-", i), &text{Value: fmt.Sprintf("b/%d", i)})
		}
		for i := range destinations {
			w.drained(a, ref("b", fmt.Sprint(i)), uint64(round+1))
		}
	}
	w.courier.set(nil)
	w.drained(a, ref("away", "1"), 1)
	for i := range destinations {
		if value, _ := w.stored(ref("b", fmt.Sprint(i))); value != rounds {
			t.Errorf("destination %d has applied %d events, want %d", i, value, rounds)
		}
	}
}

func TestPoisonAmongGoodLanes(t *testing.T) {
	var panics, rejects atomic.Int64
	w := newWorld(t, worldConfig{shards: 2, kinds: []entity.Definer{
		emitter("a"), kind("good", hooks{}),
		kind("panics", hooks{event: func(*entity.Context, *num, int64) error {
			panics.Add(1)
			panic("no \xff") // what is not UTF-8 cannot be sent
		}}),
		kind("rejects", hooks{event: func(c *entity.Context, _ *num, _ int64) error {
			rejects.Add(1)
			return c.Reject(entity.NotFound, "NO", "never")
		}}),
	}})
	a := ref("a", "1")
	w.must(a, "bad", &text{Value: "missing/1 panics/1 rejects/1 good/1 panics/1"})
	for i := range 100 {
		w.must(a, fmt.Sprint(i), &text{Value: fmt.Sprintf("good/%d", i%10)})
	}
	for i := range 10 {
		w.drained(a, ref("good", fmt.Sprint(i)), 10)
	}
	for _, tt := range []struct {
		to       string
		attempts uint32
		reason   string
	}{{"missing", 0, "UNKNOWN_KIND"}, {"panics", 8, "PANICKED"}, {"rejects", 8, "NO: never"}} {
		to := ref(tt.to, "1")
		w.metrics.until(t, func() bool { return w.lane(a, to).GetStatus() == recordv1.Lane_PARKED })
		if l := w.lane(a, to); l.GetAttempts() != tt.attempts || !strings.Contains(l.GetReason(), tt.reason) || l.GetConfirmed() != 0 {
			t.Errorf("%s: %v", tt.to, l)
		}
	}
	if panics.Load() != 8 || rejects.Load() != 8 {
		t.Errorf("%d panics, %d rejections", panics.Load(), rejects.Load())
	}
	w.metrics.until(t, func() bool { return w.metrics.get("parks") == 3 && w.metrics.get("attempts") == 16 })
}

// Rows stay in order after one that is refused for a while.
func TestRefusedForAWhile(t *testing.T) {
	var mu sync.Mutex
	var seen []int64
	tries := 0
	w := newWorld(t, worldConfig{kinds: []entity.Definer{
		kind("a", hooks{command: func(c *entity.Context, _ *num, _ string) error {
			for i := range int64(5) {
				c.Emit(entity.To("b", "1"), &num{Value: i + 1})
			}
			return nil
		}}),
		kind("b", hooks{event: func(c *entity.Context, _ *num, n int64) error {
			mu.Lock()
			defer mu.Unlock()
			if tries++; n == 3 && tries < 6 {
				return c.Reject(entity.NotFound, "NO", "not yet")
			}
			seen = append(seen, n)
			return nil
		}}),
	}})
	a, b := ref("a", "1"), ref("b", "1")
	w.must(a, "k", &text{})
	w.drained(a, b, 5)
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(seen, []int64{1, 2, 3, 4, 5}) {
		t.Errorf("seen %v", seen)
	}
	if l := w.lane(a, b); l.GetAttempts() != 0 || l.GetStatus() != recordv1.Lane_ACTIVE {
		t.Errorf("lane %v", l)
	}
}

func TestOperator(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	w := newWorld(t, worldConfig{kinds: []entity.Definer{
		emitter("a"),
		kind("b", hooks{event: func(c *entity.Context, s *num, _ int64) error {
			if broken.Load() {
				return c.Reject(entity.NotFound, "NO", "broken")
			}
			s.Value++
			return nil
		}}),
	}})
	a, b := ref("a", "1"), ref("b", "1")
	change := func(u *recordv1.LaneUpdate) error {
		u.Source = &recordv1.Ref{Tenant: "t", Kind: "a", Id: "1"}
		u.Destination = &recordv1.Ref{Tenant: "t", Kind: "b", Id: "1"}
		return w.rt.UpdateLane(t.Context(), 0, u)
	}
	resume := func() *recordv1.LaneUpdate {
		return &recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Resume{Resume: true}}
	}
	for i := range 3 {
		w.must(a, fmt.Sprint(i), &text{Value: "b/1"})
	}
	parked := func() bool { return w.lane(a, b).GetStatus() == recordv1.Lane_PARKED }
	w.metrics.until(t, parked)
	if err := change(resume()); err != nil { // still broken: parked again
		t.Fatal(err)
	}
	w.metrics.until(t, func() bool { return w.metrics.get("parks") == 2 })
	if err := change(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Skip{Skip: 1}}); err != nil {
		t.Fatal(err)
	}
	broken.Store(false)
	if err := change(resume()); err != nil {
		t.Fatal(err)
	}
	w.drained(a, b, 3)
	if value, version := w.read(b); value != 2 || version != 3 {
		t.Errorf("value %d, version %d", value, version)
	}
	if err := change(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: "wait"}}}); err != nil {
		t.Fatal(err)
	}
	w.must(a, "4", &text{Value: "b/1"})
	if err := change(resume()); err != nil {
		t.Fatal(err)
	}
	w.drained(a, b, 4)
	wantReason(t, change(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Confirm{Confirm: 9}}), entity.Invalid)
}

// Lanes that are not kept in mind go on where they were: with their numbers, and
// standing if they stood.
func TestManyLanes(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{})}})
	a := ref("a", "1")
	const lanes, rounds = 300, 4
	var all strings.Builder
	for i := range lanes {
		fmt.Fprintf(&all, "b/%d ", i)
	}
	stands := ref("b", "7")
	change := func(u *recordv1.LaneUpdate) {
		t.Helper()
		u.Source, u.Destination = &recordv1.Ref{Tenant: "t", Kind: "a", Id: "1"}, &recordv1.Ref{Tenant: "t", Kind: "b", Id: "7"}
		if err := w.rt.UpdateLane(t.Context(), 0, u); err != nil {
			t.Fatal(err)
		}
	}
	for round := range uint64(rounds) {
		if round == 2 {
			change(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: "wait"}}})
			w.lead(0)
		}
		w.must(a, fmt.Sprint(round), &text{Value: all.String()})
		for i := range lanes {
			if to := ref("b", fmt.Sprint(i)); round < 2 || to != stands {
				w.drained(a, to, round+1)
			}
		}
	}
	if l := w.lane(a, stands); l.GetStatus() != recordv1.Lane_PAUSED || l.GetConfirmed() != 2 || l.GetNumbered() != rounds {
		t.Errorf("lane %v", l)
	}
	change(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Resume{Resume: true}})
	w.drained(a, stands, rounds)
	if value, _ := w.read(stands); value != rounds {
		t.Errorf("value %d", value)
	}
}

func TestHopLimit(t *testing.T) {
	limits := actors.DefaultLimits()
	limits.Hops = 5
	w := newWorld(t, worldConfig{
		kinds: []entity.Definer{kind("a", hooks{
			command: func(c *entity.Context, _ *num, _ string) error {
				c.Emit(entity.To("a", "1"), &num{Value: 1})
				return nil
			},
			event: func(c *entity.Context, s *num, _ int64) error {
				s.Value++
				c.Emit(entity.To("a", "1"), &num{Value: 1})
				return nil
			},
		})},
		change: func(c *actors.Config) { c.Limits = limits },
	})
	a := ref("a", "1")
	w.must(a, "k", &text{})
	w.metrics.until(t, func() bool { return w.lane(a, a).GetStatus() == recordv1.Lane_PARKED })
	if value, _ := w.stored(a); value != 5 {
		t.Errorf("%d rounds", value)
	}
	if reason := w.lane(a, a).GetReason(); !strings.Contains(reason, "HOP_LIMIT") {
		t.Errorf("reason is %q", reason)
	}
}

// A handler of events that fails leaves the good entities of its shard alone, and
// trouble on the way counts no attempt.
func TestTroubleCountsNoAttempt(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{})}})
	var tries atomic.Int64
	w.courier.set(func(_ *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error) {
		if n := tries.Add(1); n <= 20 {
			return nil, []error{context.DeadlineExceeded, entity.Errorf(entity.Overloaded, "full").Retry(time.Millisecond)}[n%2]
		}
		return deliver()
	})
	a, b := ref("a", "1"), ref("b", "1")
	w.must(a, "k", &text{Value: "b/1"})
	w.drained(a, b, 1)
	if w.metrics.get("attempts") != 0 || tries.Load() < 21 {
		t.Errorf("%d attempts, %d tries", w.metrics.get("attempts"), tries.Load())
	}
}

// TestRollingUpgrade covers that what a destination's node does not know yet (an
// event, or a field of it) waits in order and counts no attempt; after long enough
// its lane is parked.
func TestRollingUpgrade(t *testing.T) {
	newer := &num{Value: 1}
	newer.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	for name, tt := range map[string]struct {
		event  proto.Message
		reason string
	}{
		"event": {&text{Value: "x"}, "of node n1 does not handle event"},
		"field": {newer, "has a field that node n1 does not know: 99"},
	} {
		t.Run(name, func(t *testing.T) {
			kinds := []entity.Definer{kind("b", hooks{}), kind("a", hooks{command: func(c *entity.Context, _ *num, _ string) error {
				c.Emit(entity.To("b", "1"), tt.event)
				c.Emit(entity.To("b", "1"), &num{Value: 1})
				return nil
			}})}
			a, b := ref("a", "1"), ref("b", "1")
			refused := func(w *world, upgraded func(n int64) bool) *atomic.Int64 {
				var n atomic.Int64
				w.courier.set(func(req *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error) {
					if upgraded(n.Load()) && req.GetRows()[0].GetLaneSequence() == 1 {
						req.Rows[0].Event = nil // as if the node knew it now
					}
					answer, err := deliver()
					if r := answer.GetRefusal(); r != nil {
						if r.GetKind() != nodev1.Refusal_UNKNOWN_KIND || !strings.Contains(r.GetReason(), tt.reason) {
							t.Errorf("refused with %v", r)
						}
						n.Add(1)
					}
					return answer, err
				})
				return &n
			}
			w := newWorld(t, worldConfig{kinds: kinds})
			var upgraded atomic.Bool
			n := refused(w, func(n int64) bool { return n >= 20 && upgraded.Load() })
			w.must(a, "k", &text{})
			trouble := func() string { return w.rt.LaneTrouble(w.shard(a), a, b) }
			w.metrics.until(t, func() bool { return strings.Contains(trouble(), tt.reason) })
			if text := trouble(); !strings.HasPrefix(text, "UNKNOWN_KIND: ") || w.lane(a, b).GetReason() != "" {
				t.Errorf("operators are told %q, and the log %q", text, w.lane(a, b).GetReason())
			}
			upgraded.Store(true)
			w.drained(a, b, 2)
			if text := trouble(); text != "" {
				t.Errorf("it is over, and operators are told %q", text)
			}
			if n.Load() < 20 || w.metrics.get("attempts") != 0 || w.metrics.get("parks") != 0 {
				t.Errorf("%d refusals, %d attempts, %d parks", n.Load(), w.metrics.get("attempts"), w.metrics.get("parks"))
			}

			w = newWorld(t, worldConfig{kinds: kinds, change: func(c *actors.Config) { c.UpgradePatience = 20 * time.Millisecond }})
			refused(w, func(int64) bool { return false })
			w.must(a, "k", &text{})
			w.metrics.until(t, func() bool { return w.lane(a, b).GetStatus() == recordv1.Lane_PARKED })
			if l := w.lane(a, b); l.GetAttempts() != 0 || !strings.Contains(l.GetReason(), tt.reason) {
				t.Errorf("lane %v", l)
			}
		})
	}
}

// Confirmation, refusal and gap are told from committed state only.
func TestConsumerGate(t *testing.T) {
	w := newWorld(t, worldConfig{shards: 2, kinds: []entity.Definer{emitter("a"), kind("b", hooks{event: func(c *entity.Context, s *num, n int64) error {
		if s.GetValue() >= 2 {
			return c.Reject(entity.NotFound, "NO", "full")
		}
		s.Value += n
		return nil
	}})}})
	a, b := ref("a", "1"), ref("b", "1")
	for i := 2; w.shard(a) == w.shard(b); i++ {
		a = ref("a", fmt.Sprint(i))
	}
	answers := make(chan *nodev1.DeliverResponse, 100)
	w.courier.set(func(_ *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error) {
		answer, err := deliver()
		answers <- answer
		return answer, err
	})
	lease := w.leases[w.shard(b)]
	lease.hold()
	w.must(a, "k", &text{Value: "b/1 b/1 b/1"})
	w.held(int(w.shard(b)), 3) // two records and the barrier of the refusal
	select {
	case answer := <-answers:
		t.Errorf("answered before the commit: %v", answer)
	default:
	}
	lease.release()
	if answer := <-answers; answer.GetApplied() != 2 || answer.GetRefusal().GetKind() != nodev1.Refusal_REJECTED {
		t.Errorf("answer is %v", answer)
	}
}

func TestDeliverInvalid(t *testing.T) {
	w := newWorld(t, worldConfig{})
	row := func(change func(*recordv1.Row)) *recordv1.Row {
		r := &recordv1.Row{
			Source: &recordv1.Ref{Tenant: "t", Kind: "counter", Id: "a"}, Destination: &recordv1.Ref{Tenant: "t", Kind: "counter", Id: "b"},
			Epoch: 1, Sequence: 1, LaneSequence: 1, Event: &recordv1.Payload{Type: "google.protobuf.Int64Value"},
		}
		change(r)
		return r
	}
	for name, rows := range map[string][]*recordv1.Row{
		"no rows":      nil,
		"other tenant": {row(func(r *recordv1.Row) { r.Destination.Tenant = "u" })},
		"no id":        {row(func(r *recordv1.Row) { r.Destination.Id = "" })},
		"number zero":  {row(func(r *recordv1.Row) { r.LaneSequence = 0 })},
		"hole":         {row(func(*recordv1.Row) {}), row(func(r *recordv1.Row) { r.LaneSequence = 3 })},
		"two lanes":    {row(func(*recordv1.Row) {}), row(func(r *recordv1.Row) { r.LaneSequence, r.Source.Id = 2, "c" })},
	} {
		_, err := w.rt.Deliver(t.Context(), &nodev1.DeliverRequest{Rows: rows})
		if entity.ReasonOf(err) != entity.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
