package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"writ/actors"
)

func openTestHands(t *testing.T, dir string) *hands {
	t.Helper()
	h, err := openHands(dir, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// What is done again and again, and was in hand whenever the process was killed, is
// innocent. What is in hand each time and never done is not.
func TestWhatIsDoneCountsNoMore(t *testing.T) {
	for _, innocent := range []string{
		`query t.Dashboard 00ff of "default"/account/"a"`,
		`command t.Touch key "" of "default"/account/"a"`,
		`event "default"/account/"a"#1.1 in "default"/account/"b"`,
		"query " + strings.Repeat("long", handSize),
	} {
		const guilty = `command t.Bomb key "1" of "default"/account/"a"`
		dir := t.TempDir()
		for kills := range 2 * actors.DefaultMaxCrashes {
			h := openTestHands(t, dir)
			if n := h.Crashes(innocent); n != min(kills, 1) {
				t.Fatalf("%.40s: counted %d times after %d kills", innocent, n, kills)
			}
			if n := h.Crashes(guilty); n != kills {
				t.Fatalf("what is never done: counted %d times after %d kills", n, kills)
			}
			for range 3 {
				h.Take(innocent)()
			}
			if n := h.Crashes(innocent); n != 0 {
				t.Fatalf("%.40s: counted %d times once it is done", innocent, n)
			}
			h.keepChanges()
			h.Take(innocent)
			h.Take(guilty) // and the process ends
		}
	}
}

// What other nodes have told of it counts no more either, and they are to be told.
func TestWhatIsDoneCountsNowhere(t *testing.T) {
	const what, other = `query t.Dashboard 00ff of "default"/account/"a"`, "query other"
	h := openTestHands(t, t.TempDir())
	h.heard("n2", map[string]uint32{what: 1, other: 1})
	h.heard("n3", map[string]uint32{what: 1})
	var all []func() // every slot is taken
	for range handSlots {
		all = append(all, h.Take(other))
	}
	leave := h.Take(what)
	if n := h.Crashes(what); n != 2 {
		t.Errorf("counted %d times before it is done", n)
	}
	leave()
	if n, m := h.Crashes(what), h.Crashes(other); n != 0 || m != 1 {
		t.Errorf("counted %d times, the other one %d", n, m)
	}
	if done := h.takeDone(); len(done) != 1 || done[0] != what || len(h.elsewhere) != 1 {
		t.Errorf("to be told: %v; still known: %v", done, h.elsewhere)
	}
	var wg sync.WaitGroup
	for _, leave := range all {
		wg.Go(leave)
	}
	wg.Wait()
	if done := h.takeDone(); len(done) != 1 || done[0] != other || len(h.elsewhere) != 0 {
		t.Errorf("to be told: %v; still known: %v", done, h.elsewhere)
	}
	select {
	case <-h.news:
	default:
		t.Error("nobody is called to save and to tell")
	}
	if h.Take(what)(); len(h.takeDone()) != 0 {
		t.Error("what has no count is told of")
	}
}

// What ends the processes of one node only, as a newer program may, is stopped there,
// though another node does it each time in between.
func TestWhatEndsOneNodeOnly(t *testing.T) {
	const what = "query a"
	dir := t.TempDir()
	for crashes := range actors.DefaultMaxCrashes {
		h := openTestHands(t, dir)
		if n := h.Crashes(what); n != crashes {
			t.Fatalf("counted %d times after %d crashes", n, crashes)
		}
		if told := h.own()[what]; told != uint32(crashes) {
			t.Errorf("tells of %d crashes, of %d", told, crashes)
		}
		h.heard("n2", map[string]uint32{what: 7})
		h.heardDone([]string{what})
		if n, told := h.Crashes(what), len(h.own()); n != crashes || told != 0 {
			t.Errorf("another node has done it: counted %d times after %d crashes, tells of %d things", n, crashes, told)
		}
		h.keepChanges()
		h.Take(what) // and the process ends
	}
	h := openTestHands(t, dir)
	if h.Take(what)(); h.Crashes(what) != 0 {
		t.Errorf("counted %d times once it is done here", h.Crashes(what))
	}
}

// What another node has done is not told again. What was cleared is saved at the latest
// when the node stops; a closed file is not written any more.
func TestClearedCountsAreSaved(t *testing.T) {
	dir := t.TempDir()
	h := openTestHands(t, dir)
	h.Take("query a")
	h.Take("query b")
	h.Take("query c")
	h = openTestHands(t, dir)
	h.heardDone([]string{"query a", "query unknown"})
	if len(h.own()) != 2 || len(h.takeDone()) != 0 {
		t.Errorf("%v are told", h.own())
	}
	h.Take("query b")()
	h.close()
	file, err := os.ReadFile(filepath.Join(dir, crashesFile))
	if text := string(file); err != nil || strings.Count(text, "done_elsewhere") != 1 || strings.Contains(text, "query b") || !strings.Contains(text, "query c") {
		t.Errorf("saved: %s, %v", text, err)
	}
	h.Take("query c")()
	h.keepChanges()
	if again, err := os.ReadFile(filepath.Join(dir, crashesFile)); err != nil || string(again) != string(file) {
		t.Errorf("saved after the end: %s, %v", again, err)
	}
}
