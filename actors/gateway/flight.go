package gateway

import (
	"context"
	"errors"
	"time"

	"writ/actors/entity"
)

// DefaultSupersededGrace is how long an answer is still awaited from a node whose
// shard another one leads by now. A planned transfer lets the old leader finish
// what it has in hand; a frozen one says nothing, for as long as its connection
// seems alive, and nobody should wait for that.
const DefaultSupersededGrace = 250 * time.Millisecond

// flight is a call in progress at another node.
type flight struct {
	at     target
	cancel context.CancelFunc
	timer  *time.Timer // guarded by Router.mu; set once the node is superseded
}

// unlessSuperseded makes a sender that gives a call to another node up,
// OUTCOME_UNKNOWN, when that node has been superseded and does not answer.
func unlessSuperseded[Resp any](r *Router, send sender[Resp]) sender[Resp] {
	return func(ctx context.Context, at target) (Resp, error) {
		if at.node == r.cfg.Node {
			return send(ctx, at)
		}
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		f := &flight{at: at, cancel: cancel}
		r.takeOff(f)
		defer r.land(f)
		resp, err := send(own, at)
		if errors.Is(err, context.Canceled) && ctx.Err() == nil {
			err = entity.Errorf(entity.OutcomeUnknown, "node %s does not answer and no longer leads shard %d: retry with the same key",
				short(at.node, 64), at.shard)
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
		f.timer = time.AfterFunc(r.cfg.SupersededGrace, f.cancel)
	}
}
