package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Times around the sending of a shard file.
const (
	// freshenLimit bounds the flush that makes a file younger before it is copied.
	freshenLimit = 5 * time.Second
	// copyLife is how long a copy is given to further followers, or to the same one
	// again: raft opens a snapshot before it dials, and does so at every attempt to
	// reach a follower that is away.
	copyLife = 30 * time.Second
	// pinWhile bounds how long the log behind a copy is kept while it is read, and
	// pinAfter how long after that: its receiver continues from there.
	pinWhile = 10 * time.Minute
	pinAfter = 30 * time.Second
)

// copies gives out copies of one shard file for sending. A long read of the file
// itself would hold up its writer and make it grow.
type copies struct {
	replica *Replica
	dir     string

	making sync.Mutex // one copy at a time; taken before mu
	mu     sync.Mutex
	latest *fileCopy
	older  map[*fileCopy]struct{} // still being read
}

// fileCopy is a copy and those who read it. It is deleted when nobody does and a
// later one has taken its place, or it has grown old.
type fileCopy struct {
	path    string
	meta    raft.SnapshotMeta
	made    time.Time
	readers int
}

// open gives the latest copy, or makes one, of the file as fresh as it can be had.
func (c *copies) open() (*raft.SnapshotMeta, io.ReadCloser, error) {
	c.making.Lock()
	defer c.making.Unlock()
	copied := c.recent()
	if copied == nil {
		var err error
		if copied, err = c.make(); err != nil {
			return nil, nil, fmt.Errorf("copy the shard file: %w", err)
		}
	}
	file, err := os.Open(copied.path)
	if err != nil {
		c.release(copied)
		return nil, nil, fmt.Errorf("open the copy: %w", err)
	}
	meta := copied.meta
	return &meta, &sentFile{File: file, copies: c, copied: copied}, nil
}

// recent is the latest copy with one more reader, nil if it is too old.
func (c *copies) recent() *fileCopy {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest == nil || time.Since(c.latest.made) > copyLife {
		return nil
	}
	c.latest.readers++
	c.pin(c.latest.meta.Index)
	return c.latest
}

// make makes the latest copy, with one reader.
func (c *copies) make() (*fileCopy, error) {
	store := c.replica.store
	ctx, cancel := context.WithTimeout(c.replica.ctx, freshenLimit)
	defer cancel()
	if err := store.WaitFlushed(ctx, store.Meta().GetIndex()); err != nil && c.replica.ctx.Err() != nil {
		return nil, err
	}
	index, _ := store.FlushedIndex()
	c.mu.Lock()
	c.pin(index)
	c.mu.Unlock()
	path, head, err := store.CopyFile(c.dir)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	copied := &fileCopy{path: path, made: time.Now(), readers: 1, meta: raft.SnapshotMeta{
		Version: 1, ID: fileID, Index: head.GetIndex(), Term: head.GetTerm(), Size: info.Size(),
		Configuration: configurationOf(head), ConfigurationIndex: head.GetConfigurationIndex(),
	}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.latest; old != nil && old.readers > 0 {
		c.older[old] = struct{}{}
	} else if old != nil {
		c.remove(old)
	}
	c.latest = copied
	c.pin(copied.meta.Index)
	return copied, nil
}

// pin keeps the log from an index on, and what those need who read older copies. The
// caller holds mu.
func (c *copies) pin(index uint64) {
	if c.latest != nil && c.latest.readers > 0 {
		index = min(index, c.latest.meta.Index)
	}
	for copied := range c.older {
		index = min(index, copied.meta.Index)
	}
	c.replica.log.pin(index, time.Now().Add(pinWhile))
}

// release takes a reader off a copy.
func (c *copies) release(copied *fileCopy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	copied.readers--
	if copied.readers > 0 {
		return
	}
	if copied != c.latest {
		delete(c.older, copied)
		c.remove(copied)
	}
	if len(c.older) == 0 && (c.latest == nil || c.latest.readers == 0) {
		c.replica.log.pin(copied.meta.Index, time.Now().Add(pinAfter))
	}
}

// sweep deletes the latest copy if it is old and nobody reads it.
func (c *copies) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest != nil && c.latest.readers == 0 && time.Since(c.latest.made) > copyLife {
		c.remove(c.latest)
		c.latest = nil
	}
}

func (c *copies) remove(copied *fileCopy) {
	if err := removeIfThere(copied.path); err != nil {
		c.replica.logger.Warn("remove a copy of the shard file", slog.Any("error", err))
	}
}

// sentFile is a copy on its way to a follower.
type sentFile struct {
	*os.File
	copies *copies
	copied *fileCopy
	once   sync.Once
}

// Close ends the reading.
func (f *sentFile) Close() (err error) {
	f.once.Do(func() {
		err = f.File.Close()
		f.copies.release(f.copied)
	})
	return err
}
