package gateway

import (
	"context"
	"errors"
	"time"

	"writ/actors/entity"
)

// DefaultSupersededGrace is how long an answer is still awaited from a node after
// another one has taken over the shard. In a planned transfer the old leader finishes
// what it has in hand; a frozen one never answers while its connection seems alive,
// and nobody should wait for that.
const DefaultSupersededGrace = 250 * time.Millisecond

// flight is a call in progress at another node.
type flight struct {
	at     target
	cancel context.CancelCauseFunc
	timer  *time.Timer // guarded by Router.mu; set once the node is superseded
}

// errSuperseded ends a call whose node has been superseded and does not answer.
var errSuperseded = errors.New("it no longer leads the shard and does not answer")

// supersededError is the unknown outcome of such a call.
type supersededError struct{ unknown error }

func (e *supersededError) Error() string   { return e.unknown.Error() }
func (e *supersededError) Unwrap() []error { return []error{e.unknown, errSuperseded} }

// unlessSuperseded makes a sender that gives a call to another node up when that
// node has been superseded and does not answer: OUTCOME_UNKNOWN, which is then also
// errSuperseded, or NOT_EXECUTED if nothing was sent.
func unlessSuperseded[Resp any](r *Router, send sender[Resp]) sender[Resp] {
	return func(ctx context.Context, at target) (Resp, error) {
		if at.node == r.cfg.Node {
			return send(ctx, at)
		}
		own, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		f := &flight{at: at, cancel: cancel}
		r.takeOff(f)
		defer r.land(f)
		resp, err := send(own, at)
		if entity.ReasonOf(err) == entity.OutcomeUnknown && errors.Is(context.Cause(own), errSuperseded) {
			err = &supersededError{err}
		}
		return resp, err
	}
}

func (r *Router) takeOff(f *flight) {
	r.mu.Lock()
	r.flights[f] = struct{}{}
	r.mu.Unlock()
	r.supersede(f) // the table may have changed since the target was read from it
}

func (r *Router) land(f *flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.flights, f)
	if f.timer != nil {
		f.timer.Stop()
	}
}

// supersede starts a flight's grace if the table names a later leader. The table
// has locks of its own: r.mu is not held while it is read.
func (r *Router) supersede(f *flight) {
	node, term := r.cfg.Table.Leader(f.at.shard)
	if node == "" || node == f.at.node || term <= f.at.term {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, flies := r.flights[f]; flies && f.timer == nil {
		f.timer = time.AfterFunc(r.cfg.SupersededGrace, func() { f.cancel(errSuperseded) })
	}
}
