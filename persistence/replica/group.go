package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// stopLimit bounds the wait for raft's goroutines of a healthy group. They end at
// once unless a disk hangs.
const stopLimit = 10 * time.Second

// group is one Raft group of the node: what shards and the meta group share.
type group struct {
	self   Server
	key    groupKey
	timing Timing
	logger *slog.Logger
	log    *groupLog
	trans  *transport
	raft   *raft.Raft

	catchUp *catchUp
	ready   chan struct{} // closed by start, when raft may be used
	notify  chan bool     // raft's leadership notices, drained by the owner
	changed chan struct{} // latest-wins: the believed leader has changed
	broken  chan string   // servers whose last incoming connection has ended

	suspended atomic.Bool
	hanging   atomic.Pointer[string] // what hangs, as the watchdog saw it last
	ledFlush  bool                   // the watchdog's: it led when a flush was found to hang, and stays away
	// What the watchdog needs of the owner.
	onSuspend   func() // ends the lease; may be nil
	leads       func() bool
	flushingFor func() (writing, waiting time.Duration)
	members     atomic.Pointer[members]
	failOnce    sync.Once
	failed      chan struct{} // closed by fail
	failure     atomic.Pointer[error]
	shutdown    func() raft.Future // the first call shuts raft down
	ctx         context.Context    //nolint:containedctx // the group's life: ends when it stops or fails
	cancel      context.CancelFunc
	goroutine   sync.WaitGroup
}

// members is a committed configuration and its index.
type members struct {
	index         uint64
	configuration raft.Configuration
}

func newGroup(self Server, key groupKey, timing Timing, logger *slog.Logger) *group {
	g := &group{
		self: self, key: key, timing: timing, logger: logger,
		ready:       make(chan struct{}),
		notify:      make(chan bool),
		changed:     make(chan struct{}, 1),
		broken:      make(chan string, 16),
		leads:       func() bool { return false },
		flushingFor: func() (writing, waiting time.Duration) { return 0, 0 },
		failed:      make(chan struct{}),
		catchUp:     &catchUp{born: time.Now(), silence: 2 * timing.Heartbeat},
	}
	g.members.Store(&members{})
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// connect makes the group's transport. From here on peers can reach it, but
// nobody answers before start.
func (g *group) connect(h hello, d dialer) {
	s := newStreams(g.self, h, d, g.timing.Dial, func(from string) {
		select {
		case g.broken <- from:
		default: // the election timeout is there for what is lost here
		}
	})
	g.trans = newTransport(s, g.timing.RPC, newRaftLogger(g.logger))
	g.goroutine.Go(func() { g.trans.pass(g.catchUp) })
}

// start runs raft. The owner drains notify from ready on. It must be called
// through aside: the stores may end the goroutine.
func (g *group) start(fsm raft.FSM, snapshots raft.SnapshotStore, restoreOnStart bool) error {
	config := &raft.Config{
		ProtocolVersion:          raft.ProtocolVersionMax,
		HeartbeatTimeout:         g.timing.Heartbeat,
		ElectionTimeout:          g.timing.Election,
		LeaderLeaseTimeout:       g.timing.Lease,
		CommitTimeout:            g.timing.Commit,
		MaxAppendEntries:         g.timing.AppendEntries,
		TrailingLogs:             g.timing.TrailingLogs,
		SnapshotThreshold:        g.timing.SnapshotThreshold,
		SnapshotInterval:         g.timing.SnapshotInterval,
		ShutdownOnRemove:         false, // the owner of the placement closes replicas
		NoSnapshotRestoreOnStart: !restoreOnStart,
		NoLegacyTelemetry:        true,
		LocalID:                  g.self.id(),
		NotifyCh:                 g.notify,
		Logger:                   newRaftLogger(g.logger),
	}
	var r *raft.Raft
	err := guarded(func() (err error) {
		r, err = raft.NewRaft(config, fsm, g.log, g.log, snapshots, g.trans)
		return err
	})
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	g.raft = r
	g.shutdown = sync.OnceValue(r.Shutdown)
	close(g.ready)
	r.RegisterObserver(raft.NewObserver(nil, false, g.observe))
	g.goroutine.Go(g.awaitFailure)
	g.goroutine.Go(g.runFailover)
	g.goroutine.Go(g.runPatience)
	g.goroutine.Go(g.runPartings)
	g.signal()
	return nil
}

// started reports whether raft may be used.
func (g *group) started() bool {
	select {
	case <-g.ready:
		return true
	default:
		return false
	}
}

// observe is called by raft in the middle of its work: it only leaves a sign.
func (g *group) observe(o *raft.Observation) bool {
	switch o.Data.(type) {
	case raft.LeaderObservation, raft.RaftState:
		g.signal()
	}
	return false
}

func (g *group) signal() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// fail marks the group failed, once, and takes it out of the cluster: its
// connections are cut and raft is shut down. It does not block.
func (g *group) fail(err error) {
	g.failOnce.Do(func() {
		g.failure.Store(&err)
		close(g.failed)
		g.logger.Error("replica failed", slog.Any("error", err))
	})
}

func (g *group) awaitFailure() {
	select {
	case <-g.failed:
		g.trans.cut()
		g.cancel()
		g.shutdown()
	case <-g.ctx.Done():
	}
}

// stop ends the group and waits for its goroutines. After a failure it waits for
// a bounded time only. Raft does not wait for notify once it is shut down, so the
// owner's drain may have ended.
func (g *group) stop() error {
	g.cancel()
	if g.trans == nil {
		return nil
	}
	limit := stopLimit
	if g.failure.Load() != nil || g.log.node.failure.Load() != nil {
		limit = closeLimit
	}
	var err error
	if g.raft != nil {
		f := g.shutdown()
		g.trans.cut()
		err = within(limit, f.Error)
	}
	g.trans.cut()
	err = errors.Join(err, g.trans.Close())
	g.goroutine.Wait()
	return wrap(fmt.Sprintf("stop replica of shard %d", g.key.shard), err)
}

// within runs f and gives up waiting for it after a time.
func within(limit time.Duration, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("did not end within %v", limit)
	}
}

// believes is the leader that this replica believes in and the term in which it
// does; no node if it knows none. Raft clears the leader before it raises the
// term, so that a leader read between two reads of the same term is of that term.
func (g *group) believes() (leader Server, term uint64) {
	if !g.started() {
		return Server{}, 0
	}
	for {
		term := g.raft.CurrentTerm()
		_, id := g.raft.LeaderWithID()
		if g.raft.CurrentTerm() != term {
			continue
		}
		leader, err := parseServer(string(id))
		if err != nil {
			return Server{}, term
		}
		return leader, term
	}
}

// setMembers notes a committed configuration, unless a later one is known.
func (g *group) setMembers(index uint64, c raft.Configuration) {
	for {
		old := g.members.Load()
		if index < old.index || g.members.CompareAndSwap(old, &members{index: index, configuration: c}) {
			return
		}
	}
}

// runPartings ends the connections to servers that have left the group: generations
// of replicas are never used again, so these would add up for ever. Between two looks
// lies the time of a call, and a server must be absent at both: so nobody is in the
// middle of a call to it, not even of the one that tells it of its removal.
func (g *group) runPartings() {
	var absent map[string]bool
	for pause(g.ctx, g.timing.RPC) {
		absent = g.part(absent)
	}
}

// part parts from the servers that are absent, and were so before. It returns all that
// are absent.
func (g *group) part(before map[string]bool) (absent map[string]bool) {
	present, absent := map[string]bool{}, map[string]bool{}
	for _, s := range g.raft.GetConfiguration().Configuration().Servers { // the latest, never blocks
		present[string(s.ID)] = true
	}
	if len(present) == 0 {
		return absent
	}
	g.trans.partFrom(func(server string) bool {
		absent[server] = !present[server]
		return absent[server] && before[server]
	})
	return absent
}

// suffrage is the replica's own standing in the committed configuration.
func (g *group) suffrage() (member, voter bool) {
	for _, s := range g.members.Load().configuration.Servers {
		if s.ID == g.self.id() {
			return true, s.Suffrage == raft.Voter
		}
	}
	return false, false
}

// await waits for a raft future, which may never be answered. The goroutine that
// waits for it then stays behind until raft is shut down, or for good.
func await(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
