package sharding_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/quick"

	"writ/actors/entity"
	"writ/sharding"
)

// The cut is an identity, like the hash.
func TestSplitGolden(t *testing.T) {
	tests := []struct {
		n    uint32
		want []sharding.Range
	}{
		{0, nil},
		{1, []sharding.Range{{First: 0, Last: math.MaxUint64}}},
		{2, []sharding.Range{{First: 0, Last: 0x7fffffffffffffff}, {First: 0x8000000000000000, Last: math.MaxUint64}}},
		{3, []sharding.Range{
			{First: 0, Last: 0x5555555555555555},
			{First: 0x5555555555555556, Last: 0xaaaaaaaaaaaaaaaa},
			{First: 0xaaaaaaaaaaaaaaab, Last: math.MaxUint64},
		}},
	}
	for _, tt := range tests {
		if got := sharding.Split(tt.n); !slices.Equal(got, tt.want) {
			t.Errorf("Split(%d) = %v, want %v", tt.n, got, tt.want)
		}
	}
}

func TestSplitCoversEveryHash(t *testing.T) {
	for _, n := range []uint32{1, 2, 3, 5, 7, 8, 16, 100, 1023, 4096} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			ranges := sharding.Split(n)
			if len(ranges) != int(n) {
				t.Fatalf("%d ranges", len(ranges))
			}
			next := uint64(0)
			size := uint64(math.MaxUint64)/uint64(n) + 1
			for i, r := range ranges {
				if r.First != next || r.Last < r.First {
					t.Fatalf("range %d is %v, should begin at %016x", i, r, next)
				}
				if got := r.Last - r.First + 1; n > 1 && (got < size-1 || got > size) {
					t.Errorf("range %d holds %d hashes, want %d or one less", i, got, size)
				}
				next = r.Last + 1
			}
			if next != 0 {
				t.Errorf("the last range ends at %016x", ranges[n-1].Last)
			}
		})
	}
}

func TestLocateAgreesWithSplit(t *testing.T) {
	for _, n := range []uint32{1, 2, 3, 7, 8, 13, 64, 1000} {
		ranges := sharding.Split(n)
		law := func(tenant, kind, id string) bool {
			ref := entity.Ref{Tenant: tenant, Kind: kind, ID: id}
			i := sharding.Locate(n, ref)
			return i < n && ranges[i].Contains(sharding.Hash(ref))
		}
		if err := quick.Check(law, nil); err != nil {
			t.Errorf("n = %d: %v", n, err)
		}
	}
}

func TestContainsBothEnds(t *testing.T) {
	r := sharding.Range{First: 10, Last: 20}
	for h, want := range map[uint64]bool{9: false, 10: true, 15: true, 20: true, 21: false} {
		if got := r.Contains(h); got != want {
			t.Errorf("Contains(%d) = %v", h, got)
		}
	}
}

func TestLocateOfNoShards(t *testing.T) {
	if got := sharding.Locate(0, entity.Ref{ID: "a"}); got != 0 {
		t.Errorf("Locate(0) = %d", got)
	}
}
