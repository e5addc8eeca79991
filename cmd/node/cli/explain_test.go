package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

func ref(id string) *recordv1.Ref { return &recordv1.Ref{Tenant: "default", Kind: "account", Id: id} }

// laneOf is a lane from a to b that has numbered three rows and had none confirmed.
func laneOf(change func(*recordv1.Lane)) *nodev1.InspectedLane {
	l := &nodev1.InspectedLane{Destination: ref("b"), Lane: &recordv1.Lane{Numbered: 3}}
	for i := range uint64(3) {
		l.Rows = append(l.Rows, &recordv1.Row{Source: ref("a"), Destination: ref("b"), Epoch: 1, Sequence: 10 + i, LaneSequence: i + 1, AcceptedAt: 5, Event: &recordv1.Payload{Type: "t.Event"}})
	}
	if change != nil {
		change(l.GetLane())
	}
	return l
}

// skipped is such a lane whose first row an operator has skipped.
func skipped(status recordv1.Lane_Status) *nodev1.InspectedLane {
	l := laneOf(func(l *recordv1.Lane) { l.Status, l.Reason, l.Attempts, l.Skipped = status, "poison", 8, 1 })
	l.GetRows()[0].Event = nil
	return l
}

// ofTenant gives a lane to another tenant.
func ofTenant(tenant string, l *nodev1.InspectedLane) *nodev1.InspectedLane {
	l.Destination.Tenant = tenant
	for _, row := range l.GetRows() {
		row.Source.Tenant, row.Destination.Tenant = tenant, tenant
	}
	return l
}

func TestWhyARowWaits(t *testing.T) {
	applied := func(n uint64) *destinationView {
		return &destinationView{seen: &nodev1.InspectResponse{Applied: n}}
	}
	for name, tt := range map[string]struct {
		lane  *nodev1.InspectedLane
		row   int
		there *destinationView
		want  string
	}{
		"applied":         {laneOf(nil), 0, applied(1), "account/b has applied it; the confirmation is on its way"},
		"next":            {laneOf(nil), 0, applied(0), "next at account/b"},
		"behind others":   {laneOf(nil), 2, applied(0), "the rows between come first"},
		"parked":          {laneOf(func(l *recordv1.Lane) { l.Status, l.Reason, l.Attempts = recordv1.Lane_PARKED, "poison", 8 }), 0, applied(0), "parked at row 1 after 8 refused deliveries: poison. It stands still until \"node lanes replay --entity account/a --destination account/b\" or \"node lanes skip --entity account/a --destination account/b\"."},
		"paused":          {laneOf(func(l *recordv1.Lane) { l.Status, l.Reason = recordv1.Lane_PAUSED, "night" }), 0, applied(0), "paused the lane: night"},
		"refused":         {laneOf(func(l *recordv1.Lane) { l.Attempts, l.Reason = 3, "no" }), 0, applied(0), "Row 1 was refused (3 attempts): no"},
		"does not answer": {laneOf(nil), 0, &destinationView{err: errors.New("no leader")}, "does not answer (no leader)"},
		"skipped": {
			skipped(recordv1.Lane_PARKED), 0, applied(1),
			"The lane waits: event 10 was skipped by an operator, and the lane stands still until \"node lanes replay --entity account/a --destination account/b\".",
		},
		"behind a skipped one": {skipped(recordv1.Lane_PARKED), 2, applied(1), "event 10 was skipped by an operator"},
		"skipped while paused": {skipped(recordv1.Lane_PAUSED), 0, applied(1), "until \"node lanes resume --entity account/a --destination account/b\"."},
		"parked, another tenant": {
			ofTenant("acme", laneOf(func(l *recordv1.Lane) { l.Status = recordv1.Lane_PARKED })), 0, applied(0),
			`or "node lanes skip --tenant acme --entity account/a --destination account/b".`,
		},
		"skipped, another tenant": {
			ofTenant("acme", skipped(recordv1.Lane_PARKED)), 0, applied(1), `until "node lanes replay --tenant acme --entity account/a --destination account/b".`,
		},
		"skipped and replayed": {skipped(recordv1.Lane_ACTIVE), 0, applied(1), "The lane goes on without it; the confirmation is on its way back."},
	} {
		if got := (&explainer{}).why(tt.lane, tt.lane.GetRows()[tt.row], tt.there); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q does not say %q", name, got, tt.want)
		}
	}
}

// inspected is an admin client that knows entities by id.
type inspected struct {
	nodev1.AdminServiceClient
	by map[string]*nodev1.InspectResponse
}

func (i inspected) Inspect(_ context.Context, req *nodev1.InspectRequest, _ ...grpc.CallOption) (*nodev1.InspectResponse, error) {
	return i.by[req.GetEntity().GetId()], nil
}

func TestExplainFollowsTheChain(t *testing.T) {
	next := &nodev1.InspectedLane{Destination: ref("c"), Lane: &recordv1.Lane{Numbered: 1}, Rows: []*recordv1.Row{{
		Source: ref("b"), Destination: ref("c"), Epoch: 1, Sequence: 1, LaneSequence: 1, Event: &recordv1.Payload{Type: "t.Next"},
		Parent: &recordv1.EventId{Source: ref("a"), Epoch: 1, Sequence: 10},
	}}}
	from := &nodev1.InspectResponse{
		Entity: &recordv1.EntityRecord{Version: 7, SourceSequence: 12}, Outgoing: []*nodev1.InspectedLane{laneOf(nil)},
		Key: &recordv1.KeyRecord{Key: &recordv1.Key{CommandType: "t.Do", AcceptedAt: 5}, Outcome: &recordv1.Outcome{Decision: recordv1.Outcome_EXECUTED, Version: 7}},
	}
	var out strings.Builder
	x := &explainer{out: &out, now: time.Now(), admin: inspected{by: map[string]*nodev1.InspectResponse{
		"b": {Applied: 1, Outgoing: []*nodev1.InspectedLane{next}}, "c": {},
	}}}
	x.key(t.Context(), ref("a"), "k", from)
	for _, want := range []string{
		"t.Do was executed once", "made version 7", "Event 10 of account/a, t.Event, is row 1 of its lane to account/b",
		"account/b has applied it", "Event 1 of account/b, t.Next, is row 1 of its lane to account/c", "It is next at account/c",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing says %q in:\n%s", want, out.String())
		}
	}
	out.Reset()
	x.event(t.Context(), &recordv1.EventId{Source: ref("a"), Sequence: 13}, from)
	x.event(t.Context(), &recordv1.EventId{Source: ref("a"), Sequence: 9}, from)
	x.event(t.Context(), &recordv1.EventId{Source: ref("a"), Epoch: 2, Sequence: 11}, from)
	if got := out.String(); !strings.Contains(got, "Event 11 that waits is of epoch 1, not 2: ask for account/a#1.11.") || !strings.Contains(got, "Event 13 does not exist: account/a has emitted 12") || !strings.Contains(got, "Event 9 is confirmed") {
		t.Errorf("got:\n%s", got)
	}
}

// TestExplainTellsCommandsApart covers two commands that were accepted at one time:
// each has its own rows.
func TestExplainTellsCommandsApart(t *testing.T) {
	k := &recordv1.Key{AcceptedAt: 5}
	second := &recordv1.Outcome{Rows: 2, Emitted: []*recordv1.Emitted{{Kind: "account", Id: "b", LaneSequence: 2, Rows: 2}}}
	for i, row := range laneOf(nil).GetRows() {
		if got := emittedBy(k, second, row); got != (i > 0) {
			t.Errorf("row %d: %t", row.GetLaneSequence(), got)
		}
		if !emittedBy(k, &recordv1.Outcome{Rows: 100}, row) {
			t.Errorf("row %d of an outcome without lanes is lost", row.GetLaneSequence())
		}
	}
	if elsewhere := (&recordv1.Row{Destination: ref("c"), LaneSequence: 2, AcceptedAt: 5}); emittedBy(k, second, elsewhere) {
		t.Error("a row of another lane is taken for its own")
	}
}

// TestExplainSkipped covers a command whose event an operator has skipped: nothing is
// on its way while the lane stands.
func TestExplainSkipped(t *testing.T) {
	outcome := &recordv1.Outcome{Decision: recordv1.Outcome_EXECUTED, Version: 7, Rows: 1, Emitted: []*recordv1.Emitted{{Kind: "account", Id: "b", LaneSequence: 1, Rows: 1}}}
	from := &nodev1.InspectResponse{
		Outgoing: []*nodev1.InspectedLane{skipped(recordv1.Lane_PARKED)},
		Key:      &recordv1.KeyRecord{Key: &recordv1.Key{CommandType: "t.Do", AcceptedAt: 5}, Outcome: outcome},
	}
	var out strings.Builder
	x := &explainer{out: &out, now: time.Now(), admin: inspected{by: map[string]*nodev1.InspectResponse{"b": {Applied: 1}}}}
	x.key(t.Context(), ref("a"), "k", from)
	got := out.String()
	for _, want := range []string{
		"Event 10 of account/a, skipped by an operator, is row 1 of its lane to account/b",
		"Row 1 in its lane to account/b: event 10 was skipped by an operator, and the lane stands still until \"node lanes replay --entity account/a --destination account/b\".",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("nothing says %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "on its way back") {
		t.Errorf("nothing is on its way:\n%s", got)
	}
}

func TestExplainSubject(t *testing.T) {
	for name, tt := range map[string]struct {
		c      explainCommand
		id     string
		epoch  uint64
		number uint64
		bad    bool
	}{
		"entity":          {c: explainCommand{Entity: "account/a/b"}, id: "a/b"},
		"event":           {c: explainCommand{Event: "account/a#b#3"}, id: "a#b", number: 3},
		"as lists do":     {c: explainCommand{Event: "account/a.b#2.3"}, id: "a.b", epoch: 2, number: 3},
		"epoch 0":         {c: explainCommand{Event: "account/a#0.1"}, bad: true},
		"event 1.0":       {c: explainCommand{Event: "account/a#1.0"}, bad: true},
		"epoch alone":     {c: explainCommand{Event: "account/a#1."}, bad: true},
		"nothing":         {bad: true},
		"key alone":       {c: explainCommand{Key: "k"}, bad: true},
		"event and key":   {c: explainCommand{Event: "account/a#1", Key: "k"}, bad: true},
		"event without #": {c: explainCommand{Event: "account/a"}, bad: true},
		"event 0":         {c: explainCommand{Event: "account/a#0"}, bad: true},
	} {
		got, err := tt.c.subject()
		if (err != nil) != tt.bad || got.GetSource().GetId() != tt.id || got.GetEpoch() != tt.epoch || got.GetSequence() != tt.number {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
