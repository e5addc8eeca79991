package actors

import "testing"

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
