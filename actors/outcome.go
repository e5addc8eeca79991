package actors

import (
	"time"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	writv1 "writ/proto/writ/v1"
)

// outcome asks what became of a key; with cancel it also sees to it that a key
// that has not executed never will.
type outcome struct {
	id       keyID
	issuedAt time.Time // zero: not said
	cancel   bool
}

func (r *Runtime) openOutcome(c *call, tenant string, body *writv1.OutcomeRequest, cancel bool) error {
	ref, def, err := r.checkRef(tenant, body.GetEntity())
	if err != nil {
		return err
	}
	o := &outcome{id: keyID{body.GetCommandType(), requestKey(body)}, cancel: cancel}
	h := def.Command(o.id.commandType)
	switch {
	case h == nil:
		return entity.Errorf(entity.Invalid, "kind %q has no command %q", def.Name(), cut(o.id.commandType, 256))
	case h.AtLeastOnce:
		return entity.Errorf(entity.Invalid, "command %q keeps no keys", o.id.commandType)
	case o.id.key == "" || len(o.id.key) > r.cfg.Limits.Key:
		return r.badKey(o.id.key)
	}
	if o.issuedAt, err = issuedAt(body.GetIssuedAt()); err != nil {
		return err
	}
	c.ref, c.work = ref, o
	return nil
}

// outcome answers what is stored at once, since that never changes. A key in
// flight is IN_FLIGHT, at once as well; a cancel waits for it.
func (a *activation) outcome(c *call, o *outcome) {
	if p := a.keys[o.id]; p != nil {
		if !o.cancel {
			c.answer(outcomeState(writv1.OutcomeResponse_IN_FLIGHT), nil)
			return
		}
		p.then = append(p.then, func(err error) { a.answerOutcome(c, p, err) })
		return
	}
	if a.answerStored(c, o) {
		return
	}
	if o.cancel {
		if err := a.issued(o.issuedAt); err != nil {
			a.refuseForGood(c, err)
			return
		}
		a.cancel(c, o)
		return
	}
	a.barrier(func(err error) { a.neverSeen(c, o, err) })
}

// answerStored answers from the store, if the key is there or cannot be read.
func (a *activation) answerStored(c *call, o *outcome) bool {
	stored, err := a.shard.store.Key(a.ref, o.id.commandType, []byte(o.id.key))
	switch {
	case err != nil:
		a.unreadable(c, "idempotency key", err)
	case stored != nil:
		c.answer(outcomeResponse(stored.GetKey(), stored.GetOutcome()), nil)
	default:
		return false
	}
	return true
}

// neverSeen looks again after the barrier: only then is absence certain.
func (a *activation) neverSeen(c *call, o *outcome, err error) {
	switch {
	case err != nil:
		c.refuse(ownless(err))
	case a.answerStored(c, o):
	case a.keys[o.id] != nil:
		c.answer(outcomeState(writv1.OutcomeResponse_IN_FLIGHT), nil)
	case a.mayBeForgotten(o.issuedAt):
		c.answer(outcomeState(writv1.OutcomeResponse_EXPIRED), nil)
	default:
		c.answer(outcomeState(writv1.OutcomeResponse_NEVER_SEEN), nil)
	}
}

// cancel commits the cancelled key. It changes nothing else.
func (a *activation) cancel(c *call, o *outcome) {
	if err := a.room(); err != nil {
		c.refuse(err)
		return
	}
	commit := a.emptyCommit()
	commit.Key = &recordv1.Key{
		CommandType: o.id.commandType, Key: []byte(o.id.key), FingerprintAlgorithm: entity.FingerprintAlgorithm,
		AcceptedAt: a.rt.cfg.Clock().UnixNano(), ExpiresAt: a.expiry(),
	}
	if !o.issuedAt.IsZero() { // as a command's, for the same reasons
		commit.Key.AcceptedAt = a.accepted(commit.GetKey().GetAcceptedAt(), nanos(o.issuedAt))
	}
	commit.Outcome = &recordv1.Outcome{Decision: recordv1.Outcome_CANCELLED, Version: commit.GetBaseVersion() + 1}
	p := &proposal{commit: commit, after: snapshot{commit.GetBaseVersion() + 1, a.current.state}}
	p.then = []func(error){func(err error) { a.answerOutcome(c, p, err) }}
	a.keep(o.id, p)
	a.advance(p)
}

// answerOutcome answers with the outcome of a record that was in flight.
func (a *activation) answerOutcome(c *call, p *proposal, err error) {
	if err != nil {
		c.refuse(err)
		return
	}
	c.answer(outcomeResponse(p.commit.GetKey(), p.commit.GetOutcome()), nil)
}

func outcomeResponse(key *recordv1.Key, result *recordv1.Outcome) *nodev1.ForwardResponse {
	body := &writv1.OutcomeResponse{}
	switch result.GetDecision() {
	case recordv1.Outcome_CANCELLED:
		body.State = writv1.OutcomeResponse_CANCELLED
	case recordv1.Outcome_REJECTED:
		body.State, body.Outcome = writv1.OutcomeResponse_REJECTED, submitResponse(key, result, 0, true)
	case recordv1.Outcome_EXECUTED:
		body.State, body.Outcome = writv1.OutcomeResponse_EXECUTED, submitResponse(key, result, 0, true)
	case recordv1.Outcome_DECISION_UNSPECIFIED: // written by a later version
	}
	return &nodev1.ForwardResponse{Answer: &nodev1.ForwardResponse_Outcome{Outcome: body}}
}

func outcomeState(s writv1.OutcomeResponse_State) *nodev1.ForwardResponse {
	return &nodev1.ForwardResponse{Answer: &nodev1.ForwardResponse_Outcome{Outcome: &writv1.OutcomeResponse{State: s}}}
}
