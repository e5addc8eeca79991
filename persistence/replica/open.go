package replica

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"writ/persistence"
)

// ErrDropped says that a replica of this generation was dropped here: whoever asks
// for it has not seen the newest placement yet.
var ErrDropped = errors.New("this replica was dropped: a new one needs a new generation")

// quarantine is the finding that a replica's memory is not what it should be. It
// must not serve and must not vote.
type quarantine struct{ reason string }

func (q *quarantine) Error() string { return q.reason }

func oddly(format string, args ...any) error {
	return &quarantine{fmt.Sprintf(format, args...)}
}

// quarantined reports whether an error speaks of damage, and why.
func quarantined(err error) (reason string, ok bool) {
	var q *quarantine
	var d *persistence.Damage
	switch {
	case errors.As(err, &q):
		return q.reason, true
	case errors.As(err, &d):
		return d.Error(), true
	}
	return "", false
}

// begin opens the replica unless it has been closed already.
func (r *Replica) begin() error {
	r.life.Lock()
	defer r.life.Unlock()
	select {
	case <-r.stop:
		return ErrClosed
	default:
	}
	if lost := r.host.lost; lost != nil {
		return oddly("%v", lost)
	}
	if err := aside(r.open); err != nil {
		return err
	}
	r.opened.Store(r.store)
	return nil
}

// open reads the replica's log and file, checks them against each other, and
// starts raft. It must be called through aside: a failing log store ends the
// goroutine.
func (r *Replica) open() error {
	r.log = newGroupLog(r.host.log, r.key, r.floor, r.fail)
	r.log.limit = r.timing.LogBytes
	if err := r.openStore(); err != nil {
		return err
	}
	if err := r.compare(); err != nil {
		return err
	}
	index, term := r.store.FlushedIndex()
	r.appliedTerm(index, term)
	meta := r.store.Meta()
	configuration, err := configurationOf(meta)
	if err != nil {
		return err
	}
	r.setMembers(meta.GetConfigurationIndex(), configuration)
	if len(r.config.Bootstrap) > 0 && r.log.pristine() && index == 0 {
		r.log.bootstrap(votersOf(r.config.Bootstrap))
	}
	r.connect(hello{cluster: r.host.config.ClusterID, shard: r.key.shard, epoch: r.key.epoch}, r.host)
	l := &leadership{replica: r, start: r.startTerm}
	r.owned.Go(func() { l.run(r.notify, r.failed, r.stop) })
	r.owned.Go(r.watchLeader)
	f := &fsm{replica: r, store: r.store}
	r.snaps = newSnapshots(r, r.host.tempDir(), f)
	if err := r.start(f, r.snaps, false); err != nil {
		return err
	}
	r.goroutine.Go(func() { r.tidy(r.snaps.copies) })
	return nil
}

// floor is the highest index that the shard file no longer needs from the log.
func (r *Replica) floor() uint64 {
	index, _ := r.store.FlushedIndex()
	return index
}

// openStore opens the shard file, or creates it for a replica that has no history.
func (r *Replica) openStore() (err error) {
	config := r.storeConfig()
	_, statErr := os.Stat(config.Path)
	exists := !errors.Is(statErr, os.ErrNotExist)
	born := r.log.value(stableBorn)
	dropped := r.log.value(stableDropped)
	switch {
	case dropped != nil:
		return ErrDropped
	case !exists && !r.log.pristine():
		return oddly("shard file %s is missing, though its log is there", config.Path)
	case exists && born == nil:
		return oddly("the log of shard file %s is missing, and with it what this replica has voted", config.Path)
	case exists:
		r.store, err = persistence.Open(config)
		return wrap("open", err)
	}
	r.log.put(stableBorn, []byte{1})
	r.store, err = persistence.Create(config)
	return wrap("create", err)
}

// compare checks that log and file fit together. A crash in the middle of
// installing a snapshot leaves a file that is ahead of its log; the mark written
// before tells it from a lost log.
func (r *Replica) compare() error {
	index, term := r.store.FlushedIndex()
	first, last := r.log.bounds()
	current := r.log.number(stableTerm)
	var atIndex, atLast raft.Log
	if first > 0 {
		if err := r.log.GetLog(last, &atLast); err != nil {
			return oddly("the last log entry %d cannot be read: %v", last, err)
		}
	}
	inside := first > 0 && first <= index && index <= last
	if inside {
		if err := r.log.GetLog(index, &atIndex); err != nil {
			return oddly("log entry %d cannot be read: %v", index, err)
		}
	}
	fresh := r.log.installed(index)
	switch {
	case max(term, atLast.Term) > current:
		return oddly("file and log speak of term %d, but the remembered term is %d: votes are lost", max(term, atLast.Term), current)
	case first > index+1:
		return oddly("the log begins at %d, the file ends at %d: what lies between is lost", first, index)
	case last < index && !fresh:
		return oddly("the log ends at %d, the file at %d: the end of the log is lost", last, index)
	case inside && atIndex.Term != term && !fresh:
		return oddly("entry %d has term %d in the log and %d in the file", index, atIndex.Term, term)
	case first > 0 && (last < index || (inside && atIndex.Term != term)):
		return r.log.DeleteRange(first, last)
	}
	return nil
}

// Pauses of tidy.
const (
	boundPause = time.Second // a pinned log stays oversized for a while
	sweepPause = copyLife / 2
)

// tidy trims the log, after a flush, when it has outgrown its bytes, and deletes
// old copies of the shard file.
func (r *Replica) tidy(c *copies) {
	sweep := time.NewTicker(sweepPause)
	defer sweep.Stop()
	for {
		select {
		case <-r.log.oversize:
			if err := r.store.WaitFlushed(r.ctx, r.store.Meta().GetIndex()); err == nil {
				_ = aside(func() error {
					r.log.trim(r.timing.LogBytes / 2)
					return nil
				})
			}
			pause(r.ctx, boundPause)
		case <-sweep.C:
			c.sweep()
		case <-r.ctx.Done():
			return
		}
	}
}

// drop deletes a stopped replica. Its log goes first, together with the mark that
// keeps its generation from ever being opened again; the next start removes a
// file that a crash has left behind.
func (h *Host) drop(key groupKey) error {
	if h.log != nil {
		err := aside(func() error {
			h.log.drop(key)
			return nil
		})
		if err != nil {
			return fmt.Errorf("delete log: %w", err)
		}
	}
	// Whatever becomes of the file: it is not opened again, and its successor may be.
	h.mu.Lock()
	h.kept = slices.DeleteFunc(h.kept, func(k groupKey) bool { return k == key })
	h.mu.Unlock()
	return wrap("delete shard file", removeIfThere(h.shardPath(key)))
}

// finishDrops removes the files of dropped replicas, and notes the others.
func (h *Host) finishDrops(log *nodeLog) error {
	for _, key := range log.groups() {
		l := &groupLog{node: log, key: key}
		switch {
		case key == ownerKey():
		case l.value(stableDropped) == nil:
			h.kept = append(h.kept, key)
		default:
			if err := removeIfThere(h.shardPath(key)); err != nil {
				return fmt.Errorf("remove the file of a dropped replica: %w", err)
			}
		}
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
