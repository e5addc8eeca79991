package actors

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// read is a linearizable read: it yields a snapshot, on which the caller's own
// goroutine runs the query.
type read struct{ minVersion uint64 }

// query turns a snapshot into an answer.
type query struct {
	rt      *Runtime
	ref     entity.Ref
	handler *entity.Handler // nil: the state itself
	message proto.Message
}

func (r *Runtime) openRead(c *call, tenant string, body *writv1.ReadRequest) (*query, error) {
	q, err := r.newQuery(tenant, body)
	if err != nil {
		return nil, err
	}
	c.ref, c.work = q.ref, &read{minVersion: body.GetMinVersion()}
	return q, nil
}

func (r *Runtime) newQuery(tenant string, body *writv1.ReadRequest) (*query, error) {
	ref, def, err := r.checkRef(tenant, body.GetEntity())
	if err != nil {
		return nil, err
	}
	q := &query{rt: r, ref: ref}
	if body.GetQuery() == nil {
		return q, nil
	}
	name := typeName(body.GetQuery())
	if q.handler = def.Query(name); q.handler == nil {
		return nil, entity.Errorf(entity.Invalid, "kind %q has no query %q", def.Name(), cut(name, 256))
	}
	if size := len(body.GetQuery().GetValue()); size > r.cfg.Limits.Command {
		return nil, tooLarge("query", "Command", size, r.cfg.Limits.Command)
	}
	q.message = q.handler.Type.New().Interface()
	if err := proto.Unmarshal(body.GetQuery().GetValue(), q.message); err != nil {
		return nil, entity.Errorf(entity.Invalid, "the query's bytes are not a %s", name)
	}
	if path, found := entity.UnknownField(q.message); found {
		return nil, entity.Errorf(entity.Invalid, "the query has a field that this node does not know: %s", cut(path, 256))
	}
	return q, nil
}

// respond runs the query on a clone: user code may write to what it gets.
func (q *query) respond(s snapshot) (*nodev1.ForwardResponse, error) {
	result := s.state
	if q.handler != nil {
		var err error
		if result, err = q.run(proto.Clone(s.state)); err != nil {
			q.rt.cfg.Metrics.Add(Refused, string(entity.ReasonOf(err)), 1)
			return nil, err
		}
	}
	packed := &anypb.Any{}
	if result != nil {
		if err := anypb.MarshalFrom(packed, result, proto.MarshalOptions{Deterministic: true}); err != nil {
			return nil, entity.Errorf(entity.HandlerPanic, "the result cannot be encoded")
		}
	}
	if size, most := len(packed.GetValue()), q.rt.cfg.Limits.Reply; q.handler != nil && size > most {
		return nil, tooLarge("reply", "Reply", size, most)
	}
	return &nodev1.ForwardResponse{Answer: &nodev1.ForwardResponse_Read{
		Read: &writv1.ReadResponse{State: packed, Version: s.version},
	}}, nil
}

// run calls the query's handler, which is in hand meanwhile: a query can end the
// process as well as a command, and its caller retries it at the next node. The
// error is the caller's to see: INVALID.
func (q *query) run(state proto.Message) (result proto.Message, err error) {
	cfg, name := q.rt.cfg, string(q.message.ProtoReflect().Descriptor().FullName())
	hand := callInHand(queryHand, q.ref, name, entity.Fingerprint(q.message))
	if n := cfg.Hands.Crashes(hand); n >= cfg.MaxCrashes {
		return nil, entity.Errorf(entity.HandlerPanic, "processes of the cluster have ended %d times while they ran the query's handler: it is not run again until an operator allows it (node crashes forget)", n)
	}
	leave, running := cfg.Hands.Take(hand), q.rt.handlings.begin(nil, q.ref, name)
	defer leave()
	defer q.rt.handlings.end(running)
	defer func() {
		if p := recover(); p != nil {
			q.rt.log.Error("a query panicked", errAttr(fmt.Errorf("%s: %v", q.ref, p)))
			err = entity.Errorf(entity.HandlerPanic, "the query panicked: see the log of node %s", q.rt.cfg.Node)
		}
	}()
	result, err = q.handler.Call(nil, state, q.message)
	if err != nil {
		return nil, entity.Errorf(entity.Invalid, "the query was refused: %s", cut(err.Error(), q.rt.cfg.Limits.Text))
	}
	return result, nil
}

// forwardStale answers a read with consistency STALE.
func (r *Runtime) forwardStale(req *nodev1.ForwardRequest, body *writv1.ReadRequest) (*nodev1.ForwardResponse, error) {
	answer, err := r.ReadStale(req.GetShard(), req.GetTenant(), body)
	if err != nil {
		return nil, err
	}
	return &nodev1.ForwardResponse{Answer: &nodev1.ForwardResponse_Read{Read: answer}}, nil
}

// ReadStale reads from this node's replica, leader or not, and says how far the
// replica is. It does not wait for min_version: it refuses. It runs in the
// caller's goroutine.
func (r *Runtime) ReadStale(number uint32, tenant string, body *writv1.ReadRequest) (*writv1.ReadResponse, error) {
	q, err := r.newQuery(tenant, body)
	if err != nil {
		return nil, err
	}
	s := r.shard(number)
	if s == nil {
		return nil, entity.Errorf(entity.NotExecuted, "node %s has no replica of shard %d", r.cfg.Node, number)
	}
	var index uint64
	var age time.Duration
	if r.cfg.Freshness != nil { // asked first: what is read is at least as fresh
		index, age = r.cfg.Freshness(number)
	}
	rec, err := s.store.Entity(q.ref)
	var state snapshot
	if err == nil {
		state, err = decodeState(r.cfg.Registry.Kind(q.ref.Kind), rec)
	}
	if err != nil {
		r.log.Error("cannot read an entity", errAttr(err))
		return nil, r.errUnread(err)
	}
	if state.version < body.GetMinVersion() {
		return nil, versionNotReached(state.version, body.GetMinVersion())
	}
	answer, err := q.respond(state)
	if err != nil {
		return nil, err
	}
	answer.GetRead().LogIndex, answer.GetRead().Age = index, durationpb.New(age)
	return answer.GetRead(), nil
}

func versionNotReached(have, want uint64) *entity.Error {
	return entity.Errorf(entity.NotExecuted, "the entity is at version %d, not yet at %d", have, want)
}

// read waits for a barrier and then answers from the committed copy.
func (a *activation) read(c *call, r *read) {
	a.barrier(func(err error) {
		switch {
		case err != nil:
			c.refuse(ownless(err))
		case a.committed.version < r.minVersion:
			a.waitForVersion(c, r.minVersion)
		default:
			c.answer(a.committed, nil)
		}
	})
}

// versionWait is a read whose version has not come yet.
type versionWait struct {
	call  *call
	want  uint64
	timer *time.Timer
	stay  func() bool // ends the watch on the caller
}

// versionWaitMost bounds the wait of a read without a deadline.
const versionWaitMost = 30 * time.Second

func (w *versionWait) stop() {
	w.timer.Stop()
	w.stay()
}

// waitForVersion has a read wait. From here on it counts as a wait and not as work
// in progress.
func (a *activation) waitForVersion(c *call, want uint64) {
	if waits := &a.shard.waits; c.shard != waits { // else it waited in an activation before
		limits := a.rt.cfg.Limits
		if full := waits.enter(c.size, bound{"Waits", int64(limits.Waits)}, bound{"ShardBytes", limits.ShardBytes}); full != nil {
			c.refuse(overloaded(*full, "shard %d has too many reads that wait for a version", a.shard.number))
			return
		}
		c.shard.leave(c.size)
		c.shard = waits
	}
	c.leave()
	patience := versionWaitMost
	if !c.deadline.IsZero() {
		patience = min(patience, time.Until(c.deadline))
	}
	w := &versionWait{call: c, want: want}
	rt, self := a.rt, a.self
	over := func() { rt.send(self, w) }
	w.timer, w.stay = time.AfterFunc(patience, over), context.AfterFunc(c.caller, over)
	a.waits = append(a.waits, w)
}

// expire ends a wait that has taken too long, or whose caller has left.
func (a *activation) expire(w *versionWait) {
	at := slices.Index(a.waits, w)
	if at < 0 {
		return // answered already
	}
	a.waits = slices.Delete(a.waits, at, at+1)
	w.stop()
	w.call.refuse(versionNotReached(a.committed.version, w.want))
}

// serveWaits answers the reads whose version is there. The commit that brought it
// came after the read, so it is as good as a barrier.
func (a *activation) serveWaits() {
	if len(a.waits) == 0 {
		return
	}
	a.waits = slices.DeleteFunc(a.waits, func(w *versionWait) bool {
		if a.committed.version < w.want {
			return false
		}
		w.stop()
		w.call.answer(a.committed, nil)
		return true
	})
}
