package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"writ/persistence"
	"writ/sharding"
)

// LostMemory says that a node can no longer know what it has voted and what it has
// acknowledged: its shared log, or its replica of the meta group, is damaged. It
// must never vote again under its incarnation. Trouble that may pass (rights, a
// full or failing disk, another process, a newer program) is not reported so: what
// it hides may be sound.
type LostMemory struct { //nolint:errname // it is a finding
	Reason string
	// InUse: the log store was open when it met the damage, and goroutines inside it
	// may go on writing to its folder for as long as this process lives.
	InUse bool
}

func (l *LostMemory) Error() string {
	return "this node's memory of what it has voted and acknowledged is lost: " + l.Reason
}

// errDamaged marks damage that pebble does not mark.
var errDamaged = errors.New("damaged")

// panicked is a panic that was caught in pebble or raft, which panic on data that makes
// no sense.
type panicked struct{ cause any }

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.cause) }

// Unwrap returns the cause.
func (p *panicked) Unwrap() error {
	err, _ := p.cause.(error)
	return err
}

// corrupt reports whether an error of the log store means that what it read is not
// what was written. What is not surely so is not: a sound log that is taken for a
// damaged one costs a replica of every shard.
func corrupt(err error) bool {
	if _, trouble := errors.AsType[syscall.Errno](err); trouble || errors.Is(err, os.ErrNotExist) {
		return false // the system cannot read it now, or the folder was moved away
	}
	return pebble.IsCorruptionError(err) || errors.Is(err, errDamaged) || errors.Is(err, errEntry)
}

// damaged is corrupt for what happens while log and meta group are opened, in a
// folder that is there. Then it is damage, too, if a part is missing, or all that
// tells which parts there are, and if the content makes the libraries panic.
func damaged(err error) bool {
	if err == nil || errors.Is(err, errLocked) || isNewer(err) {
		return false
	}
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	if _, trouble := errors.AsType[syscall.Errno](err); trouble {
		return false
	}
	_, odd := quarantined(err)
	_, panicked := errors.AsType[*panicked](err)
	return odd || panicked || corrupt(err) || errors.Is(err, pebble.ErrDBNotPristine) ||
		strings.Contains(err.Error(), "object size mismatch") // pebble has no name for a table that is cut off
}

// lossOf is the loss that an error of the log or of the meta group stands for, or
// the error itself if it stands for none.
func lossOf(err error) error {
	if _, known := errors.AsType[*LostMemory](err); known || !damaged(err) {
		return err
	}
	return &LostMemory{Reason: strings.ReplaceAll(err.Error(), "\n", "; "), InUse: errors.Is(err, errEnded)}
}

// openLog opens the shared log and looks whether it is this node's and as long as
// it was. A *LostMemory leaves the host standing, with its replicas in quarantine.
func (h *Host) openLog() error {
	dir := filepath.Join(h.config.Dir, logDir)
	log, err := openNodeLog(dir, h.config.fs, h.logger)
	if err != nil {
		return lossOf(err)
	}
	err = aside(func() error {
		if err := h.checkOwner(log, dir); err != nil {
			return err
		}
		if err := h.finishDrops(log); err != nil {
			return err
		}
		return h.checkEnd(log)
	})
	if failure := log.failure.Load(); failure != nil {
		err = fmt.Errorf("%w (%w)", *failure, errEnded)
	}
	if err = lossOf(err); err != nil {
		return errors.Join(err, log.close())
	}
	h.log = log
	return nil
}

// ownerKey is where the log says whose it is, beside all groups. Programs that do
// not know it take it for a group that nobody asks for.
func ownerKey() groupKey { return groupKey{shard: metaShard} }

// stableOwner is the name of the value there.
const stableOwner = "writ/owner"

// checkOwner refuses the log of another node, incarnation or cluster: their votes
// and acknowledgements are not this node's, and the numbers of replicas are alike
// everywhere. A log that does not say whose it is was begun by an older program, or
// is new.
func (h *Host) checkOwner(log *nodeLog, dir string) error {
	self := fmt.Sprintf("node %s, incarnation %s, of cluster %s", h.config.Node, h.config.Incarnation, h.config.ClusterID)
	l := &groupLog{node: log, key: ownerKey()}
	switch owner := string(l.value(stableOwner)); owner {
	case self:
	case "":
		l.put(stableOwner, []byte(self))
	default:
		return fmt.Errorf("the log in %s belongs to %s, and this is %s: bring this node's own log back", dir, owner, self)
	}
	return nil
}

// checkEnd looks, before anything votes, for shard files that are ahead of the log:
// the log has then lost its end, be it by a cut that pebble takes for the torn end
// of a crash, or because it is an older copy. What that end held of other groups,
// the meta group among them, nobody can know. A damaged file is no witness; it is
// found when its replica is opened.
func (h *Host) checkEnd(log *nodeLog) error {
	dir := filepath.Join(h.config.Dir, shardsDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		var key groupKey
		name := entry.Name()
		if _, err := fmt.Sscanf(name, "shard-%d-%d-%d.db", &key.shard, &key.epoch, &key.generation); err != nil || filepath.Base(h.shardPath(key)) != name {
			continue
		}
		path := filepath.Join(dir, name)
		head, err := persistence.Peek(path)
		if err != nil || head.GetShard() != key.shard || head.GetEpoch() != key.epoch || head.GetReplicaGeneration() != key.generation {
			continue
		}
		behind := newGroupLog(log, key, nil, nil).behind(head.GetIndex(), head.GetTerm())
		if behind == "" {
			continue
		}
		if _, err := persistence.Verify(path, persistence.Config{
			ClusterID: h.config.ClusterID, Shard: key.shard, Epoch: key.epoch, Generation: key.generation,
			Range: sharding.Range{First: head.GetRangeFirst(), Last: head.GetRangeLast()},
		}); err == nil {
			return oddly("shard file %s is ahead of the log: %s", path, behind)
		}
	}
	return nil
}

// behind says how the log lacks what its replica's file knows, "" if it does not.
func (l *groupLog) behind(index, term uint64) string {
	_, last := l.bounds()
	current := l.number(stableTerm)
	switch {
	case l.value(stableBorn) == nil:
		return "the log has never heard of this replica"
	case term > current:
		return fmt.Sprintf("the file is of term %d, the remembered term is %d: votes are lost", term, current)
	case last < index && !l.installed(index):
		return fmt.Sprintf("the file stands at %d, the log ends at %d", index, last)
	}
	return ""
}

// AwaitLoss waits until the shared log turns out to be damaged while it is in use,
// and returns the *LostMemory. It returns nil when the context ends, and for a log
// that has failed for another reason: a new process may find it sound.
func (h *Host) AwaitLoss(ctx context.Context) error {
	if h.log == nil {
		return nil
	}
	select {
	case <-ctx.Done():
	case <-h.log.failed:
		if err := *h.log.failure.Load(); corrupt(err) {
			return &LostMemory{Reason: err.Error(), InUse: true}
		}
	}
	return nil
}

// readable reports trouble of the system, or a newer format, in reading the files
// below dir. Raft's snapshot store passes over what it cannot read, and takes an
// older snapshot.
func readable(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		_, err = os.ReadFile(path)
		return err
	})
}
