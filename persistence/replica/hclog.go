package replica

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// raftLogQuiet is the pause between two warnings of the same text from one group:
// raft repeats them at every attempt to reach a dead peer.
const raftLogQuiet = 10 * time.Second

// raftLogger hands raft's log to slog: its chatter as Debug, what it calls a
// warning or an error as Warn. Raft speaks of an error when a peer is away, which
// is nothing that an operator could act on here.
type raftLogger struct {
	hclog.Logger // answers the rest of the interface
	to           *slog.Logger
	recent       *recentTexts
}

func newRaftLogger(to *slog.Logger) hclog.Logger {
	return &raftLogger{Logger: hclog.NewNullLogger(), to: to, recent: &recentTexts{last: map[string]time.Time{}}}
}

func (l *raftLogger) Log(level hclog.Level, msg string, args ...any) {
	switch level {
	case hclog.Warn, hclog.Error:
		if l.recent.fresh(msg) {
			l.to.Warn("raft: "+msg, args...)
		}
	case hclog.Info, hclog.Debug:
		l.to.Debug("raft: "+msg, args...)
	case hclog.Trace, hclog.NoLevel, hclog.Off:
	}
}

func (l *raftLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *raftLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *raftLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *raftLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l *raftLogger) IsDebug() bool { return l.to.Enabled(context.Background(), slog.LevelDebug) }
func (l *raftLogger) IsInfo() bool  { return l.IsDebug() }
func (l *raftLogger) IsWarn() bool  { return true }
func (l *raftLogger) IsError() bool { return true }

func (l *raftLogger) With(args ...any) hclog.Logger {
	return &raftLogger{Logger: l.Logger, to: l.to.With(args...), recent: l.recent}
}
func (l *raftLogger) Named(string) hclog.Logger      { return l }
func (l *raftLogger) ResetNamed(string) hclog.Logger { return l }

// recentTexts remembers when a text was last logged. Raft's texts are constants,
// so it stays small.
type recentTexts struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (r *recentTexts) fresh(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.last[text]) < raftLogQuiet {
		return false
	}
	r.last[text] = now
	return true
}
