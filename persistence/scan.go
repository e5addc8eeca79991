package persistence

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// scan is a long read: a view that stays as it is while Apply goes on. It pins
// the file's pages, so the file grows meanwhile, and Close and Replace wait for
// it; it ends early when the store is being closed.
type scan struct {
	view
	path        string
	meta        *recordv1.ShardMeta
	generations map[uint64]*recordv1.Generation
	numbers     []uint64 // of the live generations, ascending
	differences []string
	stop        <-chan struct{} // the store is being closed
	done        <-chan struct{} // the caller has had enough; nil: never
	steps       int
}

// scanStride is the number of steps between two looks at the end signals.
const scanStride = 1024

// scan takes the view. The caller must close it.
func (s *Store) scan(ctx context.Context) (*scan, error) {
	s.mu.Lock() // not RLock: copying the level marks its nodes
	defer s.mu.Unlock()
	if s.state.closed {
		return nil, ErrClosed
	}
	c := &scan{
		view:        view{active: s.active.snapshot(), frozen: s.frozen, db: s.db},
		path:        s.cfg.Path,
		meta:        proto.CloneOf(s.meta),
		generations: make(map[uint64]*recordv1.Generation, len(s.generations)),
		differences: append([]string{}, s.audits.differences...),
		stop:        s.closing,
		done:        ctx.Done(),
	}
	for _, g := range s.generations {
		c.generations[g.number] = g.head()
		c.numbers = append(c.numbers, g.number)
	}
	// The transaction begins here, under the lock, so that no flush can come
	// between the levels and the file.
	if err := guard(c.path, func() error { c.open(); return nil }); err != nil {
		return nil, err
	}
	return c, nil
}

// step is called for every pair; it is an error when the scan should end.
func (c *scan) step() error {
	c.steps++
	if c.steps%scanStride != 0 {
		return nil
	}
	select {
	case <-c.stop:
		return ErrClosed
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// each calls visit for every pair of a bucket that begins with the prefix.
func (c *scan) each(b bucket, prefix string, visit func(key string, value []byte) error) error {
	at := c.cursor(b, prefix)
	for ok := at.first(); ok; ok = at.next() {
		if err := c.step(); err != nil {
			return err
		}
		if err := visit(at.key, at.value); err != nil {
			return err
		}
	}
	return nil
}

// errStop ends a scan whose caller has had enough.
var errStop = errors.New("stopped")

// scanned runs a scan of one bucket in one consistent view.
func (s *Store) scanned(b bucket, visit func(key string, value []byte) error) error {
	c, err := s.scan(context.Background())
	if err != nil {
		return err
	}
	err = guard(c.path, func() error {
		defer c.close()
		return c.each(b, "", visit)
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// ScanLanes yields every lane that was ever opened, with the number of its
// unconfirmed rows, in the order of (source, destination), until yield returns
// false. It is one consistent view; Apply goes on meanwhile.
func (s *Store) ScanLanes(yield func(source, destination entity.Ref, lane *recordv1.Lane, pending uint64) bool) error {
	return s.scanned(lanesBucket, func(key string, value []byte) error {
		source, destination, _, err := cutPair(key)
		if err != nil {
			return err
		}
		lane := &recordv1.Lane{}
		if err := proto.Unmarshal(value, lane); err != nil {
			return err
		}
		if !yield(source, destination, lane, lane.Numbered-lane.Confirmed) {
			return errStop
		}
		return nil
	})
}

// ScanApplied yields every applied mark in the order of (destination, source),
// until yield returns false. It is one consistent view; Apply goes on meanwhile.
func (s *Store) ScanApplied(yield func(destination, source entity.Ref, applied *recordv1.Applied) bool) error {
	return s.scanned(appliedBucket, func(key string, value []byte) error {
		destination, source, _, err := cutPair(key)
		if err != nil {
			return err
		}
		applied := &recordv1.Applied{}
		if err := proto.Unmarshal(value, applied); err != nil {
			return err
		}
		if !yield(destination, source, applied) {
			return errStop
		}
		return nil
	})
}
