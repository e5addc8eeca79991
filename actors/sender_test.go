package actors

import (
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

func TestSenders(t *testing.T) {
	s := newSenders(3)
	var mu sync.Mutex
	running, most, done := 0, 0, 0
	begun, release := make(chan struct{}, 20), make(chan struct{})
	var all sync.WaitGroup
	for range 20 {
		all.Add(1)
		s.run(func() {
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
	for range 3 {
		<-begun
	}
	for range 20 {
		release <- struct{}{}
	}
	all.Wait()
	if most != 3 || done != 20 {
		t.Errorf("%d at once, %d done", most, done)
	}
	s.close()
	s.run(func() { t.Error("ran after close") })
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
