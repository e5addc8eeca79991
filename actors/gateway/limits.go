package gateway

import (
	"errors"
	"fmt"
)

// envelopeBytes is the room that a message between nodes has beside the payload
// it carries: names, key, trace, numbers.
const envelopeBytes = 64 << 10

// Limits bound what a node takes in. One limit, Message, holds for requests,
// answers and messages between nodes; a command of the largest size, and an
// event or state of that size, fit into it.
type Limits struct {
	// Command is the largest payload of a command or query, bytes.
	Command int
	// Message is the largest gRPC message in either direction, bytes. Above it
	// gRPC itself refuses with RESOURCE_EXHAUSTED and no ErrorInfo; between
	// Command and Message the answer is TOO_LARGE with limit and size.
	Message int
	// InFlight is the number of calls in progress, separately for clients and
	// for other nodes.
	InFlight int
	// InFlightBytes is the size of their requests together, bytes.
	InFlightBytes int64
	// StreamInFlight is the number of commands in progress on one SubmitStream.
	// A stream that has reached it is not read from until one is answered.
	StreamInFlight int
	// ConnectionStreams is the number of concurrent calls on one connection.
	ConnectionStreams int
	// Connections is the number of open connections; more are closed at once.
	Connections int
}

// DefaultLimits suits a node with 1 GiB of memory.
func DefaultLimits() Limits {
	return Limits{
		Command:           4 << 20,
		Message:           16 << 20,
		InFlight:          8192,
		InFlightBytes:     256 << 20,
		StreamInFlight:    256,
		ConnectionStreams: 4096,
		Connections:       4096,
	}
}

// Validate checks the limits against each other.
func (l Limits) Validate() error {
	var errs []error
	for _, v := range []struct {
		name  string
		value int64
	}{
		{"command", int64(l.Command)},
		{"message", int64(l.Message)},
		{"in flight", int64(l.InFlight)},
		{"in flight bytes", l.InFlightBytes},
		{"stream in flight", int64(l.StreamInFlight)},
		{"connection streams", int64(l.ConnectionStreams)},
		{"connections", int64(l.Connections)},
	} {
		if v.value <= 0 {
			errs = append(errs, fmt.Errorf("limit %s must be positive, is %d", v.name, v.value))
		}
	}
	if l.Message < l.Command+envelopeBytes {
		errs = append(errs, fmt.Errorf("limit message (%d) must exceed limit command (%d) by %d bytes",
			l.Message, l.Command, envelopeBytes))
	}
	if l.InFlightBytes < int64(l.Message) {
		errs = append(errs, fmt.Errorf("limit in flight bytes (%d) is below limit message (%d)", l.InFlightBytes, l.Message))
	}
	return errors.Join(errs...)
}
