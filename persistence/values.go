package persistence

import (
	"google.golang.org/protobuf/encoding/protowire"

	recordv1 "writ/proto/writ/record/v1"
)

// Values are encoded here by hand, field by field in ascending order and without
// zeros, so that their bytes, which the state hash is computed over, are the
// same for every version of the protobuf library. What a record brings along
// (states, outcomes, rows) is stored as it came.

// entityValue is an EntityRecord whose state stays encoded.
type entityValue struct {
	version, sequence, decided uint64
	state                      []byte // encoded Payload; nil if unset
	deleted                    bool
}

func parseEntity(b []byte) (v entityValue, err error) {
	s := scanner{rest: b}
	for s.next() {
		switch s.number {
		case 1:
			v.version = s.uint()
		case 2:
			v.sequence = s.uint()
		case 3:
			v.decided = s.uint()
		case 4:
			v.state = s.bytes()
		case 5:
			v.deleted = s.flag()
		default:
			s.unknown()
		}
	}
	return v, s.err
}

func (v entityValue) encode() []byte {
	b := make([]byte, 0, len(v.state)+32)
	b = appendUint(b, 1, v.version)
	b = appendUint(b, 2, v.sequence)
	b = appendUint(b, 3, v.decided)
	if v.state != nil {
		b = appendBytes(b, 4, v.state)
	}
	return appendUint(b, 5, protowire.EncodeBool(v.deleted))
}

// laneValue is a Lane.
type laneValue struct {
	numbered, confirmed, skipped uint64
	status                       recordv1.Lane_Status
	reason                       []byte
	attempts                     uint64
}

// pending is the number of rows in the outbox.
func (v laneValue) pending() uint64 { return v.numbered - v.confirmed }

func parseLane(b []byte) (v laneValue, err error) {
	s := scanner{rest: b}
	for s.next() {
		switch s.number {
		case 1:
			v.numbered = s.uint()
		case 2:
			v.confirmed = s.uint()
		case 3:
			v.skipped = s.uint()
		case 4:
			v.status = recordv1.Lane_Status(s.uint())
		case 5:
			v.reason = s.bytes()
		case 6:
			v.attempts = s.uint()
		default:
			s.unknown()
		}
	}
	return v, s.err
}

func (v laneValue) encode() []byte {
	b := make([]byte, 0, len(v.reason)+32)
	b = appendUint(b, 1, v.numbered)
	b = appendUint(b, 2, v.confirmed)
	b = appendUint(b, 3, v.skipped)
	b = appendUint(b, 4, uint64(v.status))
	if len(v.reason) > 0 {
		b = appendBytes(b, 5, v.reason)
	}
	return appendUint(b, 6, v.attempts)
}

// appliedValue is an Applied.
type appliedValue struct{ epoch, sequence, skipped uint64 }

func parseApplied(b []byte) (v appliedValue, err error) {
	s := scanner{rest: b}
	for s.next() {
		switch s.number {
		case 1:
			v.epoch = s.uint()
		case 2:
			v.sequence = s.uint()
		case 3:
			v.skipped = s.uint()
		default:
			s.unknown()
		}
	}
	return v, s.err
}

func (v appliedValue) encode() []byte {
	b := appendUint(make([]byte, 0, 16), 1, v.epoch)
	return appendUint(appendUint(b, 2, v.sequence), 3, v.skipped)
}

// encodeKeyRecord makes a KeyRecord of an encoded Key and Outcome.
func encodeKeyRecord(key, outcome []byte) []byte {
	b := make([]byte, 0, len(key)+len(outcome)+12)
	b = appendBytes(b, 1, key)
	if outcome != nil {
		b = appendBytes(b, 2, outcome)
	}
	return b
}

// encodeParked makes the value of the bucket parked: where and why a lane
// stands.
func encodeParked(sequence uint64, reason []byte) []byte {
	b := appendUint(nil, 1, sequence)
	if len(reason) > 0 {
		b = appendBytes(b, 2, reason)
	}
	if b == nil {
		b = []byte{}
	}
	return b
}

// withoutEvent is a row as it was, but for its event: what stands in the place
// of a skipped row.
func withoutEvent(row []byte) ([]byte, error) {
	kept := make([]byte, 0, len(row))
	s := scanner{rest: row}
	for s.next() {
		if s.number != rowEvent {
			kept = append(kept, s.raw...)
		}
	}
	return kept, s.err
}
