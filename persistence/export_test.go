package persistence

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
)

// Abandon ends a store as a crash would: nothing more is flushed.
func (s *Store) Abandon() {
	s.mu.Lock()
	s.state.failure = errAbandoned
	s.mu.Unlock()
	_ = s.Close()
}

var errAbandoned = fmt.Errorf("%w: abandoned", ErrFailed)

// LimitFile lets every commit fail that needs the file to grow.
func (s *Store) LimitFile() { s.db.MaxSize = 1 }

// Dump is the whole content in words: equal for stores that hold the same.
func (s *Store) Dump() string {
	var b strings.Builder
	c, err := s.scan(context.Background())
	if err != nil {
		return err.Error()
	}
	defer c.close()
	for _, bucket := range buckets {
		prefixes := []string{""}
		if bucket == idemBucket {
			prefixes = nil
			for _, n := range c.numbers {
				prefixes = append(prefixes, string(appendNumber(nil, n)))
			}
		}
		for _, prefix := range prefixes {
			_ = c.each(bucket, prefix, func(key string, value []byte) error {
				fmt.Fprintf(&b, "%s %q %x\n", bucketNames[bucket], key, value)
				return nil
			})
		}
	}
	for _, n := range c.numbers {
		g := c.generations[n]
		fmt.Fprintf(&b, "generation %d keys %d hash %x last %d\n", n, g.Keys, g.Hash, g.AcceptedLast)
	}
	m := proto.CloneOf(c.meta)
	m.ReplicaGeneration = 0
	text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	fmt.Fprintf(&b, "meta %x\n", text)
	return b.String()
}
