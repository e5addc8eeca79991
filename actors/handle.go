package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// decision is what a handler made of a message.
type decision struct {
	state   proto.Message
	reply   *recordv1.Payload // nil for an event
	emitted []entity.Emission
	timers  []entity.TimerChange
	deleted bool
	now     time.Time
	fired   *firedTimer   // whose message it was
	changes *timerChanges // of compose
}

// origin is what the rows of a decision tell about where they come from.
type origin struct {
	acceptedAt int64
	trace      string
	parent     *recordv1.EventId
	hops       uint32
}

// handlerError is a handler that panicked or that broke its contract. The text may
// show what is nobody's business: it is for the log. What a caller may know is how
// it failed.
type handlerError struct {
	how  string
	text string
}

// How a handler fails.
const (
	howPanicked = "panicked"
	howError    = "returned an error that is no rejection (to refuse a command, a handler returns c.Reject)"
	howInvalid  = "made what a handler may not make"
)

func (f *handlerError) Error() string { return f.text }

// run calls a handler on a clone of the current state; hand names what is in hand
// meanwhile. The error is a *entity.Rejection that may be stored, a *handlerError, or
// TOO_LARGE.
func (a *activation) run(h *entity.Handler, ctx *entity.Context, message proto.Message, hand string) (*decision, error) {
	d := &decision{state: proto.Clone(a.current.state), now: ctx.Time()}
	a.handles = string(message.ProtoReflect().Descriptor().FullName())
	leave, running := a.rt.cfg.Hands.Take(hand), a.rt.handlings.begin(a.shard, a.ref, a.handles)
	reply, err := a.call(h, ctx, d.state, message)
	a.rt.handlings.end(running)
	leave()
	if err != nil {
		return nil, a.sortOut(err)
	}
	d.emitted, d.timers, d.deleted = ctx.Emitted(), ctx.Timers(), ctx.Deleted()
	if d.deleted {
		d.state = a.def.NewState()
	}
	if ctx.Source() != (entity.Ref{}) || reply == nil {
		return d, nil
	}
	if d.reply, err = a.encode(reply); err != nil {
		return nil, a.handlerFailed("its reply: %v", err)
	}
	if size, most := len(d.reply.GetData()), a.rt.cfg.Limits.Reply; size > most {
		return nil, tooLarge("reply", "Reply", size, most)
	}
	return d, nil
}

// execute runs the handler of a command, a client's or that of the timer fired, and
// makes the commit and the outcome of what it decided: a rejection is a decision
// that changes nothing. The error is none of these: it is one of run or compose, and
// there is nothing to store.
func (a *activation) execute(h *entity.Handler, ctx *entity.Context, command proto.Message, hand string, fired *firedTimer, from origin) (
	*decision, *recordv1.Commit, *recordv1.Outcome, error,
) {
	result := &recordv1.Outcome{Version: a.current.version + 1}
	d, err := a.run(h, ctx, command, hand)
	if rejected, ok := errors.AsType[*entity.Rejection](err); ok {
		result.Decision, result.Code = recordv1.Outcome_REJECTED, uint32(rejected.Code)
		result.Reason, result.Message = rejected.Reason, rejected.Message
		return &decision{state: a.current.state, now: ctx.Time(), fired: fired}, a.emptyCommit(), result, nil
	}
	if err != nil {
		return nil, nil, nil, err
	}
	d.fired = fired
	commit, err := a.compose(d, from)
	if err != nil {
		return nil, nil, nil, err
	}
	result.Decision, result.Reply = recordv1.Outcome_EXECUTED, d.reply
	result.Rows, result.Emitted = emitted(commit.GetRows())
	return d, commit, result, nil
}

// call runs user code.
func (a *activation) call(h *entity.Handler, ctx *entity.Context, state, message proto.Message) (reply proto.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			a.rt.log.Error("a handler panicked", a.attr(), slog.String("message", string(message.ProtoReflect().Descriptor().FullName())),
				slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			err = &handlerError{howPanicked, fmt.Sprintf("the handler panicked: %v", p)}
		}
	}()
	return h.Call(ctx, state, message)
}

// sortOut checks an error that a handler returned: a rejection must be one that
// can be stored.
func (a *activation) sortOut(err error) error {
	if _, ok := errors.AsType[*handlerError](err); ok {
		return err
	}
	var rejection *entity.Rejection
	if !errors.As(err, &rejection) || rejection == nil {
		return a.logged(&handlerError{howError, fmt.Sprintf("the handler failed: %v", err)})
	}
	out := *rejection
	if out.Code == 0 {
		out.Code = entity.FailedPrecondition
	}
	if out.Reason == "" {
		out.Reason = "REJECTED"
	}
	switch {
	case !out.Code.Valid():
		return a.handlerFailed("it rejected with code %d, which is not a handler's to choose", out.Code)
	case strings.Trim(out.Reason, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "":
		return a.handlerFailed("it rejected with reason %.100q, which is not of capital letters, digits and underscores", out.Reason)
	case !utf8.ValidString(out.Message):
		return a.handlerFailed("it rejected with a text that is not UTF-8")
	}
	out.Reason, out.Message = cut(out.Reason, 64), cut(out.Message, a.rt.cfg.Limits.Text)
	return &out
}

// handlerFailed is for a handler that returned without a panic, but not what it
// may return.
func (a *activation) handlerFailed(format string, args ...any) error {
	return a.logged(&handlerError{howInvalid, "the handler failed: " + fmt.Sprintf(format, args...)})
}

func (a *activation) logged(f *handlerError) error {
	a.rt.log.Error("a handler failed", a.attr(), slog.String("message", a.handles), errAttr(f))
	return f
}

func (a *activation) encode(m proto.Message) (*recordv1.Payload, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return &recordv1.Payload{Type: string(m.ProtoReflect().Descriptor().FullName()), Schema: a.def.Schema(), Data: data}, nil
}

// emptyCommit changes nothing but the version.
func (a *activation) emptyCommit() *recordv1.Commit {
	return &recordv1.Commit{Entity: toRef(a.ref), BaseVersion: a.current.version}
}

// compose makes the commit of a decision. It changes nothing in the activation:
// the record may still turn out too large.
func (a *activation) compose(d *decision, from origin) (*recordv1.Commit, error) {
	commit := a.emptyCommit()
	state, err := a.encode(d.state)
	if err != nil {
		return nil, a.handlerFailed("its state: %v", err)
	}
	limits := a.rt.cfg.Limits
	if size := len(state.GetData()); size > limits.State {
		return nil, tooLarge("state", "State", size, limits.State)
	}
	if commit.Tombstone = d.deleted; !d.deleted {
		commit.Mutations = []*recordv1.Mutation{{Bucket: recordv1.Bucket_STATE, Value: state}}
	}
	if len(d.emitted) > limits.Rows {
		return nil, entity.TooMany("emitted events", limitName("Rows"), len(d.emitted), limits.Rows)
	}
	numbered := map[entity.Ref]uint64{}
	for i, e := range d.emitted {
		row, err := a.row(e, from)
		if err != nil {
			return nil, err
		}
		if _, known := numbered[e.To]; !known {
			if numbered[e.To], err = a.numbered(e.To); err != nil {
				return nil, err
			}
		}
		numbered[e.To]++
		row.Sequence, row.LaneSequence = a.sequence+uint64(i)+1, numbered[e.To]
		commit.Rows = append(commit.Rows, row)
	}
	if len(d.timers) == 0 && !d.deleted && d.fired == nil {
		return commit, nil
	}
	return commit, a.composeTimers(commit, d, from)
}

// row makes the row of one emission, without its numbers.
func (a *activation) row(e entity.Emission, from origin) (*recordv1.Row, error) {
	if e.Event == nil || !e.Event.ProtoReflect().IsValid() {
		return nil, a.handlerFailed("it emitted no message")
	}
	if !validName(e.To.Kind, maxKind) {
		return nil, a.handlerFailed("it emitted %s to the kind %q: a kind's name is a text of 1 to %d bytes", eventName(e), cut(e.To.Kind, maxKind), maxKind)
	}
	if most := a.rt.cfg.Limits.Name; !validName(e.To.ID, most) {
		return nil, a.handlerFailed("it emitted %s to an id of kind %q that begins with %q and has %d bytes: an id is a text of 1 to %d bytes, and a handler rejects what leads to another one",
			eventName(e), e.To.Kind, cut(e.To.ID, 32), len(e.To.ID), most)
	}
	event, err := a.encode(e.Event)
	if err != nil {
		return nil, a.handlerFailed("its event: %v", err)
	}
	if size, most := len(event.GetData()), a.rt.cfg.Limits.Event; size > most {
		return nil, tooLarge("event", "Event", size, most)
	}
	return &recordv1.Row{
		Source: toRef(a.ref), Epoch: a.lease.Epoch(), Destination: toRef(e.To), Event: event,
		AcceptedAt: from.acceptedAt, Parent: from.parent, Hops: from.hops, Trace: from.trace,
	}, nil
}

func eventName(e entity.Emission) string {
	return string(e.Event.ProtoReflect().Descriptor().FullName())
}

// maxKind is the longest name of a kind. A kind need not be defined here: its
// lane is then parked.
const maxKind = 64

// advance proposes a commit and goes on with what it leads to.
func (a *activation) advance(p *proposal) {
	a.current = p.after
	a.sequence += uint64(len(p.commit.GetRows()))
	a.out.number(p.commit.GetRows())
	a.proposedTimers(p)
	if p.commit.GetTombstone() {
		a.weigh(0)
	}
	for _, m := range p.commit.GetMutations() {
		if m.GetBucket() == recordv1.Bucket_STATE {
			a.weigh(len(m.GetValue().GetData()))
		}
	}
	a.propose(&recordv1.Record{Body: &recordv1.Record_Commit{Commit: p.commit}}, p)
}

func errAttr(err error) slog.Attr { return slog.Any("error", err) }
