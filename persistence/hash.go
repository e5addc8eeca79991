package persistence

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	recordv1 "writ/proto/writ/record/v1"
)

// The state hash of a bucket is the sum of the hashes of its pairs, modulo 2^64:
// it follows every change at the cost of one hash, does not depend on the order
// of changes, and can be computed from scratch. It finds replicas that differ;
// it does not resist someone who looks for collisions.

// pairHash is the hash of one pair. The key's length keeps key and value apart.
func pairHash(d *xxhash.Digest, b bucket, key string, value []byte) uint64 {
	var head [1 + binary.MaxVarintLen64]byte
	head[0] = byte(b)
	n := 1 + binary.PutUvarint(head[1:], uint64(len(key)))
	d.Reset()
	_, _ = d.Write(head[:n]) // never fails
	_, _ = d.WriteString(key)
	_, _ = d.Write(value)
	return d.Sum64()
}

// contentHash is the hash of everything that replicas must agree on: all of the
// meta but the replica's generation, Raft's index and term, and its
// configuration.
func contentHash(m *recordv1.ShardMeta) uint64 {
	b := make([]byte, 0, 384)
	b = binary.AppendUvarint(b, uint64(m.Format))
	b = binary.AppendUvarint(b, uint64(len(m.ClusterId)))
	b = append(b, m.ClusterId...)
	for _, v := range [...]uint64{
		uint64(m.Shard), m.RangeFirst, m.RangeLast, m.Epoch,
		uint64(m.LogTime), uint64(m.ExpiredThrough), m.ExpiredGeneration, uint64(m.GenerationWidth),
		m.Counters.Changes, m.Counters.Decided, m.Counters.KeysLive, m.Counters.KeysExpired,
		m.Counters.Numbered, m.Counters.Confirmed, m.Counters.Skipped,
		m.Counters.RowsPending, m.Counters.LanesParked, m.Counters.Applied,
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, h := range m.Hashes {
		b = binary.LittleEndian.AppendUint64(b, h)
	}
	return xxhash.Sum64(b)
}

// hashBytes is how a hash travels.
func hashBytes(h uint64) []byte { return binary.BigEndian.AppendUint64(nil, h) }
