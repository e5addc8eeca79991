package actors

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// started is who was started, and how long after the test began.
type started struct {
	id    string
	after time.Duration
}

func watchTurns(t *testing.T) (own *turns, starts func() []started) {
	t.Helper()
	begin := time.Now()
	var (
		mu  sync.Mutex
		all []started
	)
	own = &turns{start: func(a *actor.PID) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, started{a.Id, time.Since(begin)})
	}}
	return own, func() []started {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// pass lets the bubble's time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, starts := watchTurns(t)
		own.wait(actor.NewPID("", "a")) // lone: only the patience
		pass(2 * time.Millisecond)
		own.wait(actor.NewPID("", "b")) // too soon after a: the next turn
		pass(2 * time.Millisecond)
		own.wait(actor.NewPID("", "c")) // with b
		pass(2 * time.Millisecond)
		own.wait(actor.NewPID("", "d")) // a turn later again
		pass(time.Second)
		own.wait(actor.NewPID("", "e")) // lone again
		pass(time.Second)
		want := []started{
			{"a", relayPatience},
			{"b", relayPatience + relayTurn},
			{"c", relayPatience + relayTurn},
			{"d", relayPatience + 2*relayTurn},
			{"e", time.Second + 6*time.Millisecond + relayPatience},
		}
		if got := starts(); !slices.Equal(got, want) {
			t.Errorf("started %v, want %v", got, want)
		}
	})
}

func TestTurnsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, starts := watchTurns(t)
		own.wait(actor.NewPID("", "a"))
		own.close()
		own.wait(actor.NewPID("", "b"))
		pass(time.Second)
		if got := starts(); len(got) > 0 {
			t.Errorf("started after the end: %v", got)
		}
	})
}
