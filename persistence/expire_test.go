package persistence_test

import (
	"fmt"
	"testing"
	"time"

	"writ/persistence"
)

func TestExpiry(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	a := ref("a")
	s.logTime = 1
	s.must(s.command(a, "early")) // expires at 10 min + 1 ns: generation 11
	s.logTime = int64(90 * time.Second)
	s.must(s.command(a, "late")) // expires at 11.5 min: generation 12

	if _, ok := s.Expirable(int64(11*time.Minute) - 1); ok {
		t.Error("expirable before the end of the generation")
	}
	if n, ok := s.Expirable(int64(11 * time.Minute)); !ok || n != 11 {
		t.Errorf("expirable: %d %t", n, ok)
	}
	if n, ok := s.Expirable(int64(time.Hour)); !ok || n != 12 {
		t.Errorf("expirable: %d %t", n, ok)
	}

	s.logTime = int64(11*time.Minute) - 1
	if got := persistence.Refused(s.try(s.expire(11))[0]); got != "expire" {
		t.Errorf("expired before its time: refused %q", got)
	}
	s.logTime = int64(11 * time.Minute)
	s.must(s.expire(11))
	s.must(s.expire(11)) // again: nothing to do
	s.must(s.expire(3))
	n := s.Meta()
	if n.Counters.KeysLive != 1 || n.Counters.KeysExpired != 1 || n.ExpiredGeneration != 11 || s.ExpiredThrough() != 6 {
		t.Errorf("meta %v, expired through %d", n, s.ExpiredThrough())
	}
	if k, err := s.Key(a, "test.Do", []byte("early")); k != nil || err != nil {
		t.Errorf("the expired key is still there: %v %v", k, err)
	}
	if k, err := s.Key(a, "test.Do", []byte("late")); k == nil || err != nil {
		t.Errorf("a live key is gone: %v", err)
	}
	late, c := s.commit(a) // a key that would be forgotten from the start
	s.key(c, "new")
	c.Key.ExpiresAt = int64(11 * time.Minute)
	if got := persistence.Refused(s.try(late)[0]); got != "expired" {
		t.Errorf("refused %q", got)
	}
	c.Key.ExpiresAt++
	s.must(late)
	s.must(s.command(a, "early")) // the name is free again
	if got := persistence.Refused(s.try(s.expire(1 << 62))[0]); got != "expire" {
		t.Errorf("a generation beyond all time: refused %q", got)
	}
}

// In one entry: write keys and rows, then forget a thousand keys. None is left,
// whether they had reached the file or not.
func TestExpiryLeavesNothing(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		t.Run(fmt.Sprintf("flushed=%t", flushed), func(t *testing.T) {
			cfg := config(t)
			s := newShard(t, create(t, cfg))
			a, b := ref("a"), ref("b")
			for i := range 1000 {
				s.logTime = int64(i) * int64(time.Second)
				s.must(s.command(a, fmt.Sprint("k", i), b))
			}
			if flushed {
				flush(t, s.Store)
			}
			s.logTime += int64(time.Hour)
			s.must(s.command(a, "new", b), s.expire(uint64(s.logTime/int64(width))-1), s.confirm(a, b, 1001))
			for _, when := range []string{"in memory", "in the file", "opened again"} {
				found := audit(t, s.Store)
				if found.KeysLive != 1 || found.KeysExpired != 1000 || found.Pending != 0 || found.Effects != 1001 {
					t.Errorf("%s: %+v", when, found)
				}
				for i := range 1000 {
					if k, err := s.Key(a, "test.Do", fmt.Append(nil, "k", i)); k != nil || err != nil {
						t.Fatalf("%s: key %d is left: %v", when, i, err)
					}
				}
				flush(t, s.Store)
				if when == "in the file" {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s.Store = open(t, cfg)
				}
			}
			if n := s.FilePairs(t, "idem", "outbox"); n != 1 {
				t.Errorf("%d keys and rows are left in the file, want 1", n)
			}
		})
	}
}

// A restart replays the log, the commands whose keys have been forgotten since
// included, and changes nothing.
func TestReplayAfterExpiry(t *testing.T) {
	cfg := config(t)
	s := newShard(t, create(t, cfg))
	var log [][]byte
	add := func(entry []byte) {
		log = append(log, entry)
		if _, err := s.Apply(uint64(len(log)), 1, entry); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 200 {
		add(encode(t, s.logTime, s.command(ref("a"), fmt.Sprint("k", i), ref("x"))))
		s.logTime += int64(time.Second)
	}
	s.logTime += int64(time.Hour)
	add(encode(t, s.logTime, s.expire(uint64(s.logTime/int64(width))-1)))
	want := s.Dump()
	for _, from := range []int{0, 7, 100, 200, 201} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s.Store = open(t, cfg)
		for i, entry := range log[from:] {
			if _, err := s.Apply(uint64(from+i+1), 1, entry); err != nil {
				t.Fatal(err)
			}
		}
		if s.Dump() != want {
			t.Errorf("replay from %d changed the content", from)
		}
	}
}

// TestExpiryIgnoresWallClocks covers that the wall clock of the leader that
// accepted a command, stepped forward or back by an hour, changes nothing about
// when its key is forgotten, and that what is forgotten is remembered by the
// latest of those times: a command is refused too often rather than executed twice.
func TestExpiryIgnoresWallClocks(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	a := ref("a")
	wall := int64(100 * time.Hour)
	for i, step := range []int64{0, int64(time.Hour), -int64(time.Hour)} {
		r, c := s.commit(a)
		s.logTime = int64(i) + 1
		s.key(c, fmt.Sprint("k", i))
		c.Key.AcceptedAt = wall + step
		s.must(r)
	}
	s.logTime = window // the keys end in the generation behind it
	if n, ok := s.Expirable(window); ok {
		t.Errorf("generation %d is expirable before the window has passed", n)
	}
	for i := range 3 {
		if k, err := s.Key(a, "test.Do", fmt.Append(nil, "k", i)); k == nil || err != nil {
			t.Errorf("key %d is gone: %v", i, err)
		}
	}
	s.logTime = window + int64(width)
	n, ok := s.Expirable(s.logTime)
	if !ok {
		t.Fatal("nothing is expirable behind the generation's end")
	}
	s.must(s.expire(n))
	if got := s.ExpiredThrough(); got != wall+int64(time.Hour) {
		t.Errorf("expired through %d, want the latest acceptance time %d", got, wall+int64(time.Hour))
	}
}
