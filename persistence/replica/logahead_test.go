package replica

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// What is appended is never overwritten by what is filled ahead of it, and the file
// is mostly longer than what has been appended.
func TestLogIsFilledAhead(t *testing.T) {
	for _, before := range []int{0, 3 * aheadStep / 2} { // a new file, one used before
		name := filepath.Join(t.TempDir(), "000001.log")
		fs := aheadFS{vfs.Default}
		create := func() (vfs.File, error) { return fs.Create(name, "wal") }
		if before > 0 {
			if err := os.WriteFile(name+"-old", bytes.Repeat([]byte{7}, before), 0o600); err != nil {
				t.Fatal(err)
			}
			create = func() (vfs.File, error) { return fs.ReuseForWrite(name+"-old", name, "wal") }
		}
		f, err := create()
		if err != nil {
			t.Fatal(err)
		}
		var want []byte
		longer := 0
		for i := range 5000 {
			piece := bytes.Repeat([]byte{byte(1 + i%250)}, 1+i%1500)
			want = append(want, piece...)
			if _, err := f.Write(piece); err != nil {
				t.Fatal(err)
			}
			if i%100 == 0 {
				if err := f.SyncData(); err != nil {
					t.Fatal(err)
				}
				info, err := f.Stat()
				if err != nil {
					t.Fatal(err)
				}
				if info.Size() > int64(len(want)) {
					longer++
				}
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(got, want) {
			t.Error("the file does not hold what was appended")
		}
		if rest := got[min(len(want), len(got)):]; before == 0 && len(bytes.Trim(rest, "\x00")) > 0 {
			t.Error("behind what was appended there are not only zeros")
		}
		t.Logf("%d bytes appended, the file has %d; %d of 50 times it was longer than what it held", len(want), len(got), longer)
		if longer == 0 {
			t.Error("it was never filled ahead")
		}
	}
}

// Trouble with filling is no trouble of the log's, and the log's own sync still
// hears of a failing disk.
func TestFailedFillingIsNoFailure(t *testing.T) {
	var filling, broken atomic.Bool
	failed := make(chan struct{}, 1)
	fs := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch {
		case op.Kind == errorfs.OpOpen || op.Kind == errorfs.OpCreate:
			return nil
		case op.Kind == errorfs.OpFileWriteAt && filling.Load():
			select {
			case failed <- struct{}{}:
			default:
			}
			return errors.New("no space is left")
		case op.Kind == errorfs.OpFileSyncData && broken.Load():
			return errors.New("the disk is gone")
		}
		return nil
	}))
	filling.Store(true)
	node, err := openNodeLog(t.TempDir(), fs, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l := newGroupLog(node, groupKey{shard: 1}, nil, func(error) {})
	store(t, l, entries(1, 5, 1))
	<-failed
	store(t, l, entries(6, 10, 1))
	broken.Store(true)
	if err := aside(func() error { return l.StoreLogs(entries(11, 11, 1)) }); !errors.Is(err, errEnded) {
		t.Errorf("append: %v, want the goroutine to end", err)
	}
	_ = node.close()
}
