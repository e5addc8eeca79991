package persistence

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	recordv1 "writ/proto/writ/record/v1"
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

// Dump is everything that two stores must agree on which have applied the same
// log: content, index and configuration.
func (s *Store) Dump() string { return s.dump(true) }

// DumpContent leaves out what belongs to Raft.
func (s *Store) DumpContent() string { return s.dump(false) }

func (s *Store) dump(raft bool) string {
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
	if !raft {
		m.Index, m.Term, m.Configuration, m.ConfigurationIndex = 0, 0, nil, 0
	}
	text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	fmt.Fprintf(&b, "meta %x\n", text)
	return b.String()
}

// FilePairs counts the pairs in buckets of the file, levels aside.
func (s *Store) FilePairs(tb testing.TB, names ...string) (n int) {
	tb.Helper()
	f, err := os.Open(s.cfg.Path)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		tb.Fatal(err)
	}
	p, err := openPages(f, info.Size())
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.walk("meta", func(path []string, _, _ []byte) error {
		if slices.Contains(names, path[0]) {
			n++
		}
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
	return n
}

// News is closed when something has been flushed, or the like.
func (s *Store) News() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.news
}

// HoldFlush keeps the flusher busy until release is called.
func (s *Store) HoldFlush() (release func()) {
	answer := make(chan error) // without room: the flusher waits to be heard
	s.replace <- &replaceRequest{path: "", done: answer}
	return func() { <-answer } //nolint:errcheck // there is no such file
}

// RewriteHead changes the head of a file that is not open.
func RewriteHead(tb testing.TB, path string, change func(*recordv1.ShardMeta)) {
	tb.Helper()
	rewrite(tb, path, func(tx *bolt.Tx) error {
		head, err := readHead(tx)
		if err != nil {
			return err
		}
		change(head)
		return putHead(tx, head)
	})
}

// RewriteGenerations changes the heads of all key generations of a file that is
// not open.
func RewriteGenerations(tb testing.TB, path string, change func(*recordv1.Generation)) {
	tb.Helper()
	rewrite(tb, path, func(tx *bolt.Tx) error {
		meta := tx.Bucket([]byte(bucketNames[metaBucket]))
		heads := map[string]*recordv1.Generation{}
		c := meta.Cursor()
		for key, value := c.Seek([]byte(generationPrefix)); strings.HasPrefix(string(key), generationPrefix); key, value = c.Next() {
			head := &recordv1.Generation{}
			if err := readSummed(string(key), value, head); err != nil {
				return err
			}
			change(head)
			heads[string(key)] = head
		}
		for key, head := range heads {
			if err := putSummed(tx, []byte(key), head); err != nil {
				return err
			}
		}
		return nil
	})
}

func rewrite(tb testing.TB, path string, change func(*bolt.Tx) error) {
	tb.Helper()
	db, err := bolt.Open(path, fileMode, &bolt.Options{NoFreelistSync: true})
	if err != nil {
		tb.Fatal(err)
	}
	if err := db.Update(change); err != nil {
		tb.Fatal(err)
	}
	if err := db.Close(); err != nil {
		tb.Fatal(err)
	}
}
