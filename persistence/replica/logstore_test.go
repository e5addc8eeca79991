package replica

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
)

func openTestLog(t *testing.T, dir string) *nodeLog {
	t.Helper()
	l, err := openNodeLog(dir, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.close() })
	return l
}

// testGroup is a log whose floor the test moves.
func testGroup(t *testing.T, node *nodeLog, shard uint32, floor *atomic.Uint64) *groupLog {
	t.Helper()
	return newGroupLog(node, groupKey{shard: shard, epoch: 1, generation: 7}, floor.Load,
		func(err error) { t.Errorf("log failed: %v", err) })
}

func entries(from, to, term uint64) (logs []*raft.Log) {
	for i := from; i <= to; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: term, Data: fmt.Appendf(nil, "entry %d of %d", i, term)})
	}
	return logs
}

func store(t *testing.T, l *groupLog, logs []*raft.Log) {
	t.Helper()
	if err := l.StoreLogs(logs); err != nil {
		t.Fatal(err)
	}
}

func wantBounds(t *testing.T, l *groupLog, first, last uint64) {
	t.Helper()
	gotFirst, _ := l.FirstIndex()
	gotLast, _ := l.LastIndex()
	if gotFirst != first || gotLast != last {
		t.Errorf("log runs from %d to %d, want %d to %d", gotFirst, gotLast, first, last)
	}
}

func wantEntry(t *testing.T, l *groupLog, index, term uint64) {
	t.Helper()
	var got raft.Log
	if err := l.GetLog(index, &got); err != nil {
		t.Fatalf("entry %d: %v", index, err)
	}
	want := raft.Log{Index: index, Term: term, Data: fmt.Appendf(nil, "entry %d of %d", index, term)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entry %d (-want +got):\n%s", index, diff)
	}
}

func TestLogKeepsEntriesAcrossReopening(t *testing.T) {
	dir := t.TempDir()
	var floor atomic.Uint64
	node := openTestLog(t, dir)
	l := testGroup(t, node, 1, &floor)
	wantBounds(t, l, 0, 0)
	store(t, l, entries(1, 200, 3))
	at := time.Unix(1700000000, 12345)
	odd := &raft.Log{Index: 201, Term: 4, Type: raft.LogConfiguration, Data: []byte{}, Extensions: []byte("ext"), AppendedAt: at}
	store(t, l, []*raft.Log{odd})
	other := testGroup(t, node, 2, &floor)
	store(t, other, entries(1, 3, 9))
	if err := node.close(); err != nil {
		t.Fatal(err)
	}

	node = openTestLog(t, dir)
	l = testGroup(t, node, 1, &floor)
	wantBounds(t, l, 1, 201)
	wantEntry(t, l, 1, 3)
	wantEntry(t, l, 200, 3)
	var got raft.Log
	if err := l.GetLog(201, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(odd, &got); diff != "" {
		t.Error(diff)
	}
	for _, index := range []uint64{0, 202} {
		if err := l.GetLog(index, &got); !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("entry %d: %v, want not found", index, err)
		}
	}
	wantBounds(t, testGroup(t, node, 2, &floor), 1, 3)
	wantBounds(t, testGroup(t, node, 3, &floor), 0, 0)
}

func TestCutAtTheBeginningStopsAtTheFloor(t *testing.T) {
	dir := t.TempDir()
	var floor atomic.Uint64
	node := openTestLog(t, dir)
	l := testGroup(t, node, 1, &floor)
	store(t, l, entries(1, 100, 1))
	cut := func(to, first uint64) {
		t.Helper()
		if err := l.DeleteRange(1, to); err != nil {
			t.Fatal(err)
		}
		wantBounds(t, l, first, 100)
	}
	cut(50, 1) // nothing is flushed
	floor.Store(40)
	cut(50, 40) // the entry at the floor stays
	floor.Store(80)
	l.pin(60, time.Now().Add(time.Hour))
	cut(70, 60) // a snapshot on its way
	l.pin(60, time.Now())
	cut(70, 71)
	var got raft.Log
	if err := l.GetLog(70, &got); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("a cut entry: %v, want not found", err)
	}
	wantEntry(t, l, 71, 1)
	if err := node.close(); err != nil {
		t.Fatal(err)
	}
	wantBounds(t, testGroup(t, openTestLog(t, dir), 1, &floor), 71, 100)
}

func TestCutAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	var floor atomic.Uint64
	node := openTestLog(t, dir)
	l := testGroup(t, node, 1, &floor)
	store(t, l, entries(1, 100, 1))
	if err := l.DeleteRange(61, 100); err != nil {
		t.Fatal(err)
	}
	wantBounds(t, l, 1, 60)
	store(t, l, entries(61, 62, 2))
	wantEntry(t, l, 61, 2)
	if err := node.close(); err != nil {
		t.Fatal(err)
	}
	l = testGroup(t, openTestLog(t, dir), 1, &floor)
	wantBounds(t, l, 1, 62)
	wantEntry(t, l, 60, 1)
	wantEntry(t, l, 62, 2)
}

func TestEmptiedLogContinuesBehindASnapshot(t *testing.T) {
	dir := t.TempDir()
	var floor atomic.Uint64
	node := openTestLog(t, dir)
	l := testGroup(t, node, 1, &floor)
	store(t, l, entries(1, 100, 1))
	if err := l.DeleteRange(1, 100); err != nil {
		t.Fatal(err)
	}
	wantBounds(t, l, 0, 0)
	store(t, l, entries(501, 502, 2))
	wantBounds(t, l, 501, 502)
	if err := node.close(); err != nil {
		t.Fatal(err)
	}
	wantBounds(t, testGroup(t, openTestLog(t, dir), 1, &floor), 501, 502)
}

func TestLogTrimsByBytes(t *testing.T) {
	var floor atomic.Uint64
	floor.Store(1 << 30)
	l := testGroup(t, openTestLog(t, t.TempDir()), 1, &floor)
	l.limit = 8 << 20
	big := make([]byte, 32<<10)
	for i := uint64(1); i <= 640; i++ {
		store(t, l, []*raft.Log{{Index: i, Term: 1, Data: big}})
	}
	select {
	case <-l.oversize:
	default:
		t.Fatal("20 MiB did not count as oversize")
	}
	before := l.bytes()
	l.trim(4 << 20)
	if after := l.bytes(); after >= before || after < 4<<20 || after > 6<<20 {
		t.Errorf("trimmed from %d to %d bytes, want about 4 MiB", before, after)
	}
	first, last := l.bounds()
	if last != 640 || first < 440 || first > 520 {
		t.Errorf("log runs from %d to %d", first, last)
	}
}

func TestAppendWithAGapFailsTheReplica(t *testing.T) {
	var failure error
	l := newGroupLog(openTestLog(t, t.TempDir()), groupKey{shard: 1}, nil, func(err error) { failure = err })
	store(t, l, entries(1, 5, 1))
	if err := aside(func() error { return l.StoreLogs(entries(7, 8, 1)) }); !errors.Is(err, errEnded) {
		t.Errorf("append: %v, want the goroutine to end", err)
	}
	if failure == nil {
		t.Error("the replica did not fail")
	}
	wantBounds(t, l, 1, 5)
}

func TestStableValues(t *testing.T) {
	dir := t.TempDir()
	node := openTestLog(t, dir)
	l := newGroupLog(node, groupKey{shard: 1}, nil, nil)
	if !l.pristine() {
		t.Error("a new log is not pristine")
	}
	if v, err := l.Get([]byte("none")); v != nil || err != nil {
		t.Errorf("missing value: %v, %v", v, err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(l.SetUint64([]byte(stableTerm), 5))
	must(l.SetUint64([]byte(stableVoteTerm), 5))
	must(l.Set([]byte(stableVoteFor), []byte("a")))
	must(l.SetUint64([]byte(stableVoteTerm), 6)) // a crash here must not leave the vote with "a"
	must(node.close())
	l = newGroupLog(openTestLog(t, dir), groupKey{shard: 1}, nil, nil)
	if term, _ := l.GetUint64([]byte(stableVoteTerm)); term != 6 {
		t.Errorf("vote term is %d", term)
	}
	if vote, _ := l.Get([]byte(stableVoteFor)); vote != nil {
		t.Errorf("the vote of the older term is still there: %q", vote)
	}
	if l.pristine() {
		t.Error("a log with a term is pristine")
	}
}

func TestDropRemovesOneGroupAndLeavesItsMark(t *testing.T) {
	var floor atomic.Uint64
	node := openTestLog(t, t.TempDir())
	a, b := testGroup(t, node, 1, &floor), testGroup(t, node, 2, &floor)
	store(t, a, entries(1, 10, 1))
	store(t, b, entries(1, 10, 1))
	a.putNumber(stableTerm, 3)
	node.drop(a.key)
	a = testGroup(t, node, 1, &floor)
	wantBounds(t, a, 0, 0)
	if term := a.number(stableTerm); term != 0 {
		t.Errorf("term %d survived", term)
	}
	if a.value(stableDropped) == nil {
		t.Error("no mark was left")
	}
	wantBounds(t, testGroup(t, node, 2, &floor), 1, 10)
	if got := len(node.groups()); got != 2 {
		t.Errorf("%d groups have keys, want 2", got)
	}
}

func TestFailingDiskFailsTheNodeAndEndsGoroutines(t *testing.T) {
	var broken atomic.Bool
	fs := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileWrite) {
			return errors.New("the disk is gone")
		}
		return nil
	}))
	node, err := openNodeLog(t.TempDir(), fs, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l := newGroupLog(node, groupKey{shard: 1}, nil, func(error) {})
	store(t, l, entries(1, 5, 1))
	broken.Store(true)
	if err := aside(func() error { return l.StoreLogs(entries(6, 6, 1)) }); !errors.Is(err, errEnded) {
		t.Fatalf("append: %v, want the goroutine to end", err)
	}
	<-node.failed
	if err := aside(func() error { return l.SetUint64([]byte(stableTerm), 1) }); !errors.Is(err, errEnded) {
		t.Errorf("stable write: %v, want the goroutine to end", err)
	}
	if err := node.close(); err == nil {
		t.Error("closing a failed log is no error")
	}
}

func TestDamagedLogIsAnError(t *testing.T) {
	for _, damage := range []struct {
		name string
		do   func(path string) error
	}{
		{"manifest zeroed", func(path string) error { return forEach(filepath.Join(path, "MANIFEST-*"), zero) }},
		{"manifest missing", func(path string) error { return forEach(filepath.Join(path, "MANIFEST-*"), os.Remove) }},
		{"write-ahead log damaged in the middle", func(path string) error { return forEach(filepath.Join(path, "*.log"), damageMiddle) }},
		{"a file in its place", func(path string) error {
			return errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte("x"), 0o600))
		}},
	} {
		t.Run(damage.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "log")
			node := openTestLog(t, dir)
			l := newGroupLog(node, groupKey{shard: 1}, nil, nil)
			for i := uint64(1); i <= 100; i++ {
				store(t, l, []*raft.Log{{Index: i, Term: 1, Data: make([]byte, 4<<10)}})
			}
			if err := node.close(); err != nil {
				t.Fatal(err)
			}
			if err := damage.do(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := openNodeLog(dir, nil, slog.New(slog.DiscardHandler)); err == nil {
				t.Error("it was opened")
			} else {
				t.Log(err)
			}
		})
	}
}

func TestLogIsOpenedOnce(t *testing.T) {
	dir := t.TempDir()
	openTestLog(t, dir)
	if _, err := openNodeLog(dir, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, errLocked) {
		t.Errorf("second opening: %v, want %v", err, errLocked)
	}
}

func damageMiddle(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	written := bytes.TrimRight(content, "\x00") // see aheadFS
	for i := range 16 {
		content[len(written)/3+i] ^= 0xff
	}
	return os.WriteFile(path, content, 0o600)
}

// A leader that has been replaced still sends from the end of its log while that end
// is cut off and written anew. What is not there then is no damage.
func TestReadingWhatIsCutOff(t *testing.T) {
	var floor atomic.Uint64
	node, err := openNodeLog("log", vfs.NewMem(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = node.close() }()
	l := testGroup(t, node, 1, &floor)
	const first, last = 10, 10 + cacheEntries + 10 // the first ones are not cached
	store(t, l, entries(1, last, 1))
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			defer func() { // a failed replica ends the goroutine
				select {
				case <-done:
				default:
					t.Error("a reader has ended")
				}
			}()
			for {
				select {
				case <-done:
					return
				default:
				}
				var got raft.Log
				if err := l.GetLog(first, &got); err != nil && !errors.Is(err, raft.ErrLogNotFound) {
					t.Error(err)
				}
			}
		})
	}
	for range 1000 {
		if err := l.DeleteRange(first, last); err != nil {
			t.Fatal(err)
		}
		store(t, l, entries(first, last, 1))
	}
	close(done)
	readers.Wait()
}
