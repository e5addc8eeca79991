package persistence

import (
	"encoding/binary"
	"errors"

	bolt "go.etcd.io/bbolt"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// Keys are tuples of byte strings, each preceded by its length as a uvarint, so
// that no two tuples have the same key and every entity's keys stand together.
// The tenant comes first.
//
//	state, timers   tenant kind id subkey
//	timers          also 0, time, the timer's key: the index of times (timers.go)
//	idem            generation, then tenant kind id type key
//	lanes, parked   tenant kind id of the source, of the destination
//	outbox          the lane's key, then the lane sequence
//	applied         tenant kind id of the destination, of the source
//
// Generations and sequences are 8 bytes, big endian: in order of their value.
// The encoding of an entity is also what its shard hash is computed over.
type bucket = recordv1.Bucket

const (
	stateBucket   = recordv1.Bucket_STATE
	idemBucket    = recordv1.Bucket_IDEM
	outboxBucket  = recordv1.Bucket_OUTBOX
	appliedBucket = recordv1.Bucket_APPLIED
	lanesBucket   = recordv1.Bucket_LANES
	timersBucket  = recordv1.Bucket_TIMERS
	parkedBucket  = recordv1.Bucket_PARKED
)

// buckets are the buckets with content, in the order of the hashes in the meta.
//
//nolint:gochecknoglobals // a constant
var buckets = [...]bucket{stateBucket, idemBucket, outboxBucket, appliedBucket, lanesBucket, timersBucket, parkedBucket}

const (
	bucketCount = len(buckets)
	// numberSize is the length of a generation or sequence within a key.
	numberSize = 8
	// maxKeySize is bbolt's limit: a longer key is refused by Apply, since the
	// flush could not write it.
	maxKeySize = bolt.MaxKeySize
)

// bucketNames are the names in the file, by number of the bucket. The bucket
// meta holds the head and the heads of the key generations.
//
//nolint:gochecknoglobals // a constant
var bucketNames = [bucketCount + 1]string{"meta", "state", "idem", "outbox", "applied", "lanes", "timers", "parked"}

var errKey = errors.New("key is not a tuple")

// name is an entity's name as it stands in a record: views, not copies.
type name struct{ tenant, kind, id []byte }

func (n name) ref() entity.Ref {
	return entity.Ref{Tenant: string(n.tenant), Kind: string(n.kind), ID: string(n.id)}
}

func (n name) equal(o name) bool {
	return string(n.id) == string(o.id) && string(n.kind) == string(o.kind) && string(n.tenant) == string(o.tenant)
}

func appendPart[S string | []byte](key []byte, part S) []byte {
	key = binary.AppendUvarint(key, uint64(len(part)))
	return append(key, part...)
}

func appendName(key []byte, n name) []byte {
	key = appendPart(key, n.tenant)
	key = appendPart(key, n.kind)
	return appendPart(key, n.id)
}

func appendRef(key []byte, ref entity.Ref) []byte {
	key = appendPart(key, ref.Tenant)
	key = appendPart(key, ref.Kind)
	return appendPart(key, ref.ID)
}

func appendNumber(key []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(key, n) }

// number reads a generation or sequence.
func number(b string) uint64 {
	var buf [numberSize]byte
	copy(buf[:], b)
	return binary.BigEndian.Uint64(buf[:])
}

// stateKey is the key of an entity's record: sub-key "".
func stateKey(ref entity.Ref) string {
	return string(appendPart(appendRef(nil, ref), ""))
}

// pairKey is the key of a lane (source, destination) or of an applied mark
// (destination, source).
func pairKey(first, second entity.Ref) string {
	return string(appendRef(appendRef(nil, first), second))
}

// cutRef takes an entity off the front of a key.
func cutRef(key string) (ref entity.Ref, rest string, err error) {
	for _, part := range []*string{&ref.Tenant, &ref.Kind, &ref.ID} {
		if *part, key, err = cutPart(key); err != nil {
			return entity.Ref{}, "", err
		}
	}
	return ref, key, nil
}

// cutPair takes two entities off the front of a key.
func cutPair(key string) (first, second entity.Ref, rest string, err error) {
	if first, rest, err = cutRef(key); err != nil {
		return entity.Ref{}, entity.Ref{}, "", err
	}
	if second, rest, err = cutRef(rest); err != nil {
		return entity.Ref{}, entity.Ref{}, "", err
	}
	return first, second, rest, nil
}

func cutPart(key string) (part, rest string, err error) {
	var size uint64
	for i := 0; i < len(key) && i < binary.MaxVarintLen64; i++ {
		size |= uint64(key[i]&0x7f) << (7 * i)
		if key[i] < 0x80 {
			rest = key[i+1:]
			if size > uint64(len(rest)) {
				return "", "", errKey
			}
			return rest[:size], rest[size:], nil
		}
	}
	return "", "", errKey
}

// after is the smallest key after all keys with the prefix; "" if there is none.
func after(prefix string) string {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 0xff {
			b[i]++
			return string(b[:i+1])
		}
	}
	return ""
}
