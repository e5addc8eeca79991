package persistence

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"writ/internal/format"
)

// body is the kind of a record: the number of its field in Record.
type body protowire.Number

const (
	bodyTermStart  body = 3
	bodyCommit     body = 4
	bodyLane       body = 5
	bodyExpire     body = 6
	bodyCheckpoint body = 7
	bodyNote       body = 15
)

// rowEvent is the number of Row.event.
const rowEvent protowire.Number = 6

// entry is a decoded log entry. Its slices are views into the entry's bytes, and
// are used again for the next entry.
type entry struct {
	format  uint32
	logTime int64
	records []record
}

type record struct {
	epoch, term uint64
	body        body
	start       termStart
	commit      commit
	lane        laneUpdate
	through     uint64 // of an Expire
	audit       []byte // of a Checkpoint
}

type termStart struct {
	node  []byte
	index uint64
	hash  []byte
}

type commit struct {
	entity    name
	base      uint64
	mutations []mutation
	key       idemKey
	hasKey    bool
	outcome   []byte
	rows      []row
	marks     []mark
	tombstone bool
}

type mutation struct {
	bucket  bucket
	entity  *name // nil: the record's
	subkey  []byte
	delete  bool
	value   []byte
	present bool // value is set
}

type idemKey struct {
	commandType, key      []byte
	acceptedAt, expiresAt int64
	raw                   []byte
}

type row struct {
	source, destination   name
	epoch, sequence, lane uint64
	raw                   []byte
}

type mark struct {
	source      name
	epoch, lane uint64
	skipped     bool
}

type laneUpdate struct {
	source, destination name
	change              protowire.Number // field of LaneUpdate; 0 if unset
	sequence            uint64           // of confirm, skip, attempt, park
	count               uint64           // of attempt
	reason              []byte
	resume              bool
}

// decode reads an entry. Records that make no sense are left to Apply, which
// refuses them; what cannot be read at all is an error.
func (e *entry) decode(b []byte) error {
	e.format, e.logTime, e.records = 0, 0, e.records[:0]
	s := scanner{rest: b}
	for s.next() {
		switch s.number {
		case 1:
			// First of all: of a newer format nothing else can be judged.
			e.format = uint32(min(s.uint(), math.MaxUint32))
			if err := format.Check("the entry", e.format); err != nil {
				return err
			}
		case 2:
			e.logTime = int64(s.uint())
		case 3:
			if err := e.grow().decode(s.item()); err != nil {
				return fmt.Errorf("record %d: %w", len(e.records)-1, err)
			}
		default:
			s.unknown()
		}
	}
	if s.err != nil {
		return s.err
	}
	if e.format < format.Base {
		return fmt.Errorf("format %d is not known", e.format)
	}
	for i := range e.records {
		if e.records[i].body == bodyNote && e.format < format.Note {
			return fmt.Errorf("record %d: a note in an entry of format %d", i, e.format)
		}
	}
	return nil
}

// grow adds a record, using the slices of an earlier one again.
func (e *entry) grow() *record {
	if n := len(e.records); n < cap(e.records) {
		e.records = e.records[:n+1]
	} else {
		e.records = append(e.records, record{})
	}
	r := &e.records[len(e.records)-1]
	c := commit{mutations: r.commit.mutations[:0], rows: r.commit.rows[:0], marks: r.commit.marks[:0]}
	*r = record{commit: c}
	return r
}

// countRecords is the number of records in an entry that will be skipped.
func countRecords(b []byte) int {
	n := 0
	s := scanner{rest: b}
	for s.next() {
		if s.number == 3 {
			n++
		}
	}
	return n
}

func (r *record) decode(b []byte) error {
	s := scanner{rest: b}
	for s.next() {
		switch s.number {
		case 1:
			r.epoch = s.uint()
		case 2:
			r.term = s.uint()
		case 3, 4, 5, 6, 7, 15:
			if r.body != 0 {
				return errTwice
			}
			r.body = body(s.number)
			if err := r.decodeBody(s.bytes()); err != nil {
				return err
			}
		default:
			s.unknown()
		}
	}
	if s.err == nil && r.body == 0 {
		return errors.New("record of no kind")
	}
	return s.err
}

func (r *record) decodeBody(b []byte) error {
	switch r.body {
	case bodyTermStart:
		return r.start.decode(b)
	case bodyCommit:
		return r.commit.decode(b)
	case bodyLane:
		return r.lane.decode(b)
	case bodyExpire, bodyCheckpoint, bodyNote: // one field each
	}
	s := scanner{rest: b}
	for s.next() {
		switch {
		case s.number == 1 && r.body == bodyExpire:
			r.through = s.uint()
		case s.number == 1 && r.body == bodyCheckpoint:
			r.audit = s.bytes()
		case s.number == 1 && r.body == bodyNote:
			s.bytes()
		default:
			s.unknown()
		}
	}
	return s.err
}

func (t *termStart) decode(b []byte) error {
	s := scanner{rest: b}
	for s.next() {
		switch s.number {
		case 1:
			t.node = s.bytes()
		case 2:
			t.index = s.uint()
		case 3:
			t.hash = s.bytes()
		default:
			s.unknown()
		}
	}
	return s.err
}

func (c *commit) decode(b []byte) error {
	s := scanner{rest: b}
	var err error
	for s.next() && err == nil {
		switch s.number {
		case 1:
			c.entity, err = decodeName(s.bytes())
		case 2:
			c.base = s.uint()
		case 3:
			c.mutations = append(c.mutations, mutation{})
			err = c.mutations[len(c.mutations)-1].decode(s.item())
		case 4:
			c.hasKey = true
			err = c.key.decode(s.bytes())
		case 5:
			c.outcome = s.bytes()
		case 6:
			c.rows = append(c.rows, row{})
			err = c.rows[len(c.rows)-1].decode(s.item())
		case 7:
			c.marks = append(c.marks, mark{})
			err = c.marks[len(c.marks)-1].decode(s.item())
		case 8:
			c.tombstone = s.flag()
		default:
			s.unknown()
		}
	}
	if err != nil {
		return err
	}
	return s.err
}

func (m *mutation) decode(b []byte) error {
	s := scanner{rest: b}
	for s.next() {
		switch s.number {
		case 1:
			m.bucket = bucket(s.uint())
		case 2:
			n, err := decodeName(s.bytes())
			if err != nil {
				return err
			}
			m.entity = &n
		case 3:
			m.subkey = s.bytes()
		case 4:
			m.delete = s.flag()
		case 5:
			m.value, m.present = s.bytes(), true
		default:
			s.unknown()
		}
	}
	return s.err
}

func (k *idemKey) decode(b []byte) error {
	k.raw = b
	s := scanner{rest: b}
	for s.next() {
		switch s.number {
		case 1:
			k.commandType = s.bytes()
		case 2:
			k.key = s.bytes()
		case 3:
			s.uint() // fingerprint algorithm: the leader's business
		case 4:
			s.bytes() // fingerprint
		case 5:
			k.acceptedAt = int64(s.uint())
		case 6:
			k.expiresAt = int64(s.uint())
		default:
			s.unknown()
		}
	}
	return s.err
}

// decode reads what Apply checks; the rest of the row is stored as it came.
func (r *row) decode(b []byte) error {
	r.raw = b
	s := scanner{rest: b}
	var err error
	for s.next() && err == nil {
		switch s.number {
		case 1:
			r.source, err = decodeName(s.bytes())
		case 2:
			r.epoch = s.uint()
		case 3:
			r.sequence = s.uint()
		case 4:
			r.destination, err = decodeName(s.bytes())
		case 5:
			r.lane = s.uint()
		}
	}
	if err != nil {
		return err
	}
	return s.err
}

func (m *mark) decode(b []byte) error {
	s := scanner{rest: b}
	var err error
	for s.next() && err == nil {
		switch s.number {
		case 1:
			m.source, err = decodeName(s.bytes())
		case 2:
			m.epoch = s.uint()
		case 3:
			m.lane = s.uint()
		case 4:
			m.skipped = s.flag()
		default:
			s.unknown()
		}
	}
	if err != nil {
		return err
	}
	return s.err
}

func decodeName(b []byte) (n name, err error) {
	s := scanner{rest: b}
	for s.next() {
		switch s.number {
		case 1:
			n.tenant = s.bytes()
		case 2:
			n.kind = s.bytes()
		case 3:
			n.id = s.bytes()
		default:
			s.unknown()
		}
	}
	return n, s.err
}

// Fields of LaneUpdate.
const (
	laneConfirm protowire.Number = 3
	laneAttempt protowire.Number = 4
	lanePark    protowire.Number = 5
	laneResume  protowire.Number = 6
	laneSkip    protowire.Number = 7
	lanePause   protowire.Number = 8
)

func (l *laneUpdate) decode(b []byte) error {
	s := scanner{rest: b}
	var err error
	for s.next() && err == nil {
		if s.number >= laneConfirm && s.number <= lanePause {
			if l.change != 0 {
				return errTwice
			}
			l.change = s.number
		}
		switch s.number {
		case 1:
			l.source, err = decodeName(s.bytes())
		case 2:
			l.destination, err = decodeName(s.bytes())
		case laneConfirm, laneSkip:
			l.sequence = s.uint()
		case laneAttempt, lanePark, lanePause:
			err = l.decodeChange(s.bytes())
		case laneResume:
			l.resume = s.flag()
		default:
			s.unknown()
		}
	}
	if err != nil {
		return err
	}
	return s.err
}

// decodeChange reads an Attempt, a Park or a Pause.
func (l *laneUpdate) decodeChange(b []byte) error {
	s := scanner{rest: b}
	for s.next() {
		switch {
		case l.change == lanePause && s.number == 1,
			l.change == lanePark && s.number == 2,
			l.change == laneAttempt && s.number == 3:
			l.reason = s.bytes()
		case l.change != lanePause && s.number == 1:
			l.sequence = s.uint()
		case l.change == laneAttempt && s.number == 2:
			l.count = s.uint()
		default:
			s.unknown()
		}
	}
	return s.err
}
