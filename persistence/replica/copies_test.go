package replica

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// told is a log that several hosts write to.
type told struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *told) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// count is how often a text was said.
func (b *told) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), text)
}

// A replica that is dropped leaves no copy of its file, not even one that is read to
// its end later, and makes no more.
func TestClosedReplicaLeavesNoCopy(t *testing.T) {
	var midway func()
	c := newCluster(t, 1, func(config *Config) {
		config.Room = func(int64) error {
			if midway != nil {
				midway()
			}
			return nil
		}
	})
	c.startAll(3)
	tmp := filepath.Join(c.dirs["a"], tmpDir)
	want := func(what string, files int) {
		t.Helper()
		if names := filesIn(t, tmp); len(names) != files {
			t.Errorf("%s: left are %v, want %d", what, names, files)
		}
	}
	drop := func(shard uint32) {
		t.Helper()
		if err := c.host("a").Drop(shard); err != nil {
			t.Fatal(err)
		}
	}
	open := func(shard uint32) (*snapshots, io.Closer) {
		t.Helper()
		c.write(shard, "e", 0, "x")
		s := c.host("a").Replica(shard).snaps
		_, sent, err := s.Open(fileID)
		if err != nil {
			t.Fatal(err)
		}
		return s, sent
	}

	_, sent := open(0)
	if err := sent.Close(); err != nil {
		t.Error(err)
	}
	want("a copy that was sent", 1)
	drop(0)
	want("dropped", 0)

	s, sent := open(1)
	drop(1)
	if _, _, err := s.Open(fileID); !errors.Is(err, ErrClosed) {
		t.Errorf("a copy of a closed replica: %v", err)
	}
	if err := sent.Close(); err != nil {
		t.Error(err)
	}
	want("dropped while it was sent", 0)

	c.write(2, "e", 0, "x")
	s = c.host("a").Replica(2).snaps
	midway = s.close
	if _, _, err := s.Open(fileID); !errors.Is(err, ErrClosed) {
		t.Errorf("a copy that was finished too late: %v", err)
	}
	want("closed while it was made", 0)
}

// A file that has come and that raft does not get to is deleted with its replica, and
// one that comes to its end after that as well.
func TestClosedReplicaLeavesNoReceivedFile(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(1)
	c.write(0, "e", 0, "x")
	s := newSnapshots(c.host("a").Replica(0), t.TempDir(), nil)
	meta, sent, err := s.Open(fileID)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if _, err := file.ReadFrom(sent); err != nil {
		t.Fatal(err)
	}
	if err := sent.Close(); err != nil {
		t.Error(err)
	}
	receive := func() raft.SnapshotSink {
		t.Helper()
		sink, err := s.Create(meta.Version, meta.Index, meta.Term, meta.Configuration, meta.ConfigurationIndex, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sink.Write(file.Bytes()); err != nil {
			t.Fatal(err)
		}
		return sink
	}
	late := receive()
	if err := receive().Close(); err != nil {
		t.Fatal(err)
	}
	if names := filesIn(t, s.dir); len(names) != 3 {
		t.Errorf("a copy and two received files are %v", names)
	}
	s.close()
	if err := late.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("a file that came too late: %v", err)
	}
	if names := filesIn(t, s.dir); len(names) != 0 {
		t.Errorf("left are %v", names)
	}
}

// The log behind a copy is kept as long as somebody reads it, though not without end.
func TestReadingKeepsTheLog(t *testing.T) {
	c := newCluster(t, 1, fewTrailingLogs)
	log := &told{}
	c.logs = log
	c.startAll(1)
	c.write(0, "e", 0, strings.Repeat("x", 256<<10))
	r := c.host("a").Replica(0)
	s := newSnapshots(r, t.TempDir(), nil)
	meta, sent, err := s.Open(fileID)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		c.write(0, fmt.Sprint("e", i), 0, "x")
	}
	lapse := func() { // as if pinWhile had passed
		s.copies.latest.until = time.Now()
		r.log.pin(meta.Index, time.Now())
	}
	read := func(n int64) {
		t.Helper()
		if got, err := io.Copy(bufio.NewWriter(io.Discard), io.LimitReader(sent, n)); err != nil || got != n {
			t.Fatalf("read %d bytes: %v", got, err)
		}
	}
	keeps := func() bool {
		t.Helper()
		flush(t, r)
		if err := r.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			t.Fatal(err)
		}
		first, _ := r.log.bounds()
		return first <= meta.Index
	}
	lapse()
	read(1 << 10)
	if !keeps() {
		t.Error("the log behind a copy that is being read is gone")
	}
	const slow = "sending a shard file takes too long"
	if log.count(slow) != 0 {
		t.Error("a copy that was made just now is called slow")
	}
	lapse()
	s.copies.latest.made = s.copies.latest.made.Add(-pinMost)
	read(64 << 10) // many pieces
	if _, err := io.Copy(bufio.NewWriter(io.Discard), sent); err != nil {
		t.Fatal(err)
	}
	c.write(0, "one more", 0, "x")
	if keeps() {
		t.Error("the log is kept for a copy that is read for too long")
	}
	if got := log.count(slow); got != 1 {
		t.Errorf("it is said %d times that sending takes too long, want once", got)
	}
	if err := sent.Close(); err != nil {
		t.Error(err)
	}
}

// Raft reads a copy by io.Copy, which knows ways past Read.
func TestCopyIsReadByRead(t *testing.T) {
	var sent io.ReadCloser = &sentFile{}
	if _, past := sent.(io.WriterTo); past {
		t.Error("a copy can be read without being noticed")
	}
}

// One file is copied at a time, however many are being sent.
func TestOneCopyIsMadeAtATime(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(3)
	h := c.host("a")
	for shard := range uint32(3) {
		c.write(shard, "e", 0, "x")
		flush(t, h.Replica(shard))
	}
	for shard := range uint32(2) {
		_, sent, err := h.Replica(shard).snaps.Open(fileID)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := sent.Close(); err != nil {
				t.Error(err)
			}
		}()
	}
	h.copySlot <- struct{}{} // as if another file were being copied
	r := h.Replica(2)
	r.cancel() // who waits ends with its replica
	if _, _, err := r.snaps.Open(fileID); !errors.Is(err, context.Canceled) {
		t.Errorf("a second copy beside one that is being made: %v", err)
	}
	<-h.copySlot
	if names := filesIn(t, filepath.Join(c.dirs["a"], tmpDir)); len(names) != 2 {
		t.Errorf("copies: %v", names)
	}
}
