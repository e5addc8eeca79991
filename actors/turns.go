package actors

import (
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// How long rows of an entity without a relay wait for one to start.
const (
	// relayPatience is the least. Until then the processors are free for the callers
	// that have just been answered, and the rows of their next commands can share the
	// relay's first batch.
	relayPatience = time.Millisecond
	// relayTurn lies between two turns, at least.
	relayTurn = 4 * time.Millisecond
)

// turns has the relays of a node start together. Rows that travel together share
// their destinations' log entries and syncs; a relay for each row as it comes would
// make every command wait for the disk and the processors with the rows of the
// commands before it. A lone row does not wait for a turn.
type turns struct {
	start func(activation *actor.PID)

	mu      sync.Mutex
	waiting []*actor.PID // in the order of their rows
	last    time.Time    // when the last turn was; zero: never
	timer   *time.Timer  // nil: nobody waits
	closed  bool
}

// wait has an activation start its relay at the next turn.
func (t *turns) wait(activation *actor.PID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.waiting = append(t.waiting, activation)
	if t.timer == nil {
		t.timer = time.AfterFunc(max(relayPatience, relayTurn-time.Since(t.last)), t.turn)
	}
}

func (t *turns) turn() {
	t.mu.Lock()
	now := t.waiting
	t.waiting, t.timer, t.last = nil, nil, time.Now()
	t.mu.Unlock()
	for _, activation := range now {
		t.start(activation)
	}
}

// close forgets who waits.
func (t *turns) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed, t.waiting = true, nil
	if t.timer != nil {
		t.timer.Stop()
	}
}
