package faults

import "writ/internal/fault"

// Victim says which process a case kills.
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

// Case is a crash at one point.
type Case struct {
	Point  fault.Name
	Victim Victim
	// Boundary is the crash case of the effectively-once argument that this is.
	Boundary string
}

// Cases are all crashes, at least one for each point.
func Cases() []Case {
	return []Case{
		{fault.BeforePropose, Source, "before the producer's commit"},
		{fault.BeforeAppend, Source, "before the producer's commit, and its own log has nothing"},
		{fault.AfterAppend, Source, "before the producer's commit, and the log has it"},
		{fault.AfterCommit, Source, "after the commit, before the answer"},
		{fault.BeforeSend, Source, "after the commit, before the send"},
		{fault.AfterSend, Source, "after the send, before the mark"},
		{fault.ConsumerBeforeCommit, Destination, "during the consumer's apply"},
		{fault.ConsumerAfterCommit, Destination, "after the consumer's commit, before the confirmation"},
		{fault.BeforeFlush, Source, "before a flush"},
		{fault.AfterFlush, Source, "behind a flush"},
		{fault.Move, Drained, "while leadership is handed over"},
		{fault.LeaseLoss, Drained, "between the loss of leadership and the end of the lease"},
		{fault.Expiry, Idle, "while keys are forgotten"},
		{fault.Snapshot, Child, "while a shard file is copied"},
		{fault.Restore, Child, "before a received file is swapped in"},
		{fault.Restored, Child, "after a received file was swapped in"},
	}
}
