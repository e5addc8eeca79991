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

	recordv1 "writ/proto/writ/record/v1"
)

// Times around the sending of a shard file.
const (
	// freshenLimit bounds the flush that makes a file younger before it is copied.
	freshenLimit = 5 * time.Second
	// copyLife is how long a copy is given to further followers, or to the same one
	// again: raft opens a snapshot before it dials, and does so at every attempt to
	// reach a follower that is away.
	copyLife = 30 * time.Second
	// The log behind a copy is kept, for its receiver continues from there: pinWhile
	// after each piece that was read, and pinAfter after the end. The log grows
	// meanwhile, so no longer than about pinMost for one copy, however slowly it goes.
	pinWhile = 10 * time.Minute
	pinAfter = 30 * time.Second
	pinMost  = time.Hour
)

// copies gives out copies of one shard file for sending. A long read of the file
// itself would hold up its writer and make it grow.
type copies struct {
	replica *Replica
	dir     string

	short shortage

	making sync.Mutex // one copy at a time; taken before mu
	mu     sync.Mutex
	closed bool
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
	until   time.Time // when the log behind it is no longer kept, unless more is read
	slow    bool      // it was read for too long
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
	return &meta, &sentFile{file: file, copies: c, copied: copied}, nil
}

// recent is the latest copy with one more reader, nil if it is too old.
func (c *copies) recent() *fileCopy {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest == nil || time.Since(c.latest.made) > copyLife {
		return nil
	}
	c.latest.readers++
	c.keep(c.latest)
	return c.latest
}

// make makes the latest copy, with one reader.
func (c *copies) make() (*fileCopy, error) {
	if c.isClosed() {
		return nil, ErrClosed
	}
	store := c.replica.store
	ctx, cancel := context.WithTimeout(c.replica.ctx, freshenLimit)
	defer cancel()
	if err := store.WaitFlushed(ctx, store.Meta().GetIndex()); err != nil && c.replica.ctx.Err() != nil {
		return nil, err
	}
	path, head, err := c.copyFile()
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	var configuration raft.Configuration
	if err == nil {
		configuration, err = configurationOf(head)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	copied := &fileCopy{path: path, made: time.Now(), readers: 1, meta: raft.SnapshotMeta{
		Version: 1, ID: fileID, Index: head.GetIndex(), Term: head.GetTerm(), Size: info.Size(),
		Configuration: configuration, ConfigurationIndex: head.GetConfigurationIndex(),
	}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.remove(copied)
		return nil, ErrClosed
	}
	if old := c.latest; old != nil && old.readers > 0 {
		c.older[old] = struct{}{}
	} else if old != nil {
		c.remove(old)
	}
	c.latest = copied
	c.keep(copied)
	return copied, nil
}

func (c *copies) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// promise sets room for a copy aside. A copy is never larger than the file.
func (c *copies) promise() (*promise, error) {
	info, err := os.Stat(c.replica.path())
	if err != nil {
		return nil, err
	}
	return c.replica.host.room.promise(info.Size())
}

// copyFile copies the file when no other shard's is being copied: it takes what the
// disk gives, and commands need it too.
func (c *copies) copyFile() (path string, head *recordv1.ShardMeta, err error) {
	slot := c.replica.host.copySlot
	select {
	case slot <- struct{}{}:
	case <-c.replica.ctx.Done():
		return "", nil, c.replica.ctx.Err()
	}
	defer func() { <-slot }()
	// Those that wait for the slot must not take room from what is written now.
	promised, err := c.promise()
	c.short.note(c.replica.logger, err)
	if err != nil {
		return "", nil, err
	}
	defer promised.end()
	index, _ := c.replica.store.FlushedIndex()
	c.mu.Lock()
	c.pin(index)
	c.mu.Unlock()
	return c.replica.store.CopyFile(c.dir)
}

// keep keeps the log behind a copy that is being read. The caller holds mu.
func (c *copies) keep(copied *fileCopy) {
	copied.until = time.Now().Add(pinWhile)
	c.pin(copied.meta.Index)
}

// pin keeps the log from an index on, and what those need who read older copies. The
// caller holds mu.
func (c *copies) pin(index uint64) {
	now := time.Now()
	if c.latest != nil && c.latest.readers > 0 && now.Before(c.latest.until) {
		index = min(index, c.latest.meta.Index)
	}
	for copied := range c.older {
		if now.Before(copied.until) {
			index = min(index, copied.meta.Index)
		}
	}
	c.replica.log.pin(index, now.Add(pinWhile))
}

// renew is called when a piece of a copy was read. Without the log behind the copy its
// receiver would need the next one, and so on for ever.
func (c *copies) renew(copied *fileCopy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch took := time.Since(copied.made); {
	case took < pinMost:
		c.keep(copied)
	case !copied.slow:
		copied.slow = true
		c.replica.logger.Warn("sending a shard file takes too long: the log behind it is kept no longer, and whoever gets it may need the next one; make the network faster or the load lower",
			slog.Uint64("index", copied.meta.Index), slog.Int64("bytes", copied.meta.Size), slog.Duration("took", took))
	}
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

// close deletes the latest copy, or has its last reader do so, and ends the making of
// copies: nobody sweeps any more.
func (c *copies) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.latest != nil && c.latest.readers > 0 {
		c.older[c.latest] = struct{}{}
	} else if c.latest != nil {
		c.remove(c.latest)
	}
	c.latest = nil
}

func (c *copies) remove(copied *fileCopy) {
	if err := removeIfThere(copied.path); err != nil {
		c.replica.logger.Warn("remove a copy of the shard file", slog.Any("error", err))
	}
}

// sentFile is a copy on its way to a follower. It does not embed its file, which has
// ways to be read past Read.
type sentFile struct {
	file   *os.File
	copies *copies
	copied *fileCopy
	once   sync.Once
}

// Read implements io.Reader.
func (f *sentFile) Read(b []byte) (int, error) {
	n, err := f.file.Read(b)
	if n > 0 {
		f.copies.renew(f.copied)
	}
	return n, err
}

// Close ends the reading.
func (f *sentFile) Close() (err error) {
	f.once.Do(func() {
		err = f.file.Close()
		f.copies.release(f.copied)
	})
	return err
}
