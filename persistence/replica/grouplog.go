package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"

	"writ/internal/fault"
	"writ/internal/format"
	"writ/internal/mutant"
)

// groupLog is one replica's log and stable values in the shared log store. It
// implements raft.LogStore, raft.MonotonicLogStore and raft.StableStore, and
// never returns an error to raft except raft.ErrLogNotFound, and to its replicators
// what has failed this replica alone: see nodeLog and withhold.
//
// raft's main loop appends and cuts the end, its snapshot loop cuts the
// beginning, replicators read.
type groupLog struct {
	node *nodeLog
	key  groupKey
	// floor is the highest index that the state machine no longer needs: entries
	// up to it may go, the entry at it stays, because a snapshot's receiver
	// asks for the entry before its first. Nil: raft alone decides.
	floor func() uint64
	// fail marks this replica failed. It must not block.
	fail func(error)

	// oversize is told when the log has more than limit bytes; 0: no limit.
	limit    int64
	oversize chan struct{}

	cuts  sync.Mutex // one cut at a time; taken before mu
	mu    sync.Mutex
	first uint64 // 0: empty
	last  uint64
	cache entryCache
	sizes logSizes
	// pinned is the lowest index that a snapshot on its way needs, until the
	// given time.
	pinned      uint64
	pinnedUntil time.Time
	// appending is the time when the write in progress began (on the node log's
	// clock), 0 for none: the watchdog looks at it.
	appending atomic.Int64
}

// newGroupLog finds the group's first and last index in the store.
func newGroupLog(node *nodeLog, key groupKey, floor func() uint64, fail func(error)) *groupLog {
	l := &groupLog{node: node, key: key, floor: floor, fail: fail, oversize: make(chan struct{}, 1)}
	node.must("find log", func() error {
		it, err := node.db.NewIter(&pebble.IterOptions{LowerBound: key.log(0), UpperBound: key.end()})
		if err != nil {
			return err
		}
		if it.First() {
			l.first = indexOf(it.Key())
		}
		if it.Last() {
			l.last = indexOf(it.Key())
		}
		if err := it.Error(); err != nil {
			_ = it.Close()
			return err
		}
		return it.Close()
	})
	if l.first > 0 {
		var bytes uint64
		node.must("measure log", func() (err error) {
			bytes, err = node.db.EstimateDiskUsage(key.log(0), key.end())
			return err
		})
		l.sizes.add(l.last, int64(bytes))
	}
	return l
}

func indexOf(key []byte) uint64 { return binary.BigEndian.Uint64(key[prefixLen+1:]) }

// IsMonotonic tells raft that this log has no gaps.
func (l *groupLog) IsMonotonic() bool { return true }

// FirstIndex is the first index, 0 if the log is empty.
func (l *groupLog) FirstIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, nil
}

// LastIndex is the last index, 0 if the log is empty.
func (l *groupLog) LastIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, nil
}

func (l *groupLog) bounds() (first, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.last
}

// GetLog reads one entry. Below the first and above the last index it is
// raft.ErrLogNotFound; an entry missing in between is damage.
func (l *groupLog) GetLog(index uint64, entry *raft.Log) error {
	l.mu.Lock()
	inside := l.first > 0 && l.first <= index && index <= l.last
	cached := l.cache.get(index)
	l.mu.Unlock()
	if !inside {
		return raft.ErrLogNotFound
	}
	if cached != nil {
		*entry = *cached
		return nil
	}
	if found, err := l.read(index, entry); found || err != nil {
		return err
	}
	l.cuts.Lock() // cut in the meantime, and maybe written anew: now it stays as it is
	defer l.cuts.Unlock()
	first, last := l.bounds()
	if index < first || index > last {
		return raft.ErrLogNotFound
	}
	if found, err := l.read(index, entry); found || err != nil {
		return err
	}
	return l.lacks(index, first, last)
}

// lacks fails the replica for an entry that is missing; in the meta group, where
// damage is a loss of the node's memory, it fails the whole store.
func (l *groupLog) lacks(index, first, last uint64) error {
	err := oddly("the log has no entry %d though it runs from %d to %d", index, first, last)
	if l.key.shard == metaShard {
		l.node.die(fmt.Errorf("meta group: %w: %w", errDamaged, err))
	}
	return l.withhold(err)
}

// withhold fails this replica for an entry that it cannot give. Only a replicator is
// told so: it then sends nothing, and is stopped. If its goroutine ended here, in a
// pipeline, it would leave behind the one that reads the answers, for which raft waits
// when it shuts down: the replica could not be opened anew. Everybody else ends, since
// raft panics when it cannot read what it has to apply.
func (l *groupLog) withhold(err error) error {
	l.fail(err)
	if !replicating() {
		runtime.Goexit()
	}
	return err
}

// replicating reports whether raft reads the log to send entries to a follower. It does
// not say so, but its stack does; if that changes, the replicator ends as others do.
func replicating() bool {
	calls := make([]uintptr, 16)
	frames := runtime.CallersFrames(calls[:runtime.Callers(1, calls)])
	for {
		frame, more := frames.Next()
		if frame.Function == "github.com/hashicorp/raft.(*Raft).setupAppendEntries" {
			return true
		}
		if !more {
			return false
		}
	}
}

// read reads one entry from the store; not found if it is not there.
func (l *groupLog) read(index uint64, entry *raft.Log) (found bool, err error) {
	var newer *format.NewerError // of a format to come: the log is sound, this program is too old for one shard
	l.node.must("read log", func() error {
		value, closer, err := l.node.db.Get(l.key.log(index))
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		err = parseEntry(value, index, entry)
		_ = closer.Close()
		if errors.As(err, &newer) {
			return nil
		}
		return wrap(fmt.Sprintf("shard %d index %d", l.key.shard, index), err)
	})
	if newer != nil {
		return found, l.withhold(newer)
	}
	return found, nil
}

// StoreLog appends one entry.
func (l *groupLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs appends entries durably.
func (l *groupLog) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	_, last := l.bounds()
	b := l.node.db.NewBatch()
	total := 0
	for i, entry := range entries {
		if next := entries[0].Index + uint64(i); entry.Index != next || (last > 0 && entries[0].Index != last+1) {
			l.die(fmt.Errorf("append of entry %d after entry %d: gap", entry.Index, last))
		}
		size := entrySize(entry)
		total += size
		op := b.SetDeferred(logKeyLen, size)
		copy(op.Key, l.key.log(entry.Index))
		appendEntry(op.Value[:0], entry)
		if err := op.Finish(); err != nil {
			l.die(fmt.Errorf("append: %w", err))
		}
	}
	l.commit(b)
	l.appended(entries, total)
	if l.key.shard != metaShard && entries[0].Type == raft.LogCommand {
		_ = fault.Point(fault.AfterAppend)
	}
	return nil
}

// commit writes entries or stable values durably, under the watchdog's eye. Of two
// at once it sees the first.
func (l *groupLog) commit(b *pebble.Batch) {
	if l.appending.CompareAndSwap(0, int64(time.Since(l.node.born))) {
		defer l.appending.Store(0)
	}
	_ = fault.Point(fault.BeforeAppend)
	l.node.commit(b)
}

func (l *groupLog) appended(entries []*raft.Log, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == 0 {
		l.first = entries[0].Index
	}
	l.last = entries[len(entries)-1].Index
	l.sizes.add(l.last, int64(bytes))
	for _, entry := range entries {
		l.cache.put(entry)
	}
	if l.limit > 0 && l.sizes.total > l.limit {
		select {
		case l.oversize <- struct{}{}:
		default:
		}
	}
}

// DeleteRange cuts the log at its beginning or at its end. A cut at the beginning
// stops below the floor; what it asked for beyond that stays. Only a cut of the
// whole log, which raft makes after it has installed a snapshot, goes through as
// a whole.
func (l *groupLog) DeleteRange(from, to uint64) error {
	l.cuts.Lock()
	defer l.cuts.Unlock()
	first, last := l.bounds()
	switch {
	case first == 0 || to < first || from > last || from > to:
		return nil
	case from <= first && to >= last:
		l.empty()
	case from <= first:
		l.cutBefore(to + 1)
	case to >= last:
		l.cutAfter(from - 1)
	default:
		l.die(fmt.Errorf("asked to delete %d to %d out of the middle of %d to %d", from, to, first, last))
	}
	return nil
}

// trim cuts the beginning of the log so that about keep bytes stay, but no fewer
// than trailingMin entries, and if the floor allows.
func (l *groupLog) trim(keep int64) {
	l.cuts.Lock()
	defer l.cuts.Unlock()
	l.mu.Lock()
	index := min(l.sizes.before(keep), l.last-min(l.last, trailingMin))
	l.mu.Unlock()
	if index > 0 {
		l.cutBefore(index + 1)
	}
}

// appendingFor is how long the write in progress has taken so far.
func (l *groupLog) appendingFor() time.Duration {
	began := l.appending.Load()
	if began == 0 {
		return 0
	}
	return time.Since(l.node.born) - time.Duration(began)
}

// bytes is the approximate size of the log.
func (l *groupLog) bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sizes.total
}

// pin keeps the entries from index on until a time. It takes the place of the pin
// before.
func (l *groupLog) pin(index uint64, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pinned, l.pinnedUntil = index, until
}

// empty removes all entries. The caller holds cuts.
func (l *groupLog) empty() {
	l.mu.Lock()
	l.first, l.last = 0, 0 // readers first: what they no longer see may go
	l.cache.clear()
	l.sizes = logSizes{}
	l.mu.Unlock()
	l.delete(0, math.MaxUint64)
}

// cutBefore removes the entries below index, as far as floor and pin allow. The
// caller holds cuts.
func (l *groupLog) cutBefore(index uint64) {
	if l.floor != nil && !mutant.Off(mutant.LogFloor) {
		index = min(index, l.floor())
	}
	l.mu.Lock()
	if l.pinned > 0 && time.Now().Before(l.pinnedUntil) {
		index = min(index, l.pinned)
	}
	index = min(index, l.last)
	first := l.first
	if first == 0 || index <= first {
		l.mu.Unlock()
		return
	}
	l.first = index // readers first
	l.sizes.cut(index)
	l.mu.Unlock()
	l.delete(0, index)
}

// cutAfter removes the entries above index. The caller holds cuts.
func (l *groupLog) cutAfter(index uint64) {
	l.mu.Lock()
	l.last = index // readers first, as above
	l.cache.clear()
	l.mu.Unlock()
	l.delete(index+1, math.MaxUint64)
}

// delete removes the entries of [from, to). It is not synced: the next append is,
// behind it in the same write-ahead log.
func (l *groupLog) delete(from, to uint64) {
	end := l.key.end()
	if to != math.MaxUint64 {
		end = l.key.log(to)
	}
	l.node.must("cut log", func() error { return l.node.db.DeleteRange(l.key.log(from), end, pebble.NoSync) })
}

// die fails this replica and ends the calling goroutine.
func (l *groupLog) die(err error) {
	l.fail(err)
	runtime.Goexit()
}
