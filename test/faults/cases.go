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
		{fault.BeforePropose, Source, "before the producer's commit", outcomes(GoesOn)},
		{fault.AfterAppend, Source, "before the producer's commit, and the log has it", outcomes(GoesOn)},
		{fault.AfterCommit, Source, "after the commit, before the answer", outcomes(GoesOn)},
		{fault.BeforeSend, Source, "after the commit, before the send", outcomes(GoesOn)},
		{fault.AfterSend, Source, "after the send, before the mark", outcomes(GoesOn)},
		{fault.ConsumerBeforeCommit, Destination, "during the consumer's apply", outcomes(GoesOn)},
		{fault.ConsumerAfterCommit, Destination, "after the consumer's commit, before the confirmation", outcomes(GoesOn)},
		{fault.AfterFlush, Source, "behind a flush", outcomes(Fails)},
		{fault.Move, Drained, "while leadership is handed over", outcomes(GoesOn)},
		{fault.LeaseLoss, Drained, "between the loss of leadership and the end of the lease", outcomes(GoesOn)},
		{fault.Expiry, Idle, "while keys are forgotten", outcomes(Fails)},
		{fault.Snapshot, Child, "while a shard file is copied", outcomes(Refuses)},
		{fault.Restore, Child, "before a received file is swapped in", outcomes(Refuses)},
		{fault.Restored, Child, "after a received file was swapped in", outcomes(GoesOn)},
	}
}

// outcomes are those of a point where an operation that fails, or is lost, has the
// given one.
func outcomes(failing Outcome) map[fault.Action]Outcome {
	return map[fault.Action]Outcome{
		fault.Crash: Dies, fault.Stop: Freezes, fault.Error: failing, fault.Drop: failing, fault.Delay: GoesOn,
	}
}
