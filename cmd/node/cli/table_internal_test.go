package cli

import (
	"os/exec"
	"strings"
	"testing"
)

func TestRowsStayRows(t *testing.T) {
	var out strings.Builder
	table := newTable(&out)
	for _, cells := range [][]any{{"ENTITY", "REASON"}, {"account/å b", 7}, {"account/a\tb", "first\nsecond \x1b[2J"}} {
		if err := row(table, cells...); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	const want = "ENTITY        REASON\n" +
		"account/å b   7\n" +
		`account/a\tb  first\nsecond \x1b[2J` + "\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// What a person is told to type reaches the command as it was meant.
func TestShellWord(t *testing.T) {
	for _, text := range []string{"account/alice", "", "a b", "it's", "$HOME", "`id`", `a\b"c`, "*", "~", "a;b&c|d", "#1", "ä"} {
		got, err := exec.Command("sh", "-c", "printf %s "+shellWord(text)).Output()
		if err != nil || string(got) != text {
			t.Errorf("%q reached the command as %q, %v", text, got, err)
		}
	}
	if got := shellWord("account/al-ice_1.2"); got != "account/al-ice_1.2" {
		t.Errorf("quoted without need: %s", got)
	}
}
