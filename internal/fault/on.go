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
	"syscall"
	"time"
)

// Variable is the environment variable that arms points from the start.
const Variable = "WRIT_FAULT"

const delay = 100 * time.Millisecond

type armed struct {
	action Action
	hit    int           // hits to come, the last of which acts
	over   chan struct{} // closed when the point is disarmed or armed anew
}

// board is what is armed in this process.
type board struct {
	mu    sync.Mutex
	armed map[Name]*armed
}

// current is the process's board: a point is a place in the code, not a thing that
// could be handed around.
var current = sync.OnceValue(func() *board { //nolint:gochecknoglobals // one per process, and only in a build for tests
	b := &board{armed: map[Name]*armed{}}
	for part := range strings.SplitSeq(os.Getenv(Variable), ",") {
		if name, action, ok := strings.Cut(part, "="); ok {
			if err := b.arm(Name(name), Action(action), 1); err != nil {
				panic(err)
			}
		}
	}
	return b
})

func (b *board) arm(name Name, action Action, hit int) error {
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
		b.armed[name] = &armed{action, hit, make(chan struct{})}
	}
	return nil
}

// take says what a hit of a point does, and until when.
func (b *board) take(name Name) (Action, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.armed[name]
	if a == nil {
		return None, nil
	}
	if a.hit--; a.hit > 0 {
		return None, nil
	}
	if a.action != Drop && a.action != Delay && a.action != Hold {
		delete(b.armed, name)
	}
	return a.action, a.over
}

// Point acts if it is armed.
func Point(name Name) error {
	action, over := current().take(name)
	if action != None {
		_, _ = fmt.Fprintf(os.Stderr, "fault point %s: %s\n", name, action)
	}
	switch action {
	case Crash:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case Stop:
		return syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case Error, Drop:
		return fmt.Errorf("%w at %s", ErrInjected, name)
	case Delay:
		<-time.After(delay)
	case Hold:
		<-over
	case None:
	}
	return nil
}

// Handler arms points in a running process.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hit, err := strconv.Atoi(r.FormValue("hit"))
		if r.FormValue("hit") == "" {
			hit, err = 1, nil
		}
		if err == nil {
			err = current().arm(Name(r.FormValue("point")), Action(r.FormValue("action")), hit)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
}
