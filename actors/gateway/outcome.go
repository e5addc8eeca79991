package gateway

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"writ/actors/entity"
)

// Domain stands in the ErrorInfo of every status that Writ makes.
const Domain = "writ"

// An answer without an outcome, on the wire.
type outcome struct {
	reason entity.Reason
	code   codes.Code
	// retry is the delay in RetryInfo if the error brings none of its own; 0: a
	// retry does not help and no RetryInfo is sent.
	retry time.Duration
}

// outcomes is the table. A reason stands in one row only; many rows share a
// code, so the way back goes by reason, never by code.
func outcomes() []outcome {
	return []outcome{
		// Not executed; fix the call.
		{entity.Invalid, codes.InvalidArgument, 0},
		{entity.TooLarge, codes.InvalidArgument, 0},
		{entity.KeyReused, codes.Aborted, 0},
		{entity.VersionMismatch, codes.Aborted, 0},
		{entity.Cancelled, codes.FailedPrecondition, 0},
		{entity.Unauthenticated, codes.Unauthenticated, 0},
		{entity.Denied, codes.PermissionDenied, 0},
		{entity.HandlerPanic, codes.Internal, 0},
		// Not executed; later, with the same key.
		{entity.NotExecuted, codes.Unavailable, 50 * time.Millisecond},
		{entity.Overloaded, codes.ResourceExhausted, 200 * time.Millisecond},
		// Not decided yet: ask Outcome.
		{entity.InFlight, codes.Aborted, 100 * time.Millisecond},
		// Fate unknown: the same key, or a person.
		{entity.OutcomeUnknown, codes.Unavailable, 50 * time.Millisecond},
		{entity.Expired, codes.FailedPrecondition, 0},
	}
}

// byReason finds a reason's row.
func byReason(reason entity.Reason) (outcome, bool) {
	for _, o := range outcomes() {
		if o.reason == reason {
			return o, true
		}
	}
	return outcome{}, false
}

// ToStatus turns an error of this process into a gRPC status error with
// ErrorInfo. A context's error becomes DEADLINE_EXCEEDED or CANCELLED. Any other
// error says nothing about what has happened: OUTCOME_UNKNOWN, and its text,
// which may show internals, stays in the node. nil stays nil.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	return status.ErrorProto(statusProto(err))
}

func statusProto(err error) *spb.Status {
	var e *entity.Error
	switch {
	case errors.As(err, &e):
		if o, ok := byReason(e.Reason); ok {
			return o.status(e)
		}
	case errors.Is(err, context.DeadlineExceeded):
		return status.New(codes.DeadlineExceeded, "the deadline passed before the outcome was known: retry with the same key").Proto()
	case errors.Is(err, context.Canceled):
		return status.New(codes.Canceled, "the call was cancelled before the outcome was known: retry with the same key").Proto()
	}
	return statusProto(entity.Errorf(entity.OutcomeUnknown, "unexpected trouble in the node, see its log: retry with the same key"))
}

func (o outcome) status(e *entity.Error) *spb.Status {
	st := &spb.Status{Code: int32(o.code), Message: cutText(e.Message)}
	addDetail(st, &errdetails.ErrorInfo{Reason: string(o.reason), Domain: Domain, Metadata: boundDetails(e.Details)})
	retry := e.RetryAfter
	if retry <= 0 {
		retry = o.retry
	}
	if retry > 0 {
		addDetail(st, &errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	}
	return st
}

// FromStatus turns the error of a call to another node back into an error of
// this process. sent tells whether any part of the call may have left this node.
// The result is an *[entity.Error], or the context's error if ctx has ended or the
// other node says that its deadline, which travels with the call, has passed: the
// two clocks need not agree.
func FromStatus(ctx context.Context, err error, sent bool) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	if e := decode(st); e != nil {
		return e
	}
	if _, bounded := ctx.Deadline(); bounded && sent && st.Code() == codes.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	text := cutText(st.Code().String() + ": " + st.Message())
	if ctx.Err() != nil {
		if !errors.Is(context.Cause(ctx), errSuperseded) {
			return ctx.Err()
		}
		text = errSuperseded.Error()
	}
	if sent {
		return entity.Errorf(entity.OutcomeUnknown, "the link to the node failed: %s", text)
	}
	return entity.Errorf(entity.NotExecuted, "the node could not be reached: %s", text)
}

// decode reads a status that Writ made; nil if another party made it. A reason
// that this version does not know decides nothing, so the outcome is unknown.
func decode(st *status.Status) *entity.Error {
	var info *errdetails.ErrorInfo
	var retry time.Duration
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if info == nil && d.GetDomain() == Domain {
				info = d
			}
		case *errdetails.RetryInfo:
			retry = max(0, d.GetRetryDelay().AsDuration())
		}
	}
	if info == nil {
		return nil
	}
	e := &entity.Error{
		Reason:     entity.Reason(info.GetReason()),
		Message:    cutText(st.Message()),
		RetryAfter: retry,
		Details:    boundDetails(info.GetMetadata()),
	}
	if _, known := byReason(e.Reason); !known || info.GetMetadata()[outcomeDetail] == outcomeRejected {
		return entity.Errorf(entity.OutcomeUnknown, "the node gave an answer that this version does not know: %s: %s",
			short(info.GetReason(), reasonBytes), e.Message).Retry(retry)
	}
	return e
}

// addDetail appends a message to the details. Packing fails only for text that is
// not UTF-8, which has been cleaned away; the code and the text count anyway.
func addDetail(st *spb.Status, detail proto.Message) {
	if packed, err := anypb.New(detail); err == nil {
		st.Details = append(st.Details, packed)
	}
}
