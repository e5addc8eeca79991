package replica

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// catchUp is how far a replica has to get until it may call itself ready: to what
// its leader had committed when it was first heard after the start, or after a long
// silence. The replica's own commit index will not do: raft keeps it at the end of
// the replica's own log, however far the leader has got.
//
// The leader's word comes with every message that it appends by, a few times a
// second in a quiet group; nothing is asked for.
type catchUp struct {
	silence time.Duration // after which the replica may have missed much
	born    time.Time
	last    atomic.Int64 // when the leader was last heard, since born
	done    atomic.Bool

	mu     sync.Mutex // guards what follows
	heard  milestone  // the leader's last word
	target milestone

	receiving atomic.Pointer[reception] // a snapshot on its way here, nil for none
}

// milestone is a leader's commit index in its term; the zero value is none.
type milestone struct{ term, index uint64 }

// hear takes the leader's word.
func (c *catchUp) hear(m milestone) {
	now := time.Since(c.born)
	if now-time.Duration(c.last.Swap(int64(now))) > c.silence {
		c.again()
	}
	c.receiving.Store(nil)
	if m.index == 0 || c.done.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.term > c.heard.term || (m.term == c.heard.term && m.index > c.heard.index) {
		c.heard = m
	}
}

// again sets out anew.
func (c *catchUp) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard, c.target = milestone{}, milestone{}
	c.done.Store(false)
}

// aim is what has to be reached under the leader of a term: its first word, which
// is kept, since a target that moves with the load might never be met.
func (c *catchUp) aim(term uint64, own milestone) milestone {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.target.term == term {
		return c.target
	}
	c.target = milestone{}
	for _, m := range []milestone{own, c.heard} {
		if m.term == term && m.index > 0 {
			c.target = m
		}
	}
	return c.target
}

// missed gives up a target that turned out to say too little.
func (c *catchUp) missed(m milestone) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.target == m {
		c.target = milestone{}
	}
}

// reached notes that a target was met, unless the replica has set out anew since.
func (c *catchUp) reached(m milestone) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.target != m {
		return false
	}
	c.done.Store(true)
	return true
}

// caughtUp reports whether the replica, whose state machine has applied an entry of
// the given index and term, has caught up with its leader since its start, and if
// not what is in the way.
func (g *group) caughtUp(applied, appliedTerm uint64) (ok bool, reason string) {
	c := g.catchUp
	leader, term := g.believes()
	if leader.Node == "" {
		return false, "no leader is known"
	}
	// What a leader was receiving before it was elected does not come any more.
	if on := c.receiving.Load(); on != nil && leader != g.self {
		return false, on.String()
	}
	if member, _ := g.suffrage(); !member {
		return false, "not in the group's configuration"
	}
	if c.done.Load() {
		return true, ""
	}
	var own milestone
	if leader == g.self {
		own = milestone{term, g.raft.CommitIndex()}
	}
	target := c.aim(term, own)
	if target.index == 0 {
		return false, "nothing heard from the leader yet"
	}
	err := aside(func() error { // who asks must not end with a log that fails
		ok, reason = g.attained(target, term, applied, appliedTerm)
		return nil
	})
	if err != nil {
		return false, fmt.Sprintf("the log cannot be read: %v", err)
	}
	return ok, reason
}

// attained reports whether the replica has got to where it aims at in a term, and if
// not what is in the way. It must be called through aside: it reads the log.
func (g *group) attained(target milestone, term, applied, appliedTerm uint64) (ok bool, reason string) {
	// Below its commit index the replica's log is the leader's.
	if g.raft.CommitIndex() < target.index || applied < g.lastApplicable(target.index) {
		return false, fmt.Sprintf("catching up: applied %d of %d", applied, target.index)
	}
	// A leader knows what was committed before it once an entry of its own term is.
	// An entry that is no longer in the log was applied, and what was applied last
	// is not older.
	var entry raft.Log
	if g.log.GetLog(target.index, &entry) != nil {
		entry.Term = appliedTerm
	}
	if entry.Term < term {
		g.catchUp.missed(target)
		return false, "the leader has committed nothing in its term yet"
	}
	if !g.catchUp.reached(target) {
		return false, "nothing heard from the leader yet"
	}
	return true, ""
}

// lastApplicable is the last entry up to index that reaches the state machine. A
// new leader's first entry does not, and in a quiet group nothing may follow it.
func (g *group) lastApplicable(index uint64) uint64 {
	var entry raft.Log
	for ; index > 0; index-- {
		if g.log.GetLog(index, &entry) != nil {
			break // compacted: a snapshot covers it
		}
		if entry.Type == raft.LogCommand || entry.Type == raft.LogConfiguration {
			break
		}
	}
	return index
}

// reception is a snapshot that comes from the leader. Raft reads it in its main loop,
// which does nothing else meanwhile, votes included. So a sender that has fallen silent
// must not hold it: its connections are ended, and the leader tries again. A slow one
// may take as long as it likes.
type reception struct {
	from     io.Reader
	size     int64
	got      atomic.Int64
	patience time.Duration // for the next byte
	giveUp   func()        // makes from fail
}

// Read implements io.Reader.
func (r *reception) Read(b []byte) (int, error) {
	silent := time.AfterFunc(r.patience, r.giveUp)
	n, err := r.from.Read(b)
	if !silent.Stop() && err != nil {
		err = fmt.Errorf("the sender of the snapshot has been silent for %v: %w", r.patience, err)
	}
	r.got.Add(int64(n))
	return n, err
}

func (r *reception) String() string {
	return fmt.Sprintf("receiving a snapshot: %d of %d bytes", r.got.Load(), r.size)
}
