package actors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
		{"counter", strings.Repeat("x", 1001), "command"},
		{"counter", "event", "event"},
		{"counter", "rows", "rows"},
		{"big", "state", "state"},
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
	late.Deadline = time.Now().Add(time.Millisecond).UnixNano()
	ended := make(chan error, 1)
	go func() {
		_, err := w.rt.Forward(t.Context(), late)
		ended <- err
	}()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := w.rt.Forward(gone, w.request(submitted{ref: e, key: "gone", command: &num{Value: 1}}))
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-time.After(time.Until(time.Unix(0, late.Deadline).Add(time.Millisecond)))
	close(free)
	if r := <-slow; r.err != nil {
		t.Error(r.err)
	}
	wantReason(t, <-ended, entity.NotExecuted)
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
