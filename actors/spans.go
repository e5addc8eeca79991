package actors

import (
	"errors"
	"log/slog"

	"writ/actors/entity"
	"writ/internal/trace"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// The spans of this package. All are nil if tracing is off or the trace is not
// sampled, and then nothing is allocated for them.
//
// A row holds the traceparent of the decision that emitted it. Sends and the
// event's handling follow that, not each other: so a row that is sent again, by
// whatever leader, is seen in the trace of its command.

func entityAttrs(prefix string, ref entity.Ref) []slog.Attr {
	return []slog.Attr{
		slog.String(prefix+".tenant", ref.Tenant), slog.String(prefix+".kind", ref.Kind), slog.String(prefix+".id", ref.ID),
	}
}

// commitSpan begins with the decision of a command.
func (a *activation) commitSpan(s *submit) trace.Span {
	t := a.rt.cfg.Tracer
	if t == nil || s.trace == "" {
		return nil
	}
	return t.Follow(s.trace, trace.Commit, append(entityAttrs("writ.entity", a.ref),
		slog.Uint64("writ.shard", uint64(a.shard.number)), slog.String("writ.command", s.id.commandType), slog.String("writ.key", s.id.key))...)
}

// fireSpan begins when a timer fires.
func (a *activation) fireSpan(name string, timer *recordv1.Timer) trace.Span {
	t := a.rt.cfg.Tracer
	if t == nil || timer.GetTrace() == "" {
		return nil
	}
	return t.Follow(timer.GetTrace(), trace.Fire, append(entityAttrs("writ.entity", a.ref),
		slog.Uint64("writ.shard", uint64(a.shard.number)), slog.String("writ.timer", name))...)
}

// applySpan begins with the handling of a row.
func (a *activation) applySpan(row *recordv1.Row) trace.Span {
	t := a.rt.cfg.Tracer
	if t == nil || row.GetTrace() == "" {
		return nil
	}
	return t.Follow(row.GetTrace(), trace.Apply, append(append(entityAttrs("writ.entity", a.ref), rowAttrs(row)...),
		slog.Uint64("writ.shard", uint64(a.shard.number)))...)
}

// appliedBefore tells that a row came again and was confirmed without effect.
func (a *activation) appliedBefore(row *recordv1.Row) {
	if span := a.applySpan(row); span != nil {
		span.Set(slog.Bool("writ.applied_before", true))
		span.End(nil)
	}
}

func rowAttrs(row *recordv1.Row) []slog.Attr {
	return append(entityAttrs("writ.source", fromRef(row.GetSource())),
		slog.String("writ.event", row.GetEvent().GetType()), slog.Uint64("writ.sequence", row.GetSequence()),
		slog.Uint64("writ.lane_sequence", row.GetLaneSequence()), slog.Uint64("writ.hops", uint64(row.GetHops())))
}

// sendSpans are those of one delivery, by row; nil if no row's trace is sampled.
func (r *Runtime) sendSpans(j *job, rows []*recordv1.Row) []trace.Span {
	if r.cfg.Tracer == nil {
		return nil
	}
	var spans []trace.Span
	for i, row := range rows {
		if row.GetTrace() == "" {
			continue
		}
		span := r.cfg.Tracer.Follow(row.GetTrace(), trace.Send, append(append(entityAttrs("writ.destination", fromRef(row.GetDestination())), rowAttrs(row)...),
			slog.Int("writ.attempt", j.attempt), slog.Int("writ.rows", len(rows)))...)
		if span == nil {
			continue
		}
		if spans == nil {
			spans = make([]trace.Span, len(rows))
		}
		spans[i] = span
	}
	return spans
}

// endSends ends the spans of one delivery.
func endSends(spans []trace.Span, rows []*recordv1.Row, answer *nodev1.DeliverResponse, err error) {
	for i, span := range spans {
		switch n := rows[i].GetLaneSequence(); {
		case span == nil:
		case err != nil:
			span.End(err)
		case n <= answer.GetApplied():
			span.End(nil)
		case n == answer.GetApplied()+1 && answer.GetRefusal() != nil:
			span.End(refusedError(answer.GetRefusal()))
		default:
			span.End(errors.New("the destination did not take the row"))
		}
	}
}

// endSpan ends a span that may not be there. Of a handler that failed it says only
// how: the text is for the log.
func endSpan(span trace.Span, err error) {
	if span != nil {
		if failed, ok := errors.AsType[*handlerError](err); ok {
			err = errors.New("the handler " + failed.how)
		}
		span.End(err)
	}
}

// traceAfter is the traceparent of what comes of a step.
func traceAfter(span trace.Span, parent string) string {
	if span == nil {
		return parent
	}
	return span.Traceparent()
}

func decided(result *recordv1.Outcome) slog.Attr {
	return slog.String("writ.decision", result.GetDecision().String())
}

// refusedError is a refusal for a span, without the text of a handler that failed.
func refusedError(refusal *nodev1.Refusal) error {
	if refusal.GetKind() == nodev1.Refusal_PANICKED {
		return errors.New(refusal.GetKind().String() + ": see the lane's reason")
	}
	return errors.New(refusal.GetKind().String() + ": " + refusal.GetReason())
}
