package membership

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"
)

// logWriter takes memberlist's lines, "[LEVEL] memberlist: text", into slog. A
// line that keeps coming back is written once in a while only. What the library
// calls an error is trouble with some other node: a warning here.
type logWriter struct {
	logger *slog.Logger

	mu   sync.Mutex
	last map[string]time.Time
}

const (
	logRepeatAfter = 30 * time.Second
	logLinesMax    = 256
)

func (w *logWriter) Write(line []byte) (int, error) {
	level, text := parseLine(line)
	ctx := context.Background()
	if !w.logger.Enabled(ctx, level) || w.repeated(text) {
		return len(line), nil
	}
	w.logger.LogAttrs(ctx, level, text)
	return len(line), nil
}

func parseLine(line []byte) (slog.Level, string) {
	level := slog.LevelInfo
	for _, p := range []struct {
		prefix string
		level  slog.Level
	}{{"[DEBUG]", slog.LevelDebug}, {"[INFO]", slog.LevelInfo}, {"[WARN]", slog.LevelWarn}, {"[ERR]", slog.LevelWarn}, {"[ERROR]", slog.LevelWarn}} {
		if rest, ok := bytes.CutPrefix(line, []byte(p.prefix)); ok {
			level, line = p.level, rest
			break
		}
	}
	line = bytes.TrimPrefix(bytes.TrimSpace(line), []byte("memberlist: "))
	return level, "gossip: " + string(bytes.ToValidUTF8(line, []byte("?")))
}

func (w *logWriter) repeated(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if at, ok := w.last[text]; ok && now.Sub(at) < logRepeatAfter {
		return true
	}
	if w.last == nil || len(w.last) >= logLinesMax {
		w.last = map[string]time.Time{}
	}
	w.last[text] = now
	return false
}
