package entity

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Code is the status code of a rejection by rule. The values are those of
// google.rpc.Code, and only these five may be chosen by a handler.
type Code uint32

// Codes that a handler may reject with.
const (
	NotFound           Code = 5
	AlreadyExists      Code = 6
	PermissionDenied   Code = 7
	FailedPrecondition Code = 9
	OutOfRange         Code = 11
)

// Valid reports whether a handler may reject with c.
func (c Code) Valid() bool {
	switch c {
	case NotFound, AlreadyExists, PermissionDenied, FailedPrecondition, OutOfRange:
		return true
	}
	return false
}

// Rejection is a handler's decision that a command has no effect. It is stored
// under the command's key and replayed verbatim. Make it with [Context.Reject].
//
//nolint:errname // a rejection is an outcome; it is an error only on its way out of a handler
type Rejection struct {
	Code Code
	// Reason is for programs: capital letters, digits and underscores.
	Reason string
	// Message is for people.
	Message string
}

func (r *Rejection) Error() string { return r.Reason + ": " + r.Message }

// Reason classifies every answer that is not an outcome of the command itself.
// The gateway maps each to one gRPC status (docs/guarantee.md has the table).
type Reason string

// Reasons, grouped by what they say about execution.
const (
	// Definitely not executed; fix the call.
	Invalid         Reason = "INVALID"
	TooLarge        Reason = "TOO_LARGE"
	KeyReused       Reason = "KEY_REUSED"
	VersionMismatch Reason = "VERSION_MISMATCH"
	Cancelled       Reason = "CANCELLED"
	Unauthenticated Reason = "UNAUTHENTICATED"
	Denied          Reason = "DENIED"
	HandlerPanic    Reason = "HANDLER_PANIC"

	// Definitely not executed by this call; retry later with the same key.
	NotExecuted Reason = "NOT_EXECUTED"
	Overloaded  Reason = "OVERLOADED"

	// Not decided yet.
	InFlight Reason = "IN_FLIGHT"

	// Fate unknown: only the same key is safe to retry.
	OutcomeUnknown Reason = "OUTCOME_UNKNOWN"
	Expired        Reason = "EXPIRED"
)

// Error is an answer without an outcome. It crosses all layers as this one
// type; match it with [ReasonOf].
type Error struct {
	Reason  Reason
	Message string
	// RetryAfter is a hint; 0 means none.
	RetryAfter time.Duration
	// Details are short, for programs: "limit", "max", "size", "field" …
	Details map[string]string
}

func (e *Error) Error() string { return string(e.Reason) + ": " + e.Message }

// Errorf makes an error with a formatted message.
func Errorf(reason Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// limitMost is more than any limit can mean, and little enough that no sum of limits
// and sizes overflows.
const limitMost = 1 << 40

// CheckLimit says what is wrong with the value of a limit that was set, by its name
// in docs/limits.md.
func CheckLimit(name string, value int64) error {
	switch {
	case value <= 0:
		return fmt.Errorf("limit %s must be positive, is %d", name, value)
	case value > limitMost:
		return fmt.Errorf("limit %s must be at most %d, is %d", name, int64(limitMost), value)
	}
	return nil
}

// OverLimit is the refusal of something that is larger than a limit allows. It is
// made here alone, so that programs find the same details in all of them: "limit",
// its name in docs/limits.md, "max" and "size".
func OverLimit(what, limit string, size, most int) *Error {
	return overLimit("the %s has %d bytes, limit %s is %d", what, limit, size, most)
}

// TooMany is OverLimit for what is counted.
func TooMany(what, limit string, number, most int) *Error {
	return overLimit("too many %s: %d, limit %s is %d", what, limit, number, most)
}

func overLimit(format, what, limit string, size, most int) *Error {
	return Errorf(TooLarge, format, what, size, limit, most).
		With("limit", limit).With("max", strconv.Itoa(most)).With("size", strconv.Itoa(size))
}

// Overload is the refusal of work for which a limit leaves no room now. Its details
// are "limit", the name in docs/limits.md, and "max".
func Overload(limit string, most int64, format string, args ...any) *Error {
	return Errorf(Overloaded, format+" (limit %s is %d): retry later with the same key", append(args, limit, most)...).
		With("limit", limit).With("max", strconv.FormatInt(most, 10))
}

// With returns e with one more detail.
func (e *Error) With(name, value string) *Error {
	if e.Details == nil {
		e.Details = make(map[string]string, 2)
	}
	e.Details[name] = value
	return e
}

// Retry returns e with a hint of when to try again.
func (e *Error) Retry(after time.Duration) *Error {
	e.RetryAfter = after
	return e
}

// ReasonOf returns the reason of an error, "" if it has none.
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}
