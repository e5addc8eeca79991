// Package trace is how Writ's packages report a command's steps without knowing
// who listens: cmd/node/node connects them to OpenTelemetry. A trace goes from
// step to step as a W3C traceparent, in requests and in rows, so that everything
// that comes of a command is one trace, on whatever node and however late.
//
// A nil [Tracer] means that tracing is off. Compare with nil before making
// attributes, and it costs nothing.
package trace

import "log/slog"

// Step names a span. The values are span names.
type Step string

// The steps of a command and of its events.
const (
	// Submit: a gateway takes a client's command and answers it.
	Submit Step = "writ.submit"
	// Commit: an entity decides a command, and the record has its verdict.
	Commit Step = "writ.commit"
	// Send: a relay sends a row and gets an answer. One for each attempt.
	Send Step = "writ.send"
	// Apply: an entity handles an event, and the record has its verdict.
	Apply Step = "writ.apply"
	// Fire: a timer fires, and the record has its verdict.
	Fire Step = "writ.fire"
)

// Tracer makes spans. Its methods may be called from any goroutine and never
// block.
type Tracer interface {
	// Begin begins a span in the trace of a traceparent, or in a new one if that is
	// empty or not one. Nil: the trace is not sampled.
	Begin(traceparent string, step Step, attrs ...slog.Attr) Span
	// Follow begins a span in the trace of a traceparent. Nil: there is none, or it
	// is not sampled.
	Follow(traceparent string, step Step, attrs ...slog.Attr) Span
}

// Span is a step that has begun.
type Span interface {
	// Traceparent is the parent of the steps that come of this one.
	Traceparent() string
	Set(attrs ...slog.Attr)
	// End ends the step, once; an error says why it has failed.
	End(err error)
}
