package actors

import (
	"cmp"
	"context"
	"log/slog"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
	"writ/sharding"
)

// call is one piece of work on its way: at the front door, then with the gate,
// then with an activation. Only the one who has it touches it; whoever has it
// answers it, once.
type call struct {
	ref  entity.Ref
	work any // *submit, *read, *outcome, *delivery, *laneChange, *firing
	// caller (nil: none) and deadline tell whether anybody still waits. They count only until
	// the work begins.
	caller   context.Context //nolint:containedctx // the call's own: it is one request
	deadline time.Time
	size     int64
	shard    *gauge // counted in at the front door
	entity   *gauge // counted in by the gate
	metrics  Metrics
	reply    chan answer  // room for one
	done     func(answer) // in the place of reply
	answered bool
}

type answer struct {
	value any
	err   error
}

// answer ends the call. Only the first answer counts.
func (c *call) answer(value any, err error) {
	if c.answered {
		return
	}
	c.answered = true
	c.leave()
	c.shard.leave(c.size)
	if err != nil {
		c.metrics.Add(Refused, string(entity.ReasonOf(err)), 1)
	}
	if c.done != nil {
		c.done(answer{value, err})
		return
	}
	c.reply <- answer{value, err}
}

func (c *call) refuse(err error) { c.answer(nil, err) }

// leave takes the call out of the entity's count.
func (c *call) leave() {
	if c.entity != nil {
		c.entity.leave(c.size)
		c.entity = nil
	}
}

// abandoned reports that nobody waits for the call any more.
func (c *call) abandoned() bool {
	return c.caller != nil && c.caller.Err() != nil || !c.deadline.IsZero() && !time.Now().Before(c.deadline)
}

func errAbandoned() *entity.Error {
	return entity.Errorf(entity.NotExecuted, "the deadline passed, or the caller left, before the call's turn came")
}

// Forward takes one client call for a shard that this node leads. It is safe for
// concurrent use. The error is an *entity.Error, or the context's: then nothing
// is known. A stored rejection is an answer, not an error. Answers may be shared
// between callers and must not be changed.
func (r *Runtime) Forward(ctx context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
	c := newCall(ctx)
	finish := func(value any) (*nodev1.ForwardResponse, error) { return value.(*nodev1.ForwardResponse), nil }
	var err error
	switch body := req.GetCall().(type) {
	case *nodev1.ForwardRequest_Submit:
		err = r.openSubmit(c, req, body.Submit)
	case *nodev1.ForwardRequest_Read:
		if body.Read.GetConsistency() == writv1.Consistency_STALE {
			return r.forwardStale(req, body.Read)
		}
		var q *query
		q, err = r.openRead(c, req.GetTenant(), body.Read)
		// The copy is immutable, so the query runs here and not in the entity's turn.
		finish = func(value any) (*nodev1.ForwardResponse, error) { return q.respond(value.(snapshot)) }
	case *nodev1.ForwardRequest_Outcome:
		err = r.openOutcome(c, req.GetTenant(), body.Outcome, false)
	case *nodev1.ForwardRequest_Cancel:
		err = r.openOutcome(c, req.GetTenant(), body.Cancel, true)
	default:
		err = entity.Errorf(entity.Invalid, "the request carries no call")
	}
	if err != nil {
		r.cfg.Metrics.Add(Refused, string(entity.ReasonOf(err)), 1)
		return nil, err
	}
	c.size = int64(proto.Size(req))
	value, err := r.enter(ctx, req.GetShard(), c, func(s *shard) *gauge { return &s.calls })
	if err != nil {
		return nil, err
	}
	return finish(value)
}

// enter hands a call to the gate and waits for its answer. Once the gate has it,
// its fate does not depend on ctx.
func (r *Runtime) enter(ctx context.Context, number uint32, c *call, count func(*shard) *gauge) (any, error) {
	c.metrics, c.reply = r.cfg.Metrics, make(chan answer, 1)
	s, err := r.hand(number, c, count)
	if err != nil {
		r.cfg.Metrics.Add(Refused, string(entity.ReasonOf(err)), 1)
		return nil, err
	}
	select {
	case a := <-c.reply:
		return a.value, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.left:
		return nil, entity.Errorf(entity.OutcomeUnknown, "the shard was closed while a handler of it did not come back: retry with the same key")
	case <-s.ended:
	}
	select {
	case a := <-c.reply:
		return a.value, a.err
	default: // a gate answers everything before it ends: this is a last resort
		r.log.Error("a call was lost by a gate that has ended", slog.String("entity", c.ref.String()))
		return nil, entity.Errorf(entity.OutcomeUnknown, "the shard was closed: retry with the same key")
	}
}

// hand passes a call to the gate of its shard unless there is too much already.
func (r *Runtime) hand(number uint32, c *call, count func(*shard) *gauge) (*shard, error) {
	if n := r.cfg.Shards(); n > 0 && sharding.Locate(n, c.ref) != number {
		return nil, entity.Errorf(entity.NotExecuted, "entity %s does not belong to shard %d", c.ref, number)
	}
	if _, isEvent := c.work.(*delivery); !isEvent && r.cfg.Admit != nil {
		if err := r.cfg.Admit(number); err != nil {
			return nil, err
		}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return nil, errClosed()
	}
	s := r.shards[number]
	if s == nil {
		return nil, entity.Errorf(entity.NotExecuted, "node %s has no replica of shard %d", r.cfg.Node, number)
	}
	g := count(s)
	// Deliveries are few, in batches, and have a count of their own: the gate sees to them.
	if g == &s.calls && s.crowded.full(c.ref, r.cfg.Limits.EntityCalls) {
		return nil, errCrowded(r.cfg.Limits.entityCalls())
	}
	if full := g.enter(c.size, bound{"ShardCalls", int64(r.cfg.Limits.ShardCalls)}, bound{"ShardBytes", r.cfg.Limits.ShardBytes}); full != nil {
		return nil, overloaded(*full, "shard %d has too much work in progress", number)
	}
	c.shard = g
	r.send(s.gate, c) // under the lock: a gate that ends has got all its calls
	return s, nil
}

// retryOverload is the hint for a caller that was refused for load.
const retryOverload = 200 * time.Millisecond

func overloaded(full bound, format string, args ...any) *entity.Error {
	return entity.Overload(limitName(full.field), full.most, format, args...).Retry(retryOverload)
}

func errCrowded(full bound) *entity.Error {
	return overloaded(full, "the entity has too much work in progress")
}

// newCall begins a call. How long the caller waits is the context's, also that of a
// call from another node: gRPC carries the time that is left, which needs no two
// clocks to agree.
func newCall(ctx context.Context) *call {
	deadline, _ := ctx.Deadline()
	return &call{caller: ctx, deadline: deadline}
}

// checkRef checks the form of an entity's name and finds its kind.
func (r *Runtime) checkRef(tenant string, e *writv1.EntityRef) (entity.Ref, *entity.Definition, error) {
	ref := entity.Ref{Tenant: tenant, Kind: e.GetKind(), ID: e.GetId()}
	if err := cmp.Or(r.checkName("tenant", tenant), r.checkName("entity's id", ref.ID)); err != nil {
		return ref, nil, err
	}
	def := r.cfg.Registry.Kind(ref.Kind)
	if def == nil {
		return ref, nil, entity.Errorf(entity.Invalid, "the kind %q is not defined", cut(ref.Kind, 64))
	}
	return ref, def, nil
}

// checkName checks a part of an entity's name.
func (r *Runtime) checkName(what, name string) error {
	switch most := r.cfg.Limits.Name; {
	case len(name) > most:
		return tooLarge(what, "Name", len(name), most)
	case !validName(name, most):
		return entity.Errorf(entity.Invalid, "the %s must be a text of 1 to %d bytes", what, most)
	}
	return nil
}

// badKey is the refusal of an idempotency key that is missing or too long.
func (r *Runtime) badKey(key string) error {
	if most := r.cfg.Limits.Key; len(key) > most {
		return tooLarge("idempotency key", "Key", len(key), most)
	}
	return entity.Errorf(entity.Invalid, "the idempotency key is missing")
}

// validName reports whether a text can be part of an entity's name.
func validName(s string, most int) bool { return s != "" && len(s) <= most && utf8.ValidString(s) }
