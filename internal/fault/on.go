//go:build faults

package fault

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Variable is the environment variable that arms points from the start,
// ClockVariable the one that says by how much the wall clock is off.
const (
	Variable      = "WRIT_FAULT"
	ClockVariable = "WRIT_CLOCK"
)

const delay = 100 * time.Millisecond

type armed struct {
	action Action
	delay  time.Duration
	hit    int           // hits to come, the last of which acts
	said   bool          // that it acts
	over   chan struct{} // closed when the point is disarmed or armed anew
}

// board is what is armed in this process.
type board struct {
	mu     sync.Mutex
	armed  map[Name]*armed
	offset atomic.Int64 // of the wall clock, nanoseconds
}

// current is the process's board: a point is a place in the code, not a thing that
// could be handed around.
var current = sync.OnceValue(func() *board { //nolint:gochecknoglobals // one per process, and only in a build for tests
	b := &board{armed: map[Name]*armed{}}
	for part := range strings.SplitSeq(os.Getenv(Variable), ",") {
		if name, action, ok := strings.Cut(part, "="); ok {
			if err := b.arm(Name(name), Action(action), delay, 1); err != nil {
				panic(err)
			}
		}
	}
	if text := os.Getenv(ClockVariable); text != "" {
		offset, err := time.ParseDuration(text)
		if err != nil {
			panic(err)
		}
		b.offset.Store(int64(offset))
	}
	return b
})

// Now is the wall clock, right or wrong. It has no monotonic reading, as nothing
// has that comes from another process.
func Now() time.Time {
	return time.Now().Round(0).Add(time.Duration(current().offset.Load()))
}

func (b *board) arm(name Name, action Action, delay time.Duration, hit int) error {
	if !slices.Contains(All(), name) {
		return fmt.Errorf("no fault point %q", name)
	}
	if action != None && !slices.Contains(Actions(), action) {
		return fmt.Errorf("no action %q", action)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if old := b.armed[name]; old != nil {
		close(old.over)
		delete(b.armed, name)
	}
	if action != None {
		b.armed[name] = &armed{action: action, delay: delay, hit: hit, over: make(chan struct{})}
	}
	return nil
}

// hit is what a hit of a point meets.
type hit struct {
	action Action
	delay  time.Duration
	quiet  bool
	over   <-chan struct{}
}

func (b *board) take(name Name) hit {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.armed[name]
	if a == nil {
		return hit{action: None}
	}
	if a.hit--; a.hit > 0 {
		return hit{action: None}
	}
	if a.action != Drop && a.action != Delay && a.action != Hold {
		delete(b.armed, name)
	}
	quiet := a.said && a.action == Delay
	a.said = true
	return hit{a.action, a.delay, quiet, a.over}
}

// Point acts if it is armed.
func Point(name Name) error {
	met := current().take(name)
	if met.action != None && !met.quiet {
		_, _ = fmt.Fprintf(os.Stderr, "fault point %s: %s\n", name, met.action)
	}
	switch met.action {
	case Crash:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case Stop:
		return syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case Error, Drop:
		return fmt.Errorf("%w at %s", ErrInjected, name)
	case Delay:
		select {
		case <-time.After(met.delay):
		case <-met.over:
		}
	case Hold:
		<-met.over
	case None:
	}
	return nil
}

// Handler arms points and sets the clock in a running process: /debug/fault and
// /debug/clock.
func Handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(path string, do func(*http.Request) error) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			if err := do(r); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		})
	}
	handle("/debug/fault", func(r *http.Request) error {
		hit, wait := 1, delay
		var err error
		if text := r.FormValue("hit"); text != "" {
			if hit, err = strconv.Atoi(text); err != nil {
				return err
			}
		}
		if text := r.FormValue("for"); text != "" {
			if wait, err = time.ParseDuration(text); err != nil {
				return err
			}
		}
		return current().arm(Name(r.FormValue("point")), Action(r.FormValue("action")), wait, hit)
	})
	handle("/debug/clock", func(r *http.Request) error {
		offset, err := time.ParseDuration(r.FormValue("offset"))
		if err != nil {
			return err
		}
		current().offset.Store(int64(offset))
		_, _ = fmt.Fprintf(os.Stderr, "the wall clock is off by %v\n", offset)
		return nil
	})
	return mux
}
