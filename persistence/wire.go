package persistence

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

var errTwice = errors.New("field occurs twice")

// scanner walks the fields of one encoded message without decoding what Apply
// does not need. It is strict: a field of the wrong type, a single field that
// occurs twice and a field that is not known are errors, because acting on less
// than the writer meant would make replicas differ.
type scanner struct {
	rest   []byte
	number protowire.Number
	wire   protowire.Type
	value  uint64 // of a varint
	data   []byte // of a length-delimited field
	raw    []byte // the whole field, tag included
	seen   uint64
	err    error
}

// next moves to the next field. It is false at the end and after an error.
func (s *scanner) next() bool {
	if s.err != nil || len(s.rest) == 0 {
		return false
	}
	number, wire, n := protowire.ConsumeTag(s.rest)
	if n < 0 {
		return s.fail(protowire.ParseError(n))
	}
	body := s.rest[n:]
	size := 0
	switch wire {
	case protowire.VarintType:
		s.value, size = protowire.ConsumeVarint(body)
	case protowire.BytesType:
		s.data, size = protowire.ConsumeBytes(body)
	default:
		size = protowire.ConsumeFieldValue(number, wire, body)
	}
	if size < 0 {
		return s.fail(protowire.ParseError(size))
	}
	s.number, s.wire = number, wire
	s.raw = s.rest[:n+size]
	s.rest = body[size:]
	return true
}

// uint is the value of a single varint field.
func (s *scanner) uint() uint64 {
	s.want(protowire.VarintType)
	s.once()
	return s.value
}

// flag is the value of a single boolean field.
func (s *scanner) flag() bool { return s.uint() != 0 }

// bytes is the content of a single length-delimited field.
func (s *scanner) bytes() []byte {
	s.once()
	return s.item()
}

// item is the content of a repeated length-delimited field.
func (s *scanner) item() []byte {
	s.want(protowire.BytesType)
	if s.err != nil {
		return nil
	}
	return s.data
}

// unknown refuses the field in hand.
func (s *scanner) unknown() { s.fail(fmt.Errorf("field %d is not known", s.number)) }

func (s *scanner) want(wire protowire.Type) {
	if s.wire != wire {
		s.fail(fmt.Errorf("field %d has wire type %d", s.number, s.wire))
	}
}

func (s *scanner) once() {
	if s.number > 63 {
		s.unknown()
		return
	}
	bit := uint64(1) << s.number
	if s.seen&bit != 0 {
		s.fail(fmt.Errorf("field %d: %w", s.number, errTwice))
	}
	s.seen |= bit
}

func (s *scanner) fail(err error) bool {
	if s.err == nil {
		s.err = err
	}
	return false
}

// appendUint appends a varint field, unless the value is 0.
func appendUint(b []byte, number protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), v)
}

// appendBytes appends a length-delimited field, empty or not.
func appendBytes(b []byte, number protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), v)
}
