package actors

import (
	"bytes"
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/actors/entity"
	"writ/internal/mutant"
	"writ/internal/trace"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	writv1 "writ/proto/writ/v1"
)

// submit is a command, checked and decoded at the front door.
type submit struct {
	id          keyID
	handler     *entity.Handler
	command     proto.Message
	size        int
	fingerprint []byte
	issuedAt    time.Time // zero: not said
	ifVersion   *uint64
	noWait      bool
	tag         uint64
	trace       string
}

// keyID names an idempotency key within its entity.
type keyID struct{ commandType, key string }

// domain stands in the ErrorInfo of a rejection.
const domain = "writ"

// openSubmit checks a command's form, decodes it and computes its fingerprint, so
// that the entity's turn is not spent on it.
func (r *Runtime) openSubmit(c *call, req *nodev1.ForwardRequest, body *writv1.SubmitRequest) error {
	ref, def, err := r.checkRef(req.GetTenant(), body.GetEntity())
	if err != nil {
		return err
	}
	name := typeName(body.GetCommand())
	h := def.Command(name)
	if h == nil {
		return entity.Errorf(entity.Invalid, "kind %q has no command %q", def.Name(), cut(name, 256))
	}
	s := &submit{
		id: keyID{name, requestKey(body)}, handler: h, size: len(body.GetCommand().GetValue()),
		ifVersion: body.IfVersion, noWait: body.GetNoWait(), tag: body.GetTag(), trace: traceparent(req.GetTrace()),
	}
	if !h.AtLeastOnce && (s.id.key == "" || len(s.id.key) > r.cfg.Limits.Key) {
		return r.badKey(s.id.key)
	}
	if s.issuedAt, err = issuedAt(body.GetIssuedAt()); err != nil {
		return err
	}
	s.command = h.Type.New().Interface()
	if err := proto.Unmarshal(body.GetCommand().GetValue(), s.command); err != nil {
		return entity.Errorf(entity.Invalid, "the command's bytes are not a %s", name)
	}
	if path, found := entity.UnknownField(s.command); found {
		return entity.Errorf(entity.Invalid, "the command has a field that this node does not know: %s", cut(path, 256)).
			With("field", cut(path, 256))
	}
	s.fingerprint = entity.Fingerprint(s.command)
	c.ref, c.work = ref, s
	return nil
}

// issuedAt is when a client says that it first sent a command; zero: not said.
func issuedAt(at *timestamppb.Timestamp) (time.Time, error) {
	if at == nil {
		return time.Time{}, nil
	}
	if err := at.CheckValid(); err != nil {
		return time.Time{}, entity.Errorf(entity.Invalid, "issued_at is not a valid time")
	}
	if at.GetSeconds() < 0 {
		return time.Time{}, entity.Errorf(entity.Invalid, "issued_at lies before 1970")
	}
	return at.AsTime(), nil
}

func errExpired() *entity.Error {
	return entity.Errorf(entity.Expired, "the command was issued so long ago that its key may have been forgotten: whether it executed is not known")
}

// keyed is a request with an idempotency key.
type keyed interface {
	GetIdempotencyKey() string
	GetIdempotencyKeyBytes() []byte
}

// requestKey is the key of a request by its bytes, as text or not.
func requestKey(req keyed) string {
	return cmp.Or(req.GetIdempotencyKey(), string(req.GetIdempotencyKeyBytes()))
}

// traceparent keeps a W3C traceparent and drops anything longer or not printable.
func traceparent(header string) string {
	const most = 128
	if len(header) > most || strings.ContainsFunc(header, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return header
}

// submit does one command: deduplication before everything else, since what
// follows may change between versions and retries.
func (a *activation) submit(c *call, s *submit) {
	if !s.handler.AtLeastOnce {
		if p := a.keys[s.id]; p != nil && !mutant.Off(mutant.InFlightKey) {
			a.join(c, s, p)
			return
		}
		stored, err := a.shard.store.Key(a.ref, s.id.commandType, []byte(s.id.key))
		if err != nil {
			a.unreadable(c, "idempotency key", err)
			return
		}
		if stored != nil {
			a.recall(c, s, stored)
			return
		}
		if err := a.issued(s.issuedAt); err != nil {
			a.refuseForGood(c, err)
			return
		}
	}
	if err := a.admit(s); err != nil {
		c.refuse(err)
		return
	}
	if s.ifVersion != nil && *s.ifVersion != a.current.version {
		a.refuseForGood(c, entity.Errorf(entity.VersionMismatch, "the entity is at version %d, not %d", a.current.version, *s.ifVersion).
			With("version", strconv.FormatUint(a.current.version, 10)))
		return
	}
	a.decide(c, s)
}

// join deals with a key that is in flight.
func (a *activation) join(c *call, s *submit, p *proposal) {
	key, result := p.commit.GetKey(), p.commit.GetOutcome()
	if s.noWait {
		c.refuse(entity.Errorf(entity.InFlight, "a command with this key is being executed: ask for its outcome").Retry(retryInFlight))
		return
	}
	same := sameCommand(s, key)
	p.then = append(p.then, func(err error) {
		switch {
		case result.GetDecision() == recordv1.Outcome_CANCELLED && err == nil:
			c.refuse(errCancelled())
		case err == nil && same:
			a.rt.cfg.Metrics.Add(Attached, "", 1)
			c.answer(forwardSubmit(submitResponse(key, result, s.tag, true)), nil)
		case err == nil:
			c.refuse(errKeyReused())
		case same:
			c.refuse(err)
		default:
			c.refuse(ownless(err))
		}
	})
}

const retryInFlight = 100 * time.Millisecond

// recall answers from what is stored under the key.
func (a *activation) recall(c *call, s *submit, stored *recordv1.KeyRecord) {
	key, result := stored.GetKey(), stored.GetOutcome()
	switch {
	case result.GetDecision() == recordv1.Outcome_CANCELLED:
		c.refuse(errCancelled())
	case key.GetFingerprintAlgorithm() != entity.FingerprintAlgorithm:
		c.refuse(entity.Errorf(entity.NotExecuted, "the key was stored with fingerprint algorithm %d, which this node does not know",
			key.GetFingerprintAlgorithm()))
	case !sameCommand(s, key):
		c.refuse(errKeyReused())
	default:
		a.rt.cfg.Metrics.Add(Replayed, "", 1)
		c.answer(forwardSubmit(submitResponse(key, result, s.tag, true)), nil)
	}
}

func sameCommand(s *submit, key *recordv1.Key) bool {
	return bytes.Equal(s.fingerprint, key.GetFingerprint())
}

func errKeyReused() *entity.Error {
	return entity.Errorf(entity.KeyReused, "the key was used for another payload: use a new key for a new intent")
}

func errCancelled() *entity.Error {
	return entity.Errorf(entity.Cancelled, "the key was cancelled: its command will not execute within the key's window")
}

// unreadable answers when the store fails.
func (a *activation) unreadable(c *call, what string, err error) {
	a.rt.log.Error("cannot read "+what, a.attr(), errAttr(err))
	c.refuse(entity.Errorf(entity.NotExecuted, "the %s could not be read: retry with the same key; the log of node %s says why", what, a.rt.cfg.Node))
}

// mayBeForgotten reports that a command issued at the given time, zero for not
// said, whose key is not stored, may have executed so long ago that its key was
// forgotten. No command is accepted before it was issued (see decide), so what is
// forgotten through a time holds every key that was issued by then, whatever clocks
// said: the comparison needs no clock. A client's clock may run ahead when it has
// its key cancelled, so times shortly after count as well.
func (a *activation) mayBeForgotten(at time.Time) bool {
	if at.IsZero() {
		return false
	}
	through := a.shard.store.ExpiredThrough()
	return through != 0 && nanos(at.Add(-a.rt.cfg.skew())) <= through
}

// issued checks when a command was issued whose key is not stored. It may have
// been forgotten; or it is issued in a future so far that its key, forgotten, would
// make what others issue now look old.
func (a *activation) issued(at time.Time) error {
	if a.mayBeForgotten(at) {
		return errExpired()
	}
	if ahead, most := at.Sub(a.rt.cfg.Clock()), a.rt.cfg.ahead(); ahead > most {
		return entity.Errorf(entity.Invalid, "issued_at lies %v ahead of the clock of node %s, more than %v: set the clock that is wrong, the client's or the node's, and issue the command anew",
			ahead.Round(time.Millisecond), a.rt.cfg.Node, most)
	}
	return nil
}

// admit checks a new command against limits and load.
func (a *activation) admit(s *submit) error {
	if s.size > a.rt.cfg.Limits.Command {
		return tooLarge("command", "Command", s.size, a.rt.cfg.Limits.Command)
	}
	if a.out.pending >= a.rt.cfg.Limits.Outbox {
		return a.outboxFull()
	}
	return a.room()
}

// room checks that the lease has room for one more record.
func (a *activation) room() error {
	records, bytes := a.lease.Load()
	if most := a.rt.cfg.Limits.Proposals; records >= most {
		return overloaded(bound{"Proposals", int64(most)}, "shard %d has too many records in flight", a.shard.number)
	}
	if most := a.rt.cfg.Limits.ProposalBytes; bytes >= most {
		return overloaded(bound{"ProposalBytes", int64(most)}, "shard %d has records of too many bytes in flight", a.shard.number)
	}
	return nil
}

func (a *activation) outboxFull() error {
	return overloaded(bound{"Outbox", int64(a.rt.cfg.Limits.Outbox)}, "the entity has %d events that are not confirmed yet", a.out.pending)
}

// accepted is the acceptance time of a command, or of a cancelled key, that says when it was issued. It is
// not earlier: else a client ahead of this clock could not be told from a later one.
// Nor is it later by more than the key outlives it: else, with this clock far ahead,
// what clients issue once the key is forgotten would look old.
func (a *activation) accepted(now, issued int64) int64 {
	return min(max(now, issued), later(issued, a.rt.cfg.window(a.def)-a.rt.cfg.skew()))
}

// decide runs the handler and proposes what it decided.
func (a *activation) decide(c *call, s *submit) {
	now := a.rt.cfg.Clock()
	accepted := now.UnixNano()
	if !s.handler.AtLeastOnce && !s.issuedAt.IsZero() {
		accepted = a.accepted(accepted, nanos(s.issuedAt))
	}
	hand := commandInHand(a.ref, s.id.commandType, s.id.key)
	if s.handler.AtLeastOnce { // nothing else tells one that ends the process from those that do not
		hand = callInHand(commandHand, a.ref, s.id.commandType, s.fingerprint)
	}
	if n := a.rt.cfg.Hands.Crashes(hand); n >= a.rt.cfg.MaxCrashes {
		a.refuseForGood(c, entity.Errorf(entity.HandlerPanic, "processes of the cluster have ended %d times while they ran the command's handler: it is not run again until an operator allows it (node crashes forget)", n))
		return
	}
	span := a.commitSpan(s)
	ctx := entity.NewContext(a.ref, entity.Ref{}, now.UTC())
	d, commit, result, err := a.execute(s.handler, ctx, s.command, hand, nil, origin{acceptedAt: accepted, trace: traceAfter(span, s.trace), hops: 1})
	if err != nil {
		a.undecided(c, err, span)
		return
	}
	result.Trace = traceAfter(span, "")
	key := &recordv1.Key{CommandType: s.id.commandType, AcceptedAt: accepted}
	if !s.handler.AtLeastOnce {
		a.fillKey(key, s)
		commit.Key, commit.Outcome = key, result
	} else if result.GetDecision() == recordv1.Outcome_REJECTED { // nothing to store: an answer without a record
		result.Version--
		endSpan(span, nil)
		a.barrier(func(err error) { a.finish(c, s, key, result, ownless(err)) })
		return
	}
	if size := proto.Size(commit); size > a.rt.cfg.Limits.Record {
		a.undecided(c, tooLarge("record", "Record", size, a.rt.cfg.Limits.Record), span)
		return
	}
	p := &proposal{commit: commit, after: snapshot{result.GetVersion(), d.state}, timers: d.changes}
	if span != nil {
		span.Set(decided(result), slog.Int("writ.rows", len(commit.GetRows())))
		p.then = append(p.then, span.End)
	}
	p.then = append(p.then, func(err error) { a.finish(c, s, key, result, err) })
	if commit.Key != nil {
		a.keep(s.id, p)
	}
	a.advance(p)
}

// emittedMost bounds the lanes that an outcome names: it is kept for a whole window.
const emittedMost = 8

// emitted is what an outcome tells of a command's rows. A command numbers the rows
// of each lane one after the other.
func emitted(rows []*recordv1.Row) (n uint32, lanes []*recordv1.Emitted) {
	for _, row := range rows {
		to := row.GetDestination()
		i := slices.IndexFunc(lanes, func(e *recordv1.Emitted) bool { return e.GetId() == to.GetId() && e.GetKind() == to.GetKind() })
		switch {
		case i >= 0:
			lanes[i].Rows++
		case len(lanes) == emittedMost:
			return uint32(len(rows)), nil
		default:
			lanes = append(lanes, &recordv1.Emitted{Kind: to.GetKind(), Id: to.GetId(), LaneSequence: row.GetLaneSequence(), Rows: 1})
		}
	}
	return uint32(len(rows)), lanes
}

func (a *activation) fillKey(key *recordv1.Key, s *submit) {
	key.Key = []byte(s.id.key)
	key.FingerprintAlgorithm, key.Fingerprint = entity.FingerprintAlgorithm, s.fingerprint
	key.ExpiresAt = a.expiry()
}

// expiry is the log time until which a key that is stored now is remembered.
func (a *activation) expiry() int64 { return expiry(a.lease.LogTime(), a.rt.cfg.window(a.def)) }

// windowSlices is the number of slices of a window whose keys are forgotten
// together.
const windowSlices = 24

// expiry is the end of the slice in which a window ends. The store's own slices are
// as narrow as the window was when the cluster began: under a window that has grown
// a thousandfold since then, keys that expired each at its own time would lie in
// thousands of them, each with a filter that every new key is looked up in.
func expiry(logTime int64, window time.Duration) int64 {
	end, slice := later(logTime, window), max(1, int64(window)/windowSlices)
	if over := end % slice; over != 0 {
		return later(end, time.Duration(slice-over))
	}
	return end
}

// finish answers the caller whose command was decided.
func (a *activation) finish(c *call, s *submit, key *recordv1.Key, result *recordv1.Outcome, err error) {
	if err != nil {
		c.refuse(err)
		return
	}
	if result.GetDecision() == recordv1.Outcome_REJECTED {
		a.rt.cfg.Metrics.Add(Rejected, "", 1)
	} else {
		a.rt.cfg.Metrics.Add(Executed, "", 1)
	}
	c.answer(forwardSubmit(submitResponse(key, result, s.tag, false)), nil)
}

// undecided answers a command that left no record: its handler failed, or made
// too much, both of the state before it. A failed handler costs the activation, and
// its caller hears of it, but not what happened: that may be nobody's business and
// stands in the log.
func (a *activation) undecided(c *call, err error, span trace.Span) {
	endSpan(span, err)
	if failed, ok := errors.AsType[*handlerError](err); ok {
		a.breakOff()
		err = entity.Errorf(entity.HandlerPanic, "the command's handler %s: nothing was stored; see the log of node %s", failed.how, a.rt.cfg.Node)
	}
	a.refuseForGood(c, err)
}

// refuseForGood is the refusal of a command of which the client is told that nothing
// was executed under its key, so that it may send another one. It waits until what it rests on is committed and the
// lease is known to hold: under another leader the key may have been executed.
func (a *activation) refuseForGood(c *call, err error) {
	a.barrier(func(earlier error) {
		if earlier != nil {
			err = ownless(earlier)
		}
		c.refuse(err)
	})
}

// keep puts a key in flight.
func (a *activation) keep(id keyID, p *proposal) {
	if a.keys == nil {
		a.keys = map[keyID]*proposal{}
	}
	a.keys[id] = p
}

// committedKey takes a key out of flight: from here on the store knows it, or
// nobody does.
func (a *activation) committedKey(p *proposal) {
	if key := p.commit.GetKey(); key != nil {
		id := keyID{key.GetCommandType(), string(key.GetKey())}
		if a.keys[id] == p {
			delete(a.keys, id)
		}
	}
}

// submitResponse is the answer that a key stands for: the same for the first
// caller and for all later ones, but for the flag.
func submitResponse(key *recordv1.Key, result *recordv1.Outcome, tag uint64, replayed bool) *writv1.SubmitResponse {
	answer := &writv1.SubmitResponse{
		Reply:      toAny(result.GetReply()),
		Replayed:   replayed,
		AcceptedAt: timestamppb.New(time.Unix(0, key.GetAcceptedAt())),
		Version:    result.GetVersion(),
		Tag:        tag,
	}
	if result.GetDecision() == recordv1.Outcome_REJECTED {
		answer.Rejection = rejectionStatus(result)
	}
	return answer
}

func rejectionStatus(result *recordv1.Outcome) *spb.Status {
	st := &spb.Status{Code: int32(result.GetCode()), Message: result.GetMessage()}
	info, err := anypb.New(&errdetails.ErrorInfo{Reason: result.GetReason(), Domain: domain})
	if err == nil { // fails only for text that is not UTF-8, which no record can hold
		st.Details = append(st.Details, info)
	}
	return st
}

func forwardSubmit(s *writv1.SubmitResponse) *nodev1.ForwardResponse {
	return &nodev1.ForwardResponse{Answer: &nodev1.ForwardResponse_Submit{Submit: s}}
}
