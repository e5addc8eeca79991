package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"

	"github.com/asynkron/protoactor-go/actor"
	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// activation is the live actor of one entity in one term.
type activation struct {
	rt    *Runtime
	shard *shard
	lease Lease
	entry *entry
	ref   entity.Ref
	def   *entity.Definition // nil: the kind is not defined here
	self  *actor.PID

	// What the next message works on: ahead of what is committed.
	current  snapshot
	sequence uint64 // last source sequence given out
	// What is committed: what reads see.
	committed snapshot
	queue     queue
	keys      map[keyID]*proposal     // commands in flight under a key
	sources   map[entity.Ref]*source  // lanes of events in flight
	waits     []*versionWait          // reads that wait for a version
	timers    map[string]pendingTimer // of commits in flight
	out       outbox

	handles string // type of the message whose handler ran last

	phase   phase
	failure error // of the first record that failed
	unread  error // why the state could not be read
	idle    bool  // ends because it is not used
	// announce: tell the gate when the state is read.
	announce bool
}

// snapshot is a state at a version. The message is never changed: handlers work
// on clones.
type snapshot struct {
	version uint64
	state   proto.Message
}

// phase is where an activation stands in its life.
type phase int

const (
	// active: takes work. Next: breaking, leaving, revoked.
	active phase = iota
	// breaking: takes no more, and has told the gate. Next: leaving, revoked.
	breaking
	// leaving: the gate sends no more. Next: over.
	leaving
	// revoked: the lease has ended. Next: over.
	revoked
	// over: the gate has been told that nothing is in flight.
	over
)

func newActivation(rt *Runtime, s *shard, lease Lease, e *entry) *activation {
	return &activation{
		rt: rt, shard: s, lease: lease, entry: e, ref: e.ref,
		def:      rt.cfg.Registry.Kind(e.ref.Kind),
		announce: e.starting,
	}
}

// Receive takes one message. What goes wrong in this package's own code breaks
// the activation; handlers are guarded on their own.
func (a *activation) Receive(c actor.Context) {
	defer func() {
		if p := recover(); p != nil {
			a.rt.log.Error("an activation failed", a.attr(), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			if call, ok := c.Message().(*call); ok {
				call.refuse(entity.Errorf(entity.OutcomeUnknown, "the node failed while it worked on the call: retry with the same key"))
			}
			a.breakOff()
			a.leave() // no further message may come
		}
	}()
	switch m := c.Message().(type) {
	case *actor.Started:
		a.start(c)
	case *call:
		a.take(m)
	case *proposal:
		if answered := a.settle(m); answered {
			// Let the callers run first: they are queued on this goroutine's
			// processor, and what follows may start a relay.
			runtime.Gosched()
		}
	case *versionWait:
		a.expire(m)
	case retire:
		a.retire()
	case revoke:
		a.revoke(m.now)
	case startRelay:
		a.startRelay(c)
	case *laneMoved:
		a.laneMoved(m)
	case *relayIdle:
		a.relayIdle(m)
	case *relayDone:
		if a.out.relay != nil {
			c.Stop(a.out.relay)
		}
	case *actor.Terminated:
		a.relayEnded()
	case routesChanged:
		a.tellRelay(m)
	}
	a.wakeRelay()
	a.leave()
}

func (a *activation) attr() slog.Attr { return slog.String("entity", a.ref.String()) }

// start reads the entity, once.
func (a *activation) start(c actor.Context) {
	a.self = c.Self()
	if err := a.load(); err != nil {
		a.rt.log.Error("cannot read an entity", a.attr(), slog.Any("error", err))
		a.unread = err
		a.breakOff()
	}
	if a.announce {
		a.tellGate(&loaded{a.entry})
	}
}

func (a *activation) load() error {
	rec, err := a.shard.store.Entity(a.ref)
	if err != nil {
		return fmt.Errorf("read entity: %w", err)
	}
	if a.current, err = decodeState(a.def, rec); err != nil {
		return err
	}
	a.committed, a.sequence = a.current, rec.GetSourceSequence()
	if !rec.GetDeleted() {
		a.weigh(len(rec.GetState().GetData()))
	}
	if a.sequence == 0 {
		return nil // has never emitted: no lanes
	}
	lanes, err := a.shard.store.WaitingLanes(a.ref)
	if err != nil {
		return fmt.Errorf("read lanes: %w", err)
	}
	a.out.load(lanes)
	return nil
}

// weigh notes the size of the state, encoded, which stands for what it takes in memory.
func (a *activation) weigh(size int) {
	a.shard.states.Add(int64(size) - a.entry.bytes.Swap(int64(size)))
}

// decodeState is the state of an entity's record; rec may be nil, def as well.
func decodeState(def *entity.Definition, rec *recordv1.EntityRecord) (snapshot, error) {
	s := snapshot{version: rec.GetVersion()}
	if def == nil {
		return s, nil
	}
	s.state = def.NewState()
	stored := rec.GetState()
	if stored == nil || rec.GetDeleted() {
		return s, nil
	}
	if name := string(s.state.ProtoReflect().Descriptor().FullName()); stored.GetType() != name {
		return s, &otherStateError{stored: stored.GetType(), defined: name}
	}
	if err := proto.Unmarshal(stored.GetData(), s.state); err != nil {
		return s, fmt.Errorf("decode state: %w", err)
	}
	return s, nil
}

// otherStateError is what is wrong with an entity whose kind has changed its state
// message: other than a failing disk, the caller may know of it.
type otherStateError struct{ stored, defined string }

func (e *otherStateError) Error() string {
	return fmt.Sprintf("its stored state is a %s, and the kind is defined here with a %s: a kind keeps its state message, whose fields may change", e.stored, e.defined)
}

// errUnread is the answer when an entity cannot be read. Other nodes may be able
// to: on another disk, or with another version of the kind.
func (r *Runtime) errUnread(err error) *entity.Error {
	if other, ok := errors.AsType[*otherStateError](err); ok {
		return entity.Errorf(entity.NotExecuted, "the entity could not be read on node %s: %v", r.cfg.Node, other)
	}
	return entity.Errorf(entity.NotExecuted, "the entity could not be read: retry with the same key; the log of node %s says why", r.cfg.Node)
}

// take does one piece of work.
func (a *activation) take(c *call) {
	switch {
	case a.lease.Context().Err() != nil || a.phase == revoked || a.phase == over:
		c.refuse(notLeading(a.rt.cfg.Node, a.shard.number))
		return
	case a.unread != nil:
		c.refuse(a.rt.errUnread(a.unread))
		return
	case a.phase != active:
		a.bounce(c)
		return
	case c.abandoned():
		c.refuse(errAbandoned())
		return
	}
	switch work := c.work.(type) {
	case *submit:
		a.submit(c, work)
	case *read:
		a.read(c, work)
	case *outcome:
		a.outcome(c, work)
	case *delivery:
		a.deliver(c, work)
	case *firing:
		a.fire(c, work)
	case *laneChange:
		a.changeLane(c, work)
	default:
		c.refuse(errors.New("unknown work"))
	}
}

func (a *activation) bounce(c *call) { a.tellGate(&bounced{a.entry, c}) }

func (a *activation) tellGate(message any) { a.rt.send(a.shard.gate, message) }

// breakOff has the activation take no more work. What is in flight goes on.
func (a *activation) breakOff() {
	if a.phase == active {
		a.phase = breaking
		a.tellGate(&broken{a.entry})
	}
}

// retire is the gate's word that it sends no more.
func (a *activation) retire() {
	switch {
	case a.phase == breaking:
		a.phase = leaving
	case a.phase != active:
	case a.queue.empty() && len(a.waits) == 0 && a.out.quiet():
		a.phase, a.idle = leaving, true
	default:
		a.tellGate(&busy{a.entry})
	}
}

// revoke ends the activation with its lease.
func (a *activation) revoke(now bool) {
	if a.phase == over {
		return
	}
	a.phase = revoked
	for _, w := range a.waits {
		w.stop()
		w.call.refuse(notLeading(a.rt.cfg.Node, a.shard.number))
	}
	a.waits = nil
	if now {
		a.abandon()
	}
	a.endRelay(now)
}

// leave tells the gate when nothing is in flight any more.
func (a *activation) leave() {
	if a.phase != leaving && a.phase != revoked {
		return
	}
	a.endRelay(false)
	if !a.queue.empty() || a.out.relay != nil {
		return
	}
	for _, w := range a.waits { // the next activation does them from the start
		w.stop()
		a.bounce(w.call)
	}
	a.waits = nil
	a.phase = over
	a.tellGate(&finished{entry: a.entry, idle: a.idle, rows: a.out.open > 0, failed: a.unread != nil || a.out.fails})
}
