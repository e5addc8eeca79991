package replica

import (
	"fmt"
	"log/slog"
	"time"
)

// watchLog fails all replicas when the shared log fails, and takes replicas out of
// their groups while a write hangs.
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
				g.watch()
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

// watch suspends the group while a write has taken longer than its limit: a leader
// whose disk is frozen would go on sending heartbeats, and nobody would take over.
// It resumes when the write has ended.
//
// A write to the log suspends every replica. A flush suspends only a leader: a
// follower has what it acknowledges in its log, and a majority may hang on it.
func (g *group) watch() {
	why, leave := "", g.suspended.Load()
	if d := g.log.appendingFor(); d > g.timing.Stall {
		why, leave = fmt.Sprintf("a write to the log has been hanging for %v", d.Round(time.Second)), true
	} else if d := g.flushingFor(); d > g.timing.FlushStall {
		why, leave = fmt.Sprintf("a flush of the shard file has been hanging for %v", d.Round(time.Second)), leave || g.leads()
	}
	before := g.hanging.Swap(&why)
	switch was := before != nil && *before != ""; {
	case why != "" && !was:
		g.logger.Error("the disk hangs", slog.String("reason", why))
	case why == "" && was:
		g.logger.Warn("the disk answers again")
	}
	switch {
	case why != "" && leave && !g.suspended.Load():
		g.suspended.Store(true)
		g.logger.Error("the replica leaves its group until its disk answers")
		g.trans.suspend()
		if g.onSuspend != nil {
			g.onSuspend()
		}
	case why == "" && g.suspended.Load():
		g.suspended.Store(false)
		g.logger.Warn("the replica returns to its group")
		g.trans.resume()
	}
}

// hangs says what hangs, "" for nothing.
func (g *group) hangs() string {
	if why := g.hanging.Load(); why != nil {
		return *why
	}
	return ""
}
