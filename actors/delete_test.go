package actors_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
)

// deletable emits, is told, and can be deleted.
func deletable(name string) *entity.Kind[*num] {
	return kind(name, hooks{command: func(c *entity.Context, s *num, what string) error {
		switch what {
		case "delete":
			c.SetTimer("late", entity.Timer{Command: &text{Value: "nothing"}})
			c.Emit(entity.To("counter", "x"), &num{Value: 100})
			c.Delete()
		case "timer":
			c.SetTimer("t", entity.Timer{After: 1 << 40, Command: &text{Value: "nothing"}})
		case "reject":
			c.Delete()
			return c.Reject(entity.NotFound, "NO", "no")
		default:
			s.Value++
			c.Emit(entity.To("counter", "x"), &num{Value: 1})
		}
		return nil
	}})
}

// An entity that is deleted and made again goes on with its numbers: nothing of
// its second life is taken for something of its first.
func TestDelete(t *testing.T) {
	w := newWorld(t, worldConfig{shards: 4, kinds: []entity.Definer{deletable("gone"), kind("counter", hooks{})}})
	e, x := ref("gone", "1"), ref("counter", "x")
	for i := range 10 {
		w.must(e, fmt.Sprint("first", i), &text{Value: "emit"})
	}
	w.must(e, "timer", &text{Value: "timer"})
	if answer, err := w.submit(submitted{ref: e, key: "no", command: &text{Value: "reject"}}); err != nil || answer.GetRejection() == nil {
		t.Error(answer, err)
	}
	deleted := w.must(e, "delete", &text{Value: "delete"})
	if value, version := w.read(e); value != 0 || version != deleted.GetVersion() || version != 13 {
		t.Errorf("after the deletion: %d at version %d", value, version)
	}
	if _, rec := w.stored(e); !rec.GetDeleted() || rec.GetSourceSequence() != 11 || rec.GetDecided() != 13 {
		t.Errorf("tombstone is %v", rec)
	}
	if names, err := w.stores[w.shard(e)].TimerNames(e, 10); err != nil || len(names) > 0 {
		t.Errorf("timers left: %v, %v", names, err)
	}
	// Keys are kept for their window, the deletion's own as well.
	again, err := w.submit(submitted{ref: e, key: "delete", command: &text{Value: "delete"}})
	if err != nil || !again.GetReplayed() || again.GetVersion() != deleted.GetVersion() {
		t.Errorf("the deletion again: %v, %v", again, err)
	}
	again, err = w.submit(submitted{ref: e, key: "first3", command: &text{Value: "emit"}})
	if err != nil || !again.GetReplayed() {
		t.Errorf("a command of the first life again: %v, %v", again, err)
	}
	_, err = w.submit(submitted{ref: e, key: "first3", command: &text{Value: "other"}})
	wantReason(t, err, entity.KeyReused)
	w.lead(int(w.shard(e))) // the second life begins from the store
	for i := range 10 {
		w.must(e, fmt.Sprint("second", i), &text{Value: "emit"})
	}
	w.drained(e, x, 21)
	if value, version := w.read(x); value != 120 || version != 21 {
		t.Errorf("the consumer is %d at version %d", value, version)
	}
	if value, rec := w.stored(e); value != 10 || rec.GetDeleted() || rec.GetVersion() != 23 || rec.GetSourceSequence() != 21 {
		t.Errorf("second life: %d, %v", value, rec)
	}
}

// Rows to an entity that was deleted begin it anew, and none is applied twice.
func TestEventsToDeleted(t *testing.T) {
	w := newWorld(t, worldConfig{shards: 2, kinds: []entity.Definer{emitter("a"), deletable("gone")}})
	a, e := ref("a", "1"), ref("gone", "1")
	for i := range 5 {
		w.must(a, fmt.Sprint(i), &text{Value: "gone/1"})
	}
	w.drained(a, e, 5)
	w.must(e, "delete", &text{Value: "delete"})
	rows, err := w.stores[w.shard(a)].Rows(a, e, 1, 10, 0)
	if err != nil || len(rows) != 0 {
		t.Fatal(rows, err)
	}
	for i := range 3 {
		w.must(a, fmt.Sprint("after", i), &text{Value: "gone/1"})
	}
	w.drained(a, e, 8)
	if value, rec := w.stored(e); value != 3 || rec.GetDeleted() || rec.GetVersion() != 9 {
		t.Errorf("%d, %v", value, rec)
	}
	mark, err := w.stores[w.shard(e)].Applied(e, a)
	if err != nil || mark.GetLaneSequence() != 8 {
		t.Errorf("mark %v, %v", mark, err)
	}
}

// Messages that follow a deletion in flight find the initial state.
func TestDeleteInFlight(t *testing.T) {
	w := newWorld(t, worldConfig{kinds: []entity.Definer{deletable("gone"), kind("counter", hooks{})}})
	e := ref("gone", "1")
	w.must(e, "0", &num{Value: 41})
	lease := w.leases[0]
	lease.hold()
	var answers []<-chan result
	for i, command := range []proto.Message{&text{Value: "timer"}, &text{Value: "delete"}, &num{Value: 1}, &text{Value: "emit"}} {
		answers = append(answers, w.later(submitted{ref: e, key: fmt.Sprint("k", i), command: command}))
		w.held(0, i+1)
	}
	lease.release()
	for _, answer := range answers {
		if r := <-answer; r.err != nil {
			t.Error(r.err)
		}
	}
	if value, _ := w.read(e); value != 2 {
		t.Errorf("value is %d", value)
	}
	if names, err := w.stores[0].TimerNames(e, 10); err != nil || len(names) > 0 {
		t.Errorf("timers left: %v, %v", names, err)
	}
}
