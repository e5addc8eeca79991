package persistence

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/cespare/xxhash/v2"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"writ/internal/format"
	"writ/internal/mutant"
	recordv1 "writ/proto/writ/record/v1"
)

// ErrClosed is returned by the methods of a closed store.
var ErrClosed = errors.New("store is closed")

// ErrFailed is wrapped by every refusal of a store that could not read or write
// its file. What was applied before can still be read.
var ErrFailed = errors.New("store has failed")

// Store is one shard's data: a bbolt file and, over it, what was applied since
// the last flush.
//
// Apply, SetConfiguration and Replace belong to one goroutine, Raft's for its
// state machine. All other methods are safe for concurrent use. A goroutine of
// the store, the flusher, is the only writer of the file; Close waits for it.
type Store struct {
	cfg Config

	mu          sync.RWMutex // guards what follows, down to the blank line
	db          *bolt.DB
	active      *level
	frozen      *level // being written; nil if no flush is on its way
	meta        *recordv1.ShardMeta
	generations generations
	state       state
	audits      audits
	news        chan struct{} // closed, and made anew, when waiters should look again

	kick    chan struct{}        // asks for a flush; capacity 1
	replace chan *replaceRequest // handed to the flusher
	closing chan struct{}        // closed by Close
	done    chan struct{}        // closed by the flusher when it has ended
	once    sync.Once

	apply applier // of the state machine's goroutine
}

// state is where a store stands.
type state struct {
	change  uint64   // raised by every entry and configuration
	flushed position // what the file stands for
	failure error    // set once; ends all changes
	closed  bool
}

// position is a point in a store's history.
type position struct{ change, index, term uint64 }

// Create makes a new, empty shard file and opens it. It is an error if the file
// exists.
func Create(cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("create store: %w", err)
	}
	if cfg.GenerationWidth <= 0 {
		return nil, errors.New("create store: generation width is not set")
	}
	if err := createFile(cfg.Path, newHead(cfg)); err != nil {
		return nil, fmt.Errorf("create store: %w", err)
	}
	return Open(cfg)
}

// newHead is the meta of a store that holds nothing.
func newHead(cfg Config) *recordv1.ShardMeta {
	return &recordv1.ShardMeta{
		Format:            format.Base,
		ClusterId:         cfg.ClusterID,
		Shard:             cfg.Shard,
		RangeFirst:        cfg.Range.First,
		RangeLast:         cfg.Range.Last,
		Epoch:             cfg.Epoch,
		ReplicaGeneration: cfg.Generation,
		Counters:          &recordv1.Counters{},
		Hashes:            make([]uint64, bucketCount),
		GenerationWidth:   int64(cfg.GenerationWidth),
	}
}

// Open opens a shard file and checks its integrity and identity, which reads all
// of it. The error is a *[Damage] for everything that is odd about the file
// itself, and any other error for what may pass: the file does not exist, cannot
// be opened, is in use.
func Open(cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	db, c, err := openFile(cfg.Path, cfg, true)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{
		cfg:     cfg,
		news:    make(chan struct{}),
		kick:    make(chan struct{}, 1),
		replace: make(chan *replaceRequest),
		closing: make(chan struct{}),
		done:    make(chan struct{}),
	}
	s.apply.digest = xxhash.New()
	s.adopt(db, c)
	go s.run()
	return s, nil
}

// adopt makes a file's content the store's, and drops what was in memory. The
// caller holds mu, or is alone.
func (s *Store) adopt(db *bolt.DB, c *content) {
	s.db, s.meta, s.generations = db, c.head, c.generations
	if s.active == nil || !mutant.Off(mutant.DropAtRestore) {
		s.active, s.frozen = newLevel(), nil
	}
	s.state.flushed = position{change: s.state.change, index: c.head.Index, term: c.head.Term}
}

// Close flushes what was applied, ends the flusher and closes the file once all
// readers have left. It is safe to call it twice. The error is that of the last
// flush or of closing the file.
func (s *Store) Close() error {
	s.once.Do(func() { close(s.closing) })
	<-s.done
	s.mu.Lock()
	if s.state.closed {
		s.mu.Unlock()
		return nil
	}
	s.state.closed = true
	err, db := s.state.failure, s.db
	s.tell()
	s.mu.Unlock()
	return errors.Join(err, guard(s.cfg.Path, db.Close))
}

// tell wakes everyone who waits for news. The caller holds mu.
func (s *Store) tell() {
	close(s.news)
	s.news = make(chan struct{})
}

// usable is nil as long as the store takes changes. The caller holds mu.
func (s *Store) usable() error {
	if s.state.closed {
		return ErrClosed
	}
	return s.state.failure
}

// fail ends all changes for good. It is true the first time. The caller holds
// mu.
func (s *Store) fail(err error) bool {
	if s.state.failure != nil {
		return false
	}
	s.state.failure = fmt.Errorf("%w: %w", ErrFailed, err)
	s.logFailure(err)
	s.tell()
	return true
}

func (s *Store) logFailure(err error) {
	attrs := []any{slog.Uint64("shard", uint64(s.cfg.Shard)), slog.Any("error", err)}
	var d *Damage
	if errors.As(err, &d) && d.stack != nil {
		attrs = append(attrs, slog.String("stack", string(d.stack)))
	}
	s.cfg.Logger.Error("store has failed", attrs...)
}

// Meta is the head of the applied state, flushed or not. The caller owns it.
func (s *Store) Meta() *recordv1.ShardMeta {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return proto.CloneOf(s.meta)
}

// Format is the newest format of the entries that were applied.
func (s *Store) Format() uint32 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.meta.Format
}

// StateHash is the hash of the applied content and the index it stands for: what
// a TermStart carries.
func (s *Store) StateHash() (index uint64, hash []byte) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.meta.Index, hashBytes(contentHash(s.meta))
}

// FlushedIndex is the Raft index, and its term, that the file stands for.
func (s *Store) FlushedIndex() (index, term uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.flushed.index, s.state.flushed.term
}

// UnflushedBytes is about the memory taken by what was applied and not flushed.
func (s *Store) UnflushedBytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := s.active.bytes
	if s.frozen != nil {
		n += s.frozen.bytes
	}
	return n
}

// ExpiredThrough is the latest acceptance time among the forgotten keys, Unix
// nanoseconds. A command issued at or before it must not be executed: whether it
// has been is not known any more.
func (s *Store) ExpiredThrough() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.meta.ExpiredThrough
}

// Expirable says up to which generation an Expire record would forget keys at
// the given log time. It is false if there is nothing to forget.
func (s *Store) Expirable(logTime int64) (throughGeneration uint64, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, g := range s.generations {
		if generationEnd(g.number, s.meta.GenerationWidth) > logTime {
			break
		}
		throughGeneration, ok = g.number, true
	}
	return throughGeneration, ok
}

// SetConfiguration remembers a committed Raft configuration and its index. It
// reaches the file with the next flush.
func (s *Store) SetConfiguration(index uint64, raftConfiguration []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if index <= s.meta.ConfigurationIndex {
		return
	}
	s.meta.ConfigurationIndex = index
	s.meta.Configuration = append([]byte{}, raftConfiguration...)
	s.state.change++
}
