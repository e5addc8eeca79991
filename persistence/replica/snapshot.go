package replica

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"writ/internal/fault"
	"writ/internal/format"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

const fileID = "file"

// snapshots is raft's snapshot store. The one snapshot that it lists is the shard
// file as it was last flushed; a file received from the leader is a second one
// until it has been swapped in.
type snapshots struct {
	replica *Replica
	dir     string // of temporary files
	fsm     *fsm
	copies  *copies
	short   shortage // of room for what comes from the leader

	mu       sync.Mutex
	closed   bool
	received map[string]*raft.SnapshotMeta // by path
}

func newSnapshots(r *Replica, dir string, f *fsm) *snapshots {
	return &snapshots{
		replica: r, dir: dir, fsm: f,
		copies:   &copies{replica: r, dir: dir, older: map[*fileCopy]struct{}{}},
		received: map[string]*raft.SnapshotMeta{},
	}
}

// Create begins a snapshot: of the own file, which needs no writing, or a file
// that comes from the leader, which is written.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	return &sink{snapshots: s, meta: raft.SnapshotMeta{
		Version: version, ID: fileID, Index: index, Term: term, Configuration: c, ConfigurationIndex: configurationIndex,
	}}, nil
}

// List is the shard file, once something is in it.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	index, term := s.replica.store.FlushedIndex()
	if index == 0 {
		return nil, nil
	}
	meta := s.replica.store.Meta()
	configuration, err := configurationOf(meta)
	if err != nil {
		return nil, err
	}
	return []*raft.SnapshotMeta{{
		Version: 1, ID: fileID, Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: meta.GetConfigurationIndex(),
	}}, nil
}

// Open gives the shard file to send, or hands a received file to the state
// machine, which asks for it right before it restores.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if id == fileID {
		return s.copies.open()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	meta, ok := s.received[id]
	if !ok {
		return nil, nil, fmt.Errorf("no snapshot %s", id)
	}
	delete(s.received, id)
	s.fsm.received = meta
	return meta, io.NopCloser(strings.NewReader("")), nil
}

// close deletes the copies of the file, and received ones that raft did not get to
// restoring.
func (s *snapshots) close() {
	s.copies.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for path := range s.received {
		if err := removeIfThere(path); err != nil {
			s.replica.logger.Warn("remove a received shard file", slog.Any("error", err))
		}
	}
	clear(s.received)
}

// sink takes a snapshot. If nothing is written to it, it stands for the own file.
type sink struct {
	snapshots *snapshots
	meta      raft.SnapshotMeta
	file      *os.File
	promised  *promise // with file
}

// ID is the path of the received file, or the id of the own one.
func (k *sink) ID() string {
	if k.file != nil {
		return k.file.Name()
	}
	return fileID
}

// Write takes a piece of a file from the leader.
func (k *sink) Write(b []byte) (n int, err error) {
	if k.file == nil {
		if err := k.begin(); err != nil {
			return 0, fmt.Errorf("receive a shard file: %w", err)
		}
	}
	if err := k.promised.use(int64(len(b))); err != nil {
		k.snapshots.short.note(k.snapshots.replica.logger, err)
		return 0, fmt.Errorf("receive a shard file: %w", err)
	}
	if err := fault.Point(fault.Receive); err != nil {
		return 0, fmt.Errorf("receive a shard file: %w", err)
	}
	return k.file.Write(b)
}

// begin sets room aside, for the size that the leader has announced unless that is
// forgotten already, and begins the file.
func (k *sink) begin() (err error) {
	size, r := int64(0), k.snapshots.replica
	if on := r.catchUp.receiving.Load(); on != nil {
		size = on.size
	}
	promised, err := r.host.room.promise(size)
	k.snapshots.short.note(r.logger, err)
	if err != nil {
		return err
	}
	if k.file, err = os.CreateTemp(k.snapshots.dir, receivedPattern); err != nil {
		promised.end()
		return err
	}
	k.promised = promised
	return nil
}

// Close makes a received file durable and checks it: whole, of this cluster and
// shard, and at the index that was announced.
func (k *sink) Close() error {
	if k.file == nil {
		return nil
	}
	k.promised.end()
	path := k.file.Name()
	err := errors.Join(k.file.Sync(), k.file.Close())
	if err == nil {
		var meta *recordv1.ShardMeta
		if meta, err = persistence.Verify(path, k.snapshots.replica.storeConfig()); err == nil && (meta.GetIndex() != k.meta.Index || meta.GetTerm() != k.meta.Term) {
			err = fmt.Errorf("the file stands at index %d term %d, announced were %d and %d", meta.GetIndex(), meta.GetTerm(), k.meta.Index, k.meta.Term)
		}
		if err == nil {
			_, err = configurationOf(meta)
		}
	}
	if newer, ok := errors.AsType[*format.NewerError](err); ok {
		k.snapshots.replica.fail(newer) // the next attempt would end like this one
	}
	if err != nil {
		return errors.Join(fmt.Errorf("received shard file: %w", err), os.Remove(path))
	}
	k.meta.ID = path
	k.snapshots.mu.Lock()
	defer k.snapshots.mu.Unlock()
	if k.snapshots.closed {
		return errors.Join(ErrClosed, os.Remove(path))
	}
	k.snapshots.received[path] = &k.meta
	return nil
}

// Cancel forgets a received file.
func (k *sink) Cancel() error {
	if k.file == nil {
		return nil
	}
	k.promised.end()
	return errors.Join(k.file.Close(), os.Remove(k.file.Name()))
}

// configurationOf reads the raft configuration in a shard's meta. Raft's own
// decoder panics on bad bytes: they are damage.
func configurationOf(meta *recordv1.ShardMeta) (c raft.Configuration, err error) {
	if len(meta.GetConfiguration()) == 0 {
		return c, nil
	}
	err = guarded(func() error {
		c = raft.DecodeConfiguration(meta.GetConfiguration())
		return nil
	})
	if err != nil {
		return c, oddly("the group's configuration in the shard file, of index %d, cannot be read: %v", meta.GetConfigurationIndex(), err)
	}
	return c, nil
}
