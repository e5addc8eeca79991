package persistence

import (
	"context"
	"errors"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// ErrClosed is returned by the methods of a closed store.
var ErrClosed = errors.New("store is closed")

// ErrFailed is wrapped by every refusal of a store whose file could not be
// written. What was applied can still be read.
var ErrFailed = errors.New("store has failed")

var errStub = errors.New("not written yet")

// Store is one shard's data: a bbolt file and, over it, what was applied since
// the last flush.
type Store struct{}

// Create makes a new, empty shard file and opens it. It is an error if the file
// exists.
func Create(Config) (*Store, error) { return nil, errStub }

// Open opens a shard file and checks its integrity and identity. The error is a
// *[Damage] for everything that is odd about the file itself.
func Open(Config) (*Store, error) { return nil, errStub }

// Verify makes the checks of Open on a received snapshot file and returns its
// meta. The replica generation is the sender's and is not compared.
func Verify(string, Config) (*recordv1.ShardMeta, error) { return nil, errStub }

// Apply takes one Raft entry into the store. See apply.go.
func (s *Store) Apply(index, term uint64, entry []byte) (results []error, err error) {
	return nil, errStub
}

// SetConfiguration remembers a committed Raft configuration and its index.
func (s *Store) SetConfiguration(index uint64, raftConfiguration []byte) {}

// Meta is the head of the applied state, flushed or not. The caller owns it.
func (s *Store) Meta() *recordv1.ShardMeta { return nil }

// StateHash is the hash of the applied content and the index it stands for: what
// a TermStart carries.
func (s *Store) StateHash() (index uint64, hash []byte) { return 0, nil }

// FlushedIndex is the Raft index, and its term, that the file stands for.
func (s *Store) FlushedIndex() (index, term uint64) { return 0, 0 }

// WaitFlushed asks for a flush and waits until the file stands for index.
func (s *Store) WaitFlushed(ctx context.Context, index uint64) error { return errStub }

// UnflushedBytes is the size of what is in memory only.
func (s *Store) UnflushedBytes() int64 { return 0 }

// CopyFile writes a consistent copy of the file into dir.
func (s *Store) CopyFile(dir string) (path string, meta *recordv1.ShardMeta, err error) {
	return "", nil, errStub
}

// Replace swaps a received file in. It is verified first.
func (s *Store) Replace(path string) error { return errStub }

// Close flushes and closes the file.
func (s *Store) Close() error { return errStub }

// Entity is an entity's record.
func (s *Store) Entity(ref entity.Ref) (*recordv1.EntityRecord, error) { return nil, errStub }

// Key is what is remembered under an idempotency key.
func (s *Store) Key(ref entity.Ref, commandType string, key []byte) (*recordv1.KeyRecord, error) {
	return nil, errStub
}

// Applied is how far destination has applied the lane from source.
func (s *Store) Applied(destination, source entity.Ref) (*recordv1.Applied, error) {
	return nil, errStub
}

// Lanes are the lanes of a source by destination.
func (s *Store) Lanes(source entity.Ref) (map[entity.Ref]*recordv1.Lane, error) {
	return nil, errStub
}

// Rows are a lane's unconfirmed rows from lane sequence from on.
func (s *Store) Rows(source, destination entity.Ref, from uint64, maxRows, maxBytes int) ([]*recordv1.Row, error) {
	return nil, errStub
}

// PendingSources are the sources that have rows in active lanes.
func (s *Store) PendingSources(after entity.Ref, limit int) ([]entity.Ref, error) {
	return nil, errStub
}

// Expirable says up to which generation an Expire record would be accepted at
// the given log time. It is false if there is nothing to forget.
func (s *Store) Expirable(logTime int64) (throughGeneration uint64, ok bool) { return 0, false }

// ExpiredThrough is the latest acceptance time among the forgotten keys, Unix
// nanoseconds.
func (s *Store) ExpiredThrough() int64 { return 0 }

// WaitCheckpoint waits for the checkpoint of an audit and returns its index and
// the state hash at that index.
func (s *Store) WaitCheckpoint(ctx context.Context, audit string) (index uint64, hash []byte, err error) {
	return 0, nil, errStub
}

// Audit recounts everything from the buckets in one consistent view.
func (s *Store) Audit(ctx context.Context) (*Audit, error) { return nil, errStub }

// ScanLanes yields every lane by (source, destination), with its pending rows.
func (s *Store) ScanLanes(yield func(source, destination entity.Ref, lane *recordv1.Lane, pending uint64) bool) error {
	return errStub
}

// ScanApplied yields every applied mark by (destination, source).
func (s *Store) ScanApplied(yield func(destination, source entity.Ref, applied *recordv1.Applied) bool) error {
	return errStub
}
