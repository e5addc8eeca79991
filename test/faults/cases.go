package faults

import "writ/internal/fault"

// Victim says which process a case harms.
type Victim string

// The victims.
const (
	// Source: the leader of the payer's shard.
	Source Victim = "source"
	// Destination: the leader of the receiver's shard.
	Destination Victim = "destination"
	// Drained: a node that is told to give its leaderships away.
	Drained Victim = "drained"
	// Idle: any node, while keys expire.
	Idle Victim = "idle"
	// Mover: the leader of a shard of which a replica moves to another node.
	Mover Victim = "mover"
	// Filled: a node that has lost its disk and gets shard files from the leaders.
	Filled Victim = "filled"
	// Child: a process that works on a shard file and nothing else.
	Child Victim = "child"
)

// Outcome is what must become of a victim. In every case, and whatever it is,
// each command and each event has taken effect once when all is over.
type Outcome string

// The outcomes.
const (
	// Dies: the process is gone; it is started again.
	Dies Outcome = "dies"
	// Freezes: the process stands still, the others take over; it wakes up later.
	Freezes Outcome = "freezes"
	// GoesOn: the process lives and its stores are sound; what was harmed is tried
	// again, or was past all harm.
	GoesOn Outcome = "goes on"
	// Fails: the replica takes nothing more, the others take over; a restart heals it.
	Fails Outcome = "fails"
	// Hangs: what has come to the point waits until it is disarmed, and goes on.
	Hangs Outcome = "hangs"
	// Yields: the same, but the others take over meanwhile and clients do not wait.
	Yields Outcome = "yields"
	// Refuses: the operation returns an error and leaves the files as they were.
	Refuses Outcome = "refuses"
)

// Case is a point with what each action does there.
type Case struct {
	Point  fault.Name
	Victim Victim
	// Boundary is the crash case of the effectively-once argument that this is.
	Boundary string
	// Outcomes has every action.
	Outcomes map[fault.Action]Outcome
}

// Cases are all points.
func Cases() []Case {
	return []Case{
		{fault.BeforePropose, Source, "before the producer's commit", outcomes(GoesOn, Hangs)},
		{fault.BeforeAppend, Source, "before the producer's commit, and its own log has nothing", outcomes(GoesOn, Yields)},
		{fault.AfterAppend, Source, "before the producer's commit, and the log has it", outcomes(GoesOn, Hangs)},
		{fault.AfterCommit, Source, "after the commit, before the answer", outcomes(GoesOn, Hangs)},
		{fault.BeforeSend, Source, "after the commit, before the send", outcomes(GoesOn, Hangs)},
		{fault.AfterSend, Source, "after the send, before the mark", outcomes(GoesOn, Hangs)},
		{fault.ConsumerBeforeCommit, Destination, "during the consumer's apply", outcomes(GoesOn, Hangs)},
		{fault.ConsumerAfterCommit, Destination, "after the consumer's commit, before the confirmation", outcomes(GoesOn, Hangs)},
		{fault.BeforeFlush, Source, "before a flush", outcomes(Fails, Yields)},
		{fault.AfterFlush, Source, "behind a flush", outcomes(Fails, Yields)},
		{fault.Move, Drained, "while leadership is handed over", outcomes(GoesOn, Hangs)},
		{fault.AddReplica, Mover, "before a learner is added", outcomes(GoesOn, Hangs)},
		{fault.PromoteReplica, Mover, "before a learner gets its vote", outcomes(GoesOn, Hangs)},
		{fault.RemoveReplica, Mover, "before a replica is taken out", outcomes(GoesOn, Hangs)},
		{fault.LeaseLoss, Drained, "between the loss of leadership and the end of the lease", outcomes(GoesOn, Yields)},
		{fault.Expiry, Idle, "while keys are forgotten", outcomes(Fails, Yields)},
		{fault.Snapshot, Child, "while a shard file is copied", outcomes(Refuses, Hangs)},
		{fault.Receive, Filled, "while a shard file comes in", outcomes(GoesOn, Hangs)},
		{fault.Restore, Child, "before a received file is swapped in", outcomes(Refuses, Hangs)},
		{fault.Restored, Child, "after a received file was swapped in", outcomes(GoesOn, Hangs)},
	}
}

// outcomes are those of a point where an operation that fails, or is lost, and one
// that hangs have the given ones.
func outcomes(failing, hanging Outcome) map[fault.Action]Outcome {
	return map[fault.Action]Outcome{
		fault.Crash: Dies, fault.Stop: Freezes, fault.Error: failing, fault.Drop: failing, fault.Delay: GoesOn, fault.Hold: hanging,
	}
}
