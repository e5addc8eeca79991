package gateway

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCutText(t *testing.T) {
	tests := map[string]struct{ in, want string }{
		"empty":             {"", ""},
		"short":             {"grüße", "grüße"},
		"exactly full":      {strings.Repeat("x", 2048), strings.Repeat("x", 2048)},
		"one too many":      {strings.Repeat("x", 2049), strings.Repeat("x", 2045) + "…"},
		"not UTF-8":         {"a\xff\xfeb", "a?b"},
		"a rune on the cut": {strings.Repeat("x", 2044) + "€" + "xx", strings.Repeat("x", 2044) + "…"},
		"much invalid":      {"a" + strings.Repeat("\xff", 5000), "a?…"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := cutText(tt.in); got != tt.want {
				t.Errorf("got %d bytes %.40q … %q", len(got), got, got[max(0, len(got)-12):])
			}
		})
	}
}

func FuzzCut(f *testing.F) {
	f.Add("€€€€", 7, 20)
	f.Add(strings.Repeat("%", 100), 64, 64)
	f.Fuzz(func(t *testing.T, s string, limit, encoded int) {
		if limit < 16 || limit > 4096 || encoded < 16 || encoded > 8192 {
			return
		}
		got := cut(s, limit, encoded)
		if len(got) > limit || encodedLen(got) > encoded || !utf8.ValidString(got) {
			t.Fatalf("%d bytes, %d encoded, valid %v", len(got), encodedLen(got), utf8.ValidString(got))
		}
		if utf8.ValidString(s) && len(s) <= limit && encodedLen(s) <= encoded && got != s {
			t.Fatalf("cut without need: %q to %q", s, got)
		}
	})
}

func TestBoundDetails(t *testing.T) {
	many := map[string]string{"": "x", "bad\xff": "x", strings.Repeat("n", 65): "x"}
	for _, c := range "abcdefghijklmnopqrstuvwxyz" {
		many[string(c)] = "v"
	}
	if got := boundDetails(many); len(got) != 16 || got["a"] != "v" || got["p"] != "v" {
		t.Errorf("kept %v", got)
	}
	long := map[string]string{"a": strings.Repeat("v", 1000), "b": strings.Repeat("v", 1000), "c": strings.Repeat("v", 1000)}
	if got := boundDetails(long); len(got) != 2 || len(got["a"]) > 256 {
		t.Errorf("kept %v", got)
	}
	if boundDetails(nil) != nil {
		t.Error("made something out of nothing")
	}
}
