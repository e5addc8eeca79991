package persistence_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"writ/actors/entity"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

func TestLaneUpdates(t *testing.T) {
	confirm := func(n uint64) any { return &recordv1.LaneUpdate_Confirm{Confirm: n} }
	attempt := func(n uint64, count uint32) any {
		return &recordv1.LaneUpdate_Attempt{Attempt: &recordv1.Attempt{LaneSequence: n, Count: count, Reason: "no"}}
	}
	park := &recordv1.LaneUpdate_Park{Park: &recordv1.Park{LaneSequence: 1, Reason: "poison"}}
	pause := &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: "wait"}}
	resume := &recordv1.LaneUpdate_Resume{Resume: true}
	skip := func(n uint64) any { return &recordv1.LaneUpdate_Skip{Skip: n} }
	const active, parked, paused = recordv1.Lane_ACTIVE, recordv1.Lane_PARKED, recordv1.Lane_PAUSED
	tests := []struct {
		name    string
		changes []any
		refused string // of the last change
		want    *recordv1.Lane
		rows    []string // lane sequence and event of what is left
	}{
		{"confirm one", []any{confirm(1)}, "", &recordv1.Lane{Numbered: 3, Confirmed: 1}, []string{"2 event 2", "3 event 3"}},
		{"confirm all", []any{confirm(3)}, "", &recordv1.Lane{Numbered: 3, Confirmed: 3}, nil},
		{"confirm again", []any{confirm(2), confirm(2)}, "", &recordv1.Lane{Numbered: 3, Confirmed: 2}, []string{"3 event 3"}},
		{"confirm less", []any{confirm(2), confirm(1)}, "", &recordv1.Lane{Numbered: 3, Confirmed: 2}, []string{"3 event 3"}},
		{"confirm what was never numbered", []any{confirm(4)}, "lane", &recordv1.Lane{Numbered: 3}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"attempts", []any{attempt(1, 1), attempt(1, 2)}, "", &recordv1.Lane{Numbered: 3, Attempts: 2, Reason: "no"}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"attempt repeated", []any{attempt(1, 2), attempt(1, 2)}, "lane", &recordv1.Lane{Numbered: 3, Attempts: 2, Reason: "no"}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"attempt of a later row", []any{attempt(2, 1)}, "lane", &recordv1.Lane{Numbered: 3}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"attempt of no row", []any{confirm(3), attempt(4, 1)}, "lane", &recordv1.Lane{Numbered: 3, Confirmed: 3}, nil},
		{"confirm ends the attempts", []any{attempt(1, 1), confirm(1)}, "", &recordv1.Lane{Numbered: 3, Confirmed: 1}, []string{"2 event 2", "3 event 3"}},
		{"park", []any{attempt(1, 8), park}, "", &recordv1.Lane{Numbered: 3, Attempts: 8, Status: parked, Reason: "poison"}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"park and resume", []any{attempt(1, 8), park, resume}, "", &recordv1.Lane{Numbered: 3}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"pause", []any{pause}, "", &recordv1.Lane{Numbered: 3, Status: paused, Reason: "wait"}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"pause and resume", []any{pause, resume}, "", &recordv1.Lane{Numbered: 3}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"park a paused lane", []any{pause, park}, "", &recordv1.Lane{Numbered: 3, Status: parked, Reason: "poison"}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"pause a parked lane", []any{park, pause}, "lane", &recordv1.Lane{Numbered: 3, Status: parked, Reason: "poison"}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"resume an active lane", []any{attempt(1, 3), resume}, "", &recordv1.Lane{Numbered: 3, Attempts: 3, Reason: "no"}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"resume says no", []any{park, &recordv1.LaneUpdate_Resume{}}, "record", &recordv1.Lane{Numbered: 3, Status: parked, Reason: "poison"}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"a parked lane is confirmed", []any{park, confirm(2)}, "", &recordv1.Lane{Numbered: 3, Confirmed: 2, Status: parked, Reason: "poison"}, []string{"3 event 3"}},
		{"skip", []any{park, skip(1)}, "", &recordv1.Lane{Numbered: 3, Skipped: 1, Status: parked, Reason: "poison"}, []string{"1 -", "2 event 2", "3 event 3"}},
		{"skip twice", []any{skip(1), skip(1)}, "", &recordv1.Lane{Numbered: 3, Skipped: 1}, []string{"1 -", "2 event 2", "3 event 3"}},
		{"skip a later row", []any{skip(2)}, "lane", &recordv1.Lane{Numbered: 3}, []string{"1 event 1", "2 event 2", "3 event 3"}},
		{"skip a confirmed row", []any{confirm(1), skip(1)}, "lane", &recordv1.Lane{Numbered: 3, Confirmed: 1}, []string{"2 event 2", "3 event 3"}},
		{"skip of no row", []any{confirm(3), skip(4)}, "lane", &recordv1.Lane{Numbered: 3, Confirmed: 3}, nil},
		{"a skipped row is confirmed", []any{skip(1), confirm(2)}, "", &recordv1.Lane{Numbered: 3, Confirmed: 2, Skipped: 1}, []string{"3 event 3"}},
		{"no change", []any{nil}, "record", &recordv1.Lane{Numbered: 3}, []string{"1 event 1", "2 event 2", "3 event 3"}},
	}
	for _, flushed := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/flushed=%t", tt.name, flushed), func(t *testing.T) {
				s := newShard(t, create(t, config(t)))
				a, b := ref("a"), ref("b")
				s.must(s.command(a, "k", b, b, b))
				for i, change := range tt.changes {
					if flushed {
						flush(t, s.Store)
					}
					before := s.DumpContent()
					got := persistence.Refused(s.try(s.update(a, b, change))[0])
					want := ""
					if i == len(tt.changes)-1 {
						want = tt.refused
					}
					if got != want {
						t.Fatalf("change %d: refused %q, want %q", i, got, want)
					}
					if got != "" && before != s.DumpContent() {
						t.Error("a refused update changed the content")
					}
				}
				checkLane(t, s.Store, a, b, tt.want, tt.rows)
				audit(t, s.Store)
			})
		}
	}
}

func checkLane(t *testing.T, s *persistence.Store, a, b entity.Ref, want *recordv1.Lane, wantRows []string) {
	t.Helper()
	lanes, err := lanesOf(s, a)
	if diff := cmp.Diff(want, lanes[b], protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("lane: %v %s", err, diff)
	}
	rows, err := s.Rows(a, b, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, r := range rows {
		text := "-"
		if r.Event != nil {
			text = string(r.Event.Data)
		}
		texts = append(texts, fmt.Sprint(r.LaneSequence, " ", text))
	}
	if diff := cmp.Diff(wantRows, texts); diff != "" {
		t.Errorf("rows: %s", diff)
	}
	parked := uint64(0)
	if want.Status == recordv1.Lane_PARKED {
		parked = 1
	}
	if got := s.Meta().Counters.LanesParked; got != parked {
		t.Errorf("%d lanes parked, want %d", got, parked)
	}
}

func TestLaneUpdatesOfNoLane(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	s.must(s.command(ref("a"), "k", ref("b")))
	for _, pair := range [][2]entity.Ref{{ref("b"), ref("a")}, {ref("a"), ref("c")}, {ref("a"), {}}} {
		if got := persistence.Refused(s.try(s.confirm(pair[0], pair[1], 0))[0]); got != "lane" {
			t.Errorf("%v: refused %q", pair, got)
		}
	}
	stale := s.confirm(ref("a"), ref("b"), 1)
	stale.Term = 0
	if got := persistence.Refused(s.try(stale)[0]); got != "term" {
		t.Errorf("a late confirmation: refused %q", got)
	}
}

func TestRowsAreBounded(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	a, b := ref("a"), ref("b")
	for i := range 10 {
		s.must(s.command(a, "", b, ref("ab"), ref("c")))
		if i == 4 {
			flush(t, s.Store)
		}
	}
	one, err := s.Rows(a, b, 1, 1, 0)
	if err != nil || len(one) != 1 {
		t.Fatal(one, err)
	}
	size := 82 // a little above one row
	tests := []struct {
		from              uint64
		maxRows, maxBytes int
		want              []uint64
	}{
		{1, 0, 0, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		{0, 3, 0, []uint64{1, 2, 3}},
		{4, 3, 0, []uint64{4, 5, 6}},
		{9, 3, 0, []uint64{9, 10}},
		{11, 3, 0, nil},
		{1, 10, 1, []uint64{1}},
		{5, 10, 2 * size, []uint64{5, 6}},
	}
	for _, tt := range tests {
		rows, err := s.Rows(a, b, tt.from, tt.maxRows, tt.maxBytes)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for _, r := range rows {
			got = append(got, r.LaneSequence)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("rows from %d, at most %d, %d bytes: %v, want %v", tt.from, tt.maxRows, tt.maxBytes, got, tt.want)
		}
	}
}

func TestPendingSources(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	want := map[entity.Ref]bool{}
	for i := range 1200 { // more than one step of the walk
		from := ref(fmt.Sprint("source", i))
		s.must(s.command(from, "", ref("x"), ref("y")))
		switch i % 6 {
		case 0: // both active
			want[from] = true
		case 1: // one parked, one active
			s.must(s.update(from, ref("x"), &recordv1.LaneUpdate_Park{Park: &recordv1.Park{Reason: "r"}}))
			want[from] = true
		case 2: // both stand
			s.must(s.update(from, ref("x"), &recordv1.LaneUpdate_Park{Park: &recordv1.Park{Reason: "r"}}),
				s.update(from, ref("y"), &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: "r"}}))
		case 3: // nothing left
			s.must(s.confirm(from, ref("x"), 1), s.confirm(from, ref("y"), 1))
		case 4: // one left, and that parked
			s.must(s.confirm(from, ref("x"), 1), s.update(from, ref("y"), &recordv1.LaneUpdate_Park{Park: &recordv1.Park{Reason: "r"}}))
		case 5: // one left
			s.must(s.confirm(from, ref("x"), 1))
			want[from] = true
		}
		if i%300 == 7 {
			flush(t, s.Store)
		}
	}
	for _, limit := range []int{1, 7, 300, 5000} {
		got := map[entity.Ref]bool{}
		var last entity.Ref
		for {
			page, err := s.PendingSources(last, limit)
			if err != nil || len(page) > limit {
				t.Fatal(page, err)
			}
			if len(page) == 0 {
				break
			}
			for _, r := range page {
				if got[r] {
					t.Fatalf("%v twice", r)
				}
				got[r] = true
			}
			last = page[len(page)-1]
		}
		if !maps.Equal(got, want) {
			t.Errorf("limit %d: got %d sources, want %d", limit, len(got), len(want))
		}
	}
}

func TestLanesOfASourceWithMany(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	a := ref("a")
	const lanes = 700
	for i := range lanes {
		s.must(s.command(a, "", ref(fmt.Sprint("to", i)), ref("all")), s.command(ref(fmt.Sprint("b", i)), "", a))
		if i == lanes/2 {
			flush(t, s.Store)
		}
	}
	got, err := lanesOf(s.Store, a)
	if err != nil || len(got) != lanes+1 || got[ref("all")].GetNumbered() != lanes {
		t.Errorf("%d lanes, %v, %v", len(got), got[ref("all")], err)
	}
	for to, lane := range got {
		if to != ref("all") && lane.Numbered != 1 {
			t.Errorf("%v: %v", to, lane)
		}
	}
}

// What is found are the lanes that hold rows, standing or not.
func TestWaitingLanes(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	a := ref("a")
	if lanes, err := s.WaitingLanes(a); err != nil || len(lanes) != 0 {
		t.Errorf("%v, %v", lanes, err)
	}
	const lanes = 700
	for i := range lanes {
		to := ref(fmt.Sprint("to", i))
		s.must(s.command(a, "", to, to), s.command(ref(fmt.Sprint("a", i)), "", a))
		switch i % 100 {
		case 0:
			s.must(s.confirm(a, to, 1))
		case 1:
			s.must(s.update(a, to, &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: "wait"}}))
		default:
			s.must(s.confirm(a, to, 2))
		}
		if i == lanes/2 {
			flush(t, s.Store)
		}
	}
	got, err := s.WaitingLanes(a)
	if err != nil || len(got) != 14 {
		t.Errorf("%d lanes, %v", len(got), err)
	}
	paged := map[entity.Ref]*recordv1.Lane{}
	for at := (persistence.Pair{Source: a}); len(paged) <= len(got); {
		list, err := s.LanesFrom(at, true, 5)
		if err != nil || len(list) > 5 {
			t.Fatalf("%d lanes, %v", len(list), err)
		}
		if len(list) == 0 {
			break
		}
		for _, l := range list {
			at, paged[l.Destination] = l.Pair, l.Lane
		}
	}
	if diff := cmp.Diff(got, paged, protocmp.Transform()); diff != "" {
		t.Errorf("by pages: %s", diff)
	}
	for to, lane := range got {
		if want, err := s.Lane(a, to); err != nil || !proto.Equal(lane, want) || lane.GetConfirmed() == 2 {
			t.Errorf("lane to %v is %v, want %v, %v", to, lane, want, err)
		}
	}
}

func TestScans(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	for i := range 5 {
		from := ref(fmt.Sprint("a", i))
		r := s.command(from, "", ref("x"), ref("x"), ref("y"))
		s.mark(r.GetCommit(), ref("src"))
		s.must(r, s.confirm(from, ref("x"), 1))
		if i == 2 {
			flush(t, s.Store)
		}
	}
	lanes, pending := 0, uint64(0)
	if err := s.ScanLanes(func(source, destination entity.Ref, lane *recordv1.Lane, n uint64) bool {
		lanes++
		pending += n
		if destination == ref("x") && (lane.Numbered != 2 || lane.Confirmed != 1) {
			t.Errorf("%v to %v: %v", source, destination, lane)
		}
		return true
	}); err != nil || lanes != 10 || pending != 10 {
		t.Errorf("%d lanes, %d pending, %v", lanes, pending, err)
	}
	marks := 0
	if err := s.ScanApplied(func(destination, source entity.Ref, a *recordv1.Applied) bool {
		marks++
		if source != ref("src") || a.LaneSequence != 1 {
			t.Errorf("%v from %v: %v", destination, source, a)
		}
		return marks < 3
	}); err != nil || marks != 3 {
		t.Errorf("%d marks, %v", marks, err)
	}
}
