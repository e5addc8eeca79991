package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func lineOf(id, key string) string {
	return fmt.Sprintf(`{"kind":"account","id":%q,"key":"%s","command":{"@type":"type.googleapis.com/writ.account.v1.Deposit","amount_minor":1,"currency":"EUR"}}`, id, key)
}

// TestCommandFile covers that no line is lost, and no key changed, without a word.
func TestCommandFile(t *testing.T) {
	long := strings.Replace(lineOf("a", "k"), "EUR", strings.Repeat("x", lineMax), 1)
	for name, tt := range map[string]struct {
		text string
		want string // in the error; or none, and two commands
	}{
		"plain":                        {lineOf("a", "1") + "\n" + lineOf("a", "2"), ""},
		"byte order mark":              {"\ufeff" + lineOf("a", "1") + "\n" + lineOf("a", "2") + "\n", ""},
		"carriage returns and blank":   {lineOf("a", "1") + "\r\n\r\n  \n" + lineOf("a", "2") + "\r\n", ""},
		"time of issue":                {strings.Replace(lineOf("a", "1"), `"key"`, `"issued_at":"2026-01-02T03:04:05Z","key"`, 1) + "\n" + lineOf("a", "2"), ""},
		"two objects on one line":      {lineOf("a", "1") + " " + lineOf("a", "2"), "line 1: not one JSON object"},
		"garbage behind":               {lineOf("a", "1") + "\n" + lineOf("a", "2") + " garbage", "line 2: not one JSON object"},
		"key is not UTF-8":             {lineOf("a", "k\xff"), "invalid UTF-8"},
		"half a rune":                  {lineOf("a", `k\ud800`), "line 1: not one JSON object"},
		"key twice":                    {strings.Replace(lineOf("a", "1"), `"key"`, `"key":"2","key"`, 1), `duplicate map key "key"`},
		"field of the command twice":   {strings.Replace(lineOf("a", "1"), `"amount_minor":1`, `"amount_minor":1,"amount_minor":2`, 1), `duplicate map key "amount_minor"`},
		"unknown field":                {strings.Replace(lineOf("a", "1"), `"key"`, `"keys":"2","key"`, 1), `unknown field "keys"`},
		"unknown field of the command": {strings.Replace(lineOf("a", "1"), `"amount_minor"`, `"amount"`, 1), `unknown field "amount"; its fields: amount_minor, currency`},
		"key in two cases":             {strings.Replace(lineOf("a", "1"), `"key"`, `"key":"2","Key"`, 1), `unknown field "Key"`},
		"key in another case":          {strings.Replace(lineOf("a", "1"), `"key"`, `"KEY"`, 1), `unknown field "KEY"`},
		"no key":                       {lineOf("a", ""), `"key" is missing`},
		"long line":                    {"\n\n" + long + "\n", "line 3: a line has at most"},
	} {
		t.Run(name, func(t *testing.T) {
			types := (&target{}).types(t.Context())
			defer types.Close()
			lines, err := parseCommandLines(types, strings.NewReader(tt.text))
			switch {
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want %q", err, tt.want)
			case tt.want == "" && (err != nil || len(lines) != 2):
				t.Errorf("%d commands, %v", len(lines), err)
			}
		})
	}
}

// TestLinesKeepTheirOrderOverRuns covers that behind a line without an outcome
// nothing of the same entity is sent: the next run would come too late with it.
func TestLinesKeepTheirOrderOverRuns(t *testing.T) {
	var text strings.Builder
	for i := range 5 {
		fmt.Fprintf(&text, "%s\n%s\n", lineOf("a", fmt.Sprint(i)), lineOf("b", fmt.Sprint(i)))
	}
	file := filepath.Join(t.TempDir(), "commands.jsonl")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	got := call(t, "submit", "--addr", nobody(t), "--file", file, "--timeout", "100ms", "--json")
	var sum submitSummary
	if err := json.Unmarshal([]byte(got.out), &sum); err != nil {
		t.Fatalf("%v in %+v", err, got)
	}
	if sum.Failed != 10 || sum.Held != 8 || got.status != 1 {
		t.Errorf("%+v, status %d: want 10 failed, 8 of them held", sum, got.status)
	}
}
