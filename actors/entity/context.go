package entity

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
)

// Context is what a handler knows besides state and message, and how it acts.
// It is valid until the handler returns and must not be shared.
type Context struct {
	self    Ref
	source  Ref
	now     time.Time
	due     time.Time
	emitted []Emission
	timers  []TimerChange
	deleted bool
}

// Emission is an event that a handler wants sent.
type Emission struct {
	To    Ref
	Event proto.Message
}

// NewContext is for the runtime: a context for one call of a handler. The
// source is the emitter of the event being handled, or zero for a command.
func NewContext(self, source Ref, now time.Time) *Context {
	return &Context{self: self, source: source, now: now}
}

// Emitted is for the runtime: the events emitted so far, in order.
func (c *Context) Emitted() []Emission { return c.emitted }

// Self names the entity that handles the message.
func (c *Context) Self() Ref { return c.self }

// ID is the id of the entity that handles the message.
func (c *Context) ID() string { return c.self.ID }

// Tenant is the tenant of the entity; everything that it emits stays there.
func (c *Context) Tenant() string { return c.self.Tenant }

// Source names the emitter of the event being handled. It is zero in a command.
func (c *Context) Source() Ref { return c.source }

// Time is the leader's wall clock when work on the message began, UTC.
func (c *Context) Time() time.Time { return c.now }

// Emit sends an event to another entity, or to the entity itself. The event
// commits together with the state and is applied by its destination once. The
// message must not be changed afterwards.
func (c *Context) Emit(to Address, event proto.Message) {
	c.emitted = append(c.emitted, Emission{To: Ref{Tenant: c.self.Tenant, Kind: to.Kind, ID: to.ID}, Event: event})
}

// Delete deletes the entity: when the handler returns nil its state is gone, its
// timers are cancelled, and the next message finds the kind's initial state. Version
// and event numbers continue, keys stay for their window and what was applied stays
// applied, so nothing old is ever taken for new.
func (c *Context) Delete() { c.deleted = true }

// Deleted is for the runtime.
func (c *Context) Deleted() bool { return c.deleted }

// Reject returns the error by which a handler refuses. In a command it is the
// command's stored outcome. In an event it counts as a failed delivery, which is
// tried again and in the end parks the lane. To refuse an event by the rules of the
// domain, accept it and emit a compensation instead.
func (c *Context) Reject(code Code, reason, format string, args ...any) error {
	return &Rejection{Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}
}
