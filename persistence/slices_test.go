package persistence_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// TestWalksInSteps covers that a walk in steps of any size meets every lane and
// every mark once, whether it lies in the file or over it.
func TestWalksInSteps(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	var want []persistence.Pair
	const pairs = 600 // more than are read at once
	for i := range pairs {
		a, b := ref(fmt.Sprintf("a%03d", i)), ref(fmt.Sprintf("b%03d", i))
		r, c := s.commit(a)
		s.emit(c, b)
		s.mark(c, b)
		s.must(r)
		want = append(want, persistence.Pair{Source: a, Destination: b})
		if i == pairs/2 {
			flush(t, s.Store)
		}
	}
	for _, step := range []int{1, 7, 256, 257, 599, 600, 601} {
		var lanes, marks []persistence.Pair
		for at := (persistence.Pair{}); ; {
			list, err := s.LanesAfter(at, step)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) == 0 {
				break
			}
			for _, l := range list {
				if l.Lane.GetNumbered() != 1 {
					t.Errorf("lane %v: %v", l.Pair, l.Lane)
				}
				lanes, at = append(lanes, l.Pair), l.Pair
			}
		}
		for at := (persistence.Pair{}); ; {
			list, err := s.MarksAfter(at, step)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) == 0 {
				break
			}
			for _, m := range list {
				if m.Mark.GetLaneSequence() != 1 {
					t.Errorf("mark %v: %v", m.Pair, m.Mark)
				}
				// What marks, a, is the destination.
				marks, at = append(marks, persistence.Pair{Source: m.Destination, Destination: m.Source}), m.Pair
			}
		}
		if diff := cmp.Diff(want, lanes); diff != "" {
			t.Errorf("lanes in steps of %d (-want +got):\n%s", step, diff)
		}
		if diff := cmp.Diff(want, marks); diff != "" {
			t.Errorf("marks in steps of %d (-want +got):\n%s", step, diff)
		}
	}
	if lane, err := s.Lane(want[1].Source, want[1].Destination); err != nil || lane.GetNumbered() != 1 {
		t.Errorf("lane %v: %v, %v", want[1], lane, err)
	}
	if lane, err := s.Lane(ref("b001"), ref("a001")); err != nil || lane != nil {
		t.Errorf("a lane that was never opened: %v, %v", lane, err)
	}
	of, err := s.MarksOf(ref("a003"), 10)
	if err != nil || len(of) != 1 || of[0].Source != ref("b003") {
		t.Errorf("marks of a003: %v, %v", of, err)
	}
}

// TestLanesOf covers that the lanes that hold rows, or stand, are found without
// the others, in order, in steps of any size.
func TestLanesOf(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	park := &recordv1.LaneUpdate_Park{Park: &recordv1.Park{LaneSequence: 1, Reason: "poison"}}
	pause := &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: "wait"}}
	var standing, holding []string
	for i := range 40 {
		a, b := ref(fmt.Sprintf("a%02d", i/2)), ref(fmt.Sprintf("b%02d", i))
		name := a.ID + " " + b.ID
		s.must(s.command(a, "", b, b))
		switch i % 5 {
		case 0, 1: // drained
			s.must(s.confirm(a, b, 2))
		case 2:
			s.must(s.update(a, b, park))
			standing, holding = append(standing, name), append(holding, name)
		case 3: // stands without rows
			s.must(s.confirm(a, b, 2), s.update(a, b, pause))
			standing, holding = append(standing, name), append(holding, name)
		case 4:
			s.must(s.confirm(a, b, 1))
			holding = append(holding, name)
		}
		if i == 17 || i == 31 {
			flush(t, s.Store)
		}
	}
	for which, want := range map[persistence.Which][]string{persistence.StandingLanes: standing, persistence.OpenLanes: holding} {
		for _, step := range []int{1, 2, 7, 100} {
			var got []string
			for at := (persistence.Pair{}); ; {
				list, err := s.LanesOf(which, at, step)
				if err != nil || len(list) > step {
					t.Fatal(len(list), err)
				}
				if len(list) == 0 {
					break
				}
				for _, l := range list {
					if l.Lane.GetNumbered() != 2 {
						t.Errorf("lane %v: %v", l.Pair, l.Lane)
					}
					got, at = append(got, l.Source.ID+" "+l.Destination.ID), l.Pair
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("which %d in steps of %d (-want +got):\n%s", which, step, diff)
			}
		}
	}
	if all, err := s.LanesOf(persistence.EveryLane, persistence.Pair{}, 100); err != nil || len(all) != 40 {
		t.Errorf("%d lanes in all, %v", len(all), err)
	}
}

// TestOldestRow covers that the first row of every active lane counts, and those
// of parked lanes do not.
func TestOldestRow(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	oldest := func() int64 {
		t.Helper()
		at, err := s.OldestRow(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	if at := oldest(); at != 0 {
		t.Errorf("empty outbox: %d", at)
	}
	a, b, c := ref("a"), ref("b"), ref("c")
	for i, on := range []struct{ time int64 }{{100}, {200}, {300}} {
		s.logTime = on.time
		s.must(s.command(a, "", b))
		if i == 1 {
			s.must(s.command(a, "", c))
			flush(t, s.Store)
		}
	}
	if at := oldest(); at != 105 {
		t.Errorf("oldest row %d, want 105", at)
	}
	s.must(s.confirm(a, b, 1))
	if at := oldest(); at != 205 {
		t.Errorf("oldest row %d, want 205", at)
	}
	s.must(s.update(a, b, &recordv1.LaneUpdate_Park{Park: &recordv1.Park{LaneSequence: 2, Reason: "no"}}), s.confirm(a, c, 1))
	if at := oldest(); at != 0 {
		t.Errorf("with only parked rows left: %d, want 0", at)
	}
}

func TestFileBytesAndFlushHook(t *testing.T) {
	began, ended := 0, 0
	cfg := config(t)
	cfg.Flushing = func() func() { began++; return func() { ended++ } }
	s := newShard(t, create(t, cfg))
	s.must(s.command(ref("a"), "k"))
	flush(t, s.Store)
	if began != 1 || ended != 1 {
		t.Errorf("one flush was told %d times, its end %d times", began, ended)
	}
	if total, live := s.FileBytes(); live <= 0 || total < live {
		t.Errorf("file of %d bytes, %d of them live", total, live)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if total, _ := s.FileBytes(); total != 0 {
		t.Errorf("closed: %d", total)
	}
}
