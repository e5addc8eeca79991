package sharding

import (
	"fmt"
	"math"
	"math/bits"

	"writ/actors/entity"
)

// Range is a contiguous part of the hash space. Both ends are included, so that
// the last range can end at the last hash.
type Range struct{ First, Last uint64 }

// Contains reports whether the hash h lies in the range.
func (r Range) Contains(h uint64) bool { return r.First <= h && h <= r.Last }

// String is for logs and messages only.
func (r Range) String() string { return fmt.Sprintf("%016x-%016x", r.First, r.Last) }

// Split cuts the hash space into n contiguous ranges whose sizes differ by at
// most one, in ascending order. Shard i owns the range i. It is nil for n = 0.
func Split(n uint32) []Range {
	if n == 0 {
		return nil
	}
	ranges := make([]Range, n)
	for i := range n {
		ranges[i] = Range{First: first(i, n), Last: math.MaxUint64}
		if i+1 < n {
			ranges[i].Last = first(i+1, n) - 1
		}
	}
	return ranges
}

// Locate is the shard that owns an entity where the hash space is split into n
// ranges: the same answer as a search in Split(n). It is 0 for n = 0.
func Locate(n uint32, ref entity.Ref) uint32 { return locate(n, Hash(ref)) }

// locate is ⌊h · n / 2^64⌋.
func locate(n uint32, h uint64) uint32 {
	high, _ := bits.Mul64(h, uint64(n))
	return uint32(high)
}

// first is the smallest hash that locate puts into range i: ⌈i · 2^64 / n⌉. It
// needs i < n.
func first(i, n uint32) uint64 {
	quotient, rest := bits.Div64(uint64(i), 0, uint64(n))
	if rest > 0 {
		quotient++
	}
	return quotient
}
