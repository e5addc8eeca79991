package persistence

import (
	recordv1 "writ/proto/writ/record/v1"
)

// updateLane changes the sending side of a lane. It does not raise the source's
// version.
//
// A lane is ACTIVE, PARKED or PAUSED:
//
//	ACTIVE → PARKED (park), PAUSED (pause)
//	PAUSED → PARKED (park), ACTIVE (resume)
//	PARKED → ACTIVE (resume)
//
// Confirmations, attempts and skips are taken in any of them and change none.
func (s *Store) updateLane(u *laneUpdate) error {
	a := &s.apply
	a.key = appendName(a.key[:0], u.source)
	if err := s.checkOwner(a.key, u.source); err != nil {
		return err
	}
	a.key = appendName(a.key, u.destination)
	key := string(a.key)
	old, lane := s.lane(key)
	if !old.exists() {
		return refuse("lane", "lane %v to %v does not exist", u.source.ref(), u.destination.ref())
	}
	before := lane
	if err := s.changeLane(u, key, &lane); err != nil {
		return err
	}
	s.indexLane(key, &before, &lane)
	s.put(lanesBucket, key, lane.encode(), old)
	return nil
}

func (s *Store) changeLane(u *laneUpdate, key string, lane *laneValue) error {
	switch u.change {
	case laneConfirm:
		return s.confirm(key, lane, u.sequence)
	case laneAttempt:
		return attempt(lane, u)
	case lanePark:
		lane.status, lane.reason = recordv1.Lane_PARKED, u.reason
	case laneResume:
		if !u.resume {
			return refuse("record", "the record does not say what to do")
		}
		if lane.status != recordv1.Lane_ACTIVE {
			lane.status, lane.reason, lane.attempts = recordv1.Lane_ACTIVE, nil, 0
		}
	case laneSkip:
		return s.skip(key, lane, u.sequence)
	case lanePause:
		if lane.status == recordv1.Lane_PARKED {
			return refuse("lane", "the lane is parked: %s", lane.reason)
		}
		lane.status, lane.reason = recordv1.Lane_PAUSED, u.reason
	default:
		return refuse("record", "the record does not say what to do")
	}
	return nil
}

// confirm removes the rows that the destination has applied.
func (s *Store) confirm(key string, lane *laneValue, through uint64) error {
	if through > lane.numbered {
		return refuse("lane", "confirmed is %d, but the lane's last row is %d", through, lane.numbered)
	}
	if through <= lane.confirmed {
		return nil
	}
	for n := lane.confirmed + 1; n <= through; n++ {
		row := s.rowKey(key, n)
		s.delete(outboxBucket, row, s.apply.view.get(outboxBucket, row))
	}
	rows := through - lane.confirmed
	lane.confirmed, lane.attempts = through, 0
	if lane.status == recordv1.Lane_ACTIVE {
		lane.reason = nil // it was the refused row's
	}
	s.meta.Counters.Confirmed += rows
	s.meta.Counters.RowsPending -= rows
	return nil
}

// attempt counts a refused delivery of the first row.
func attempt(lane *laneValue, u *laneUpdate) error {
	if u.sequence != lane.confirmed+1 || u.sequence > lane.numbered {
		return refuse("lane", "row %d is not the first of the lane", u.sequence)
	}
	if u.count <= lane.attempts {
		return refuse("lane", "attempt %d after %d", u.count, lane.attempts)
	}
	lane.attempts = u.count
	if lane.status == recordv1.Lane_ACTIVE {
		lane.reason = u.reason
	}
	return nil
}

// skip takes the event out of the first row. The row stays and keeps its number:
// its destination marks it applied without a handler, so the lane has no gap.
func (s *Store) skip(key string, lane *laneValue, sequence uint64) error {
	row := s.rowKey(key, sequence)
	old := s.apply.view.get(outboxBucket, row)
	if sequence != lane.confirmed+1 || !old.exists() {
		return refuse("lane", "row %d is not the first of the lane", sequence)
	}
	kept, err := withoutEvent(old.value)
	if err != nil {
		panic(err) // damage: a value that this code did not write
	}
	lane.attempts = 0
	if len(kept) == len(old.value) {
		return nil // skipped before
	}
	s.put(outboxBucket, row, kept, old)
	lane.skipped++
	s.meta.Counters.Skipped++
	return nil
}

// indexLane keeps the bucket parked, which lists the lanes that stand still.
func (s *Store) indexLane(key string, before, now *laneValue) {
	if before.status == now.status && string(before.reason) == string(now.reason) {
		return
	}
	if before.status == recordv1.Lane_PARKED {
		s.meta.Counters.LanesParked--
	}
	if now.status == recordv1.Lane_PARKED {
		s.meta.Counters.LanesParked++
	}
	old := s.apply.view.get(parkedBucket, key)
	if now.status == recordv1.Lane_ACTIVE {
		s.delete(parkedBucket, key, old)
		return
	}
	s.put(parkedBucket, key, encodeParked(now.confirmed+1, now.reason), old)
}
