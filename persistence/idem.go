package persistence

import (
	"math"
	"slices"

	"github.com/bits-and-blooms/bloom/v3"

	recordv1 "writ/proto/writ/record/v1"
)

// generation is a slice of log time and the idempotency keys that may be
// forgotten at its end. Generation n ends at n × width; a key belongs to the
// generation in which it expires, so all its keys have expired when it ends.
// Forgetting a generation drops a whole bucket of the file.
type generation struct {
	number       uint64
	keys         uint64
	hash         uint64 // sum over its pairs
	acceptedLast int64
	seen         filter
}

func (g *generation) head() *recordv1.Generation {
	return &recordv1.Generation{Keys: g.keys, Hash: g.hash, AcceptedLast: g.acceptedLast}
}

// generationOf is the generation of a key that expires at the given log time.
func generationOf(expiresAt, width int64) uint64 {
	if expiresAt <= 0 {
		return 0
	}
	n := uint64(expiresAt) / uint64(width)
	if uint64(expiresAt)%uint64(width) > 0 {
		n++
	}
	return n
}

// generationEnd is the log time at which a generation has passed.
func generationEnd(n uint64, width int64) int64 {
	if n > uint64(math.MaxInt64/width) {
		return math.MaxInt64
	}
	return int64(n) * width
}

// generations are the live generations in ascending order.
type generations []*generation

func (gs generations) find(n uint64) (int, bool) {
	return slices.BinarySearchFunc(gs, n, func(g *generation, n uint64) int {
		switch {
		case g.number < n:
			return -1
		case g.number > n:
			return 1
		}
		return 0
	})
}

// at returns generation n, made if it is not there.
func (gs *generations) at(n uint64) *generation {
	i, ok := gs.find(n)
	if !ok {
		*gs = slices.Insert(*gs, i, &generation{number: n})
	}
	return (*gs)[i]
}

// through is the number of generations up to and including n.
func (gs generations) through(n uint64) int {
	i, ok := gs.find(n)
	if ok {
		i++
	}
	return i
}

// Dimensions of the filters: one false alarm in a hundred, at about 10 bits a
// key. A false alarm costs a lookup in the file, nothing else.
const (
	filterKeysMin = 1 << 12
	filterRate    = 0.01
	filterHashes  = 7
)

// filter answers "surely never seen" for the keys of one generation, so that a
// fresh key costs no look into the file. It grows by adding layers, each twice
// as large as the one before.
type filter struct {
	layers []*bloom.BloomFilter
	room   uint64 // keys that the last layer has room for
	last   uint64 // size of the last layer in keys
}

// reserve makes room for a number of keys that is known beforehand.
func (f *filter) reserve(keys uint64) {
	f.last = max(keys, filterKeysMin)
	f.room = f.last
	bits, _ := bloom.EstimateParameters(uint(f.last), filterRate)
	f.layers = append(f.layers, bloom.New(bits, filterHashes))
}

func (f *filter) add(key []byte) {
	if f.room == 0 {
		f.reserve(2 * f.last)
	}
	f.room--
	f.layers[len(f.layers)-1].Add(key)
}

// places are the bits that a key occupies in any filter.
func places(key []byte) []uint64 { return bloom.Locations(key, filterHashes) }

// mayHold is false if the key was never added.
func (f *filter) mayHold(places []uint64) bool {
	for _, layer := range f.layers {
		if layer.TestLocations(places) {
			return true
		}
	}
	return false
}

// findKey looks an idempotency key up in all live generations. The key is its
// tuple without the generation.
func (v *view) findKey(gs generations, tuple []byte) found {
	bits := places(tuple)
	for _, g := range gs {
		if !g.seen.mayHold(bits) {
			continue
		}
		if f := v.get(idemBucket, idemKeyOf(g.number, tuple)); f.exists() {
			return f
		}
	}
	return found{}
}

func idemKeyOf(generation uint64, tuple []byte) string {
	key := appendNumber(make([]byte, 0, numberSize+len(tuple)), generation)
	return string(append(key, tuple...))
}
