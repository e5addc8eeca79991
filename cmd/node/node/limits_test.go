package node_test

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"writ/cmd/node/node"
)

func TestParseLimits(t *testing.T) {
	l, err := node.ParseLimits([]byte(`{"entities": {"Rows": 7, "Outbox": 9}, "gateway": {"InFlight": 11}}`))
	want := node.DefaultLimits()
	want.Entities.Rows, want.Entities.Outbox, want.Gateway.InFlight = 7, 9, 11
	if err != nil || l != want {
		t.Errorf("limits %+v, %v", l, err)
	}
	for text, says := range map[string]string{
		`{"entities": {"Rowz": 7}}`:                              "Rowz",
		`{"entities": {"Rows": -1}}`:                             "rows",
		`{"entities": {"Command": 1000}}`:                        "gateway.Command",
		`{"entities": {"Event": 99000000, "Record": 199000000}}`: "gateway.Message",
		`nonsense`: "limits",
	} {
		if _, err := node.ParseLimits([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// docs/limits.md lists every limit that can be set, with its default.
func TestLimitsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	for part, limits := range map[string]any{"entities": node.DefaultLimits().Entities, "gateway": node.DefaultLimits().Gateway} {
		v := reflect.ValueOf(limits)
		for i := range v.NumField() {
			name := part + "." + v.Type().Field(i).Name
			row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(name) + "` \\| ([^|]*) \\|").FindSubmatch(page)
			if row == nil {
				t.Errorf("%s is not on the page", name)
			} else if got := limitOf(string(row[1])); got != v.Field(i).Int() {
				t.Errorf("%s: the page says %s (%d), it is %d", name, row[1], got, v.Field(i).Int())
			}
		}
	}
}

// limitOf reads "4 MiB", "2 KiB" or "16,384".
func limitOf(text string) int64 {
	number, unit, _ := strings.Cut(strings.ReplaceAll(text, ",", ""), " ")
	n := int64(0)
	for _, r := range number {
		n = 10*n + int64(r-'0')
	}
	return n * map[string]int64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]
}
