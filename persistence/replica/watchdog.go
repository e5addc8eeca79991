package replica

import (
	"fmt"
	"log/slog"
	"sync/atomic"
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
			h.watchGroups()
		case <-h.ctx.Done():
			return
		}
	}
}

func (h *Host) watchGroups() {
	groups, flushes, log := h.groups(), 0, time.Duration(0)
	for _, g := range groups {
		log = max(log, g.log.appendingFor())
	}
	for _, r := range h.Replicas() { // failed ones too: their flushes hold slots
		if writing, _ := r.flushingFor(); writing > h.config.Timing.FlushStall {
			flushes++
		}
	}
	for _, g := range groups {
		g.watch(log, flushes >= cap(h.flushSlot))
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
// A write to the log suspends the replica that makes it, and every leader of the
// node: they share the log. A flush suspends only a leader: a follower has what it
// acknowledges in its log, and a majority may hang on it. With stuck, flushes hang
// in all slots of the node: a flush that waits for one hangs as well.
func (g *group) watch(log time.Duration, stuck bool) {
	why, leave, suspended := "", false, g.suspended.Load()
	if log > g.timing.Stall {
		own := g.log.appendingFor() > g.timing.Stall
		why, leave = fmt.Sprintf("a write to the log has been hanging for %v", log.Round(time.Second)), suspended || own || g.leads()
		g.ledFlush = g.ledFlush && suspended
	} else if d := g.flushHangsFor(stuck); d > g.timing.FlushStall {
		why = fmt.Sprintf("a flush of the shard file has been hanging for %v", d.Round(time.Second))
		g.ledFlush = g.ledFlush && suspended || g.leads()
		leave = g.ledFlush
	} else {
		g.ledFlush = false
	}
	before := g.hanging.Swap(&why)
	switch was := before != nil && *before != ""; {
	case why != "" && !was:
		g.logger.Error("the disk hangs", slog.String("reason", why))
	case why == "" && was:
		g.logger.Warn("the disk answers again")
	}
	switch {
	case leave && !suspended:
		g.suspended.Store(true)
		g.logger.Error("the replica leaves its group until its disk answers")
		g.trans.suspend()
		if g.onSuspend != nil {
			g.onSuspend()
		}
	case !leave && suspended:
		g.suspended.Store(false)
		g.logger.Warn("the replica returns to its group")
		g.trans.resume()
	}
}

func (g *group) flushHangsFor(stuck bool) time.Duration {
	writing, waiting := g.flushingFor()
	if stuck {
		return max(writing, waiting)
	}
	return writing
}

// hangs says what hangs, "" for nothing.
func (g *group) hangs() string {
	if why := g.hanging.Load(); why != nil {
		return *why
	}
	return ""
}

// flushWatch is when the flush of a replica's file on its way began: to wait for its
// slot, and to write. Numbers are nanoseconds since born, 0 for what is not.
type flushWatch struct {
	born             time.Time
	waiting, writing atomic.Int64
}

func (f *flushWatch) now() int64 { return int64(time.Since(f.born)) }
func (f *flushWatch) due()       { f.waiting.Store(f.now()) }
func (f *flushWatch) end()       { f.writing.Store(0) }

func (f *flushWatch) begin() {
	f.waiting.Store(0)
	f.writing.Store(f.now())
}

// age is how long it has been writing, or waiting for its slot, so far.
func (f *flushWatch) age() (writing, waiting time.Duration) {
	since := func(began int64) time.Duration {
		if began == 0 {
			return 0
		}
		return time.Duration(f.now() - began)
	}
	return since(f.writing.Load()), since(f.waiting.Load())
}
