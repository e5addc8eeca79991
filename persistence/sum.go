package persistence

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
)

// Each entry of the bucket meta carries a checksum. bbolt has none on its data
// pages, and the hashes say nothing of, for example, the log time: one flipped bit
// in it would have live keys forgotten, on all replicas if that one leads.
//
// The checksum is the field sum, and it stands in front of the message. A program
// that does not know the field keeps it and writes it behind all others, where it
// says nothing: that program has changed what it was the sum of. Such an entry
// begins with its field 1, like one that never had a sum, and is not checked. The
// two beginnings differ in four bits of the first byte, so damage to a few bits
// does not make the one the other.
const (
	sumTag     = "\x91\x01" // field 18, fixed64
	sumSize    = len(sumTag) + 8
	firstField = 0x08 // field 1, varint: a format, or a number of keys; never 0
)

// putSummed writes an entry of the bucket meta.
func putSummed(tx *bolt.Tx, key []byte, entry proto.Message) error {
	value, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(make([]byte, sumSize), entry)
	if err != nil {
		return err
	}
	copy(value, sumTag)
	binary.LittleEndian.PutUint64(value[len(sumTag):], entrySum(string(key), value[sumSize:]))
	return tx.Bucket([]byte(bucketNames[metaBucket])).Put(key, value)
}

// readSummed reads an entry of the bucket meta. The error continues a sentence
// that begins with the entry's name.
func readSummed(key string, value []byte, entry proto.Message) error {
	switch {
	case bytes.HasPrefix(value, []byte(sumTag)) && len(value) >= sumSize:
		sum := binary.LittleEndian.Uint64(value[len(sumTag):])
		if value = value[sumSize:]; entrySum(key, value) != sum {
			return errors.New("does not match its checksum")
		}
	case len(value) == 0 || value[0] != firstField:
		return errors.New("begins neither with a checksum nor with its first field")
	}
	if err := proto.Unmarshal(value, entry); err != nil {
		return fmt.Errorf("cannot be decoded: %w", err)
	}
	return nil
}

func entrySum(key string, message []byte) uint64 {
	return pairHash(new(xxhash.Digest), metaBucket, key, message)
}
