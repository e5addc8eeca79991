package cluster

import (
	"log/slog"
	"sync"
)

// notice logs what a loop has to say once, until it has something else to say.
// It is safe for concurrent use.
type notice struct {
	logger *slog.Logger

	mu   sync.Mutex
	last string
}

func newNotice(logger *slog.Logger) *notice { return &notice{logger: logger} }

// say takes the present state, "" for nothing to tell.
func (n *notice) say(text string) {
	n.mu.Lock()
	changed := n.last != text
	n.last = text
	n.mu.Unlock()
	if changed && text != "" {
		n.logger.Info(text)
	}
}

func (n *notice) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}
