package actors

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"writ/actors/entity"
	"writ/sharding"
)

// No more run at once than the bounds allow: to one destination, and to a shard.
func TestSenders(t *testing.T) {
	for _, tt := range []struct{ destinations, most int }{{1, 2}, {2, 4}, {5, 8}} {
		s := newSenders(func() uint32 { return 0 }, 8)
		var mu sync.Mutex
		running, most, done := 0, 0, 0
		begun, release := make(chan struct{}, 40), make(chan struct{})
		var all sync.WaitGroup
		for i := range 40 {
			all.Add(1)
			s.run(entity.Ref{ID: strconv.Itoa(i % tt.destinations)}, func() {
				defer all.Done()
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				begun <- struct{}{}
				<-release
				mu.Lock()
				running--
				done++
				mu.Unlock()
			})
		}
		for range tt.most {
			<-begun
		}
		for range 40 {
			release <- struct{}{}
		}
		all.Wait()
		if most != tt.most || done != 40 {
			t.Errorf("%d destinations: %d at once, want %d; %d done", tt.destinations, most, tt.most, done)
		}
		s.close()
		s.run(entity.Ref{}, func() { t.Error("ran after close") })
		s.close()
		for _, p := range s.pools {
			if len(p.destinations) != 0 || p.workers != 0 {
				t.Errorf("left over: %d destinations, %d workers", len(p.destinations), p.workers)
			}
		}
	}
}

// Destinations that do not answer hold up no other: neither of another shard, nor,
// if they are few, of their own.
func TestSendersDoNotWaitForEachOther(t *testing.T) {
	s := newSenders(func() uint32 { return 4 }, 8)
	silent, gone := make(chan struct{}), entity.Ref{ID: "gone"}
	for i := range 100 { // one that is slow, and a whole shard that is silent
		s.run(gone, func() { <-silent })
		if to := (entity.Ref{ID: strconv.Itoa(i)}); sharding.Locate(4, to) == (sharding.Locate(4, gone)+1)%4 {
			s.run(to, func() { <-silent })
		}
	}
	var served sync.WaitGroup
	for i := range 100 {
		if to := (entity.Ref{ID: strconv.Itoa(i)}); sharding.Locate(4, to) != (sharding.Locate(4, gone)+1)%4 {
			served.Add(1)
			s.run(to, served.Done)
		}
	}
	served.Wait()
	close(silent)
	s.close()
}

// A mailbox that blocks holds up no other, however many there are.
func TestDispatcher(t *testing.T) {
	d := newDispatcher()
	const n = 3 * idleMost
	var begun, ended sync.WaitGroup
	release := make(chan struct{})
	for range n {
		begun.Add(1)
		ended.Add(1)
		d.Schedule(func() {
			begun.Done()
			<-release
			ended.Done()
		})
	}
	begun.Wait()
	close(release)
	ended.Wait()
	for range n { // the kept ones take more
		ended.Add(1)
		d.Schedule(ended.Done)
	}
	ended.Wait()
	d.close()
	d.close()
	late := make(chan struct{})
	d.Schedule(func() { close(late) })
	<-late
	if d.idle > idleMost {
		t.Errorf("%d idle", d.idle)
	}
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{
		{"short", 10, "short"},
		{"exact", 5, "exact"},
		{"longer", 4, "long"},
		{"aüb", 2, "a"},
		{"aüb", 3, "aü"},
		{"", 0, ""},
		{"üü", 1, ""},
		{"a\xffb", 9, "a?b"},
	} {
		if got := cut(tt.text, tt.n); got != tt.want {
			t.Errorf("cut(%q, %d) = %q, want %q", tt.text, tt.n, got, tt.want)
		}
	}
	if s := cut(strings.Repeat("\xf0", 100), 10); !utf8.ValidString(s) || len(s) > 10 {
		t.Errorf("%q", s)
	}
}
