package actors

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/internal/fault"
	"writ/internal/trace"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// delivery is a batch of consecutive rows of one lane.
type delivery struct {
	source entity.Ref
	rows   []*recordv1.Row
	// again: it stood beyond the lane once and has waited for a barrier.
	again bool
}

// Deliver takes a batch of one lane for a shard that this node leads. Its answer
// reflects committed state only. Any error is trouble on the way: the rows count
// as not sent. It is safe for concurrent use.
func (r *Runtime) Deliver(ctx context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
	c := newCall(ctx)
	if err := r.openDelivery(c, req); err != nil {
		r.cfg.Metrics.Add(Refused, string(entity.ReasonOf(err)), 1)
		return nil, err
	}
	value, err := r.enter(ctx, req.GetShard(), c, func(s *shard) *gauge { return &s.events })
	if err != nil {
		return nil, err
	}
	return value.(*nodev1.DeliverResponse), nil
}

func (r *Runtime) openDelivery(c *call, req *nodev1.DeliverRequest) error {
	rows := req.GetRows()
	if len(rows) == 0 {
		return entity.Errorf(entity.Invalid, "the batch has no rows")
	}
	source, destination := fromRef(rows[0].GetSource()), fromRef(rows[0].GetDestination())
	for i, row := range rows {
		if fromRef(row.GetSource()) != source || fromRef(row.GetDestination()) != destination {
			return entity.Errorf(entity.Invalid, "the batch has rows of more than one lane")
		}
		if row.GetLaneSequence() != rows[0].GetLaneSequence()+uint64(i) || row.GetLaneSequence() == 0 {
			return entity.Errorf(entity.Invalid, "the rows of the batch are not consecutive")
		}
		c.size += int64(len(row.GetEvent().GetData()))
	}
	for _, ref := range []entity.Ref{source, destination} {
		if !validName(ref.Tenant, r.cfg.Limits.Name) || !validName(ref.Kind, maxKind) || !validName(ref.ID, r.cfg.Limits.Name) {
			return entity.Errorf(entity.Invalid, "the batch names an entity that cannot exist")
		}
	}
	if source.Tenant != destination.Tenant {
		return entity.Errorf(entity.Invalid, "the batch goes to another tenant")
	}
	c.ref, c.work = destination, &delivery{source: source, rows: rows}
	return nil
}

// source is how far a lane was applied: for the next row, and in what is
// committed.
type source struct {
	epoch    uint64
	current  uint64
	applied  uint64
	skipped  uint64 // committed: the latest row that no handler saw
	inFlight int
}

// source finds a lane. It is kept in mind only while rows of it are in flight: an
// entity may hear from very many, and the store has them all.
func (a *activation) source(ref entity.Ref) (*source, error) {
	if s := a.sources[ref]; s != nil {
		return s, nil
	}
	stored, err := a.shard.store.Applied(a.ref, ref)
	if err != nil {
		return nil, err
	}
	return &source{
		epoch: stored.GetEpoch(), current: stored.GetLaneSequence(), applied: stored.GetLaneSequence(), skipped: stored.GetSkipped(),
	}, nil
}

// place is where a row stands in its lane.
type place int

const (
	known place = iota // applied before, or on the way to it
	next
	beyond // rows before it are missing
)

// place compares by epoch and lane sequence. After its shard was restored from a
// backup a source numbers on from there in a higher epoch: numbers that were
// applied before then name other rows.
func (s *source) place(row *recordv1.Row) place {
	switch n := row.GetLaneSequence(); {
	case row.GetEpoch() > s.epoch && n <= s.current+1:
		return next
	case n <= s.current:
		return known
	case n == s.current+1 && row.GetEpoch() >= s.epoch:
		return next
	default:
		return beyond
	}
}

// deliver applies what is new in a batch, each row by a record of its own, and
// answers when all of it is committed.
func (a *activation) deliver(c *call, d *delivery) {
	s, err := a.source(d.source)
	if err != nil {
		a.unreadable(c, "applied mark", err)
		return
	}
	if err := a.room(); err != nil {
		c.refuse(err)
		return
	}
	for _, row := range d.rows {
		switch s.place(row) {
		case known:
			a.appliedBefore(row)
		case beyond:
			a.gap(c, d)
			return
		case next:
			span := a.applySpan(row)
			refusal, err := a.apply(s, row, span)
			if err != nil {
				endSpan(span, err)
				c.refuse(err)
				return
			}
			if refusal != nil {
				endSpan(span, refusedError(refusal))
				a.refuseRow(c, d, row.GetLaneSequence(), refusal)
				return
			}
		}
	}
	a.settled(func(err error) { a.confirm(c, d, &nodev1.DeliverResponse{}, ownless(err)) })
}

// confirm answers with what is committed.
func (a *activation) confirm(c *call, d *delivery, answer *nodev1.DeliverResponse, err error) {
	if err == nil {
		var s *source
		if s, err = a.source(d.source); err == nil {
			answer.Applied, answer.Skipped = s.applied, s.skipped
			_ = fault.Point(fault.ConsumerAfterCommit)
			c.answer(answer, nil)
			return
		}
		err = entity.Errorf(entity.NotExecuted, "the applied mark could not be read")
	}
	c.refuse(err)
}

// gap deals with rows beyond the lane's end. That rows are missing is certain
// only after a barrier, and by then they may have come: batches of one lane can
// overtake each other.
func (a *activation) gap(c *call, d *delivery) {
	a.barrier(func(err error) {
		switch {
		case err != nil:
			c.refuse(ownless(err))
		case a.phase != active:
			a.bounce(c)
		case !d.again:
			d.again = true
			a.deliver(c, d)
		default:
			a.confirm(c, d, &nodev1.DeliverResponse{Gap: true}, nil)
		}
	})
}

// refuseRow answers that a handler did not take a row; rows before it are
// applied. The refusal rests on the state, so it waits for a barrier.
func (a *activation) refuseRow(c *call, d *delivery, sequence uint64, refusal *nodev1.Refusal) {
	a.barrier(func(err error) {
		answer := &nodev1.DeliverResponse{Refusal: refusal}
		if s, unread := a.source(d.source); unread == nil && s.applied >= sequence {
			answer.Refusal = nil // another try of the same row was taken meanwhile
		}
		a.confirm(c, d, answer, ownless(err))
	})
}

// apply handles one row and proposes what comes of it. The error is trouble that
// is not the row's. What is proposed ends the span, if there is one.
func (a *activation) apply(s *source, row *recordv1.Row, span trace.Span) (*nodev1.Refusal, error) {
	commit, state, timers := a.emptyCommit(), a.current.state, (*timerChanges)(nil)
	if row.GetEvent() != nil { // else an operator skipped it: only the mark moves
		d, refusal := a.handleEvent(row)
		if refusal != nil {
			return refusal, nil
		}
		from := derived(row)
		from.trace = traceAfter(span, from.trace)
		var err error
		if commit, err = a.compose(d, from); err != nil {
			if entity.ReasonOf(err) == entity.NotExecuted {
				return nil, err
			}
			return a.rowRefusal(err), nil
		}
		state, timers = d.state, d.changes
	}
	commit.Applied = []*recordv1.AppliedMark{{
		Source: row.GetSource(), Epoch: row.GetEpoch(), LaneSequence: row.GetLaneSequence(), Skipped: row.GetEvent() == nil,
	}}
	if size := proto.Size(commit); size > a.rt.cfg.Limits.Record {
		return a.rowRefusal(tooLarge("record", "Record", size, a.rt.cfg.Limits.Record)), nil
	}
	if s.inFlight == 0 {
		if a.sources == nil {
			a.sources = map[entity.Ref]*source{}
		}
		a.sources[fromRef(row.GetSource())] = s
	}
	if err := fault.Point(fault.ConsumerBeforeCommit); err != nil {
		return nil, entity.Errorf(entity.NotExecuted, "%v", err)
	}
	s.epoch, s.current = row.GetEpoch(), row.GetLaneSequence()
	s.inFlight++
	p := &proposal{commit: commit, after: snapshot{commit.GetBaseVersion() + 1, state}, timers: timers}
	if span != nil {
		p.then = append(p.then, span.End)
	}
	a.advance(p)
	return nil, nil
}

// derived is the origin of what a row's handler emits. The ids of those events
// come from the entity's own counters and are stored with them: a row is applied
// once, so no redelivery makes them anew.
func derived(row *recordv1.Row) origin {
	return origin{
		acceptedAt: row.GetAcceptedAt(),
		trace:      row.GetTrace(),
		parent:     &recordv1.EventId{Source: row.GetSource(), Epoch: row.GetEpoch(), Sequence: row.GetSequence()},
		hops:       row.GetHops() + 1,
	}
}

func (a *activation) handleEvent(row *recordv1.Row) (*decision, *nodev1.Refusal) {
	if int(row.GetHops()) > a.rt.cfg.Limits.Hops {
		return nil, refusal(nodev1.Refusal_HOP_LIMIT, "the event stands at the end of a chain of more than %d (limit %s)", a.rt.cfg.Limits.Hops, limitName("Hops"))
	}
	if a.def == nil {
		return nil, refusal(nodev1.Refusal_UNKNOWN_KIND, "the kind %q is not defined on node %s", a.ref.Kind, a.rt.cfg.Node)
	}
	name := row.GetEvent().GetType()
	h := a.def.Event(name)
	if h == nil {
		return nil, refusal(nodev1.Refusal_UNKNOWN_KIND, "kind %q of node %s does not handle event %q", a.ref.Kind, a.rt.cfg.Node, name)
	}
	event := h.Type.New().Interface()
	if err := proto.Unmarshal(row.GetEvent().GetData(), event); err != nil {
		return nil, refusal(nodev1.Refusal_REJECTED, "the event's bytes are not a %s", name)
	}
	if path, found := entity.UnknownField(event); found {
		// Written by a newer node. To drop it would lose what was meant.
		return nil, refusal(nodev1.Refusal_UNKNOWN_KIND, "event %s has a field that node %s does not know: %s", name, a.rt.cfg.Node, cut(path, 256))
	}
	hand := rowInHand(a.ref, row)
	if a.rt.cfg.Hands.Count(hand) { // the source counts it before it sends the row again
		return nil, refusal(nodev1.Refusal_CRASHED, "%s", a.crashReason())
	}
	d, err := a.run(h, entity.NewContext(a.ref, fromRef(row.GetSource()), a.rt.cfg.Clock().UTC()), event, hand)
	if err != nil {
		return nil, a.rowRefusal(err)
	}
	return d, nil
}

// rowRefusal turns what went wrong in or after an event's handler into the
// answer. A failed handler costs the activation.
func (a *activation) rowRefusal(err error) *nodev1.Refusal {
	var failure *handlerError
	kind := nodev1.Refusal_REJECTED
	switch {
	case errors.As(err, &failure):
		a.breakOff()
		kind = nodev1.Refusal_PANICKED
	case entity.ReasonOf(err) == entity.TooLarge:
		kind = nodev1.Refusal_TOO_LARGE
	}
	return &nodev1.Refusal{Kind: kind, Reason: cut(err.Error(), a.rt.cfg.Limits.Text)}
}

func refusal(kind nodev1.Refusal_Kind, format string, args ...any) *nodev1.Refusal {
	return &nodev1.Refusal{Kind: kind, Reason: strings.ToValidUTF8(fmt.Sprintf(format, args...), "?")}
}

// committedMarks takes in how far lanes are applied now.
func (a *activation) committedMarks(commit *recordv1.Commit) {
	for _, mark := range commit.GetApplied() {
		ref := fromRef(mark.GetSource())
		s := a.sources[ref]
		s.applied = mark.GetLaneSequence()
		if mark.GetSkipped() { // as Apply does
			s.skipped = s.applied
		} else if s.applied <= s.skipped {
			s.skipped = 0
		}
		s.inFlight--
		if s.inFlight == 0 {
			delete(a.sources, ref)
		}
		a.rt.cfg.Metrics.Add(Applied, "", 1)
	}
}
