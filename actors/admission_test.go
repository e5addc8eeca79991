package actors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"writ/actors"
	"writ/actors/entity"
)

func TestTooLarge(t *testing.T) {
	limits := actors.DefaultLimits()
	limits.Command, limits.State, limits.Event, limits.Rows = 1000, 100, 100, 3
	big := strings.Repeat("x", 200)
	kinds := []entity.Definer{kind("counter", hooks{command: func(c *entity.Context, _ *num, what string) error {
		switch what {
		case "event":
			c.Emit(entity.To("counter", "b"), &text{Value: big})
		case "rows":
			for range 4 {
				c.Emit(entity.To("counter", "b"), &num{Value: 1})
			}
		}
		return nil
	}}), bigKind()}
	w := newWorld(t, worldConfig{kinds: kinds, change: func(c *actors.Config) { c.Limits = limits }})
	for _, tt := range []struct{ kind, what, limit string }{
		{"counter", strings.Repeat("x", 1001), "entities.Command"},
		{"counter", "event", "entities.Event"},
		{"counter", "rows", "entities.Rows"},
		{"big", "state", "entities.State"},
	} {
		e := ref(tt.kind, "a")
		_, err := w.submit(submitted{ref: e, key: "k", command: &text{Value: tt.what}})
		wantReason(t, err, entity.TooLarge)
		var is *entity.Error
		if errors.As(err, &is) && is.Details["limit"] != tt.limit {
			t.Errorf("limit %q, want %q", is.Details["limit"], tt.limit)
		}
		if _, rec := w.stored(e); rec != nil {
			t.Errorf("something was stored: %v", rec)
		}
	}
}

// bigKind has a text as state that grows with every command.
func bigKind() *entity.Kind[*text] {
	k := entity.NewKind[*text]("big")
	entity.Handle(k, func(_ *entity.Context, s *text, _ *text) (*text, error) {
		s.Value += strings.Repeat("x", 200)
		return &text{}, nil
	})
	return k
}

func TestOverload(t *testing.T) {
	limits := actors.DefaultLimits()
	limits.ShardCalls, limits.EntityCalls, limits.Proposals = 6, 3, 5
	w := newWorld(t, worldConfig{change: func(c *actors.Config) { c.Limits = limits }})
	lease := w.leases[0]
	lease.hold()
	var calls []<-chan result
	fill := func(id string, n, want int) {
		for i := range n {
			calls = append(calls, w.later(submitted{ref: ref("counter", id), key: fmt.Sprint(i), command: &num{Value: 1}}))
			w.held(0, want-n+i+1)
		}
	}
	refused := func(id, why string) {
		t.Helper()
		_, err := w.submit(submitted{ref: ref("counter", id), key: "x", command: &num{Value: 1}})
		wantReason(t, err, entity.Overloaded)
		var is *entity.Error
		if errors.As(err, &is) && is.RetryAfter == 0 {
			t.Errorf("%s: no hint when to retry", why)
		}
	}
	fill("a", 3, 3)
	refused("a", "entity")
	fill("b", 2, 5)
	refused("c", "lease")
	go func() { _, _ = w.readWith(ref("counter", "c"), nil) }()
	w.held(0, 6)
	refused("d", "shard")
	lease.release()
	for _, call := range calls {
		if r := <-call; r.err != nil {
			t.Error(r.err)
		}
	}
	w.must(ref("counter", "a"), "x", &num{Value: 1})
}

// An entity whose handler does not come back takes a part of its shard's room for
// bytes, not all of it, also if its clients try again and again.
func TestHungEntityLeavesRoom(t *testing.T) {
	limits := actors.DefaultLimits()
	limits.Command, limits.State, limits.Event, limits.Reply = 1000, 1000, 1000, 1000
	limits.ShardBytes, limits.EntityBytes = 20_000, 5_000
	begun, free := make(chan struct{}, 30), make(chan struct{})
	w := newWorld(t, worldConfig{
		kinds: []entity.Definer{kind("counter", hooks{command: func(c *entity.Context, _ *num, _ string) error {
			if c.ID() == "hung" {
				begun <- struct{}{}
				<-free
			}
			return nil
		}})},
		change: func(c *actors.Config) { c.Limits = limits },
	})
	large := func(id, key string) submitted {
		return submitted{ref: ref("counter", id), key: key, command: &text{Value: strings.Repeat("x", 900)}}
	}
	const calls, fit = 30, 6 // with what surrounds the text, five have 5,000 bytes
	var executed atomic.Int64
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			_, err := w.submit(large("hung", fmt.Sprint(i)))
			switch {
			case err == nil:
				executed.Add(1)
			case entity.ReasonOf(err) != entity.Overloaded:
				t.Error(err)
			}
		})
	}
	<-begun
	w.metrics.until(t, func() bool { return w.metrics.get(string(actors.Refused)) >= calls-fit })
	if _, err := w.submit(large("other", "k")); err != nil {
		t.Errorf("another entity: %v", err)
	}
	close(free)
	wg.Wait()
	if n := executed.Load(); n < 2 || n > fit {
		t.Errorf("%d calls of the entity were executed", n)
	}
}

// stuckGate is a store that holds its gate up, when the gate looks for keys to forget.
type stuckGate struct {
	actors.Store
	hold <-chan struct{} // nothing: go on
	held chan<- struct{}
}

func (s stuckGate) Expirable(logTime int64) (uint64, bool) {
	select {
	case s.held <- struct{}{}:
		<-s.hold
	default:
	}
	return s.Store.Expirable(logTime)
}

// What an entity is sent in excess is refused without a turn of the gate.
func TestCrowdedAtTheFrontDoor(t *testing.T) {
	limits := actors.DefaultLimits()
	limits.EntityCalls = 1
	hold, held := make(chan struct{}), make(chan struct{})
	w := newWorld(t, worldConfig{
		change: func(c *actors.Config) { c.Limits, c.Passivation = limits, 80*time.Millisecond }, // a tick is 10 ms
		wrap:   func(s actors.Store) actors.Store { return stuckGate{s, hold, held} },
	})
	a := ref("counter", "a")
	w.leases[0].hold()
	first := w.later(submitted{ref: a, key: "first", command: &num{Value: 1}})
	w.held(0, 1)
	refused := func() {
		t.Helper()
		_, err := w.submit(submitted{ref: a, key: "next", command: &num{Value: 1}})
		wantReason(t, err, entity.Overloaded)
	}
	refused() // by the gate, which tells the front door
	<-held
	refused()
	other := w.later(submitted{ref: ref("counter", "b"), key: "k", command: &num{Value: 1}})
	hold <- struct{}{}
	w.leases[0].release()
	for _, call := range []<-chan result{first, other} {
		if r := <-call; r.err != nil {
			t.Error(r.err)
		}
	}
	w.must(a, "next", &num{Value: 1})
}

// An entity that was full in one term is not full in the next because of it, even if
// calls of the old term are still stuck in a handler.
func TestCrowdedEndsWithItsTerm(t *testing.T) {
	limits := actors.DefaultLimits()
	limits.EntityCalls = 1
	begun, free := make(chan struct{}), make(chan struct{})
	w := newWorld(t, worldConfig{
		kinds: []entity.Definer{kind("counter", hooks{command: func(*entity.Context, *num, string) error {
			close(begun)
			<-free
			return nil
		}})},
		change: func(c *actors.Config) { c.Limits = limits },
	})
	a := ref("counter", "a")
	stuck := w.later(submitted{ref: a, key: "stuck", command: &text{}})
	<-begun
	for range 2 {
		_, err := w.submit(submitted{ref: a, key: "next", command: &num{Value: 1}})
		wantReason(t, err, entity.Overloaded)
	}
	w.lead(0)
	w.metrics.until(t, func() bool { // the gate learns of its new lease by a message
		_, err := w.submit(submitted{ref: a, key: "next", command: &num{Value: 1}})
		return err == nil
	})
	close(free)
	wantReason(t, (<-stuck).err, entity.NotExecuted)
}

func TestDeadlineWhileQueued(t *testing.T) {
	begun, free := make(chan struct{}), make(chan struct{})
	w := newWorld(t, worldConfig{kinds: []entity.Definer{kind("counter", hooks{command: func(*entity.Context, *num, string) error {
		close(begun)
		<-free
		return nil
	}})}})
	e := ref("counter", "a")
	slow := w.later(submitted{ref: e, key: "slow", command: &text{}})
	<-begun
	late := w.request(submitted{ref: e, key: "late", command: &num{Value: 1}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := w.rt.Forward(ctx, late)
	wantGone(t, err, context.DeadlineExceeded)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = w.rt.Forward(gone, w.request(submitted{ref: e, key: "gone", command: &num{Value: 1}}))
	wantGone(t, err, context.Canceled)
	close(free)
	if r := <-slow; r.err != nil {
		t.Error(r.err)
	}
	if value, version := w.read(e); value != 0 || version != 1 {
		t.Errorf("value %d, version %d", value, version)
	}
}

// Once begun, a command does not depend on its caller.
func TestCallerLeaves(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	w.leases[0].hold()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := w.rt.Forward(ctx, w.request(submitted{ref: e, key: "k", command: &num{Value: 1}}))
		ended <- err
	}()
	w.held(0, 1)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w.leases[0].release()
	if answer := w.must(e, "k", &num{Value: 1}); !answer.GetReplayed() {
		t.Error("executed again")
	}
}
