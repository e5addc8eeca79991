package persistence

import (
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"writ/actors/entity"
	"writ/internal/mutant"
)

// applier is what Apply works with. Its buffers are used again for every entry.
type applier struct {
	entry  entry
	view   view
	plan   plan
	digest *xxhash.Digest
	key    []byte
}

// Apply takes the entry of one Raft index into the store. It is a function of
// the content and the entry alone: no clock, no randomness, no order of a map,
// and it never waits for a flush. Each record takes effect as a whole or not at
// all, and the entry becomes visible to readers as a whole.
//
// results has one value per record: nil if it took effect, or an [*entity.Error]
// with reason NOT_EXECUTED and a detail "refused" that names the check it failed
// ("term", "version", "key" …). An index that is not above the stored one is
// skipped.
//
// The error says that the store cannot go on: the entry cannot be decoded, or
// the file cannot be read. Nothing of the entry will reach the file, and the
// replica must stop. It belongs to the state machine's goroutine.
func (s *Store) Apply(index, term uint64, entry []byte) (results []error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return nil, fmt.Errorf("apply entry %d: %w", index, err)
	}
	if index <= s.meta.Index {
		return make([]error, countRecords(entry)), nil
	}
	if err = s.apply.entry.decode(entry); err == nil {
		err = guard(s.cfg.Path, func() error {
			results = s.applyEntry(index, term)
			return nil
		})
	}
	if err != nil {
		s.fail(err)
		return nil, fmt.Errorf("apply entry %d: %w", index, err)
	}
	if s.active.records >= s.cfg.FlushRecords {
		s.askFlush()
	}
	return results, nil
}

func (s *Store) applyEntry(index, term uint64) []error {
	a := &s.apply
	a.view = view{active: s.active, frozen: s.frozen, db: s.db, key: a.view.key}
	defer a.view.close()
	if a.entry.changes() {
		s.meta.LogTime = max(s.meta.LogTime, a.entry.logTime)
		if mutant.Off(mutant.MonotonicTime) {
			s.meta.LogTime = a.entry.logTime
		}
	}
	results := make([]error, len(a.entry.records))
	for i := range a.entry.records {
		results[i] = s.applyRecord(&a.entry.records[i], term)
	}
	// The file follows the log: it becomes newer than a reader only through an
	// entry that this reader has refused.
	s.meta.Format = max(s.meta.Format, a.entry.format)
	s.meta.Index, s.meta.Term = index, term
	s.active.records += len(results)
	s.state.change++
	s.remember(index)
	return results
}

// changes reports whether an entry holds a record that can change content. A
// TermStart, a checkpoint or a note does not, so it must not move the log time either:
// elections, restarts and reads leave the content as it is. Log time may be late
// by the idle time before a restart; it is never early.
func (e *entry) changes() bool {
	for i := range e.records {
		if b := e.records[i].body; b != bodyTermStart && b != bodyCheckpoint && b != bodyNote {
			return true
		}
	}
	return false
}

func (s *Store) applyRecord(r *record, term uint64) error {
	if r.body == bodyTermStart {
		term = 0 // it opens the term of its entry
	}
	if (r.epoch != s.meta.Epoch || r.term != term) && !mutant.Off(mutant.Term) {
		return refuse("term", "record of epoch %d, term %d in an entry of epoch %d, term %d", r.epoch, r.term, s.meta.Epoch, term)
	}
	switch r.body {
	case bodyTermStart:
		s.compare(&r.start)
	case bodyCommit:
		if err := s.check(&r.commit); err != nil {
			return err
		}
		s.commit(&r.commit)
	case bodyLane:
		return s.updateLane(&r.lane)
	case bodyExpire:
		return s.expire(r.through)
	case bodyCheckpoint:
		if len(r.audit) > 0 {
			s.audits.due = append(s.audits.due, string(r.audit))
		}
	case bodyNote:
	}
	return nil
}

// commit carries out a checked commit as it stands in the plan.
func (s *Store) commit(c *commit) {
	p, n := &s.apply.plan, s.meta.Counters
	v := p.value
	v.version++
	v.sequence += uint64(len(c.rows))
	statePut := false
	for i := range c.mutations {
		m := &c.mutations[i]
		if m.bucket == stateBucket && len(m.subkey) == 0 {
			v.state, statePut = m.value, m.present
			continue
		}
		s.mutate(m)
	}
	if c.hasKey {
		v.decided++
		n.Decided++
		n.KeysLive++
		s.putKey(c)
	}
	if c.tombstone {
		v.state = nil
	}
	v.deleted = c.tombstone || (v.deleted && !statePut)
	s.put(stateBucket, p.key, v.encode(), p.old)
	for i := range c.rows {
		row := &c.rows[i]
		// The number has never been used in this lane, so nothing lies below it.
		s.put(outboxBucket, s.rowKey(p.lanes[p.laneOf[i]].key, row.lane), clone(row.raw), found{})
	}
	for i := range p.lanes {
		s.put(lanesBucket, p.lanes[i].key, p.lanes[i].value.encode(), p.lanes[i].old)
	}
	for i := range p.marks {
		s.put(appliedBucket, p.marks[i].key, p.marks[i].value.encode(), p.marks[i].old)
	}
	n.Changes++
	n.Numbered += uint64(len(c.rows))
	n.RowsPending += uint64(len(c.rows))
	n.Applied += uint64(len(c.marks))
}

// mutate changes a value beside the entity's own state.
func (s *Store) mutate(m *mutation) {
	key := string(appendPart(append(s.apply.key[:0], s.apply.plan.name...), m.subkey))
	old := s.apply.view.get(m.bucket, key)
	if m.bucket == timersBucket {
		s.indexTimer(key, old.value, m.value)
	}
	if m.delete {
		s.delete(m.bucket, key, old)
		return
	}
	s.put(m.bucket, key, clone(m.value), old)
}

// putKey remembers an idempotency key and its outcome in its generation.
func (s *Store) putKey(c *commit) {
	p := &s.apply.plan
	g := s.generations.at(p.generation)
	s.apply.key = append(appendNumber(s.apply.key[:0], p.generation), p.tuple...)
	g.hash += s.put(idemBucket, string(s.apply.key), encodeKeyRecord(c.key.raw, c.outcome), found{})
	if g.keys == 0 {
		g.acceptedLast = c.key.acceptedAt
	}
	g.keys++
	g.acceptedLast = max(g.acceptedLast, c.key.acceptedAt)
	g.seen.add(p.tuple)
}

// put writes a pair over what was found under its key, and returns its hash.
func (s *Store) put(b bucket, key string, value []byte, old found) uint64 {
	hash := pairHash(s.apply.digest, b, key, value)
	s.meta.Hashes[b-1] += hash - s.oldHash(b, key, old)
	if old.place == inActive {
		s.active.change(b, key, old.item, value, hash)
	} else {
		s.active.set(b, key, &item{value: value, hash: hash, fresh: old.place == absent})
	}
	return hash
}

// delete removes a pair that was found.
func (s *Store) delete(b bucket, key string, old found) {
	if !old.exists() {
		return
	}
	s.meta.Hashes[b-1] -= s.oldHash(b, key, old)
	switch {
	case old.place != inActive:
		s.active.set(b, key, &item{})
	case old.item.fresh:
		s.active.forget(b, key)
	default:
		s.active.change(b, key, old.item, nil, 0)
	}
}

func (s *Store) oldHash(b bucket, key string, old found) uint64 {
	switch {
	case !old.exists():
		return 0
	case old.item != nil:
		return old.item.hash
	}
	return pairHash(s.apply.digest, b, key, old.value)
}

// rowKey is the key of a row in the outbox.
func (s *Store) rowKey(lane string, sequence uint64) string {
	s.apply.key = appendNumber(append(s.apply.key[:0], lane...), sequence)
	return string(s.apply.key)
}

// clone copies bytes out of the entry. It is never nil: nil means deleted.
func clone(b []byte) []byte { return append(make([]byte, 0, len(b)), b...) }

// refuse is the result of a record that takes no effect.
func refuse(check, format string, args ...any) error {
	return entity.Errorf(entity.NotExecuted, format, args...).With("refused", check)
}

// Refused is the name of the check that a record's result failed; "" if it was
// not refused by Apply.
func Refused(result error) string {
	var e *entity.Error
	if !errors.As(result, &e) || e.Reason != entity.NotExecuted {
		return ""
	}
	return e.Details["refused"]
}
