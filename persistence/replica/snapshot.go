package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// Times around the sending of a shard file.
const (
	// freshenLimit bounds the flush that makes a file younger before it is sent.
	freshenLimit = 5 * time.Second
	// pinWhile and pinAfter are how long the log behind a sent file is kept: while
	// it is on its way at most, and after it has been read to the end.
	pinWhile = 10 * time.Minute
	pinAfter = 30 * time.Second
)

const fileID = "file"

// snapshots is raft's snapshot store. The one snapshot that it lists is the shard
// file as it was last flushed; a file received from the leader is a second one
// until it has been swapped in.
type snapshots struct {
	replica *Replica
	dir     string // of temporary files
	fsm     *fsm

	mu       sync.Mutex
	received map[string]*raft.SnapshotMeta // by path
}

func newSnapshots(r *Replica, dir string, f *fsm) *snapshots {
	return &snapshots{replica: r, dir: dir, fsm: f, received: map[string]*raft.SnapshotMeta{}}
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
	return []*raft.SnapshotMeta{{
		Version: 1, ID: fileID, Index: index, Term: term,
		Configuration: configurationOf(meta), ConfigurationIndex: meta.GetConfigurationIndex(),
	}}, nil
}

// Open gives the shard file to send, or hands a received file to the state
// machine, which asks for it right before it restores.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if id == fileID {
		return s.openFile()
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

// openFile copies the shard file, as fresh as it can be had, and reads the copy:
// a long read of the file itself would hold up its writer and make it grow.
func (s *snapshots) openFile() (*raft.SnapshotMeta, io.ReadCloser, error) {
	store := s.replica.store
	ctx, cancel := context.WithTimeout(s.replica.ctx, freshenLimit)
	defer cancel()
	if err := store.WaitFlushed(ctx, store.Meta().GetIndex()); err != nil && s.replica.ctx.Err() != nil {
		return nil, nil, err
	}
	flushedIndex, _ := store.FlushedIndex()
	s.replica.log.pin(flushedIndex, time.Now().Add(pinWhile))
	path, meta, err := store.CopyFile(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("copy the shard file: %w", err)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the copy: %w", err), os.Remove(path))
	}
	info, err := file.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, file.Close(), os.Remove(path))
	}
	return &raft.SnapshotMeta{
		Version: 1, ID: fileID, Index: meta.GetIndex(), Term: meta.GetTerm(), Size: info.Size(),
		Configuration: configurationOf(meta), ConfigurationIndex: meta.GetConfigurationIndex(),
	}, &sentFile{File: file, log: s.replica.log, index: flushedIndex}, nil
}

// sentFile is a temporary copy on its way to a follower.
type sentFile struct {
	*os.File
	log   *groupLog
	index uint64
}

// Close removes the copy. The log behind it is kept for a while longer: the
// follower continues from there.
func (f *sentFile) Close() error {
	f.log.unpin(f.index, time.Now().Add(pinAfter))
	return errors.Join(f.File.Close(), os.Remove(f.Name()))
}

// sink takes a snapshot. If nothing is written to it, it stands for the own file.
type sink struct {
	snapshots *snapshots
	meta      raft.SnapshotMeta
	file      *os.File
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
		if k.file, err = os.CreateTemp(k.snapshots.dir, receivedPattern); err != nil {
			return 0, fmt.Errorf("receive a shard file: %w", err)
		}
	}
	return k.file.Write(b)
}

// Close makes a received file durable and checks it: whole, of this cluster and
// shard, and at the index that was announced.
func (k *sink) Close() error {
	if k.file == nil {
		return nil
	}
	path := k.file.Name()
	err := errors.Join(k.file.Sync(), k.file.Close())
	if err == nil {
		var meta *recordv1.ShardMeta
		if meta, err = persistence.Verify(path, k.snapshots.replica.storeConfig()); err == nil && (meta.GetIndex() != k.meta.Index || meta.GetTerm() != k.meta.Term) {
			err = fmt.Errorf("the file stands at index %d term %d, announced were %d and %d", meta.GetIndex(), meta.GetTerm(), k.meta.Index, k.meta.Term)
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("received shard file: %w", err), os.Remove(path))
	}
	k.meta.ID = path
	k.snapshots.mu.Lock()
	defer k.snapshots.mu.Unlock()
	k.snapshots.received[path] = &k.meta
	return nil
}

// Cancel forgets a received file.
func (k *sink) Cancel() error {
	if k.file == nil {
		return nil
	}
	return errors.Join(k.file.Close(), os.Remove(k.file.Name()))
}

// configurationOf reads the raft configuration in a shard's meta. Raft's own
// decoder panics on bad bytes; the file's checks stand before it.
func configurationOf(meta *recordv1.ShardMeta) (c raft.Configuration) {
	if len(meta.GetConfiguration()) > 0 {
		c = raft.DecodeConfiguration(meta.GetConfiguration())
	}
	return c
}
