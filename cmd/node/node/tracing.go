package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"writ/actors/entity"
	"writ/internal/trace"
)

// tracing joins the steps of commands with OpenTelemetry: what they tell becomes
// spans, sent to a collector over OTLP in the background. If the collector is
// away, spans are dropped and commands are not held up.
type tracing struct {
	provider *sdktrace.TracerProvider
	tracer   oteltrace.Tracer
}

// traceparent is the header's name, and the key under which OpenTelemetry's own
// code reads and writes it.
const traceparent = "traceparent"

// tracesTimeout bounds how long a stop waits for the last spans to be sent.
const tracesTimeout = time.Second

// openTracing starts tracing; nil if the configuration does not ask for it.
func openTracing(cfg Config) (*tracing, error) {
	if cfg.TraceEndpoint == "" {
		return nil, nil
	}
	ctx := context.Background()
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(cfg.TraceEndpoint))
	if err != nil {
		return nil, fmt.Errorf("traces to %s: %w", cfg.TraceEndpoint, err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "writ"), attribute.String("service.version", Version),
		attribute.String("service.instance.id", cfg.ID)), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("traces: the environment's OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&toldExporter{SpanExporter: exporter, log: cfg.Logger}),
		sdktrace.WithResource(about),
		// Who calls with a trace of its own has decided whether it is sampled.
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.TraceRatio))),
	)
	return &tracing{provider: provider, tracer: provider.Tracer("writ", oteltrace.WithInstrumentationVersion(Version))}, nil
}

// port is the tracer as other packages take it: nil, not a nil in an interface, if
// tracing is off.
func (t *tracing) port() trace.Tracer {
	if t == nil {
		return nil
	}
	return t
}

// close sends what is left.
func (t *tracing) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tracesTimeout)
	defer cancel()
	// Spans are no promise: a collector that is away must not fail a stop. Its
	// absence has been logged.
	_ = t.provider.Shutdown(ctx)
}

// Begin implements trace.Tracer.
func (t *tracing) Begin(parent string, step trace.Step, attrs ...slog.Attr) trace.Span {
	return t.start(remote(parent), step, attrs)
}

// Follow implements trace.Tracer.
func (t *tracing) Follow(parent string, step trace.Step, attrs ...slog.Attr) trace.Span {
	ctx := remote(parent)
	if !oteltrace.SpanContextFromContext(ctx).IsSampled() {
		return nil
	}
	return t.start(ctx, step, attrs)
}

// remote is a context in the trace of a traceparent, if it is one.
func remote(parent string) context.Context {
	return propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparent: parent})
}

func (t *tracing) start(ctx context.Context, step trace.Step, attrs []slog.Attr) trace.Span {
	_, s := t.tracer.Start(ctx, string(step), oteltrace.WithSpanKind(kindOf(step)), oteltrace.WithAttributes(otelAttrs(attrs)...))
	if !s.SpanContext().IsSampled() {
		return nil
	}
	return span{s}
}

// kindOf is what OpenTelemetry calls a step's part in a conversation.
func kindOf(step trace.Step) oteltrace.SpanKind {
	switch step {
	case trace.Submit:
		return oteltrace.SpanKindServer
	case trace.Send:
		return oteltrace.SpanKindProducer
	case trace.Apply:
		return oteltrace.SpanKindConsumer
	case trace.Commit, trace.Fire:
	}
	return oteltrace.SpanKindInternal
}

// span is a sampled span of OpenTelemetry.
type span struct{ otel oteltrace.Span }

// Traceparent implements trace.Span.
func (s span) Traceparent() string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(oteltrace.ContextWithSpan(context.Background(), s.otel), carrier)
	return carrier[traceparent]
}

// Set implements trace.Span.
func (s span) Set(attrs ...slog.Attr) { s.otel.SetAttributes(otelAttrs(attrs)...) }

// End implements trace.Span.
func (s span) End(err error) {
	if err != nil {
		s.otel.SetStatus(codes.Error, text(err.Error()))
		if reason := entity.ReasonOf(err); reason != "" {
			s.otel.SetAttributes(attribute.String("writ.reason", string(reason)))
		}
	}
	s.otel.End()
}

func otelAttrs(attrs []slog.Attr) []attribute.KeyValue {
	out := make([]attribute.KeyValue, len(attrs))
	for i, a := range attrs {
		switch v := a.Value.Any().(type) {
		case int64:
			out[i] = attribute.Int64(a.Key, v)
		case uint64: // OTLP has no unsigned numbers; none of ours come near the limit
			out[i] = attribute.Int64(a.Key, int64(v))
		case bool:
			out[i] = attribute.Bool(a.Key, v)
		default:
			out[i] = attribute.String(a.Key, text(a.Value.String()))
		}
	}
	return out
}

// toldExporter tells this node's log when spans cannot be sent, once until they
// can again. OpenTelemetry's own way to tell is a global of the process.
type toldExporter struct {
	sdktrace.SpanExporter
	log  *slog.Logger
	fail atomic.Bool
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *toldExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if was := e.fail.Swap(err != nil); err != nil && !was {
		e.log.Warn("traces are not sent: spans are dropped until the collector answers", slog.Any("error", err))
	} else if err == nil && was {
		e.log.Info("traces are sent again")
	}
	return nil
}

// checkTraces says what is wrong with the settings of tracing.
func (c Config) checkTraces() error {
	if c.TraceRatio < 0 || c.TraceRatio > 1 {
		return fmt.Errorf("trace ratio is %v: give 0 to 1", c.TraceRatio)
	}
	if c.TraceEndpoint == "" {
		return nil
	}
	u, err := url.Parse(c.TraceEndpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("trace endpoint %q: give http://host:port, or https:// for TLS, of a collector that takes OTLP over gRPC", c.TraceEndpoint)
	}
	return nil
}

// text is what a span can carry: a key may be any bytes, and a message with one that
// is not UTF-8 is not sent at all, nor is the rest of its batch.
func text(s string) string { return strings.ToValidUTF8(s, "?") }
