package node_test

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"writ/cmd/node/node"
)

func TestParseLimits(t *testing.T) {
	l, err := node.ParseLimits([]byte(`{"entities": {"Rows": 7, "Outbox": 9}, "gateway": {"InFlight": 11}, "store": {"Unflushed": 13}}`))
	want := node.DefaultLimits()
	want.Entities.Rows, want.Entities.Outbox, want.Gateway.InFlight, want.Store.Unflushed = 7, 9, 11, 13
	if err != nil || l != want {
		t.Errorf("limits %+v, %v", l, err)
	}
	for text, says := range map[string]string{
		`{"entities": {"Rowz": 7}}`:                              "Rowz",
		`{"entities": {"Rows": -1}}`:                             "entities.Rows must be positive",
		`{"store": {"Unflushed": 0}}`:                            "limit store.Unflushed must be positive, is 0",
		`{"store": {"Unflushed": 9223372036854775807}}`:          "limit store.Unflushed must be at most 1099511627776, is 9223372036854775807",
		`{"gateway": {"ConnectionStreams": 4294967296}}`:         "limit gateway.ConnectionStreams must be at most 4294967295",
		`{"entities": {"Command": 1000}}`:                        "gateway.Command",
		`{"entities": {"Event": 99000000, "Record": 199000000}}`: "gateway.Message",
		`nonsense`: "limits",
	} {
		if _, err := node.ParseLimits([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Every limit has a bound from above, and the error names it as docs/limits.md does.
func TestLimitsAreBounded(t *testing.T) {
	for part, v := range reflect.ValueOf(node.DefaultLimits()).Fields() {
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			for value, says := range map[int64]string{-1: "must be positive, is -1", math.MaxInt64: "must be at most"} {
				text := fmt.Sprintf(`{"%s": {"%s": %d}}`, part.Tag.Get("json"), name, value)
				says = fmt.Sprintf("limit %s.%s %s", part.Tag.Get("json"), name, says)
				if _, err := node.ParseLimits([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: %v", text, err)
				}
			}
		}
	}
}

// docs/limits.md lists every limit that can be set, with its default.
func TestLimitsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	for part, v := range reflect.ValueOf(node.DefaultLimits()).Fields() {
		for i := range v.NumField() {
			name := part.Tag.Get("json") + "." + v.Type().Field(i).Name
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
