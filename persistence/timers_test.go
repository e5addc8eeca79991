package persistence_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

func timerPayload(t *testing.T, timer *recordv1.Timer) *recordv1.Payload {
	t.Helper()
	data, err := proto.Marshal(timer)
	if err != nil {
		t.Fatal(err)
	}
	return &recordv1.Payload{Type: string(timer.ProtoReflect().Descriptor().FullName()), Schema: 1, Data: data}
}

// due lists the index of times, page by page.
func due(t *testing.T, s *persistence.Store, until int64, page int) (names []string, next int64) {
	t.Helper()
	position := ""
	for {
		n := 0
		var err error
		next, err = s.DueTimers(position, until, page, func(at string, ref entity.Ref, name string, timer *recordv1.Timer) {
			n++
			position = at
			names = append(names, fmt.Sprintf("%d %s %s", timer.GetNext(), ref.ID, name))
		})
		if err != nil {
			t.Fatal(err)
		}
		if n < page {
			return names, next
		}
	}
}

// The index of times follows what timers are set, moved and deleted, across
// flushes and a restart, and its audit finds no fault.
func TestTimersByTime(t *testing.T) {
	cfg := config(t)
	s, err := persistence.Create(cfg)
	if err != nil {
		t.Fatal(err)
	}
	g := rand.New(rand.NewPCG(1, 2))
	want := map[string]int64{} // "id name"
	versions := map[string]uint64{}
	index := uint64(1)
	for step := range 600 {
		id, name := fmt.Sprint("e", g.IntN(7)), fmt.Sprint("t", g.IntN(5))
		m := &recordv1.Mutation{Bucket: recordv1.Bucket_TIMERS, Subkey: []byte(name)}
		switch next := g.Int64N(1000); {
		case next < 300:
			m.Delete = true
			delete(want, id+" "+name)
		case next < 330: // parked: no time
			m.Value = timerPayload(t, &recordv1.Timer{Set: 1, Due: next})
			delete(want, id+" "+name)
		case next < 360: // no timer at all
			m.Value = &recordv1.Payload{Type: "other", Data: []byte{1, 2, 3}}
			delete(want, id+" "+name)
		default:
			m.Value = timerPayload(t, &recordv1.Timer{Set: 1, Due: 1, Next: next, Every: 3})
			want[id+" "+name] = next
		}
		index++
		entry, err := proto.Marshal(&recordv1.Entry{Format: 1, Records: []*recordv1.Record{{Epoch: 1, Term: 1, Body: &recordv1.Record_Commit{Commit: &recordv1.Commit{
			Entity: &recordv1.Ref{Tenant: "t", Kind: "k", Id: id}, BaseVersion: versions[id], Mutations: []*recordv1.Mutation{m},
		}}}}})
		if err != nil {
			t.Fatal(err)
		}
		results, err := s.Apply(index, 1, entry)
		if err != nil || results[0] != nil {
			t.Fatal(err, results)
		}
		versions[id]++
		if step%97 == 0 {
			if err := s.WaitFlushed(t.Context(), index); err != nil {
				t.Fatal(err)
			}
		}
		if step%59 != 0 && step != 599 {
			continue
		}
		if step%118 == 0 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err = persistence.Open(cfg); err != nil {
				t.Fatal(err)
			}
		}
		compareDue(t, s, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// All timers of an entity, or of all, are listed with those that wait for no time,
// and without the index and what is no timer.
func TestTimersAfter(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	for i := range 6 {
		r, c := s.commit(ref(fmt.Sprint("e", i%2)))
		name := fmt.Sprint("t", i)
		value := timerPayload(t, &recordv1.Timer{Set: 1, Due: 7, Next: int64(i % 3)}) // every third is parked
		if i == 4 {
			value = payload("no timer")
		}
		c.Mutations = append(c.Mutations, &recordv1.Mutation{Bucket: recordv1.Bucket_TIMERS, Subkey: []byte(name), Value: value})
		s.must(r)
		if i == 2 {
			flush(t, s.Store)
		}
	}
	for of, want := range map[entity.Ref][]string{
		{}:        {"e0 t0", "e0 t2", "e1 t1", "e1 t3", "e1 t5"},
		ref("e1"): {"e1 t1", "e1 t3", "e1 t5"},
		ref("e2"): nil,
	} {
		for _, step := range []int{1, 2, 100} {
			var got []string
			for position, more := "", true; more; {
				before := len(got)
				if err := s.TimersAfter(of, position, step, func(at string, ref entity.Ref, name string, timer *recordv1.Timer) {
					if timer.GetDue() != 7 {
						t.Errorf("%v %s: %v", ref, name, timer)
					}
					position, got = at, append(got, ref.ID+" "+name)
				}); err != nil {
					t.Fatal(err)
				}
				more = len(got)-before == step
			}
			if !slices.Equal(got, want) {
				t.Errorf("of %v in steps of %d: %v, want %v", of, step, got, want)
			}
		}
	}
}

func compareDue(t *testing.T, s *persistence.Store, want map[string]int64) {
	t.Helper()
	for _, until := range []int64{0, 400, 700, math.MaxInt64} {
		var expected []string
		first := int64(0)
		for at, next := range want {
			if next <= until {
				expected = append(expected, fmt.Sprintf("%d %s", next, at))
			} else if first == 0 || next < first {
				first = next
			}
		}
		slices.Sort(expected)
		for _, page := range []int{1, 3, 100} {
			got, next := due(t, s, until, page)
			if !slices.Equal(got, expected) || next != first {
				t.Fatalf("until %d: %v, then %d; want %v, then %d", until, got, next, expected, first)
			}
		}
	}
	for at, next := range want {
		var id, name string
		if _, err := fmt.Sscan(at, &id, &name); err != nil {
			t.Fatal(err)
		}
		timer, err := s.Timer(entity.Ref{Tenant: "t", Kind: "k", ID: id}, name)
		if err != nil || timer.GetNext() != next {
			t.Errorf("timer %s is %v, %v", at, timer, err)
		}
	}
	audit, err := s.Audit(context.Background())
	if err != nil || len(audit.Findings) > 0 {
		t.Fatalf("audit: %v, %v", audit, err)
	}
}
