package actors

import (
	"log/slog"
	"sync"
	"time"

	"writ/actors/entity"
)

// handling is a handler that runs.
type handling struct {
	shard   *shard // nil for a query
	ref     entity.Ref
	message string // the full name of its type
	since   time.Time
	told    bool
}

// handlings are all handlers that run in a node, so that one that does not come
// back has a name. It is safe for concurrent use.
type handlings struct {
	mu   sync.Mutex
	runs map[*handling]struct{}
}

func (h *handlings) begin(s *shard, ref entity.Ref, message string) *handling {
	one := &handling{shard: s, ref: ref, message: message, since: time.Now()}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs == nil {
		h.runs = map[*handling]struct{}{}
	}
	h.runs[one] = struct{}{}
	return one
}

func (h *handlings) end(one *handling) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.runs, one)
}

// hanging are handlers that have run for so long; each is returned once.
func (h *handlings) hanging(now time.Time, patience time.Duration) (list []*handling) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for one := range h.runs {
		if !one.told && now.Sub(one.since) >= patience {
			one.told = true
			list = append(list, one)
		}
	}
	return list
}

// of are the handlers that run in a shard.
func (h *handlings) of(s *shard) (list []*handling) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for one := range h.runs {
		if one.shard == s {
			list = append(list, one)
		}
	}
	return list
}

func (h *handling) attrs() []any {
	return []any{
		slog.String("entity", h.ref.String()), slog.String("message", h.message), slog.Duration("for", time.Since(h.since).Round(time.Millisecond)),
	}
}

// watchHandlers names the handlers that do not come back.
func (r *Runtime) watchHandlers(now time.Time) {
	for _, one := range r.handlings.hanging(now, r.cfg.Patience) {
		text := "a handler does not come back: its entity stands still until it does"
		if one.shard == nil {
			text = "a handler does not come back: it is a query, and holds up nobody but its caller"
		}
		r.log.Error(text, one.attrs()...)
		r.cfg.Metrics.Add(HandlersHung, "", 1)
	}
}
