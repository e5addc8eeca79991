package actors

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"writ/actors/entity"
)

// Runtime hosts the activations of one node. All methods may be called from any
// goroutine. Several runtimes in one process do not disturb each other.
type Runtime struct {
	cfg    Config
	log    *slog.Logger
	system *actor.ActorSystem
	names  atomic.Uint64
	actors *dispatcher
	// handlings are the handlers that run now.
	handlings handlings
	// turns start relays.
	turns *turns
	// healthy and troubled send rows; see sender.go.
	healthy  *senders
	troubled *senders

	quit chan struct{}
	wg   sync.WaitGroup

	mu     sync.RWMutex
	shards map[uint32]*shard
	closed bool
}

// shard is one hosted shard, as the front door and the gate share it.
type shard struct {
	number uint32
	store  Store
	gate   *actor.PID
	calls  gauge        // client calls in progress
	events gauge        // deliveries in progress
	waits  gauge        // reads that wait for a version
	timers gauge        // timers that fire
	states atomic.Int64 // encoded bytes of the states in memory
	// crowded is written by the gate and read by the front door.
	crowded crowded
	// troubles is written by relays and read for operators.
	troubles troubles
	ended    chan struct{}
	// left is closed when a drop has given up on a handler that does not come back.
	left chan struct{}
}

// New starts a runtime. End it with Close.
func New(cfg Config) (*Runtime, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("actors configuration: %w", err)
	}
	log := cfg.Logger
	r := &Runtime{
		cfg: cfg,
		log: log,
		system: actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
			return slog.New(quiet{log.Handler()})
		})),
		actors:   newDispatcher(),
		healthy:  newSenders(cfg.Shards, cfg.Sends),
		troubled: newSenders(cfg.Shards, cfg.Sends),
		quit:     make(chan struct{}),
		shards:   map[uint32]*shard{},
	}
	r.turns = &turns{start: func(activation *actor.PID) { r.send(activation, startRelay{}) }}
	r.wg.Go(r.keepTime)
	return r, nil
}

// Open starts the gate of a shard. It refuses all work until Lead brings a lease.
func (r *Runtime) Open(number uint32, store Store) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed()
	}
	if r.shards[number] != nil {
		return fmt.Errorf("shard %d is open already", number)
	}
	s := &shard{number: number, store: store, ended: make(chan struct{}), left: make(chan struct{})}
	g := newGate(r, s)
	pid, err := r.system.Root.SpawnNamed(r.props(func() actor.Actor { return g }), r.name("gate-"+strconv.FormatUint(uint64(number), 10)))
	if err != nil {
		return fmt.Errorf("start gate of shard %d: %w", number, err)
	}
	s.gate = pid
	r.shards[number] = s
	return nil
}

// Lead hands a new lease of a shard over. The activations of the lease before,
// if it had not ended, end.
func (r *Runtime) Lead(number uint32, lease Lease) {
	r.tell(number, &lead{lease: lease})
}

// RoutesChanged tells that shards may have new leaders: lanes that wait because
// of trouble on the way try again now.
func (r *Runtime) RoutesChanged() {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, s := range r.shards {
		r.send(s.gate, routesChanged{})
	}
}

// Drop ends a shard's gate and its activations and waits for that. What was in
// flight is answered OUTCOME_UNKNOWN. A handler that does not come back within
// Config.Patience is named in the log and left alone: what it decides, if it ever
// does, is refused, since its lease has ended.
func (r *Runtime) Drop(number uint32) {
	s := r.shutdown(number)
	if s == nil {
		return
	}
	patience := time.NewTimer(r.cfg.Patience)
	defer patience.Stop()
	select {
	case <-s.ended:
		return
	case <-patience.C:
	}
	close(s.left)
	for _, one := range r.handlings.of(s) {
		r.log.Error("a shard is dropped without waiting for a handler that does not come back",
			append(one.attrs(), slog.Uint64("shard", uint64(number)))...)
	}
}

// shutdown has a shard's gate end; nil if there is none.
func (r *Runtime) shutdown(number uint32) *shard {
	r.mu.Lock()
	s := r.shards[number]
	if s == nil {
		r.mu.Unlock()
		return nil
	}
	// Nobody sends to the gate from here on: what it has received it answers.
	delete(r.shards, number)
	r.mu.Unlock()
	r.send(s.gate, shutdown{})
	return s
}

// Close drops all shards and ends the runtime's goroutines. It waits for handlers
// and deliveries in progress, at most as long as ctx lives.
func (r *Runtime) Close(ctx context.Context) error {
	r.mu.Lock()
	var numbers []uint32
	for number := range r.shards {
		numbers = append(numbers, number)
	}
	first := !r.closed
	r.closed = true
	r.mu.Unlock()
	done := make(chan struct{})
	go func() { // owned by whoever closes; ends when all work has ended
		defer close(done)
		var drops sync.WaitGroup
		for _, number := range numbers {
			drops.Go(func() {
				if s := r.shutdown(number); s != nil {
					<-s.ended
				}
			})
		}
		drops.Wait()
		r.healthy.close()
		r.troubled.close()
		if first {
			close(r.quit)
			r.turns.close()
			r.system.Shutdown() // panics when called twice
		}
		r.wg.Wait()
		r.actors.close()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close actors: %w", ctx.Err())
	}
}

// keepTime gives the gates their pace.
func (r *Runtime) keepTime() {
	ticker := time.NewTicker(r.cfg.tick())
	defer ticker.Stop()
	for {
		select {
		case <-r.quit:
			return
		case now := <-ticker.C:
			r.watchHandlers(now)
			r.mu.RLock()
			for _, s := range r.shards {
				r.send(s.gate, tick{now: now})
			}
			r.mu.RUnlock()
		}
	}
}

// shard is a hosted shard, nil if it is not.
func (r *Runtime) shard(number uint32) *shard {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.shards[number]
}

// tell sends a message to a shard's gate, if the shard is open.
func (r *Runtime) tell(number uint32, message any) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := r.shards[number]
	if s == nil {
		return false
	}
	r.send(s.gate, message)
	return true
}

func (r *Runtime) send(to *actor.PID, message any) { r.system.Root.Send(to, message) }

// name makes a name that no actor of this runtime has had. The actor system
// frees a name before the actor has ended, and knows "$" as a mark of its own.
func (r *Runtime) name(prefix string) string {
	return prefix + "-" + strconv.FormatUint(r.names.Add(1), 36)
}

func errClosed() *entity.Error {
	return entity.Errorf(entity.NotExecuted, "the node is shutting down")
}

// quiet passes warnings on and drops the actor system's smaller talk.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && q.Handler.Enabled(ctx, level)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
