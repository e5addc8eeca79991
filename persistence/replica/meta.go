package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/internal/durable"
	"writ/internal/format"
	nodev1 "writ/proto/writ/node/v1"
)

// metaEpoch is the epoch of the meta group.
const metaEpoch = 1

// metaSnapshots is the number of snapshots of the meta group that are kept.
const metaSnapshots = 2

// MetaConfig says which replica of the meta group a host should open.
type MetaConfig struct {
	Generation uint64
	// Bootstrap is the group's first configuration: see ShardConfig.
	Bootstrap []Server
}

// Meta is the node's replica of the meta group: a small state, held in memory and
// changed by compare-and-set. It is safe for concurrent use.
type Meta struct {
	*group
	fsm     *metaFSM
	stop    chan struct{}
	owned   sync.WaitGroup
	led     atomic.Bool  // by raft's notices
	closing func() error // once
}

// OpenMeta opens the node's replica of the meta group, or creates it if it has
// never existed. Damage to it or to the log is a *LostMemory: an incarnation has one
// such replica in its life, and without it a node cannot do its part.
func (h *Host) OpenMeta(c MetaConfig) (*Meta, error) {
	self := Server{Node: h.config.Node, Incarnation: h.config.Incarnation, Generation: c.Generation}
	if err := errors.Join(self.validate(), validateBootstrap(c.Bootstrap, self)); err != nil {
		return nil, fmt.Errorf("open the meta group: %w", err)
	}
	if h.lost != nil {
		return nil, h.lost
	}
	key := groupKey{shard: metaShard, epoch: metaEpoch, generation: c.Generation}
	m := &Meta{group: newGroup(self, key, h.config.Timing, h.logger.With(slog.String("shard", "meta"))), stop: make(chan struct{})}
	m.closing = sync.OnceValue(m.closeNow)
	m.leads = m.IsLeader
	m.fsm = newMetaFSM(m)
	err := aside(func() error { return m.open(h, c) })
	if err == nil {
		err = h.setMeta(m)
	}
	if err != nil {
		for _, failure := range []*error{m.failure.Load(), h.log.failure.Load()} {
			if failure != nil {
				err = fmt.Errorf("%w (%w)", *failure, errEnded)
			}
		}
		return nil, errors.Join(lossOf(fmt.Errorf("open the meta group: %w", err)), m.close())
	}
	return m, nil
}

func (h *Host) setMeta(m *Meta) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return ErrClosed
	case h.meta != nil:
		return errors.New("it is open already")
	}
	h.meta = m
	return nil
}

func (m *Meta) open(h *Host, c MetaConfig) error {
	m.log = newGroupLog(h.log, m.key, nil, m.fail)
	dir := filepath.Join(h.config.Dir, metaDir, fmt.Sprintf("%d", c.Generation))
	snapshots, err := m.openSnapshots(dir)
	if err != nil {
		return err
	}
	if err := m.compare(snapshots, h.config.ClusterID); err != nil {
		return err
	}
	if len(c.Bootstrap) > 0 && m.log.pristine() {
		m.log.bootstrap(votersOf(c.Bootstrap))
	}
	m.connect(hello{cluster: h.config.ClusterID, shard: metaShard, epoch: metaEpoch}, h)
	m.owned.Go(m.watch)
	return m.start(m.fsm, &notedSnapshots{snapshots, m}, true)
}

// openSnapshots opens the folder of snapshots. Like a shard's file it must be
// there exactly if the log remembers the replica.
func (m *Meta) openSnapshots(dir string) (raft.SnapshotStore, error) {
	_, statErr := os.Stat(dir)
	exists := !errors.Is(statErr, os.ErrNotExist)
	born := m.log.value(stableBorn)
	switch {
	case exists && born == nil:
		return nil, oddly("the log of the meta group is missing, and with it what this replica has voted")
	case !exists && !m.log.pristine():
		return nil, missing(dir)
	case !exists:
		m.log.put(stableBorn, []byte{1})
		if err := durable.MkdirAll(dir, 0o750); err != nil {
			return nil, err
		}
	}
	if err := readable(dir); err != nil {
		return nil, fmt.Errorf("the meta group's snapshots: %w", err)
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dir, metaSnapshots, newRaftLogger(m.logger))
	if err != nil {
		return nil, err
	}
	return snapshots, durable.SyncDir(dir) // it has made a folder, and does not see to this
}

// missing is what to say of a replica's folder that is not there though the log
// remembers the replica. If there is nothing beside it either, it is not damage: the
// folder above may be a disk that is not mounted, and its content sound.
func missing(dir string) error {
	above := filepath.Dir(dir)
	beside, err := os.ReadDir(above)
	switch {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	case len(beside) > 0:
		return oddly("the folder %s is missing, though its log is there", dir)
	}
	return fmt.Errorf("the log remembers this node's replica of the meta group, but its folder %s is missing or empty: the disk may not be mounted; bring the folder back as it was last, %s", above, orClear)
}

// newest is the newest snapshot that can be read, which is the one that raft will
// restore; zero if there is none. One that is damaged does no harm as long as the
// log reaches back to the one before: compare finds out.
func newest(snapshots raft.SnapshotStore, clusterID string) (raft.SnapshotMeta, error) {
	list, err := snapshots.List()
	if err != nil {
		return raft.SnapshotMeta{}, fmt.Errorf("list snapshots: %w", err)
	}
	var broken error
	for _, found := range list {
		meta, source, err := snapshots.Open(found.ID)
		if err != nil {
			broken = err
			continue
		}
		state, err := readState(source)
		switch err = errors.Join(err, source.Close()); {
		case err != nil:
			return raft.SnapshotMeta{}, fmt.Errorf("snapshot %s: %w", found.ID, err) // whole, so it is not damage
		case state.GetClusterId() != "" && state.GetClusterId() != clusterID:
			return raft.SnapshotMeta{}, fmt.Errorf("snapshot %s belongs to cluster %s, and this node to %s: bring this node's own folder back", found.ID, state.GetClusterId(), clusterID)
		}
		return *meta, nil
	}
	if broken != nil {
		return raft.SnapshotMeta{}, oddly("no snapshot of the meta group can be read: %v", broken)
	}
	return raft.SnapshotMeta{}, nil
}

// compare checks that log and snapshot fit together.
func (m *Meta) compare(snapshots raft.SnapshotStore, clusterID string) error {
	newest, err := newest(snapshots, clusterID)
	if err != nil {
		return err
	}
	m.setMembers(newest.ConfigurationIndex, newest.Configuration)
	first, last := m.log.bounds()
	current := m.log.number(stableTerm)
	switch {
	case newest.Term > current:
		return oddly("the snapshot is of term %d, but the remembered term is %d: votes are lost", newest.Term, current)
	case first > newest.Index+1:
		return oddly("the log begins at %d, the snapshot ends at %d: what lies between is lost", first, newest.Index)
	case first > 0 && last < newest.Index && !m.log.installed(newest.Index):
		return oddly("the log ends at %d, the snapshot at %d: the end of the log is lost", last, newest.Index)
	case first > 0 && last < newest.Index: // a crash while a snapshot was installed
		return m.log.DeleteRange(first, last)
	}
	return nil
}

// watch takes raft's leadership notices until the replica stops.
func (m *Meta) watch() {
	select {
	case <-m.ready:
	case <-m.stop:
		return
	}
	for {
		select {
		case leads := <-m.notify:
			m.led.Store(leads)
			m.fsm.poke()
		case <-m.changed:
			m.fsm.poke()
		case <-m.stop:
			return
		}
	}
}

// ActiveFormat is the active format of a state.
func ActiveFormat(s *nodev1.MetaState) uint32 { return max(s.GetActiveFormat(), format.Base) }

// State is the content as applied here. It must not be changed.
func (m *Meta) State() *nodev1.MetaState { return m.fsm.state.Load() }

// Changed has a value after the state or the leader has changed: the latest wins.
// It serves one reader.
func (m *Meta) Changed() <-chan struct{} { return m.fsm.changed }

// Leader is the node believed to lead, "" for none.
func (m *Meta) Leader() string {
	leader, _ := m.believes()
	return leader.Node
}

// IsLeader reports whether this node leads the group. Update finds out for sure.
func (m *Meta) IsLeader() bool { return m.led.Load() && m.raft.State() == raft.Leader }

// Server is this replica's name in the group's configuration.
func (m *Meta) Server() Server { return m.self }

// Members are the servers of the committed configuration.
func (m *Meta) Members() (voters, learners []Server) {
	return membersOf(m.group.members.Load().configuration)
}

// AddLearner takes a server in without a vote; nil if it is in. It works on the
// leader only.
func (m *Meta) AddLearner(ctx context.Context, s Server) error { return m.addLearner(ctx, s) }

// AddVoter gives a server its vote, and takes it in before if it is not in yet.
func (m *Meta) AddVoter(ctx context.Context, s Server) error {
	if err := m.addLearner(ctx, s); err != nil {
		return err
	}
	return m.promote(ctx, s)
}

// Remove takes a server out.
func (m *Meta) Remove(ctx context.Context, s Server) error { return m.remove(ctx, s) }

// TransferLeadership hands leadership to a node, or to the most up-to-date voter
// if to is empty.
func (m *Meta) TransferLeadership(ctx context.Context, to string) error { return m.transfer(ctx, to) }

// Ready reports whether the replica takes part, and if not why.
func (m *Meta) Ready() (ok bool, reason string) {
	if failure := m.failure.Load(); failure != nil {
		return false, "failed: " + (*failure).Error()
	}
	if why := m.hangs(); why != "" {
		return false, string(Suspended) + ": " + why
	}
	return m.caughtUp(m.fsm.applied.Load(), m.fsm.term.Load())
}

// Update changes the state: fn is given a copy to change, which is committed if
// nothing else has changed the state meanwhile; otherwise it is tried again until
// the context ends. An error of fn ends it. On a node that does not lead, the
// error is entity.NotExecuted with the detail "leader".
func (m *Meta) Update(ctx context.Context, fn func(*nodev1.MetaState) error) error {
	for {
		done, err := m.tryUpdate(ctx, fn)
		if done || err != nil {
			return err
		}
		if !pause(ctx, retryTermStart) {
			return fmt.Errorf("update the meta state: %w", ctx.Err())
		}
	}
}

func (m *Meta) tryUpdate(ctx context.Context, fn func(*nodev1.MetaState) error) (done bool, err error) {
	if m.raft.State() != raft.Leader {
		return false, m.errNotLeader()
	}
	base := m.State()
	next := proto.CloneOf(base)
	if err := fn(next); err != nil {
		return false, err
	}
	if proto.Equal(base, next) {
		return true, nil
	}
	next.Version = base.GetVersion() + 1
	// A command that raises the active format is itself of the one before: whoever
	// does not read the new one learns from it why it is left out.
	command, err := proto.Marshal(&nodev1.MetaCommand{BaseVersion: base.GetVersion(), Next: next, Format: ActiveFormat(base)})
	if err != nil {
		return false, fmt.Errorf("encode the meta state: %w", err)
	}
	f := m.raft.Apply(command, m.timing.Enqueue)
	if err := await(ctx, f); err != nil {
		if errors.Is(err, raft.ErrNotLeader) {
			return false, m.errNotLeader()
		}
		e, _ := answerTo(err)
		return false, e
	}
	won, ok := f.Response().(bool)
	if !ok {
		return false, entity.Errorf(entity.OutcomeUnknown, "unexpected answer %v", f.Response())
	}
	return won, nil
}

// close stops the replica. Further calls return the same.
func (m *Meta) close() error { return m.closing() }

func (m *Meta) closeNow() error {
	err := m.group.stop()
	close(m.stop)
	m.owned.Wait()
	return err
}
