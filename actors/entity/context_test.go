package entity_test

import (
	"errors"
	"testing"
	"time"

	"writ/actors/entity"
)

func TestContextTellsWhoAndWhen(t *testing.T) {
	self := entity.Ref{Tenant: "t", Kind: "counter", ID: "a"}
	source := entity.Ref{Tenant: "t", Kind: "counter", ID: "b"}
	now := time.Date(2026, 2, 28, 12, 0, 0, 0, time.UTC)
	c := entity.NewContext(self, source, now)
	if c.Self() != self || c.ID() != "a" || c.Tenant() != "t" || c.Source() != source || !c.Time().Equal(now) {
		t.Errorf("context says %v, %q, %q, %v, %v", c.Self(), c.ID(), c.Tenant(), c.Source(), c.Time())
	}
}

func TestEmissionsKeepOrderAndTenant(t *testing.T) {
	c := entity.NewContext(entity.Ref{Tenant: "t", Kind: "counter", ID: "a"}, entity.Ref{}, time.Time{})
	if len(c.Emitted()) != 0 {
		t.Fatalf("a new context has emitted %v", c.Emitted())
	}
	first, second := &event{Value: 1}, &event{Value: 2}
	c.Emit(entity.To("counter", "b"), first)
	c.Emit(entity.To("audit", "a/b"), second)
	got := c.Emitted()
	if len(got) != 2 || got[0].Event != first || got[1].Event != second {
		t.Fatalf("emitted %v", got)
	}
	if got[0].To != (entity.Ref{Tenant: "t", Kind: "counter", ID: "b"}) ||
		got[1].To != (entity.Ref{Tenant: "t", Kind: "audit", ID: "a/b"}) {
		t.Errorf("emitted to %v and %v", got[0].To, got[1].To)
	}
}

func TestRejectMakesARejection(t *testing.T) {
	c := entity.NewContext(entity.Ref{}, entity.Ref{}, time.Time{})
	err := c.Reject(entity.NotFound, "NO_SUCH_SEAT", "row %d has no seat %q", 3, "F")
	var r *entity.Rejection
	if !errors.As(err, &r) {
		t.Fatalf("got %T", err)
	}
	if r.Code != entity.NotFound || r.Reason != "NO_SUCH_SEAT" || r.Message != `row 3 has no seat "F"` {
		t.Errorf("got %+v", r)
	}
	if got, want := err.Error(), `NO_SUCH_SEAT: row 3 has no seat "F"`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
