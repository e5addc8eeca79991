package persistence

import (
	"context"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// Pair is the name of a lane or of an applied mark. As a position, the zero Pair
// stands before all.
type Pair struct{ Source, Destination entity.Ref }

// LaneState is a lane with its name.
type LaneState struct {
	Pair
	Lane *recordv1.Lane
}

// MarkState is an applied mark with the name of its lane.
type MarkState struct {
	Pair
	Mark *recordv1.Applied
}

// LanesAfter are lanes in the order of (source, destination), after a position:
// at most limit of them. It is for walks that are spread over time; what a walk
// sees of a lane is as new as its step.
func (s *Store) LanesAfter(at Pair, limit int) ([]LaneState, error) {
	var list []LaneState
	err := s.pairsAfter(lanesBucket, at.Source, at.Destination, limit, func(source, destination entity.Ref, value []byte) error {
		lane := &recordv1.Lane{}
		list = append(list, LaneState{Pair{source, destination}, lane})
		return proto.Unmarshal(value, lane)
	})
	return list, err
}

// Which says which lanes a walk is for.
type Which int

const (
	// EveryLane that was ever opened.
	EveryLane Which = iota
	// StandingLanes are parked or paused.
	StandingLanes
	// OpenLanes hold rows, or stand.
	OpenLanes
)

// LanesOf is LanesAfter for some of the lanes. Its cost depends on how many lanes
// it is for, not on how many were ever opened.
func (s *Store) LanesOf(which Which, at Pair, limit int) ([]LaneState, error) {
	if which == EveryLane {
		return s.LanesAfter(at, limit)
	}
	from := ""
	if at != (Pair{}) {
		from = after(pairKey(at.Source, at.Destination))
	}
	var list []LaneState
	err := s.read(func(v *view) error {
		standing, rows := v.cursor(parkedBucket, ""), v.cursor(outboxBucket, "")
		for len(list) < limit {
			key, found := "", false
			if standing.seek(from) {
				key, found = standing.key, true
			}
			if which == OpenLanes && rows.seek(from) {
				if lane := rows.key[:len(rows.key)-numberSize]; !found || lane < key {
					key, found = lane, true
				}
			}
			if !found {
				return nil
			}
			source, destination, _, err := cutPair(key)
			if err != nil {
				return err
			}
			lane := &recordv1.Lane{}
			if err := proto.Unmarshal(v.get(lanesBucket, key).value, lane); err != nil {
				return err
			}
			list = append(list, LaneState{Pair{source, destination}, lane})
			if from = after(key); from == "" {
				return nil
			}
		}
		return nil
	})
	return list, err
}

// MarksAfter are applied marks in the order of (destination, source), after a
// position: at most limit of them.
func (s *Store) MarksAfter(at Pair, limit int) ([]MarkState, error) {
	var list []MarkState
	err := s.pairsAfter(appliedBucket, at.Destination, at.Source, limit, func(destination, source entity.Ref, value []byte) error {
		mark := &recordv1.Applied{}
		list = append(list, MarkState{Pair{source, destination}, mark})
		return proto.Unmarshal(value, mark)
	})
	return list, err
}

// MarksOf are the applied marks of one destination in the order of their sources:
// at most limit of them.
func (s *Store) MarksOf(destination entity.Ref, limit int) ([]MarkState, error) {
	var list []MarkState
	err := s.read(func(v *view) error {
		c := v.cursor(appliedBucket, string(appendRef(nil, destination)))
		for ok := c.first(); ok && len(list) < limit; ok = c.next() {
			_, source, _, err := cutPair(c.key)
			if err != nil {
				return err
			}
			mark := &recordv1.Applied{}
			if err := proto.Unmarshal(c.value, mark); err != nil {
				return err
			}
			list = append(list, MarkState{Pair{source, destination}, mark})
		}
		return nil
	})
	return list, err
}

// pairsAfter visits pairs of a bucket whose keys name two entities, after a
// position, each as it is at its step.
func (s *Store) pairsAfter(b bucket, first, second entity.Ref, limit int, visit func(first, second entity.Ref, value []byte) error) error {
	from := ""
	if first != (entity.Ref{}) {
		if from = after(pairKey(first, second)); from == "" {
			return nil // there is no key behind it
		}
	}
	left := limit
	return s.inSteps(b, "", from, func(_ *view, c *cursor) (next string, err error) {
		if left <= 0 {
			return "", nil
		}
		first, second, _, err := cutPair(c.key)
		if err != nil {
			return "", err
		}
		if left--; left > 0 {
			next = after(c.key)
		}
		return next, visit(first, second, c.value)
	})
}

// OldestRow is the earliest acceptance time among the first rows of all lanes that
// are active, Unix nanoseconds; 0 if no row waits. It reads one row per lane and
// blocks nobody.
func (s *Store) OldestRow(ctx context.Context) (acceptedAt int64, err error) {
	c, err := s.scan(ctx)
	if err != nil {
		return 0, err
	}
	err = guard(c.path, func() error {
		defer c.close()
		rows := c.cursor(outboxBucket, "")
		for ok := rows.first(); ok; {
			if err := c.step(); err != nil {
				return err
			}
			lane := rows.key[:len(rows.key)-numberSize]
			active, err := c.activeLane(lane)
			if err != nil {
				return err
			}
			if active {
				row := &recordv1.Row{}
				if err := proto.Unmarshal(rows.value, row); err != nil {
					return err
				}
				if acceptedAt == 0 || row.GetAcceptedAt() < acceptedAt {
					acceptedAt = row.GetAcceptedAt()
				}
			}
			ok = rows.behind(lane)
		}
		return nil
	})
	return acceptedAt, err
}

// FileBytes is the size of the shard file and how much of it holds content. The
// rest are free pages, which later flushes use again.
func (s *Store) FileBytes() (total, live int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.state.closed {
		return 0, 0
	}
	err := guard(s.cfg.Path, func() error {
		tx, err := s.db.Begin(false)
		if err != nil {
			return err
		}
		total = tx.Size()
		stats := s.db.Stats()
		live = total - int64(stats.FreePageN+stats.PendingPageN)*int64(s.db.Info().PageSize)
		return tx.Rollback()
	})
	if err != nil {
		return 0, 0
	}
	return total, max(0, live)
}

// Lane is one lane, nil if it was never opened.
func (s *Store) Lane(source, destination entity.Ref) (*recordv1.Lane, error) {
	lane := &recordv1.Lane{}
	if ok, err := s.value(lanesBucket, pairKey(source, destination), lane); !ok {
		return nil, err
	}
	return lane, nil
}
