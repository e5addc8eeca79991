package persistence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

func TestFlushHappensByItself(t *testing.T) {
	t.Run("after a number of records", func(t *testing.T) {
		cfg := config(t)
		cfg.FlushRecords = 10
		s := newShard(t, create(t, cfg))
		for i := range 10 {
			s.must(s.command(ref("a"), fmt.Sprint("k", i)))
		}
		awaitFlushed(t, s.Store, 10)
	})
	t.Run("after a while", func(t *testing.T) {
		cfg := config(t)
		cfg.FlushInterval = time.Millisecond
		s := newShard(t, create(t, cfg))
		s.must(s.command(ref("a"), "k"))
		awaitFlushed(t, s.Store, 1)
	})
	t.Run("at the end", func(t *testing.T) {
		cfg := config(t)
		s := newShard(t, create(t, cfg))
		s.must(s.command(ref("a"), "k"))
		want := s.Dump()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, open(t, cfg).Dump()); diff != "" {
			t.Error(diff)
		}
	})
}

// awaitFlushed waits for a flush without asking for one.
func awaitFlushed(t *testing.T, s *persistence.Store, index uint64) {
	t.Helper()
	for {
		news := s.News()
		if at, _ := s.FlushedIndex(); at >= index {
			return
		}
		select {
		case <-news:
		case <-t.Context().Done():
			t.Fatal("no flush")
		}
	}
}

func TestWaitFlushed(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	if err := s.WaitFlushed(t.Context(), math.MaxUint64); err != nil {
		t.Errorf("nothing to flush: %v", err)
	}
	s.term = 3
	s.must(s.command(ref("a"), "k"))
	if s.UnflushedBytes() == 0 {
		t.Error("no unflushed bytes after a command")
	}
	s.SetConfiguration(7, []byte("voters"))
	s.SetConfiguration(6, []byte("older"))
	flush(t, s.Store)
	if index, term := s.FlushedIndex(); index != 1 || term != 3 {
		t.Errorf("flushed index %d term %d", index, term)
	}
	if n := s.UnflushedBytes(); n != 0 {
		t.Errorf("%d unflushed bytes after a flush", n)
	}
	if m := s.Meta(); m.ConfigurationIndex != 7 || string(m.Configuration) != "voters" {
		t.Errorf("configuration %d %q", m.ConfigurationIndex, m.Configuration)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	release := s.HoldFlush()
	s.must(s.command(ref("a"), "k2"))
	if err := s.WaitFlushed(canceled, 2); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if err := s.WaitFlushed(canceled, 1); err != nil {
		t.Errorf("of a flushed index: %v", err)
	}
	release()
}

// What is applied while a flush is on its way is not part of it: a crash right
// behind the flush finds content and index of the moment it began.
func TestApplyGoesOnDuringAFlush(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	hold := true
	cfg := config(t)
	cfg.Flushing = func() func() {
		if hold {
			began <- struct{}{}
			<-goOn
		}
		return func() {}
	}
	s := newShard(t, create(t, cfg))
	a, b := ref("a"), ref("b")
	s.must(s.command(a, "k1", b, b), s.command(ref("c"), "k2"))
	want := s.Dump()
	done := make(chan error)
	go func() { done <- s.WaitFlushed(t.Context(), 1) }()
	<-began // the level is frozen, nothing is written yet

	s.logTime = int64(time.Hour)
	s.must(s.confirm(a, b, 1), s.expire(uint64(window/int64(width))), s.command(a, "k1", b))
	s.SetConfiguration(9, []byte("voters"))
	rows, err := s.Rows(a, b, 0, 0, 0)
	if err != nil || len(rows) != 2 || rows[0].LaneSequence != 2 {
		t.Errorf("rows %v %v", rows, err)
	}
	if r, err := s.Entity(a); r.GetVersion() != 2 || err != nil {
		t.Errorf("entity %v %v", r, err)
	}
	if r, err := s.Entity(ref("c")); r.GetVersion() != 1 || err != nil {
		t.Errorf("entity in the frozen level: %v %v", r, err)
	}
	if k, err := s.Key(ref("c"), "test.Do", []byte("k2")); k != nil || err != nil {
		t.Errorf("a forgotten key in the frozen level: %v %v", k, err)
	}
	audit(t, s.Store)

	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	hold = false
	after := s.Dump()
	if index, _ := s.FlushedIndex(); index != 1 {
		t.Errorf("flushed index %d", index)
	}
	copied := cfg
	copied.Path += ".crashed"
	copyFile(t, cfg.Path, copied.Path)
	if diff := cmp.Diff(want, open(t, copied).Dump()); diff != "" {
		t.Errorf("after a crash: %s", diff)
	}
	flush(t, s.Store)
	if diff := cmp.Diff(after, s.Dump()); diff != "" {
		t.Errorf("after the next flush: %s", diff)
	}
}

// A configuration reaches the file without an entry behind it.
func TestAConfigurationAloneIsFlushed(t *testing.T) {
	cfg := config(t)
	s := create(t, cfg)
	s.SetConfiguration(4, []byte("voters"))
	flush(t, s)
	s.Abandon()
	if m := open(t, cfg).Meta(); m.ConfigurationIndex != 4 || string(m.Configuration) != "voters" {
		t.Errorf("configuration %d %q", m.ConfigurationIndex, m.Configuration)
	}
}

// Two stores that share a slot: while one holds it the other applies, and
// flushes later.
func TestFlushSlot(t *testing.T) {
	slot := make(chan struct{}, 1)
	cfg := config(t)
	cfg.FlushSlot = slot
	s := newShard(t, create(t, cfg))
	slot <- struct{}{} // another store flushes
	s.must(s.command(ref("a"), "k"))
	waiting, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.WaitFlushed(waiting, 1) }()
	s.must(s.command(ref("a"), "k2")) // Apply does not wait
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("flushed without the slot: %v", err)
	}
	<-slot
	flush(t, s.Store)
	slot <- struct{}{} // given back; and closing does not wait for others
	s.must(s.command(ref("a"), "k3"))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The file cannot be written: one report, then refusals; what was applied can
// still be read, and the file still stands for what it stood for.
func TestFailure(t *testing.T) {
	cfg := config(t)
	reports := make(chan error, 10)
	cfg.OnFailure = func(err error) { reports <- err }
	s := newShard(t, create(t, cfg))
	s.must(s.command(ref("a"), "k", ref("b")))
	flush(t, s.Store)
	want := s.Dump()
	s.LimitFile()
	for i := range 100 {
		s.must(s.command(ref(fmt.Sprint("more", i)), "k", ref("b")))
	}
	if err := s.WaitFlushed(t.Context(), 101); !errors.Is(err, persistence.ErrFailed) {
		t.Errorf("wait: %v", err)
	}
	if err := <-reports; err == nil {
		t.Error("reported nothing")
	}
	if _, err := s.Apply(200, 1, encode(t, 0, s.command(ref("a"), "k2"))); !errors.Is(err, persistence.ErrFailed) {
		t.Errorf("apply: %v", err)
	}
	if err := s.Replace("nowhere"); !errors.Is(err, persistence.ErrFailed) {
		t.Errorf("replace: %v", err)
	}
	if _, _, err := s.WaitCheckpoint(t.Context(), "x"); !errors.Is(err, persistence.ErrFailed) {
		t.Errorf("checkpoint: %v", err)
	}
	if r, err := s.Entity(ref("more7")); r.GetVersion() != 1 || err != nil {
		t.Errorf("read: %v %v", r, err)
	}
	if r, err := s.Entity(ref("a")); r.GetVersion() != 1 || err != nil {
		t.Errorf("read from the file: %v %v", r, err)
	}
	if a, err := s.Audit(t.Context()); err != nil || len(a.Findings) > 0 {
		t.Errorf("audit: %v %v", a, err)
	}
	if err := s.Close(); !errors.Is(err, persistence.ErrFailed) {
		t.Errorf("close: %v", err)
	}
	if len(reports) != 0 {
		t.Error("reported twice")
	}
	cfg.OnFailure = nil
	if diff := cmp.Diff(want, open(t, cfg).Dump()); diff != "" {
		t.Error(diff)
	}
}

func TestClosed(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	s.must(s.command(ref("a"), "k"))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, applyErr := s.Apply(9, 1, encode(t, 0))
	_, entityErr := s.Entity(ref("a"))
	_, auditErr := s.Audit(t.Context())
	_, _, checkpointErr := s.WaitCheckpoint(t.Context(), "a")
	_, _, copyErr := s.CopyFile(t.TempDir())
	for what, err := range map[string]error{
		"apply": applyErr, "entity": entityErr, "audit": auditErr, "checkpoint": checkpointErr, "copy": copyErr,
		"replace": s.Replace("x"), "scan": s.ScanApplied(nil),
	} {
		if !errors.Is(err, persistence.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestCheckpoints(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	s.must(s.command(ref("a"), "k"))
	type answer struct {
		index uint64
		hash  []byte
		err   error
	}
	early := make(chan answer)
	go func() {
		index, hash, err := s.WaitCheckpoint(t.Context(), "audit 0")
		early <- answer{index, hash, err}
	}()
	s.must(s.checkpoint("audit 0"), s.command(ref("a"), "k2"))
	index, hash := s.StateHash()
	if got := <-early; got.err != nil || got.index != index || string(got.hash) != string(hash) {
		t.Errorf("answer %+v, want %d %x", got, index, hash)
	}
	for i := range 16 {
		s.must(s.command(ref("a"), fmt.Sprint("more", i)), s.checkpoint(fmt.Sprint("audit ", i+1)))
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 18 {
		_, hash, err := s.WaitCheckpoint(canceled, fmt.Sprint("audit ", i))
		if kept := i >= 1 && i <= 16; kept != (err == nil) || kept != (len(hash) == 8) {
			t.Errorf("audit %d: %x %v", i, hash, err)
		}
	}
}

// Readers see every entry as a whole, whatever the flusher does. Run with -race.
func TestReadersBesideApplyAndFlush(t *testing.T) {
	cfg := config(t)
	cfg.FlushInterval = time.Millisecond
	s := newShard(t, create(t, cfg))
	const entries = 400
	a, b, x := ref("a"), ref("b"), ref("x")
	stop := make(chan struct{})
	var readers sync.WaitGroup
	reader := func(read func() error) {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := read(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	reader(func() error {
		first, err := s.Entity(a)
		second, err2 := s.Entity(b)
		if second.GetVersion() < first.GetVersion() { // b is written with a, and read later
			return fmt.Errorf("a at %d, b at %d", first.GetVersion(), second.GetVersion())
		}
		return errors.Join(err, err2)
	})
	reader(func() error {
		rows, err := s.Rows(a, x, 0, 5, 0)
		for i, r := range rows {
			if r.LaneSequence != rows[0].LaneSequence+uint64(i) {
				return fmt.Errorf("rows with a gap: %v", rows)
			}
		}
		return err
	})
	reader(func() error {
		_, err := s.Key(a, "test.Do", []byte("k5"))
		_, err2 := lanesOf(s.Store, a)
		_, err3 := s.PendingSources(a, 3)
		_, err4 := s.Applied(b, a)
		s.Meta()
		s.StateHash()
		s.UnflushedBytes()
		return errors.Join(err, err2, err3, err4)
	})
	reader(func() error {
		found, err := s.Audit(t.Context())
		if err == nil && len(found.Findings) > 0 {
			return fmt.Errorf("audit: %v", found.Findings)
		}
		return err
	})
	reader(func() error {
		path, meta, err := s.CopyFile(t.TempDir())
		if err != nil {
			return err
		}
		got, err := persistence.Verify(path, cfg)
		if err == nil && got.Index != meta.Index {
			return fmt.Errorf("copy of index %d says %d", meta.Index, got.Index)
		}
		return errors.Join(err, os.Remove(path))
	})
	for i := range entries {
		fromA := s.command(a, fmt.Sprint("k", i), x, ref("y"))
		onB := s.command(b, fmt.Sprint("k", i), x)
		s.mark(onB.GetCommit(), a)
		records := []*recordv1.Record{fromA, onB}
		if i%3 == 2 {
			records = append(records, s.confirm(a, x, uint64(i)))
		}
		if i%50 == 49 {
			s.logTime += int64(time.Hour)
			records = append(records, s.expire(uint64(s.logTime/int64(width))-11))
		}
		s.must(records...)
	}
	close(stop)
	readers.Wait()
	audit(t, s.Store)
}
