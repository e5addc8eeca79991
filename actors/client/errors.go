package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reasons of an [Error]. docs/guarantee.md says what each promises.
const (
	ReasonInvalid         = "INVALID"
	ReasonTooLarge        = "TOO_LARGE"
	ReasonKeyReused       = "KEY_REUSED"
	ReasonVersionMismatch = "VERSION_MISMATCH"
	ReasonCancelled       = "CANCELLED"
	ReasonUnauthenticated = "UNAUTHENTICATED"
	ReasonDenied          = "DENIED"
	ReasonHandlerPanic    = "HANDLER_PANIC"
	ReasonNotExecuted     = "NOT_EXECUTED"
	ReasonOverloaded      = "OVERLOADED"
	ReasonInFlight        = "IN_FLIGHT"
	ReasonOutcomeUnknown  = "OUTCOME_UNKNOWN"
	ReasonExpired         = "EXPIRED"
)

// domain marks the details that Writ itself has made.
const domain = "writ"

// Error is an answer without an outcome.
type Error struct {
	// Reason classifies the last answer; "" if it did not come from Writ, or if a call
	// that changes nothing has run out of time: nothing needs to be repeated then.
	Reason string
	// Code of the last answer.
	Code codes.Code
	// Message is for people.
	Message string
	// Unknown: the command may have been executed, by this attempt or an earlier
	// one. Retry with the same key; another key could execute it twice. If it has
	// EXPIRED no retry helps: nobody can find out any more.
	Unknown bool
	// Attempts made.
	Attempts int
	// Address of the node that gave the last answer, or did not give one.
	Address string
	// RetryAfter is the node's hint; 0 means none.
	RetryAfter time.Duration
	// Details are for programs: "limit", "size", "leader", "field" …
	Details map[string]string
	// Err is what has ended the call if it was not the last answer: the
	// context's error.
	Err error
}

func (e *Error) Error() string {
	name := e.Reason
	if name == "" {
		name = e.Code.String()
	}
	text := name + ": " + e.Message
	if e.Unknown && e.Reason != ReasonOutcomeUnknown && e.Reason != ReasonExpired { // every retry of that one is EXPIRED
		text += " (an earlier attempt may have been executed: retry with the same key)"
	}
	if e.Attempts > 1 {
		text += fmt.Sprintf(" (%d attempts)", e.Attempts)
	}
	return text
}

// Unwrap gives the context's error, so that errors.Is finds it.
func (e *Error) Unwrap() error { return e.Err }

// RejectedError is the stored outcome of a command that the entity's rules
// refuse. The same key gives it again for as long as the key is remembered.
type RejectedError struct {
	Code codes.Code
	// Reason is the handler's own word.
	Reason   string
	Message  string
	Replayed bool
	// AcceptedAt is when the command was decided first.
	AcceptedAt time.Time
	// Version of the entity after the decision.
	Version  uint64
	Attempts int
}

func (e *RejectedError) Error() string { return "rejected: " + e.Reason + ": " + e.Message }

// answer is a status taken apart.
type answer struct {
	err      *Error
	rejected *RejectedError // set instead of a meaningful err
	info     bool           // Writ itself has spoken
}

func read(st *status.Status) answer {
	a := answer{err: &Error{Code: st.Code(), Message: st.Message()}}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() != domain {
				continue
			}
			a.info = true
			a.err.Reason = d.GetReason()
			a.err.Details = d.GetMetadata()
			if d.GetMetadata()["outcome"] == "rejected" {
				a.rejected = rejected(st, d)
			}
		case *errdetails.RetryInfo:
			a.err.RetryAfter = max(0, d.GetRetryDelay().AsDuration())
		}
	}
	return a
}

func rejected(st *status.Status, info *errdetails.ErrorInfo) *RejectedError {
	r := &RejectedError{Code: st.Code(), Reason: info.GetReason(), Message: st.Message()}
	// What does not parse stays zero: the decision itself is known.
	r.Version, _ = strconv.ParseUint(info.GetMetadata()["version"], 10, 64)
	r.AcceptedAt, _ = time.Parse(time.RFC3339Nano, info.GetMetadata()["accepted_at"])
	return r
}

// verdict says what to do with a failed attempt.
type verdict struct {
	again bool
	// unknown: this attempt may have been executed.
	unknown bool
	// link: the node or the way to it is in trouble, ask another one first.
	link bool
	// lost: the node was there before.
	lost bool
}

// judge decides by reason; and where Writ has not spoken, by code. sent tells
// whether the attempt may have left this process.
func judge(a answer, sent bool) verdict {
	if a.info {
		switch a.err.Reason {
		case ReasonNotExecuted, ReasonOverloaded:
			return verdict{again: true}
		case ReasonOutcomeUnknown:
			return verdict{again: true, unknown: true}
		case ReasonExpired, ReasonInFlight:
			return verdict{unknown: true}
		case ReasonInvalid, ReasonTooLarge, ReasonKeyReused, ReasonVersionMismatch, ReasonCancelled,
			ReasonUnauthenticated, ReasonDenied, ReasonHandlerPanic:
			return verdict{}
		}
		// A reason of a newer version.
		return verdict{again: a.err.Code == codes.Unavailable, unknown: true}
	}
	switch a.err.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return verdict{again: true, unknown: sent, link: true}
	case codes.ResourceExhausted:
		return verdict{again: true, unknown: sent}
	case codes.Internal, codes.Unknown, codes.DataLoss:
		// On the wire: a broken stream. Here: a request that cannot be encoded.
		return verdict{again: sent, unknown: sent}
	default:
		return verdict{unknown: sent && a.err.Code != codes.Unimplemented}
	}
}

// IsUnknown reports whether err leaves the fate of the command open, so that it
// must be retried with the same key, unless its Reason is EXPIRED: then a person has
// to find out.
func IsUnknown(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Unknown
	}
	return err != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled))
}
