package persistence

import (
	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// read runs a short read on the applied content. It keeps Apply out, so it must
// be bounded.
func (s *Store) read(access func(*view) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.state.closed {
		return ErrClosed
	}
	return guard(s.cfg.Path, func() error {
		v := view{active: s.active, frozen: s.frozen, db: s.db}
		defer v.close()
		return access(&v)
	})
}

// value looks one value up and decodes it into to; it is false if there is none.
func (s *Store) value(b bucket, key string, to proto.Message) (ok bool, err error) {
	err = s.read(func(v *view) error {
		f := v.get(b, key)
		if ok = f.exists(); !ok {
			return nil
		}
		return proto.Unmarshal(f.value, to)
	})
	return ok && err == nil, err
}

// Entity is an entity's record, nil if the entity has none.
func (s *Store) Entity(ref entity.Ref) (*recordv1.EntityRecord, error) {
	r := &recordv1.EntityRecord{}
	if ok, err := s.value(stateBucket, stateKey(ref), r); !ok {
		return nil, err
	}
	return r, nil
}

// Applied is how far destination has applied the lane from source, nil if
// nothing of it.
func (s *Store) Applied(destination, source entity.Ref) (*recordv1.Applied, error) {
	a := &recordv1.Applied{}
	if ok, err := s.value(appliedBucket, pairKey(destination, source), a); !ok {
		return nil, err
	}
	return a, nil
}

// Key is what is remembered under an idempotency key of an entity, nil if
// nothing is.
func (s *Store) Key(ref entity.Ref, commandType string, key []byte) (*recordv1.KeyRecord, error) {
	tuple := appendPart(appendPart(appendRef(nil, ref), commandType), key)
	var r *recordv1.KeyRecord
	err := s.read(func(v *view) error {
		f := v.findKey(s.generations, tuple)
		if !f.exists() {
			return nil
		}
		r = &recordv1.KeyRecord{}
		return proto.Unmarshal(f.value, r)
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// stepLength is the number of pairs that a longer read visits before it lets
// Apply in.
const stepLength = 256

// inSteps visits pairs of a bucket from a key on, in short reads, so that it keeps
// nobody waiting however many there are. It sees each pair as it is at its step.
// The visitor returns the key to go on at; "" ends the walk.
func (s *Store) inSteps(b bucket, prefix, from string, visit func(*view, *cursor) (next string, err error)) error {
	for more := true; more; {
		err := s.read(func(v *view) (err error) {
			c := v.cursor(b, prefix)
			more = c.seek(from)
			for n := 0; more && n < stepLength && err == nil; n++ {
				from, err = visit(v, c)
				more = from != "" && c.seek(from)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// LanesFrom are lanes of one source in the order of their destinations, after a
// position: at most limit of them; if waiting is set, only lanes in which rows wait,
// at a cost that does not depend on the others. With no destination the position
// stands before all lanes of its source. A source may have opened any number: whoever
// reads them all reads them by pages.
func (s *Store) LanesFrom(at Pair, waiting bool, limit int) ([]LaneState, error) {
	b, from := lanesBucket, ""
	if waiting {
		b = outboxBucket
	}
	if at.Destination != (entity.Ref{}) {
		if from = after(pairKey(at.Source, at.Destination)); from == "" {
			return nil, nil // there is no key behind it
		}
	}
	var list []LaneState
	err := s.inSteps(b, string(appendRef(nil, at.Source)), from, func(v *view, c *cursor) (string, error) {
		if len(list) >= limit {
			return "", nil
		}
		source, destination, _, err := cutPair(c.key)
		if err != nil {
			return "", err
		}
		key := pairKey(source, destination)
		lane := &recordv1.Lane{}
		list = append(list, LaneState{Pair{source, destination}, lane})
		return after(key), proto.Unmarshal(v.get(lanesBucket, key).value, lane)
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// WaitingLanes are the lanes of a source in which rows wait, by destination; empty
// if there are none. Its cost depends on those lanes, not on all ever opened.
func (s *Store) WaitingLanes(source entity.Ref) (map[entity.Ref]*recordv1.Lane, error) {
	lanes := map[entity.Ref]*recordv1.Lane{}
	err := s.inSteps(outboxBucket, string(appendRef(nil, source)), "", func(v *view, c *cursor) (string, error) {
		_, destination, _, err := cutPair(c.key)
		if err != nil {
			return "", err
		}
		key := pairKey(source, destination)
		lane := &recordv1.Lane{}
		lanes[destination] = lane
		return after(key), proto.Unmarshal(v.get(lanesBucket, key).value, lane)
	})
	if err != nil {
		return nil, err
	}
	return lanes, nil
}

// Rows are a lane's unconfirmed rows in order, from a lane sequence on: at most
// maxRows, and as many as fit into maxBytes of encoded rows, but at least one. A
// limit of 0 or less is none.
func (s *Store) Rows(source, destination entity.Ref, from uint64, maxRows, maxBytes int) ([]*recordv1.Row, error) {
	var rows []*recordv1.Row
	lane := pairKey(source, destination)
	err := s.read(func(v *view) error {
		size := 0
		c := v.cursor(outboxBucket, lane)
		for ok := c.seek(string(appendNumber([]byte(lane), from))); ok; ok = c.next() {
			size += len(c.value)
			if len(rows) > 0 && (maxRows > 0 && len(rows) >= maxRows || maxBytes > 0 && size > maxBytes) {
				return nil
			}
			row := &recordv1.Row{}
			if err := proto.Unmarshal(c.value, row); err != nil {
				return err
			}
			rows = append(rows, row)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// PendingSources are sources that have unconfirmed rows in lanes that are
// active: at most limit of them, in the order of their keys, after the given
// one. The zero Ref stands before all. Its cost depends on the lanes that hold rows
// now, not on those that ever did.
func (s *Store) PendingSources(behind entity.Ref, limit int) ([]entity.Ref, error) {
	from := ""
	if behind != (entity.Ref{}) {
		from = after(string(appendRef(nil, behind)))
	}
	var sources []entity.Ref
	err := s.inSteps(outboxBucket, "", from, func(v *view, c *cursor) (string, error) {
		if len(sources) >= limit {
			return "", nil
		}
		source, destination, _, err := cutPair(c.key)
		if err != nil {
			return "", err
		}
		lane := pairKey(source, destination)
		active, err := v.activeLane(lane)
		if !active {
			return after(lane), err
		}
		sources = append(sources, source)
		return after(string(appendRef(nil, source))), err
	})
	if err != nil {
		return nil, err
	}
	return sources, nil
}

func (v *view) activeLane(key string) (bool, error) {
	f := v.get(lanesBucket, key)
	if !f.exists() {
		return false, nil
	}
	lane, err := parseLane(f.value)
	return lane.status == recordv1.Lane_ACTIVE, err
}
