package entity

import (
	"time"

	"google.golang.org/protobuf/proto"
)

// Timer is a message for later. It commits together with the state and fires
// once, on whoever leads then: a Command is handled by the entity itself under a
// key of its own, an Event is sent to another entity.
//
// A timer never fires before its time by the clock of the node that leads. It
// fires soon after, or soon after there is a leader again.
type Timer struct {
	// At is when the timer is due. If it is zero, the timer is due After from now.
	// Times later than April 2262 count as that.
	At    time.Time
	After time.Duration
	// Exactly one of Command and Event. It must not be changed afterwards.
	Command proto.Message
	Event   proto.Message
	// To is where an Event goes.
	To Address
	// Every makes the timer fire again and again. At least a millisecond.
	Every time.Duration
	// CatchUp says what becomes of times that were missed, if Every is set.
	CatchUp CatchUp
}

// CatchUp says what becomes of the times that a repeated timer has missed.
type CatchUp int

const (
	// CatchUpOnce fires once for all of them.
	CatchUpOnce CatchUp = iota
	// CatchUpSkip fires for none that is more than one period old.
	CatchUpSkip
	// CatchUpAll fires for each.
	CatchUpAll
)

// TimerChange is what a handler did to one timer.
type TimerChange struct {
	Name string
	// Set is the new timer. If it is nil, the timer is moved to MoveTo, or, if that
	// is zero, cancelled.
	Set    *Timer
	MoveTo time.Time
}

// SetTimer sets a timer of this entity. It replaces the one with the same name.
// The name is 1 to 200 bytes.
func (c *Context) SetTimer(name string, t Timer) {
	c.timers = append(c.timers, TimerChange{Name: name, Set: &t})
}

// MoveTimer gives a timer another time. It does nothing if there is no timer of that
// name. A timer that was parked because it failed starts anew.
func (c *Context) MoveTimer(name string, at time.Time) {
	c.timers = append(c.timers, TimerChange{Name: name, MoveTo: at})
}

// CancelTimer removes a timer, if there is one of that name.
func (c *Context) CancelTimer(name string) {
	c.timers = append(c.timers, TimerChange{Name: name})
}

// Due is when the timer whose command is being handled was due. It is zero in a
// client's command and in an event.
func (c *Context) Due() time.Time { return c.due }

// SetDue is for the runtime.
func (c *Context) SetDue(due time.Time) { c.due = due }

// Timers is for the runtime: what was done to timers, in order.
func (c *Context) Timers() []TimerChange { return c.timers }
