package replica

import (
	"fmt"
	"io"
	"runtime"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"writ/internal/format"
	nodev1 "writ/proto/writ/node/v1"
)

// metaFSM is the meta group's state machine: the state of the last command whose
// base version was the state's. It implements raft.ConfigurationStore.
type metaFSM struct {
	meta    *Meta
	state   atomic.Pointer[nodev1.MetaState]
	applied atomic.Uint64
	term    atomic.Uint64 // of the last command or snapshot
	changed chan struct{}
}

func newMetaFSM(m *Meta) *metaFSM {
	f := &metaFSM{meta: m, changed: make(chan struct{}, 1)}
	f.state.Store(&nodev1.MetaState{})
	return f
}

// Apply answers true if the command has changed the state.
func (f *metaFSM) Apply(l *raft.Log) any {
	command := &nodev1.MetaCommand{}
	err := proto.Unmarshal(l.Data, command)
	// The format stands first: of a newer command nothing else can be judged.
	if newer := format.Check("the command", command.GetFormat()); newer != nil {
		err = newer
	}
	if err == nil && command.GetBaseVersion() == f.state.Load().GetVersion() { // else it has no effect
		err = formatOf(command.GetNext())
	}
	if err != nil {
		f.meta.fail(fmt.Errorf("entry %d of the meta group: %w", l.Index, err))
		runtime.Goexit()
	}
	won := command.GetBaseVersion() == f.state.Load().GetVersion()
	if won {
		f.set(command.GetNext())
	}
	f.advance(l.Index) // last: whoever sees it may rely on the state
	f.term.Store(l.Term)
	f.poke()
	return won
}

// StoreConfiguration notes a committed configuration.
func (f *metaFSM) StoreConfiguration(index uint64, c raft.Configuration) {
	f.meta.setMembers(index, c)
	f.advance(index)
	f.poke()
}

// formatOf refuses a state in whose cluster this program has no place.
func formatOf(s *nodev1.MetaState) error {
	return format.Check("what this cluster writes", s.GetActiveFormat())
}

func (f *metaFSM) advance(index uint64) {
	for old := f.applied.Load(); old < index && !f.applied.CompareAndSwap(old, index); old = f.applied.Load() {
	}
}

func (f *metaFSM) set(s *nodev1.MetaState) {
	if s == nil {
		s = &nodev1.MetaState{}
	}
	f.state.Store(s)
	f.poke()
}

func (f *metaFSM) poke() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// Snapshot keeps the state, which nobody changes.
func (f *metaFSM) Snapshot() (raft.FSMSnapshot, error) {
	return &metaSnapshot{f.state.Load()}, nil
}

// Restore takes over a snapshot's state.
func (f *metaFSM) Restore(source io.ReadCloser) error {
	s, err := readState(source)
	if err != nil {
		return err
	}
	if err := formatOf(s); err != nil {
		f.meta.fail(fmt.Errorf("snapshot of the meta group: %w", err))
		return err
	}
	f.set(s)
	return nil
}

// readState reads the state in a snapshot.
func readState(source io.Reader) (*nodev1.MetaState, error) {
	encoded, err := io.ReadAll(source)
	if err != nil {
		return nil, fmt.Errorf("read meta snapshot: %w", err)
	}
	s := &nodev1.MetaState{}
	if err := proto.Unmarshal(encoded, s); err != nil {
		return nil, fmt.Errorf("decode meta snapshot: %w", err)
	}
	return s, nil
}

type metaSnapshot struct{ state *nodev1.MetaState }

// Persist writes the state.
func (s *metaSnapshot) Persist(sink raft.SnapshotSink) error {
	encoded, err := proto.Marshal(s.state)
	if err != nil {
		return fmt.Errorf("encode meta snapshot: %w", err)
	}
	_, err = sink.Write(encoded)
	return err
}

// Release has nothing to release.
func (s *metaSnapshot) Release() {}

// notedSnapshots tells the replica the configuration of every snapshot that is
// opened: a state machine that restores one is not told by raft. It also notes those
// that are ahead of the log.
type notedSnapshots struct {
	raft.SnapshotStore
	meta *Meta
}

// Open opens a snapshot.
func (n *notedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, source, err := n.SnapshotStore.Open(id)
	if err == nil {
		n.meta.setMembers(meta.ConfigurationIndex, meta.Configuration)
		n.meta.fsm.advance(meta.Index)
		n.meta.fsm.term.Store(meta.Term)
	}
	return meta, source, err
}

// Create begins a snapshot.
func (n *notedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := n.SnapshotStore.Create(version, index, term, c, configurationIndex, trans)
	if err != nil {
		return nil, err
	}
	return &notedSink{SnapshotSink: sink, log: n.meta.log, index: index}, nil
}

// notedSink takes a snapshot.
type notedSink struct {
	raft.SnapshotSink
	log   *groupLog
	index uint64
}

// Close finishes the snapshot. One that comes from the leader is ahead of the log until
// raft has installed it; the mark tells a crash before that from a log that has lost
// its end.
func (k *notedSink) Close() error {
	before := k.log.number(stableInstalled) // it is listed, even if raft did not get to the end
	if _, last := k.log.bounds(); last < k.index && before != k.index {
		k.log.installing(k.index, before)
	}
	return k.SnapshotSink.Close()
}
