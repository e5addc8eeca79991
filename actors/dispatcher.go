package actors

import "sync"

// dispatcher runs mailboxes on goroutines that it keeps, so that their stacks,
// which handlers make grow, are there for the next one. It starts as many as are
// needed: a handler that blocks holds up nobody else.
type dispatcher struct {
	work chan func() // handed over only to a goroutine that waits
	quit chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	idle   int
	closed bool
}

const (
	// idleMost bounds the goroutines that are kept although they have no work.
	idleMost = 64
	// throughput is the number of messages after which a mailbox lets others run.
	throughput = 300
)

func newDispatcher() *dispatcher {
	return &dispatcher{work: make(chan func()), quit: make(chan struct{})}
}

// Schedule is called by a mailbox that has messages.
func (d *dispatcher) Schedule(run func()) {
	select {
	case d.work <- run:
		return
	default:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed { // what comes now comes too late for anybody
		go run()
		return
	}
	d.wg.Go(func() { d.loop(run) })
}

// Throughput is asked by mailboxes.
func (d *dispatcher) Throughput() int { return throughput }

func (d *dispatcher) loop(run func()) {
	for {
		run()
		if !d.rest(1) {
			return
		}
		select {
		case run = <-d.work:
			d.rest(-1)
		case <-d.quit:
			return
		}
	}
}

// rest counts idle goroutines; false: there are enough.
func (d *dispatcher) rest(n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > 0 && d.idle >= idleMost {
		return false
	}
	d.idle += n
	return true
}

// close ends the goroutines and waits for those that still run a handler.
func (d *dispatcher) close() {
	d.mu.Lock()
	closed := d.closed
	d.closed = true
	d.mu.Unlock()
	if !closed {
		close(d.quit)
	}
	d.wg.Wait()
}
