package actors_test

import (
	"errors"
	"testing"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// Skipping while a copy of the row may still be on its way.

// skipped is a source with rows to x that wait.
type skipped struct {
	*world
	a, x entity.Ref
}

func newSkipped(t *testing.T) *skipped {
	t.Helper()
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a"), kind("x", hooks{})}})
	return &skipped{w, ref("a", "1"), ref("x", "1")}
}

func (w *skipped) change(u *recordv1.LaneUpdate) error {
	u.Source, u.Destination = &recordv1.Ref{Tenant: "t", Kind: "a", Id: "1"}, &recordv1.Ref{Tenant: "t", Kind: "x", Id: "1"}
	return w.rt.UpdateLane(w.t.Context(), 0, u)
}

func (w *skipped) skip() error {
	return w.change(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Skip{Skip: 1}})
}

func (w *skipped) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *skipped) pause() {
	w.t.Helper()
	w.must(w.change(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: "wait"}}}))
}

// resumed checks, when the lane has gone on, that one row was skipped and that the
// others had their effect.
func (w *skipped) resumed(rows uint64) {
	w.t.Helper()
	w.must(w.change(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Resume{Resume: true}}))
	w.drained(w.a, w.x, rows)
	lane, mark := w.lane(w.a, w.x), w.mark()
	if value, _ := w.read(w.x); value != int64(rows)-1 || lane.GetSkipped() != 1 || mark.GetLaneSequence() != rows {
		w.t.Errorf("value %d, lane %v, mark %v", value, lane, mark)
	}
}

func (w *skipped) mark() *recordv1.Applied {
	w.t.Helper()
	mark, err := w.stores[0].Applied(w.x, w.a)
	if err != nil {
		w.t.Fatal(err)
	}
	return mark
}

// rows are the rows to x as they stand in the outbox.
func (w *skipped) rows() []*recordv1.Row {
	w.t.Helper()
	rows, err := w.stores[0].Rows(w.a, w.x, 1, 0, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return rows
}

func (w *skipped) deliver(rows ...*recordv1.Row) *nodev1.DeliverResponse {
	w.t.Helper()
	answer, err := w.rt.Deliver(w.t.Context(), &nodev1.DeliverRequest{Rows: rows})
	if err != nil {
		w.t.Fatal(err)
	}
	return answer
}

// onTheWay has rows to x wait on the way, and those to y as well, so that the relay
// lives on and nothing is called back.
func (w *skipped) onTheWay(command string) (begun, proceed chan struct{}) {
	begun, proceed = make(chan struct{}, 8), make(chan struct{})
	w.courier.set(func(req *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error) {
		if req.GetRows()[0].GetEvent() != nil {
			begun <- struct{}{}
			<-proceed
		}
		return deliver()
	})
	w.world.must(w.a, "k", &text{Value: command})
	<-begun
	<-begun
	return begun, proceed
}

// A copy that comes after the skip has no effect.
func TestSkipBeforeTheCopyComes(t *testing.T) {
	w := newSkipped(t)
	_, proceed := w.onTheWay("x/1 x/1 x/1 x/2")
	w.pause()
	for range 2 { // to repeat it changes nothing
		w.must(w.skip())
	}
	if n := w.metrics.get("events_applied"); n != 1 {
		t.Errorf("%d rows were marked", n)
	}
	close(proceed)
	w.drained(w.a, ref("x", "2"), 1)
	w.resumed(3)
}

// A row that had its effect cannot be skipped.
func TestSkipAfterTheCopyCame(t *testing.T) {
	w := newSkipped(t)
	_, proceed := w.onTheWay("x/1 x/2")
	w.pause()
	w.deliver(w.rows()[0])
	wantReason(t, w.skip(), entity.Invalid)
	close(proceed)
	w.must(w.change(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Resume{Resume: true}}))
	w.drained(w.a, w.x, 1)
	if value, _ := w.read(w.x); value != 1 || w.lane(w.a, w.x).GetSkipped() != 0 {
		t.Errorf("value %d, lane %v", value, w.lane(w.a, w.x))
	}
}

// The destination has taken the skip and the source does not know of it: the
// operator repeats it, or the lane goes on and finds out. Rows behind the skipped
// one may have come meanwhile.
func TestSkipHalfDone(t *testing.T) {
	for name, half := range map[string]func(*skipped){
		"repeated":    func(w *skipped) { w.must(w.skip()) },
		"resumed":     func(*skipped) {},
		"copy":        func(w *skipped) { w.deliver(w.rows()[0]) },
		"rows behind": func(w *skipped) { w.deliver(w.rows()[1:]...) },
		"rows behind, repeated": func(w *skipped) {
			w.deliver(w.rows()[1:]...)
			w.must(w.skip())
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSkipped(t)
			_, proceed := w.onTheWay("x/1 x/1 x/1 x/2")
			w.pause()
			first := w.rows()[0]
			first.Event = nil
			if answer := w.deliver(first); answer.GetApplied() != 1 || answer.GetSkipped() != 1 {
				t.Fatalf("answer is %v", answer)
			}
			half(w)
			close(proceed)
			w.drained(w.a, ref("x", "2"), 1)
			w.resumed(3)
		})
	}
}

// While the destination does not answer nothing is skipped, and nobody says so.
func TestSkipWithoutItsDestination(t *testing.T) {
	w := newSkipped(t)
	_, proceed := w.onTheWay("x/1 x/2")
	w.pause()
	w.courier.set(func(*nodev1.DeliverRequest, deliverFunc) (*nodev1.DeliverResponse, error) {
		return nil, errors.New("no way")
	})
	wantReason(t, w.skip(), entity.OutcomeUnknown)
	if lane, mark := w.lane(w.a, w.x), w.mark(); lane.GetSkipped() != 0 || mark != nil {
		t.Errorf("lane %v, mark %v", lane, mark)
	}
	w.courier.set(nil)
	w.must(w.skip())
	close(proceed)
	w.resumed(1)
}

// A destination of a kind that nobody has takes marks, too.
func TestSkipToAnUnknownKind(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{emitter("a")}})
	s := &skipped{w, ref("a", "1"), ref("x", "1")}
	w.must(s.a, "k", &text{Value: "x/1 x/1"})
	parked := func() bool { return w.lane(s.a, s.x).GetStatus() == recordv1.Lane_PARKED }
	w.metrics.until(t, parked)
	s.must(s.skip())
	s.must(s.change(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Resume{Resume: true}}))
	w.metrics.until(t, func() bool { return parked() && w.lane(s.a, s.x).GetConfirmed() == 1 })
	if l := w.lane(s.a, s.x); l.GetSkipped() != 1 || s.mark().GetSkipped() != 1 {
		t.Errorf("lane %v, mark %v", l, s.mark())
	}
}
