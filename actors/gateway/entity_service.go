package gateway

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc/metadata"

	"writ/actors/entity"
	"writ/internal/trace"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// Forwarder carries a client's call to the leader of its entity's shard. Its
// error is an *[entity.Error] or the context's. It is satisfied by *[Router].
type Forwarder interface {
	Forward(ctx context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error)
}

// EntityConfig holds what an [EntityService] needs. All fields but Names and Tracer
// must be set.
type EntityConfig struct {
	Registry    *entity.Registry
	Forwarder   Forwarder
	Credentials *Credentials
	Limits      Limits
	// Names are DefaultNameLimits if left zero.
	Names NameLimits
	// Tracer may be nil: then a client's traceparent is passed on and nothing else.
	Tracer trace.Tracer
	Logger *slog.Logger
}

// EntityService is the door for clients. It is safe for concurrent use.
type EntityService struct {
	writv1.UnimplementedEntityServiceServer
	forwarder   Forwarder
	credentials *Credentials
	form        *form
	admission   *admission
	limits      Limits
	tracer      trace.Tracer
	log         *slog.Logger
}

// NewEntityService makes the service; it must be registered with a [Server].
func NewEntityService(cfg EntityConfig) (*EntityService, error) {
	if cfg.Registry == nil || cfg.Forwarder == nil || cfg.Credentials == nil || cfg.Logger == nil {
		return nil, errors.New("entity service: registry, forwarder, credentials and logger must be set")
	}
	if err := cfg.Limits.Validate(); err != nil {
		return nil, err
	}
	if cfg.Names == (NameLimits{}) {
		cfg.Names = DefaultNameLimits()
	}
	return &EntityService{
		forwarder:   cfg.Forwarder,
		credentials: cfg.Credentials,
		form:        newForm(cfg.Registry, cfg.Limits, cfg.Names),
		admission:   newAdmission("client calls", cfg.Limits),
		limits:      cfg.Limits,
		tracer:      cfg.Tracer,
		log:         cfg.Logger,
	}, nil
}

// Submit sends one command. A stored rejection is returned as an error status
// with the handler's code; replays of either kind carry metadata
// "idempotency-replayed: true", in the header and in the trailer.
func (s *EntityService) Submit(ctx context.Context, req *writv1.SubmitRequest) (*writv1.SubmitResponse, error) {
	id, err := s.credentials.Authenticate(ctx)
	if err != nil {
		return nil, s.status(err)
	}
	answer, err := s.submit(ctx, id.Tenant, req)
	if err != nil {
		return nil, s.status(err)
	}
	if answer.GetReplayed() {
		markReplayed(ctx)
	}
	if answer.GetRejection() != nil {
		return nil, rejectionError(answer)
	}
	return answer, nil
}

// submit is one command, from a call or from a stream.
func (s *EntityService) submit(ctx context.Context, tenant string, req *writv1.SubmitRequest) (*writv1.SubmitResponse, error) {
	traceparent := traceOf(ctx)
	span := s.begin(traceparent, tenant, req)
	if span == nil {
		return s.forward(ctx, tenant, traceparent, req)
	}
	answer, err := s.forward(ctx, tenant, span.Traceparent(), req)
	if err == nil {
		span.Set(slog.Bool("writ.replayed", answer.GetReplayed()), slog.Bool("writ.rejected", answer.GetRejection() != nil))
	}
	span.End(err)
	return answer, err
}

// begin begins the span of a command, in the trace of its caller if it has one.
// Nil: it is not traced.
func (s *EntityService) begin(traceparent, tenant string, req *writv1.SubmitRequest) trace.Span {
	if s.tracer == nil {
		return nil
	}
	return s.tracer.Begin(traceparent, trace.Submit, slog.String("writ.entity.tenant", tenant),
		slog.String("writ.entity.kind", req.GetEntity().GetKind()), slog.String("writ.entity.id", req.GetEntity().GetId()),
		slog.String("writ.command", string(req.GetCommand().MessageName())))
}

// forward checks a command and carries it to its leader.
func (s *EntityService) forward(ctx context.Context, tenant, traceparent string, req *writv1.SubmitRequest) (*writv1.SubmitResponse, error) {
	leave, err := s.admission.enter(req)
	if err != nil {
		return nil, err
	}
	defer leave()
	checked, err := s.form.submit(ctx, req)
	if err != nil {
		return nil, err
	}
	call := &nodev1.ForwardRequest{Tenant: tenant}
	call.Trace = traceparent
	call.Call = &nodev1.ForwardRequest_Submit{Submit: checked}
	resp, err := s.forwarder.Forward(ctx, call)
	if err != nil {
		return nil, err
	}
	answer := resp.GetSubmit()
	if answer == nil {
		return nil, strangeAnswer()
	}
	return copyAnswer(answer, req.GetTag()), nil
}

// Read returns an entity's state or the answer to a query.
func (s *EntityService) Read(ctx context.Context, req *writv1.ReadRequest) (*writv1.ReadResponse, error) {
	id, err := s.credentials.Authenticate(ctx)
	if err != nil {
		return nil, s.status(err)
	}
	leave, err := s.admission.enter(req)
	if err != nil {
		return nil, s.status(err)
	}
	defer leave()
	if err := s.form.read(req); err != nil {
		return nil, s.status(err)
	}
	call := &nodev1.ForwardRequest{Tenant: id.Tenant}
	call.Call = &nodev1.ForwardRequest_Read{Read: req}
	resp, err := s.forwarder.Forward(ctx, call)
	if err != nil {
		return nil, s.status(err)
	}
	if resp.GetRead() == nil {
		return nil, s.status(strangeAnswer())
	}
	return resp.GetRead(), nil
}

// Outcome tells what became of an idempotency key. It is linearizable.
func (s *EntityService) Outcome(ctx context.Context, req *writv1.OutcomeRequest) (*writv1.OutcomeResponse, error) {
	return s.outcome(ctx, req, func(call *nodev1.ForwardRequest, checked *writv1.OutcomeRequest) {
		call.Call = &nodev1.ForwardRequest_Outcome{Outcome: checked}
	})
}

// Cancel makes sure that a key that has not executed never will. If it has, the
// answer is its outcome.
func (s *EntityService) Cancel(ctx context.Context, req *writv1.OutcomeRequest) (*writv1.OutcomeResponse, error) {
	return s.outcome(ctx, req, func(call *nodev1.ForwardRequest, checked *writv1.OutcomeRequest) {
		call.Call = &nodev1.ForwardRequest_Cancel{Cancel: checked}
	})
}

func (s *EntityService) outcome(ctx context.Context, req *writv1.OutcomeRequest,
	set func(*nodev1.ForwardRequest, *writv1.OutcomeRequest),
) (*writv1.OutcomeResponse, error) {
	id, err := s.credentials.Authenticate(ctx)
	if err != nil {
		return nil, s.status(err)
	}
	leave, err := s.admission.enter(req)
	if err != nil {
		return nil, s.status(err)
	}
	defer leave()
	checked, err := s.form.outcome(ctx, req)
	if err != nil {
		return nil, s.status(err)
	}
	call := &nodev1.ForwardRequest{Tenant: id.Tenant}
	set(call, checked)
	resp, err := s.forwarder.Forward(ctx, call)
	if err != nil {
		return nil, s.status(err)
	}
	answer := resp.GetOutcome()
	if answer == nil {
		return nil, s.status(strangeAnswer())
	}
	own := &writv1.OutcomeResponse{State: answer.GetState()}
	if answer.GetOutcome() != nil {
		own.Outcome = copyAnswer(answer.GetOutcome(), 0)
	}
	return own, nil
}

// status is the gRPC error of err. What clients must not see is logged here.
func (s *EntityService) status(err error) error {
	logUntyped(s.log, err)
	return ToStatus(err)
}

// logUntyped logs an error that the outcome table does not know: a mistake in
// this program, whose text is kept from callers.
func logUntyped(log *slog.Logger, err error) {
	if entity.ReasonOf(err) == "" && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		log.Error("call failed without a reason", slog.Any("error", err))
	}
}

func strangeAnswer() error {
	return entity.Errorf(entity.OutcomeUnknown, "the leader's answer is of another kind than the call: retry with the same key")
}

// traceOf is the W3C traceparent of the call, "" if there is none that is sane.
func traceOf(ctx context.Context) string {
	const lengthMax = 128
	values := metadata.ValueFromIncomingContext(ctx, traceHeader)
	if len(values) != 1 || len(values[0]) > lengthMax {
		return ""
	}
	for i := range len(values[0]) {
		if c := values[0][i]; c <= ' ' || c > '~' {
			return ""
		}
	}
	return values[0]
}
