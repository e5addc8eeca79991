package replica

import "time"

// watchLog fails all replicas when the shared log fails, and takes the node out of
// its groups while an append hangs.
func (h *Host) watchLog() {
	ticker := time.NewTicker(h.config.Timing.Stall / 8)
	defer ticker.Stop()
	for {
		select {
		case <-h.log.failed:
			h.failAll(*h.log.failure.Load())
			return
		case <-ticker.C:
			for _, g := range h.groups() {
				g.watchAppend(h.config.Timing.Stall)
			}
		case <-h.ctx.Done():
			return
		}
	}
}

func (h *Host) failAll(err error) {
	for _, r := range h.Replicas() {
		r.fail(err)
	}
	h.mu.Lock()
	meta := h.meta
	h.mu.Unlock()
	if meta != nil {
		meta.fail(err)
	}
}

// watchAppend suspends the group while its append in progress has taken longer
// than the limit: a leader whose disk is frozen would go on sending heartbeats,
// and nobody would take over. It resumes when the append has ended.
func (g *group) watchAppend(limit time.Duration) {
	hangs := g.log.appendingFor() > limit
	switch {
	case hangs && !g.suspended.Load():
		g.suspended.Store(true)
		g.logger.Error("an append to the log hangs: the replica leaves its group until it ends")
		g.trans.suspend()
		if g.onSuspend != nil {
			g.onSuspend()
		}
	case !hangs && g.suspended.Load():
		g.suspended.Store(false)
		g.logger.Warn("the log answers again: the replica returns to its group")
		g.trans.resume()
	}
}
