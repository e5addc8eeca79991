package entity_test

import (
	"testing"

	"writ/actors/entity"
)

func TestRefsDifferWhereJoinedNamesWouldNot(t *testing.T) {
	a := entity.Ref{Tenant: "t", Kind: "k", ID: "a/b"}
	b := entity.Ref{Tenant: "t", Kind: "k/a", ID: "b"}
	if a == b {
		t.Error("two entities are one")
	}
	if got, want := a.String(), `t/k/"a/b"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// Any bytes may stand in an id; a log line stays one line.
	if got, want := (entity.Ref{Tenant: "t", Kind: "k", ID: "\n\x00"}).String(), `t/k/"\n\x00"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
