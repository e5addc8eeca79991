package persistence

import (
	"bytes"
	"context"
	"errors"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"writ/internal/fault"
	"writ/internal/mutant"
	recordv1 "writ/proto/writ/record/v1"
)

// batch is what one flush writes: a frozen level and the head it belongs to.
type batch struct {
	level *level
	head  *recordv1.ShardMeta
	// generations are the heads of all live generations.
	generations map[uint64]*recordv1.Generation
	position    position
}

// run is the flusher: it alone writes the file, one thing after the other.
func (s *Store) run() {
	defer close(s.done)
	tick := time.NewTicker(s.cfg.FlushInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.flush()
		case <-s.kick:
			s.flush()
		case r := <-s.replace:
			r.done <- s.replaceFile(r.path)
		case <-s.closing:
			s.flush()
			return
		}
	}
}

// askFlush asks for a flush, if none is asked for.
func (s *Store) askFlush() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// flush writes what was applied so far. A failure ends the store's changes and
// is reported once.
func (s *Store) flush() {
	if !s.dirty() {
		return
	}
	s.cfg.FlushDue()
	release := s.takeSlot()
	defer release()
	b, db := s.freeze()
	if b == nil {
		return
	}
	ended := s.cfg.Flushing()
	err := guard(s.cfg.Path, func() error {
		if err := fault.Point(fault.BeforeFlush); err != nil {
			return err
		}
		return b.write(db)
	})
	if err == nil {
		err = fault.Point(fault.AfterFlush)
	}
	ended()
	s.mu.Lock()
	report := false
	if err == nil {
		s.frozen = nil
		s.state.flushed = b.position
		s.tell()
	} else {
		report = s.fail(err)
	}
	s.mu.Unlock()
	if report {
		s.cfg.OnFailure(err)
	}
}

func (s *Store) dirty() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.usable() == nil && s.state.change != s.state.flushed.change
}

// takeSlot waits for the node's flush slot. A store that is being closed does
// not wait.
func (s *Store) takeSlot() (release func()) {
	if s.cfg.FlushSlot == nil {
		return func() {}
	}
	select {
	case s.cfg.FlushSlot <- struct{}{}:
		return func() { <-s.cfg.FlushSlot }
	case <-s.closing:
		return func() {}
	}
}

// freeze puts a new level on top of the active one. Apply goes on at once.
func (s *Store) freeze() (*batch, *bolt.DB) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usable() != nil {
		return nil, nil
	}
	b := &batch{
		level:       s.active,
		head:        proto.CloneOf(s.meta),
		generations: make(map[uint64]*recordv1.Generation, len(s.generations)),
		position:    position{change: s.state.change, index: s.meta.Index, term: s.meta.Term},
	}
	for _, g := range s.generations {
		b.generations[g.number] = g.head()
	}
	s.frozen, s.active = s.active, newLevel()
	return b, s.db
}

// write puts a batch into the file in one fsynced transaction.
func (b *batch) write(db *bolt.DB) error {
	if mutant.Off(mutant.IndexWithContent) {
		if err := db.Update(func(tx *bolt.Tx) error { return putHead(tx, b.head) }); err != nil {
			return err
		}
	}
	tx, err := db.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // ErrTxClosed after a commit
	if err := dropGenerations(tx, b.head.ExpiredGeneration); err != nil {
		return err
	}
	for _, bucket := range buckets {
		if bucket == idemBucket {
			err = b.writeKeys(tx)
		} else {
			err = b.writeBucket(tx, bucket)
		}
		if err != nil {
			return err
		}
	}
	if err := putHead(tx, b.head); err != nil {
		return err
	}
	return tx.Commit()
}

func (b *batch) writeBucket(tx *bolt.Tx, bucket bucket) (err error) {
	to := tx.Bucket([]byte(bucketNames[bucket]))
	if bucket == outboxBucket {
		to.FillPercent = ascendingFill
	}
	b.level.trees[bucket].Scan(func(key string, it *item) bool {
		if it.value == nil {
			err = to.Delete([]byte(key))
		} else {
			err = to.Put([]byte(key), it.value)
		}
		return err == nil
	})
	return err
}

// writeKeys writes the idempotency keys, a bucket per generation, and the heads
// of the generations that have new ones. Keys are only ever added.
func (b *batch) writeKeys(tx *bolt.Tx) (err error) {
	var to *bolt.Bucket
	current := ""
	b.level.trees[idemBucket].Scan(func(key string, it *item) bool {
		generation, rest := key[:numberSize], key[numberSize:]
		if number(generation) <= b.head.ExpiredGeneration {
			return true // forgotten before it was written
		}
		if generation != current {
			current = generation
			if to, err = b.openGeneration(tx, generation); err != nil {
				return false
			}
		}
		err = to.Put([]byte(rest), it.value)
		return err == nil
	})
	return err
}

func (b *batch) openGeneration(tx *bolt.Tx, generation string) (*bolt.Bucket, error) {
	n := number(generation)
	if err := putSummed(tx, generationKey(n), b.generations[n]); err != nil {
		return nil, err
	}
	return tx.Bucket([]byte(bucketNames[idemBucket])).CreateBucketIfNotExists([]byte(generation))
}

// dropGenerations deletes the buckets and heads of all generations up to one.
// The names are collected first: a cursor does not survive deletions.
func dropGenerations(tx *bolt.Tx, through uint64) error {
	idem, meta := tx.Bucket([]byte(bucketNames[idemBucket])), tx.Bucket([]byte(bucketNames[metaBucket]))
	limit := appendNumber(nil, through)
	var names [][]byte
	c := idem.Cursor()
	for key, _ := c.First(); key != nil && bytes.Compare(key, limit) <= 0; key, _ = c.Next() {
		names = append(names, bytes.Clone(key))
	}
	if len(names) > 0 {
		if err := fault.Point(fault.Expiry); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := idem.DeleteBucket(name); err != nil {
			return err
		}
		if err := meta.Delete(generationKey(number(string(name)))); err != nil {
			return err
		}
	}
	return nil
}

// WaitFlushed waits until the file stands for index, and asks for a flush if it does
// not yet. If index is above the last applied one, the entries between hold nothing
// for Apply or have not been applied yet; then it waits for the flush of everything
// that was applied before the call.
func (s *Store) WaitFlushed(ctx context.Context, index uint64) error {
	s.mu.RLock()
	want := s.state.change
	flushed, news, err := s.state.flushed, s.news, s.usable()
	s.mu.RUnlock()
	if flushed.index >= index || flushed.change >= want {
		return nil
	}
	for err == nil {
		s.askFlush()
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.mu.RLock()
		flushed, news, err = s.state.flushed, s.news, s.usable()
		s.mu.RUnlock()
		if flushed.change >= want {
			return nil
		}
	}
	return errors.Join(err)
}
