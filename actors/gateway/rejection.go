package gateway

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"writ/actors/entity"
	writv1 "writ/proto/writ/v1"
)

// Metadata of requests and answers.
const (
	keyHeader      = "idempotency-key"
	keyBytesHeader = "idempotency-key-bin" // gRPC carries any bytes under such a name
	replayedHeader = "idempotency-replayed"
	traceHeader    = "traceparent"
)

// A rejection by rule carries the handler's own reason, which may be a word of
// the outcome table. This detail of its ErrorInfo tells the two apart.
const (
	outcomeDetail    = "outcome"
	outcomeRejected  = "rejected"
	versionDetail    = "version"
	acceptedAtDetail = "accepted_at"
)

// rejection is the status of a stored rejection. It depends on what is stored
// and on nothing else: the first answer and all replays are the same.
func rejection(answer *writv1.SubmitResponse) *spb.Status {
	stored := answer.GetRejection()
	code := entity.Code(stored.GetCode())
	if !code.Valid() {
		code = entity.FailedPrecondition
	}
	details := map[string]string{
		outcomeDetail: outcomeRejected,
		versionDetail: strconv.FormatUint(answer.GetVersion(), 10),
	}
	if at := answer.GetAcceptedAt(); at != nil {
		details[acceptedAtDetail] = at.AsTime().Format(time.RFC3339Nano)
	}
	st := &spb.Status{Code: int32(code), Message: cutText(stored.GetMessage())}
	addDetail(st, &errdetails.ErrorInfo{
		Reason:   short(reasonIn(stored), reasonBytes),
		Domain:   Domain,
		Metadata: details,
	})
	return st
}

func reasonIn(st *spb.Status) string {
	for _, d := range status.FromProto(st).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info.GetReason()
		}
	}
	return "REJECTED"
}

// copyAnswer is the answer for one caller. The runtime may hand the same message
// to several callers, so it is never changed.
func copyAnswer(answer *writv1.SubmitResponse, tag uint64) *writv1.SubmitResponse {
	own := &writv1.SubmitResponse{
		Reply:      answer.GetReply(),
		Replayed:   answer.GetReplayed(),
		AcceptedAt: answer.GetAcceptedAt(),
		Version:    answer.GetVersion(),
		Tag:        tag,
	}
	if answer.GetRejection() != nil {
		own.Rejection = rejection(answer)
	}
	return own
}

// refused is the answer on a stream to a command that has no outcome.
func refused(err error, tag uint64) *writv1.SubmitResponse {
	return &writv1.SubmitResponse{Tag: tag, Rejection: statusProto(err)}
}

// markReplayed flags the answer of a unary call: as header for programs that
// read one before the message, as trailer beside the status of a rejection.
func markReplayed(ctx context.Context) {
	md := metadata.Pairs(replayedHeader, "true")
	// Both fail only when there is no stream to write to: the caller is gone.
	_ = grpc.SetHeader(ctx, md)
	_ = grpc.SetTrailer(ctx, md)
}

// rejectionError is the error of a unary call that was rejected by rule.
func rejectionError(own *writv1.SubmitResponse) error {
	if codes.Code(own.GetRejection().GetCode()) == codes.OK {
		return nil
	}
	return status.ErrorProto(own.GetRejection())
}
