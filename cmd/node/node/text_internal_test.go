package node

import (
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{
		{"", 0, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aä", 2, "a"}, {"aä", 3, "aä"}, {"a€b", 3, "a"}, {"a\xff", 2, "a?"},
	} {
		if got := cut(tt.text, tt.n); got != tt.want {
			t.Errorf("cut(%q, %d) = %q, want %q", tt.text, tt.n, got, tt.want)
		}
	}
}

// A long name, cut wherever, is found again after the counts were written and read.
func TestLongNamesInHand(t *testing.T) {
	for shift := range 4 {
		dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
		name := strings.Repeat("x", shift) + strings.Repeat("€", handSize)
		if !utf8.ValidString(short(name)) || len(short(name)) > handSize-handHead {
			t.Errorf("%d bytes, valid: %v", len(short(name)), utf8.ValidString(short(name)))
		}
		for range 2 {
			h, err := openHands(dir, time.Now, log)
			if err != nil {
				t.Fatal(err)
			}
			h.Take(name) // and the process ends
		}
		h, err := openHands(dir, time.Now, log)
		if err != nil {
			t.Fatal(err)
		}
		if n := h.Crashes(name); n != 2 {
			t.Errorf("found %d times", n)
		}
	}
}
