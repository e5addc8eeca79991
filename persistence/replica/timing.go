package replica

import (
	"errors"
	"fmt"
	"time"
)

// Timing holds every timeout and bound of a node's groups. The relations between
// them matter more than the values: see [Timing.Validate].
type Timing struct {
	// Heartbeat is how long a follower waits without hearing from its leader before
	// it stands for election; the wait is drawn from one to one and a third times
	// this value. Leaders send ten heartbeats in this time.
	Heartbeat time.Duration
	// Election is how long a candidate waits for votes before it tries again.
	Election time.Duration
	// Lease is how long a leader leads without hearing from a majority.
	Lease time.Duration
	// Commit is half of the longest time until followers of an idle leader learn
	// that the last entry is committed.
	Commit time.Duration
	// RPC bounds one call to a peer, including the peer's fsync. A call that takes
	// longer costs the connection.
	RPC time.Duration
	// Dial bounds connection and handshake.
	Dial time.Duration
	// Enqueue is how long an entry waits for raft's main loop before it is given
	// up as not executed.
	Enqueue time.Duration
	// Stagger is the head start of each surviving voter over the next one when
	// the connection from the leader breaks.
	Stagger time.Duration
	// Stall is how long one write to the log may take before this node's leaders
	// and the replica that makes it leave their groups until it has ended.
	Stall time.Duration
	// FlushStall is how long one flush of a shard file may take before the shard's
	// leader leaves its group until it has ended. It may be long, since the log holds everything.
	FlushStall time.Duration

	// AppendEntries is the number of entries in one call to a follower.
	AppendEntries int
	// TrailingLogs is the number of entries kept for slow followers.
	TrailingLogs uint64
	// SnapshotThreshold is the number of new entries after which a log is
	// trimmed, looked at every SnapshotInterval to twice that.
	SnapshotThreshold uint64
	SnapshotInterval  time.Duration
	// LogBytes is the size of a group's log after which it is trimmed to about
	// half of it, whatever TrailingLogs says.
	LogBytes int64
}

// trailingMin is the smallest number of entries that a log keeps. Raft does not
// forget its last log index when it installs a snapshot, and from then on refuses
// every entry up to it. So a follower whose log has an uncommitted end must be
// repaired through the log; such an end is a handful of entries, since a leader has
// only a few in flight.
const trailingMin = 64

// DefaultTiming gives a takeover within three seconds of a silent leader and no
// needless elections on a busy two-core machine.
func DefaultTiming() Timing {
	return Timing{
		Heartbeat:         800 * time.Millisecond,
		Election:          800 * time.Millisecond,
		Lease:             400 * time.Millisecond,
		Commit:            100 * time.Millisecond,
		RPC:               5 * time.Second,
		Dial:              time.Second,
		Enqueue:           time.Second,
		Stagger:           200 * time.Millisecond,
		Stall:             5 * time.Second,
		FlushStall:        10 * time.Second,
		AppendEntries:     32,
		TrailingLogs:      1024,
		SnapshotThreshold: 2048,
		SnapshotInterval:  10 * time.Second,
		LogBytes:          64 << 20,
	}
}

// Validate checks the relations between the timeouts.
func (t Timing) Validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"heartbeat", t.Heartbeat},
		{"election", t.Election},
		{"lease", t.Lease},
		{"commit", t.Commit},
		{"rpc", t.RPC},
		{"dial", t.Dial},
		{"enqueue", t.Enqueue},
		{"stagger", t.Stagger},
		{"stall", t.Stall},
		{"flush stall", t.FlushStall},
		{"snapshot interval", t.SnapshotInterval},
	} {
		need(d.value >= 5*time.Millisecond, "%s %v is below 5 ms", d.name, d.value)
	}
	need(t.Election >= t.Heartbeat, "election %v is below heartbeat %v: candidates would give up before voters are free to vote", t.Election, t.Heartbeat)
	need(2*t.Lease <= t.Heartbeat, "lease %v is above half of heartbeat %v: an old leader could outlive the patience of its followers", t.Lease, t.Heartbeat)
	need(2*t.Commit <= t.Heartbeat, "commit %v is above half of heartbeat %v", t.Commit, t.Heartbeat)
	need(t.RPC >= 2*t.Heartbeat, "rpc %v is below twice the heartbeat %v: a slow fsync would cost connections", t.RPC, t.Heartbeat)
	need(t.Dial <= t.RPC, "dial %v is above rpc %v", t.Dial, t.RPC)
	need(t.Stagger <= t.Heartbeat, "stagger %v is above heartbeat %v", t.Stagger, t.Heartbeat)
	need(t.Stall > t.Heartbeat, "stall %v is not above heartbeat %v", t.Stall, t.Heartbeat)
	need(t.FlushStall >= t.Stall, "flush stall %v is below stall %v: a flush writes more than an append", t.FlushStall, t.Stall)
	need(t.AppendEntries >= 1 && t.AppendEntries <= 1024, "append entries %d is not within 1 to 1024", t.AppendEntries)
	need(t.TrailingLogs >= trailingMin, "trailing logs %d are fewer than %d: a follower with an uncommitted end could not be brought back", t.TrailingLogs, trailingMin)
	need(t.SnapshotThreshold >= 1, "snapshot threshold is 0")
	need(t.LogBytes >= 1<<20, "log bytes %d is below 1 MiB", t.LogBytes)
	return errors.Join(errs...)
}
