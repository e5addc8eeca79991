package sharding

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"writ/actors/entity"
)

// Hash is the place of an entity in the hash space: xxhash64, seed 0, over
// tenant, kind and id, each preceded by its length in bytes as a uvarint. The
// lengths keep ("a", "bc") and ("ab", "c") apart.
func Hash(ref entity.Ref) uint64 {
	var buf [128]byte // long enough for most entities: no allocation
	b := buf[:0]
	for _, part := range [3]string{ref.Tenant, ref.Kind, ref.ID} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	return xxhash.Sum64(b)
}
