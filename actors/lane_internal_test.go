package actors

import (
	"fmt"
	"testing"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// The first batch of a new epoch must not be overtaken, however many batches the
// lane had in flight before.
func TestFirstBatchOfAnEpochTravelsAlone(t *testing.T) {
	for _, c := range []struct {
		name        string
		known, next uint64
		want        int
	}{
		{"the first batch of all", 0, 1, 4},
		{"the same epoch", 1, 1, 4},
		{"a new epoch", 1, 2, 1},
	} {
		j := &job{}
		l := &lane{epoch: c.known, window: 4, newest: j}
		j.lane = l
		(&relay{ending: true}).taken(&taken{job: j, last: 5, epoch: c.next})
		if l.window != c.want || l.epoch != c.next {
			t.Errorf("%s: window %d, epoch %d, want %d and %d", c.name, l.window, l.epoch, c.want, c.next)
		}
	}
}

// A source may send to ever new destinations: what its activation keeps in mind
// follows the lanes in which rows wait.
func TestLanesKept(t *testing.T) {
	o := &outbox{}
	send := func(to entity.Ref) laneState {
		o.number([]*recordv1.Row{{Destination: toRef(to), LaneSequence: 1}})
		state := o.lanes[to].lane
		state.numbered = 1
		o.update(to, state)
		return state
	}
	const waiting = 2 * lanesKept
	for i := range waiting {
		send(entity.Ref{Tenant: "t", Kind: "waits", ID: fmt.Sprint(i)})
	}
	for i := range 10 * waiting {
		to := entity.Ref{Tenant: "t", Kind: "answers", ID: fmt.Sprint(i)}
		state := send(to)
		state.confirmed = 1
		o.update(to, state)
	}
	if len(o.lanes) != waiting || o.open != waiting {
		t.Errorf("%d lanes, %d open, want %d", len(o.lanes), o.open, waiting)
	}
}
