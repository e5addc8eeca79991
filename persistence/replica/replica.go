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
	"time"

	"github.com/hashicorp/raft"

	"writ/persistence"
	"writ/sharding"
)

// State is what a replica is doing.
type State string

// The states of a replica. A quarantined one answers nobody until it is dropped; a
// failed one answers nobody until it is opened anew.
// Suspended is a serving replica whose disk hangs: it does not lead until its disk
// answers.
const (
	Opening     State = "opening"
	Serving     State = "serving"
	Suspended   State = "suspended"
	Quarantined State = "quarantined"
	Failed      State = "failed"
)

// ShardConfig says which replica of which shard a host should open.
type ShardConfig struct {
	Shard      uint32
	Range      sharding.Range
	Epoch      uint64
	Generation uint64
	// GenerationWidth is the width of a key generation in a new shard file; it
	// must be the same on all replicas of the shard. 0: StoreConfig's.
	GenerationWidth time.Duration
	// Bootstrap is the shard's first configuration; it counts only if this replica
	// has never taken part in anything. All replicas of a new shard get the same
	// list, in the same order. Empty for a replica that will be added.
	Bootstrap []Server
}

func (c ShardConfig) validate(self Server) error {
	switch {
	case c.Shard == metaShard:
		return errors.New("this shard number is the meta group's")
	case c.Epoch == 0:
		return errors.New("epochs start at 1")
	case c.Generation == 0:
		return errors.New("replica generations start at 1")
	}
	return validateBootstrap(c.Bootstrap, self)
}

func validateBootstrap(servers []Server, self Server) error {
	found := len(servers) == 0
	nodes := map[string]bool{}
	for _, s := range servers {
		if err := s.validate(); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
		if nodes[s.Node] {
			return fmt.Errorf("bootstrap: node %s stands twice", s.Node)
		}
		nodes[s.Node] = true
		found = found || s == self
	}
	if !found {
		return fmt.Errorf("bootstrap: %s is not in the list", self)
	}
	return nil
}

// Replica is one node's copy of a shard. It is safe for concurrent use.
type Replica struct {
	*group
	host    *Host
	config  ShardConfig
	life    sync.Mutex         // open and close exclude each other
	store   *persistence.Store // of open and of raft's goroutines
	snaps   *snapshots         // likewise; nil until raft needs it
	opened  atomic.Pointer[persistence.Store]
	stop    chan struct{} // closed by close
	closing func() error  // once
	closed  atomic.Bool   // closing has ended
	ended   atomic.Bool   // and so has raft, which may be later
	owned   sync.WaitGroup
	lease   atomic.Pointer[Lease]
	// Of the log as applied by the state machine.
	appliedIndex atomic.Uint64
	lastTerm     atomic.Uint64
	flushes      flushWatch

	mu     sync.Mutex
	state  State
	reason string
}

// Status describes a replica at one moment.
type Status struct {
	State  State
	Reason string // of Suspended, Quarantined and Failed
	// Leader is the node that this replica believes to lead, "" for none.
	Leader       string
	Epoch        uint64
	Term         uint64
	AppliedIndex uint64
	CommitIndex  uint64
	LastLogIndex uint64
	Generation   uint64
	// Voters and Learners of the committed configuration.
	Voters, Learners []Server
	FileBytes        int64
	// Format is the newest format of the entries that were applied.
	Format uint32
	// Contact is when the leader was last heard from; on the leader: now.
	Contact time.Time
}

// Status is this replica's view of itself and its group.
func (r *Replica) Status() Status {
	s := Status{Epoch: r.config.Epoch, Generation: r.config.Generation}
	s.State, s.Reason = r.standing()
	if info, err := os.Stat(r.path()); err == nil {
		s.FileBytes = info.Size()
	}
	if s.State != Serving {
		return s
	}
	if why := r.hangs(); why != "" {
		s.State, s.Reason = Suspended, why
	}
	var leader Server
	leader, s.Term = r.believes()
	s.Leader = leader.Node
	s.AppliedIndex = r.appliedIndex.Load()
	s.CommitIndex = r.raft.CommitIndex()
	s.Contact = r.raft.LastContact()
	if r.Lease() != nil {
		s.Contact = time.Now()
	}
	_, s.LastLogIndex = r.log.bounds()
	s.Format = r.store.Format()
	s.Voters, s.Learners = membersOf(r.members.Load().configuration)
	return s
}

// Shard is the number of the shard.
func (r *Replica) Shard() uint32 { return r.config.Shard }

// Server is this replica's name in the group's configuration.
func (r *Replica) Server() Server { return r.self }

// Store is the shard's data, nil while the replica is opening or quarantined. On a
// follower it may be behind.
func (r *Replica) Store() *persistence.Store { return r.opened.Load() }

// Lease is the current lease, nil if this replica has none.
func (r *Replica) Lease() *Lease {
	if l := r.lease.Load(); l != nil && l.ctx.Err() == nil {
		return l
	}
	return nil
}

// TransferLeadership hands leadership to a node, or to the most up-to-date voter if
// to is empty.
func (r *Replica) TransferLeadership(ctx context.Context, to string) error {
	return r.transfer(ctx, to)
}

// AddLearner takes a replica into the group without a vote. Like Promote and
// Remove it works on the leader only, changes nothing if it is so already, and
// fails if the configuration changes at the same time.
func (r *Replica) AddLearner(ctx context.Context, s Server) error { return r.addLearner(ctx, s) }

// Promote gives a learner its vote.
func (r *Replica) Promote(ctx context.Context, s Server) error { return r.promote(ctx, s) }

// Remove takes a replica out of the group. The replica itself lives until it is
// dropped.
func (r *Replica) Remove(ctx context.Context, s Server) error { return r.remove(ctx, s) }

// Ready reports whether the replica does its part: it knows a leader, has a vote in
// the committed configuration and has applied what its leader had committed when it
// was first heard after the start. If not, it says why. A learner is not ready, even when it
// has caught up: whoever restarts nodes one by one would take the next voter away
// while this one does not count yet.
func (r *Replica) Ready() (ok bool, reason string) {
	if state, reason := r.standing(); state != Serving {
		return false, string(state) + ": " + reason
	}
	if why := r.hangs(); why != "" {
		return false, string(Suspended) + ": " + why
	}
	ok, reason = r.caughtUp(r.appliedIndex.Load(), r.lastTerm.Load())
	if ok {
		r.snaps.short.over()
	} else if why := r.snaps.short.why(); why != "" {
		reason += "; " + why
	}
	switch member, voter := r.suffrage(); {
	case !member || voter:
		return ok, reason
	case ok:
		return false, "learner: it has caught up and has no vote yet"
	}
	return false, "learner: " + reason
}

// path is the shard file. Each replica generation has its own.
func (r *Replica) path() string { return r.host.shardPath(r.key) }

func (h *Host) shardPath(key groupKey) string {
	return filepath.Join(h.config.Dir, "shards", fmt.Sprintf("shard-%04d-%d-%d.db", key.shard, key.epoch, key.generation))
}

func (r *Replica) storeConfig() persistence.Config {
	c := r.host.config
	width := r.config.GenerationWidth
	if width == 0 {
		width = c.Store.GenerationWidth
	}
	return persistence.Config{
		Path: r.path(), ClusterID: c.ClusterID,
		Shard: r.config.Shard, Range: r.config.Range, Epoch: r.config.Epoch, Generation: r.config.Generation,
		GenerationWidth: width, FlushInterval: c.Store.FlushInterval, FlushRecords: c.Store.FlushRecords,
		FlushSlot: r.host.flushSlot, FlushDue: r.flushes.due, Flushing: func() func() {
			r.flushes.begin()
			ended := c.Store.Flushing()
			return func() {
				ended()
				r.flushes.end()
			}
		},
		OnFailure: func(err error) { r.fail(fmt.Errorf("shard file: %w", err)) },
		Logger:    r.logger,
	}
}

// fail takes the replica out of its group. It does not block.
func (r *Replica) fail(err error) {
	r.stand(Failed, err.Error())
	r.endLease(errFailed)
	r.group.fail(err)
}

func (r *Replica) endLease(why error) {
	if l := r.lease.Load(); l != nil {
		l.end(why)
	}
}

// stand changes the state, unless it is final: one that has failed may still be found
// to be damaged.
func (r *Replica) stand(s State, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != Quarantined && (r.state != Failed || s == Quarantined) {
		r.state, r.reason = s, reason
	}
}

func (r *Replica) standing() (State, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.reason
}

// appliedTerm is called by the state machine after every entry.
func (r *Replica) appliedTerm(index, term uint64) {
	r.appliedIndex.Store(index)
	r.lastTerm.Store(term)
	if l := r.lease.Load(); l != nil {
		l.observe(term)
	}
}

// publish makes a lease the current one.
func (r *Replica) publish(l *Lease) {
	r.lease.Store(l)
	l.observe(r.lastTerm.Load()) // may have passed it before it was stored
	r.logger.Info("leading", slog.Uint64("epoch", l.epoch), slog.Uint64("term", l.term))
	r.host.config.OnLease(r.config.Shard, l)
}

// watchLeader reports every change of the believed leader until the replica stops.
func (r *Replica) watchLeader() {
	last := Server{Node: "?"}
	var lastTerm uint64
	for {
		select {
		case <-r.changed:
		case <-r.stop:
			return
		}
		leader, term := r.believes()
		if leader == last && term == lastTerm {
			continue
		}
		last, lastTerm = leader, term
		r.host.config.OnLeader(r.config.Shard, leader.Node, r.config.Epoch, term)
	}
}

// close stops the replica and flushes its store. Further calls return the same.
func (r *Replica) close() error { return r.closing() }

func (r *Replica) closeNow() error {
	defer r.closed.Store(true)
	close(r.stop)
	r.life.Lock()
	defer r.life.Unlock()
	r.owned.Wait() // the lease has answered everything
	err := r.group.stop()
	switch {
	case err == nil:
		r.ended.Store(true)
	case r.raft != nil: // a write hangs: raft ends after it, if ever
		go func() {
			_ = r.shutdown().Error() // waits; there is no other error
			r.ended.Store(true)
		}()
	}
	if r.snaps != nil {
		r.snaps.close()
	}
	if r.store != nil {
		err = errors.Join(err, r.store.Close())
	}
	return err
}

var _ interface {
	raft.BatchingFSM
	raft.ConfigurationStore
} = (*fsm)(nil)
