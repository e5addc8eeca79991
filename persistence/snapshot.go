package persistence

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"writ/internal/durable"
	"writ/internal/fault"
	recordv1 "writ/proto/writ/record/v1"
)

// CopyFile writes a copy of the file, as of the last flush, under a new name
// into dir, and returns its path and its meta. The copy is complete and on disk.
// It is the caller's to remove. The file's pages are pinned for the time of
// copying only, so stream from the copy, however slow the receiver.
func (s *Store) CopyFile(dir string) (path string, meta *recordv1.ShardMeta, err error) {
	tx, err := s.beginCopy()
	if err != nil {
		return "", nil, fmt.Errorf("copy shard file: %w", err)
	}
	f, err := os.CreateTemp(dir, "shard-*.copy")
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("copy shard file: %w", err), tx.Rollback())
	}
	err = guard(s.cfg.Path, func() (err error) {
		defer func() { err = errors.Join(err, tx.Rollback()) }()
		if meta, err = readHead(tx); err != nil {
			return err
		}
		_, err = tx.WriteTo(f)
		return err
	})
	if err == nil {
		err = fault.Point(fault.Snapshot)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", nil, errors.Join(fmt.Errorf("copy shard file: %w", err), os.Remove(f.Name()))
	}
	return f.Name(), meta, nil
}

// beginCopy begins a read transaction on the file.
func (s *Store) beginCopy() (*bolt.Tx, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.state.closed {
		return nil, ErrClosed
	}
	return s.db.Begin(false)
}

func readHead(tx *bolt.Tx) (*recordv1.ShardMeta, error) {
	head := &recordv1.ShardMeta{}
	value := tx.Bucket([]byte(bucketNames[metaBucket])).Get([]byte(headKey))
	return head, proto.Unmarshal(value, head)
}

// replaceRequest asks the flusher to swap a file in.
type replaceRequest struct {
	path string
	done chan error // capacity 1
}

// Replace swaps a received snapshot file in: it is verified, stamped with this
// replica's generation, made durable, and takes the place of the shard file by
// one rename, so that content and index change as one. Everything applied before
// and not flushed is dropped. The path must be in the file system of the shard
// file; the file is gone afterwards. On a *[Damage] of the received file, and
// other errors before the rename, the store is as it was.
//
// It belongs to the state machine's goroutine, and waits for a flush on its way
// and for readers of the old file.
func (s *Store) Replace(path string) error {
	r := &replaceRequest{path: path, done: make(chan error, 1)}
	select {
	case s.replace <- r:
	case <-s.done:
		return fmt.Errorf("replace shard file: %w", ErrClosed)
	}
	if err := <-r.done; err != nil {
		return fmt.Errorf("replace shard file: %w", err)
	}
	return nil
}

// replaceFile runs in the flusher, so no flush is on its way.
func (s *Store) replaceFile(path string) error {
	s.mu.RLock()
	err := s.usable()
	s.mu.RUnlock()
	if err != nil {
		return err
	}
	db, c, err := openFile(path, s.cfg, false)
	if err != nil {
		return err
	}
	if err = guard(path, func() error { return stamp(db, c.head, s.cfg.Generation) }); err != nil {
		return errors.Join(err, guard(path, db.Close))
	}
	if err := fault.Point(fault.Restore); err != nil {
		return errors.Join(err, guard(path, db.Close))
	}
	old, err := s.swap(path, db, c)
	if err != nil {
		return err
	}
	return guard(s.cfg.Path, old.Close)
}

// stamp makes a received file this replica's.
func stamp(db *bolt.DB, head *recordv1.ShardMeta, generation uint64) error {
	head.ReplicaGeneration = generation
	return db.Update(func(tx *bolt.Tx) error { return putHead(tx, head) })
}

// swap renames the file into place and takes over its content. Once the rename
// has happened the old file is gone, so an error after it ends the store.
func (s *Store) swap(path string, db *bolt.DB, c *content) (old *bolt.DB, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Rename(path, s.cfg.Path); err != nil {
		return nil, errors.Join(err, guard(path, db.Close))
	}
	old = s.db
	s.adopt(db, c)
	s.tell()
	_ = fault.Point(fault.Restored)
	if err := durable.SyncDir(filepath.Dir(s.cfg.Path)); err != nil {
		s.fail(err)
		return nil, errors.Join(s.state.failure, guard(path, old.Close))
	}
	return old, nil
}
