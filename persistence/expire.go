package persistence

import "slices"

// expire forgets all idempotency keys up to and including a generation. Log time
// must have passed the generation's end: then each of its keys has been
// remembered for at least its window, since log time may run late but never
// early. The next flush drops the generations' buckets from the file.
func (s *Store) expire(through uint64) error {
	m := s.meta
	if through <= m.ExpiredGeneration {
		return nil
	}
	if end := generationEnd(through, m.GenerationWidth); m.LogTime < end {
		return refuse("expire", "generation %d ends at log time %d, it is %d", through, end, m.LogTime)
	}
	count := s.generations.through(through)
	for _, g := range s.generations[:count] {
		m.Hashes[idemBucket-1] -= g.hash
		m.Counters.KeysLive -= g.keys
		m.Counters.KeysExpired += g.keys
		m.ExpiredThrough = max(m.ExpiredThrough, g.acceptedLast)
	}
	s.generations = slices.Delete(s.generations, 0, count)
	m.ExpiredGeneration = through
	return nil
}
