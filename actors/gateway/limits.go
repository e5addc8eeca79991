package gateway

import (
	"errors"
	"fmt"
	"math"

	"writ/actors/entity"
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
	// Command and Message the answer is TOO_LARGE with the limit's name.
	Message int
	// InFlight is the number of calls in progress; those from clients and those from
	// other nodes are counted separately.
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

// NameLimits are those of the entities' limits that the door checks, too: what is
// longer is refused before it is routed. The runtime has the last word.
type NameLimits struct {
	// Name bounds an entity's id, Key an idempotency key, bytes.
	Name, Key int
}

// DefaultNameLimits are those of the runtime.
func DefaultNameLimits() NameLimits { return NameLimits{Name: 255, Key: 255} }

// Validate checks the limits against each other.
func (l Limits) Validate() error {
	var errs []error
	for _, v := range []struct {
		field string
		value int64
	}{
		{"Command", int64(l.Command)},
		{"Message", int64(l.Message)},
		{"InFlight", int64(l.InFlight)},
		{"InFlightBytes", l.InFlightBytes},
		{"StreamInFlight", int64(l.StreamInFlight)},
		{"ConnectionStreams", int64(l.ConnectionStreams)},
		{"Connections", int64(l.Connections)},
	} {
		errs = append(errs, entity.CheckLimit("gateway."+v.field, v.value))
	}
	if int64(l.ConnectionStreams) > math.MaxUint32 { // a field of HTTP/2
		errs = append(errs, fmt.Errorf("limit gateway.ConnectionStreams must be at most %d, is %d", uint32(math.MaxUint32), l.ConnectionStreams))
	}
	if l.Message < l.Command+envelopeBytes {
		errs = append(errs, fmt.Errorf("limit gateway.Message (%d) must exceed limit gateway.Command (%d) by %d bytes",
			l.Message, l.Command, envelopeBytes))
	}
	if l.InFlightBytes < int64(l.Message) {
		errs = append(errs, fmt.Errorf("limit gateway.InFlightBytes (%d) is below limit gateway.Message (%d)", l.InFlightBytes, l.Message))
	}
	return errors.Join(errs...)
}
