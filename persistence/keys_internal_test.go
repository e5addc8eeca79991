package persistence

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/quick"

	"github.com/cespare/xxhash/v2"

	"writ/actors/entity"
	"writ/sharding"
)

// words makes values with slices comparable; nil and empty are one.
func words(v any) string { return strings.ReplaceAll(fmt.Sprintf("%+q", v), "<nil>", `""`) }

func TestKeysComeApartAgain(t *testing.T) {
	law := func(a, b entity.Ref, rest string) bool {
		first, second, left, err := cutPair(pairKey(a, b) + rest)
		return err == nil && first == a && second == b && left == rest
	}
	if err := quick.Check(law, nil); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"", "\x05abc", "\x01a", "\x01a\x01b", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "\x01a\x01b\x01c", "\xff"} {
		if _, _, _, err := cutPair(key); err == nil {
			t.Errorf("%q came apart", key)
		}
	}
}

// Different entities never share a key, wherever the parts are cut.
func TestKeysAreUnambiguous(t *testing.T) {
	law := func(a, b entity.Ref) bool { return a == b || stateKey(a) != stateKey(b) }
	if err := quick.Check(law, nil); err != nil {
		t.Error(err)
	}
	if a, b := (entity.Ref{Tenant: "ab", Kind: "c"}), (entity.Ref{Tenant: "a", Kind: "bc"}); stateKey(a) == stateKey(b) {
		t.Error("two entities have one key")
	}
}

// The prefix of an entity's keys is what sharding hashes.
func TestNamesAreHashedAsShardingDoes(t *testing.T) {
	law := func(r entity.Ref) bool {
		n := name{[]byte(r.Tenant), []byte(r.Kind), []byte(r.ID)}
		return xxhash.Sum64(appendName(nil, n)) == sharding.Hash(r) && bytes.Equal(appendName(nil, n), appendRef(nil, r)) && n.ref() == r
	}
	if err := quick.Check(law, nil); err != nil {
		t.Error(err)
	}
}

func TestAfter(t *testing.T) {
	for prefix, want := range map[string]string{"": "", "a": "b", "a\xff": "b", "\xff\xff": "", "ab\xff\xff": "ac"} {
		if got := after(prefix); got != want {
			t.Errorf("after %q is %q, want %q", prefix, got, want)
		}
	}
}

func TestGenerations(t *testing.T) {
	const width = 60
	for expires, want := range map[int64]uint64{-1: 0, 0: 0, 1: 1, 59: 1, 60: 1, 61: 2, math.MaxInt64: math.MaxInt64/width + 1} {
		n := generationOf(expires, width)
		if n != want {
			t.Errorf("generation of %d is %d, want %d", expires, n, want)
		}
		if end := generationEnd(n, width); end < expires {
			t.Errorf("generation %d ends at %d, before its key at %d", n, end, expires)
		}
	}
	var gs generations
	for _, n := range []uint64{5, 1, 9, 5, 3} {
		gs.at(n).keys++
	}
	if len(gs) != 4 || gs[2].number != 5 || gs[2].keys != 2 || gs.through(4) != 2 || gs.through(5) != 3 || gs.through(0) != 0 || gs.through(99) != 4 {
		t.Errorf("%v", gs)
	}
}

func TestFilterKnowsEveryKey(t *testing.T) {
	var f filter
	const keys = 5 * filterKeysMin
	alarms := 0
	for i := range keys {
		f.add(fmt.Append(nil, "key", i))
	}
	for i := range keys {
		if !f.mayHold(places(fmt.Append(nil, "key", i))) {
			t.Fatalf("key %d is not known", i)
		}
		if f.mayHold(places(fmt.Append(nil, "other", i))) {
			alarms++
		}
	}
	if alarms > keys/10 {
		t.Errorf("%d false alarms in %d", alarms, keys)
	}
	if new(filter).mayHold(places([]byte("x"))) {
		t.Error("an empty filter holds a key")
	}
}
