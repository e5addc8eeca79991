package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Addrs are the addresses by which a node is reached from here, host:port.
type Addrs struct {
	GRPC, HTTP, Gossip, Raft string
}

// Lifecycle starts and ends nodes. Start returns when the node's process is
// there, not when it is ready. A node that is not running has no process; to
// end it once more is no error.
type Lifecycle interface {
	Start(node string) error
	// Stop asks the node to end (SIGTERM) and waits; it returns the exit code
	// and how long it took.
	Stop(ctx context.Context, node string) (code int, took time.Duration, err error)
	// Kill ends the node without warning (SIGKILL) and waits until it is gone.
	Kill(node string) error
}

// Faults hurt nodes without ending them for good.
type Faults interface {
	// Pause freezes a running node (SIGSTOP); Resume lets it go on (SIGCONT).
	Pause(node string) error
	Resume(node string) error
	// Wipe deletes the data of a node that is not running.
	Wipe(node string) error
}

// View shows nodes.
type View interface {
	// Nodes are the names of all nodes, running or not, in a fixed order.
	Nodes() []string
	Addrs(node string) Addrs
	Running(node string) bool
	// Logs returns the last lines of a node's log.
	Logs(node string, lines int) string
}

// Cluster is a set of nodes to test. Its methods may be called concurrently.
type Cluster interface {
	Lifecycle
	Faults
	View
	// Close ends all nodes.
	Close() error
}

// Network cuts nodes off from each other. Only drivers that own a network have it.
type Network interface {
	Disconnect(node string) error
	Connect(node string) error
}

// pollInterval is how often a condition is looked at.
const pollInterval = 50 * time.Millisecond

// eventually asks check again and again until it returns nil; it fails with the
// last error when ctx ends.
func eventually(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if final, ok := errors.AsType[*finalError](err); ok {
			return fmt.Errorf("%s: %w", what, final.err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (last: %w)", what, ctx.Err(), last)
		case <-tick.C:
		}
	}
}

// pause waits for d of real time, or until ctx ends: for the world outside this
// process, which sends no event when it has changed enough.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// finalError is an answer that waiting does not change.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }

// endpoints are the gRPC addresses of nodes.
func endpoints(v View, nodes ...string) []string {
	addrs := make([]string, 0, len(nodes))
	for _, n := range nodes {
		addrs = append(addrs, v.Addrs(n).GRPC)
	}
	return addrs
}

// others are all nodes but one.
func others(v View, node string) []string {
	var rest []string
	for _, n := range v.Nodes() {
		if n != node {
			rest = append(rest, n)
		}
	}
	return rest
}
