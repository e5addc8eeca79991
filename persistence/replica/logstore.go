package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"writ/internal/mutant"
)

// Memory of the shared log store. Entries live for seconds: what is trimmed while
// it is still in the memtable never costs a write to a table.
const (
	logMemTableBytes = 16 << 20
	logCacheBytes    = 8 << 20
	logFormat        = pebble.FormatValueSeparation // the newest stable format of pebble 2.1
	// syncGather is the pause between two syncs while several groups have
	// something to sync: each sync then serves more of them.
	syncGather = 300 * time.Microsecond
	// closeLimit bounds the wait for a log store that has failed.
	closeLimit = 2 * time.Second
)

var errLogClosed = errors.New("the shared log is closed")

// nodeLog is the log store that all groups of a node share. It is safe for
// concurrent use.
//
// Damage in the write-ahead log is told from the torn end that a crash leaves by
// synced blocks behind it. Damage within the last 32 KiB cannot be told: the log
// then ends early, which [Replica] notices only if its file has got further.
//
// Its first failure is final: every goroutine that meets it, then or later, ends
// (see die), because neither raft nor pebble can carry on after one.
type nodeLog struct {
	db      *pebble.DB
	lock    *pebble.Lock
	logger  *slog.Logger
	born    time.Time // clock of appends
	waiting atomic.Int64
	failure atomic.Pointer[error]
	failing sync.Once
	failed  chan struct{} // closed by the first failure
	close   func() error  // once
}

// errLocked says that another process, or another host in this one, has the log
// open.
var errLocked = errors.New("the log is in use")

// openNodeLog opens the log store in dir, or creates it. Whatever pebble does
// about a damaged store, panic and exit included, comes back as an error.
func openNodeLog(dir string, fs vfs.FS, logger *slog.Logger) (*nodeLog, error) {
	if fs == nil {
		fs = vfs.Default
	}
	if err := fs.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("open the shared log: %w", err)
	}
	lock, err := pebble.LockDirectory(dir, fs)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLocked, err)
	}
	if err := checkManifest(dir, fs); err != nil {
		return nil, errors.Join(fmt.Errorf("open the shared log: %w", err), lock.Close())
	}
	l := &nodeLog{logger: logger, born: time.Now(), lock: lock, failed: make(chan struct{})}
	cache := pebble.NewCache(logCacheBytes)
	defer cache.Unref()
	options := &pebble.Options{
		FS:                          aheadFS{fs},
		Lock:                        lock,
		Cache:                       cache,
		MemTableSize:                logMemTableBytes,
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       64,
		MaxOpenFiles:                128,
		FormatMajorVersion:          logFormat,
		Logger:                      pebbleLogger{l},
		EventListener:               l.events(),
		WALMinSyncInterval:          l.syncInterval,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 1 },
	}
	var db *pebble.DB
	err = aside(func() error {
		return guarded(func() (err error) {
			db, err = pebble.Open(dir, options)
			return err
		})
	})
	if failure := l.failure.Load(); failure != nil {
		err = fmt.Errorf("%w (%w)", *failure, errEnded)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the shared log: %w", err), lock.Close())
	}
	l.db = db
	l.close = sync.OnceValue(l.closeNow)
	return l, nil
}

// checkManifest refuses an empty list of tables: pebble would take the store for a
// new one, and delete the tables.
func checkManifest(dir string, fs vfs.FS) error {
	found, err := pebble.Peek(dir, fs)
	if err != nil || !found.Exists {
		return nil //nolint:nilerr // opening it tells
	}
	info, err := fs.Stat(found.ManifestFilename)
	if err == nil && info.Size() == 0 {
		return fmt.Errorf("%w: %s is empty", errDamaged, found.ManifestFilename)
	}
	return nil
}

// logExists reports whether there is a log store in dir, even a damaged one: opening
// it tells.
func logExists(dir string, fs vfs.FS) bool {
	if fs == nil {
		fs = vfs.Default
	}
	found, err := pebble.Peek(dir, fs)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	return found.Exists
}

// hasLogFiles reports whether dir holds parts of a log store, though they may not
// make one: a store whose markers are gone is damaged, an empty folder is that of a
// disk which is not there.
func hasLogFiles(dir string) bool {
	for _, pattern := range []string{"MANIFEST-*", "*.sst", "*.log"} {
		if found, err := filepath.Glob(filepath.Join(dir, pattern)); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// syncInterval gathers syncs only while others wait: a lone client does not pay.
func (l *nodeLog) syncInterval() time.Duration {
	if l.waiting.Load() > 2 {
		return syncGather
	}
	return 0
}

// commit writes a batch durably.
func (l *nodeLog) commit(b *pebble.Batch) {
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	l.must("commit", func() error {
		if mutant.Off(mutant.Sync) {
			return b.Commit(pebble.NoSync)
		}
		return b.Commit(pebble.Sync)
	})
}

// must runs an operation on the store. If it fails in any way the store has
// failed, and the calling goroutine ends here.
func (l *nodeLog) must(what string, operation func() error) {
	if l.failure.Load() != nil {
		runtime.Goexit()
	}
	if err := guarded(operation); err != nil {
		l.die(fmt.Errorf("%s: %w", what, err))
	}
}

// die marks the store failed and ends the calling goroutine. Its deferred calls
// run; raft and pebble never see the error.
func (l *nodeLog) die(err error) {
	l.fail(err)
	runtime.Goexit()
}

func (l *nodeLog) fail(err error) {
	l.failing.Do(func() {
		err = fmt.Errorf("shared log: %w", err)
		l.failure.Store(&err)
		close(l.failed)
		l.logger.Error("the shared log has failed: all replicas of this node stop", slog.Any("error", err))
	})
}

// groups lists the groups that have keys in the store.
func (l *nodeLog) groups() (found []groupKey) {
	l.must("list groups", func() error {
		it, err := l.db.NewIter(nil)
		if err != nil {
			return err
		}
		for ok := it.First(); ok; {
			g, known := groupOf(it.Key())
			if !known {
				return errors.Join(fmt.Errorf("%w: foreign key %x", errDamaged, it.Key()), it.Close())
			}
			found = append(found, g)
			ok = it.SeekGE(g.end())
		}
		return errors.Join(it.Error(), it.Close())
	})
	return found
}

// drop removes everything of a group, entries and stable values, and leaves the
// mark that says so.
func (l *nodeLog) drop(g groupKey) {
	b := l.db.NewBatch()
	l.must("drop", func() error {
		return errors.Join(b.DeleteRange(g.begin(), g.end(), nil), b.Set(g.stable([]byte(stableDropped)), []byte{1}, nil))
	})
	l.commit(b)
}

// closeNow closes the store. After a failure it waits for a bounded time only:
// goroutines may hang inside pebble for good.
func (l *nodeLog) closeNow() error {
	healthy := false
	l.failing.Do(func() {
		l.failure.Store(&errLogClosed)
		healthy = true
	})
	shut := func() error { return errors.Join(aside(l.db.Close), l.lock.Close()) }
	if healthy {
		return wrap("close the shared log", shut())
	}
	return errors.Join(*l.failure.Load(), within(closeLimit, shut))
}

// failedPause is for pebble, which tries at once, and for ever, what has failed for
// damage: a store that is given up would take a processor.
const failedPause = 100 * time.Millisecond

func (l *nodeLog) events() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			l.logger.Warn("shared log: background work", slog.Any("error", err))
			if l.failure.Load() != nil {
				<-time.After(failedPause)
			}
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) { l.fail(fmt.Errorf("%w table: %w", errDamaged, info.Details)) },
		DiskSlow: func(info pebble.DiskSlowInfo) {
			l.logger.Warn("shared log: slow disk", slog.String("info", info.String()))
		},
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			l.logger.Warn("shared log: writes stall", slog.String("info", info.String()))
		},
	}
}

// pebbleLogger keeps pebble from ending the process. Where pebble would exit, the
// store is failed and the goroutine ended.
type pebbleLogger struct{ log *nodeLog }

func (p pebbleLogger) Infof(format string, args ...any) {}
func (p pebbleLogger) Errorf(format string, args ...any) {
	p.log.logger.Warn("shared log: " + fmt.Sprintf(format, args...))
}

func (p pebbleLogger) Fatalf(format string, args ...any) {
	p.log.die(fmt.Errorf(format, args...))
}

// guarded runs what reads the log or the state of raft, and turns a panic into a
// *panicked: while these are opened that is damage.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicked{cause: p}
		}
	}()
	return f()
}

// errEnded is the result of an operation whose goroutine ended in it.
var errEnded = errors.New("the operation met a failed store")

// aside runs f in a goroutine of its own and waits for it, so that neither a
// panic nor a Goexit inside f reaches the caller. The panic is a plain error: it may
// be a mistake of this program, which says nothing of the data.
func aside(f func() error) error {
	result := make(chan error, 1)
	go func() {
		defer close(result)
		defer func() {
			if p := recover(); p != nil {
				result <- fmt.Errorf("panic: %v", p)
			}
		}()
		result <- f()
	}()
	err, returned := <-result
	if !returned {
		return errEnded
	}
	return err
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
