package actors

import (
	"time"

	"writ/actors/entity"
)

// Messages to a gate, beside *call and the actor system's own.
type (
	// lead brings a lease, leaseEnded tells that it has ended.
	lead       struct{ lease Lease }
	leaseEnded struct{ lease Lease }

	// loaded: an activation that the gate started by itself has read its state.
	loaded struct{ entry *entry }
	// broken: an activation takes no more work. The gate holds new work back and
	// answers with retire.
	broken struct{ entry *entry }
	// busy: the answer to a retire that came while there is something to do.
	busy struct{ entry *entry }
	// bounced brings work back that an ending activation has not begun.
	bounced struct {
		entry *entry
		call  *call
	}
	// finished: nothing is in flight any more, the gate may stop the activation.
	finished struct {
		entry *entry
		// idle: it has ended because it was not used.
		idle bool
		// rows: events wait in active lanes, so start it again.
		rows bool
		// failed: what it needs could not be read; start it again, but not at once.
		failed bool
	}

	// page brings sources with rows, found in the store.
	page struct {
		lease Lease
		refs  []entity.Ref
		err   error
	}
	// expired is the verdict of an Expire record.
	expired struct{ lease Lease }

	tick          struct{ now time.Time }
	routesChanged struct{}
	shutdown      struct{}
)

// Messages from a gate to an activation, beside *call. After retire and revoke
// the gate sends no more work, unless the activation answers busy.
type (
	retire struct{}
	// revoke: the lease has ended. now: do not wait for what is in flight.
	revoke struct{ now bool }
)

// Messages between an activation and its relay.
type (
	// startRelay: the turns to an activation that waits for one.
	startRelay struct{}
	// grown: a lane has new rows.
	grown struct {
		to   entity.Ref
		lane laneState
	}
	// laneChanged: an operator has changed a lane.
	laneChanged struct {
		to   entity.Ref
		lane laneState
	}
	// endRelay: start nothing new, and answer relayDone when nothing is in flight.
	endRelay struct{ now bool }
	// released: the answer to laneMoved.spent, with what that said. What the activation
	// sends from here on rests on it, so that the relay may forget the lane, unless the
	// lane has moved on meanwhile.
	released struct {
		to   entity.Ref
		lane laneState
	}

	// laneMoved: the relay has changed a lane's record. spent: it has nothing left to
	// do in the lane, and would forget it.
	laneMoved struct {
		to    entity.Ref
		lane  laneState
		spent bool
	}
	// relayIdle: no rows wait. seen counts the messages from the activation that
	// the relay had taken by then.
	relayIdle struct{ seen uint64 }
	relayDone struct{}
)
