// Package fault names the boundaries at which a crash must do no harm, so that
// tests can crash, stop or fail the program exactly there.
//
// [Point] does something only under the build tag "faults"; without it, it is a
// constant nil that the compiler removes. With it, a point is armed by the
// environment variable WRIT_FAULT (point=action, separated by commas) or, in a
// running node, by POST /debug/fault?point=…&action=…&hit=n on the HTTP port.
//
// Actions: crash (SIGKILL to itself), stop (SIGSTOP to itself), error (the
// operation fails), drop (the same; a message is lost), delay (100 ms, or for=…),
// hold (it hangs until the point is disarmed, as on a frozen disk). hit=n lets n-1
// hits pass; an armed point acts once, hold, delay and drop until disarmed by the
// action none. Whenever a point acts it says so on standard error, a delay only the
// first time. Some points come after what can no longer fail: error and drop do
// nothing there.
//
// [Now] is the wall clock. In a build with faults it is off by what the environment
// variable WRIT_CLOCK says, or POST /debug/clock?offset=… (90s, -3h; 0s: right
// again). Durations are measured by the monotonic clock, which nobody can set: they
// do not use it.
package fault

import "errors"

// Name names a point.
type Name string

// The points, in the order of a command's and an event's journey.
const (
	// BeforePropose: the records of an entry are decided, nothing is logged.
	BeforePropose Name = "before-propose"
	// BeforeAppend: something is about to be written to this node's log, of any
	// shard or of the meta group.
	BeforeAppend Name = "before-append"
	// AfterAppend: an entry is synced in this node's log, and not committed yet.
	AfterAppend Name = "after-append"
	// AfterCommit: an entry is committed and applied, nobody was answered. With error
	// the answers are OUTCOME_UNKNOWN.
	AfterCommit Name = "after-commit"
	// BeforeFlush: what was applied is about to be written to the shard file.
	BeforeFlush Name = "before-flush"
	// AfterFlush: the shard file has taken in what was applied.
	AfterFlush Name = "after-flush"
	// BeforeSend: a relay has read rows and not sent them.
	BeforeSend Name = "before-send"
	// AfterSend: the destination has answered, the rows are not marked.
	AfterSend Name = "after-send"
	// ConsumerBeforeCommit: the handler of an event has run.
	ConsumerBeforeCommit Name = "consumer-before-commit"
	// ConsumerAfterCommit: an event is applied and not confirmed to its source.
	ConsumerAfterCommit Name = "consumer-after-commit"
	// Snapshot: a shard file is copied, not synced.
	Snapshot Name = "snapshot"
	// Receive: a piece of a shard file has come from the leader.
	Receive Name = "receive"
	// Restore: a received file is stamped and about to take the shard file's place.
	Restore Name = "restore"
	// Restored: it has taken the place, and the folder is not synced.
	Restored Name = "restored"
	// Expiry: forgotten keys are being dropped from the shard file.
	Expiry Name = "expiry"
	// Move: a group's leadership is about to be handed over.
	Move Name = "move"
	// AddReplica, PromoteReplica and RemoveReplica: a group's membership is about to
	// change by one learner, by its vote, or by one replica less.
	AddReplica     Name = "add-replica"
	PromoteReplica Name = "promote-replica"
	RemoveReplica  Name = "remove-replica"
	// LeaseLoss: leadership is lost, the lease has not ended yet.
	LeaseLoss Name = "lease-loss"
)

// All are all points.
func All() []Name {
	return []Name{
		BeforePropose, BeforeAppend, AfterAppend, AfterCommit, BeforeFlush, AfterFlush, BeforeSend, AfterSend, ConsumerBeforeCommit,
		ConsumerAfterCommit, Snapshot, Receive, Restore, Restored, Expiry, Move, AddReplica, PromoteReplica,
		RemoveReplica, LeaseLoss,
	}
}

// Action is what an armed point does.
type Action string

// The actions.
const (
	None  Action = "none"
	Crash Action = "crash"
	Stop  Action = "stop"
	Error Action = "error"
	Drop  Action = "drop"
	Delay Action = "delay"
	Hold  Action = "hold"
)

// Actions are all actions that do harm.
func Actions() []Action { return []Action{Crash, Stop, Error, Drop, Delay, Hold} }

// ErrInjected is the failure of a point that is armed with error or drop.
var ErrInjected = errors.New("injected fault")
