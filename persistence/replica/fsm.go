package replica

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"

	"github.com/hashicorp/raft"

	"writ/persistence"
)

// applied is the state machine's answer to one log entry.
type applied struct {
	term    uint64
	results []error // one for each record of the entry
}

// fsm puts committed entries into the shard's store. Raft calls it from one
// goroutine. It implements raft.BatchingFSM and raft.ConfigurationStore.
type fsm struct {
	replica  *Replica
	store    *persistence.Store
	received *raft.SnapshotMeta // the received file that raft restores next; its id is the path
}

// Apply is not called: raft prefers ApplyBatch.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies entries in order. An entry that cannot be applied fails the
// replica and ends raft's state machine goroutine.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	answers := make([]any, len(logs))
	for i, l := range logs {
		switch l.Type {
		case raft.LogCommand:
			results, err := f.store.Apply(l.Index, l.Term, l.Data)
			if err != nil {
				f.die(fmt.Errorf("apply entry %d: %w", l.Index, err))
			}
			answers[i] = &applied{term: l.Term, results: results}
		case raft.LogConfiguration:
			f.StoreConfiguration(l.Index, raft.DecodeConfiguration(l.Data))
		case raft.LogNoop, raft.LogBarrier, raft.LogAddPeerDeprecated, raft.LogRemovePeerDeprecated: // raft keeps these
		}
		f.replica.appliedTerm(l.Index, l.Term)
	}
	if unflushed := f.store.UnflushedBytes(); unflushed > f.replica.host.config.UnflushedMax {
		f.die(fmt.Errorf("%d bytes are applied but not in the shard file: the disk does not keep up", unflushed))
	}
	return answers
}

// StoreConfiguration keeps a committed configuration in the file.
func (f *fsm) StoreConfiguration(index uint64, c raft.Configuration) {
	f.store.SetConfiguration(index, raft.EncodeConfiguration(c))
	f.replica.setMembers(index, c)
}

// Snapshot is cheap: the shard file is the snapshot.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	return &flushed{replica: f.replica, index: f.store.Meta().GetIndex()}, nil
}

// Restore swaps in the file that the snapshot store has received and opened. The
// reader is empty.
func (f *fsm) Restore(io.ReadCloser) error {
	received := f.received
	f.received = nil
	if received == nil {
		return errors.New("no received file to restore from")
	}
	replaced, _ := f.store.FlushedIndex()
	f.replica.log.installing(received.Index, replaced)
	if err := f.store.Replace(received.ID); err != nil {
		err = errors.Join(fmt.Errorf("swap the received file in: %w", err), removeIfThere(received.ID))
		if errors.Is(err, persistence.ErrFailed) {
			f.die(err) // no other file will do better, until the replica is opened anew
		}
		return err
	}
	f.replica.log.putNumber(stableReplaced, 0)
	meta := f.store.Meta()
	configuration, err := configurationOf(meta)
	if err != nil {
		f.die(err) // the sink has read it: the file has changed since
	}
	f.replica.setMembers(meta.GetConfigurationIndex(), configuration)
	f.replica.appliedTerm(meta.GetIndex(), meta.GetTerm())
	f.replica.logger.Info("snapshot installed", slog.Uint64("index", meta.GetIndex()), slog.Uint64("term", meta.GetTerm()))
	return nil
}

func (f *fsm) die(err error) {
	f.replica.fail(err)
	runtime.Goexit()
}

// flushed is a snapshot that is taken when the shard file has reached its index.
type flushed struct {
	replica *Replica
	index   uint64
}

// Persist waits for the flush. The sink gets nothing.
func (s *flushed) Persist(raft.SnapshotSink) error {
	return s.replica.store.WaitFlushed(s.replica.ctx, s.index)
}

// Release has nothing to release.
func (s *flushed) Release() {}
