package persistence

import (
	"github.com/cespare/xxhash/v2"

	"writ/internal/mutant"
)

// plan is what a commit will change, worked out by its checks so that nothing is
// looked up twice. The zero plan is ready for use; it is used again.
type plan struct {
	name       []byte // the entity's name, encoded: the prefix of its keys
	key        string // of the entity's record
	old        found
	value      entityValue
	tuple      []byte // of the idempotency key
	generation uint64
	lanes      []lanePlan
	laneOf     []int // by row: its lane
	marks      []markPlan
	index      map[string]int // lanes or marks by key
}

type lanePlan struct {
	key   string
	old   found
	value laneValue
}

type markPlan struct {
	key   string
	old   found
	value appliedValue
}

// check decides whether a commit takes effect, and fills the plan. The order of
// the checks is fixed: it decides which refusal a record gets.
func (s *Store) check(c *commit) error {
	if err := s.checkEntity(c); err != nil {
		return err
	}
	if c.hasKey {
		if err := s.checkKey(c); err != nil {
			return err
		}
	}
	if err := s.checkRows(c); err != nil {
		return err
	}
	if err := s.checkMarks(c); err != nil {
		return err
	}
	return s.checkMutations(c)
}

// checkEntity: the entity is this shard's, and at the version that the decision
// was made on.
func (s *Store) checkEntity(c *commit) error {
	p := &s.apply.plan
	p.name = appendName(p.name[:0], c.entity)
	if err := s.checkOwner(p.name, c.entity); err != nil {
		return err
	}
	p.key = string(appendPart(p.name, ""))
	if len(p.key) > maxKeySize {
		return refuse("size", "the entity's name is too long")
	}
	p.old, p.value = s.apply.view.get(stateBucket, p.key), entityValue{}
	if p.old.exists() {
		var err error
		if p.value, err = parseEntity(p.old.value); err != nil {
			panic(err) // damage: a value that this code did not write
		}
	}
	if c.base != p.value.version && !mutant.Off(mutant.Version) {
		return refuse("version", "entity is at version %d, the record is based on %d", p.value.version, c.base)
	}
	return nil
}

// checkOwner: an entity with the encoded name belongs to this shard.
func (s *Store) checkOwner(encoded []byte, n name) error {
	if len(n.kind) == 0 {
		return refuse("record", "the record names no entity")
	}
	if !s.cfg.Range.Contains(xxhash.Sum64(encoded)) { // what sharding.Hash computes
		return refuse("range", "entity %v belongs to another shard", n.ref())
	}
	return nil
}

// checkKey: the idempotency key has never been accepted, as far as is
// remembered, and will be remembered.
func (s *Store) checkKey(c *commit) error {
	p := &s.apply.plan
	if c.outcome == nil {
		return refuse("record", "the record has a key but no outcome")
	}
	p.tuple = appendPart(append(p.tuple[:0], p.name...), c.key.commandType)
	p.tuple = appendPart(p.tuple, c.key.key)
	if len(p.tuple) > maxKeySize {
		return refuse("size", "the idempotency key is too long")
	}
	if s.apply.view.findKey(s.generations, p.tuple).exists() && !mutant.Off(mutant.Key) {
		return refuse("key", "the idempotency key is in use")
	}
	p.generation = generationOf(c.key.expiresAt, s.meta.GenerationWidth)
	if p.generation <= s.meta.ExpiredGeneration {
		return refuse("expired", "the idempotency key expires in generation %d, forgotten are all up to %d", p.generation, s.meta.ExpiredGeneration)
	}
	return nil
}

// checkRows: rows continue the entity's sequence and their lanes' without a gap.
func (s *Store) checkRows(c *commit) error {
	p := &s.apply.plan
	p.lanes, p.laneOf = p.lanes[:0], p.laneOf[:0]
	if len(c.rows) == 0 {
		return nil
	}
	p.reset()
	for i := range c.rows {
		row := &c.rows[i]
		switch {
		case !row.source.equal(c.entity) || row.epoch != s.meta.Epoch:
			return refuse("lane", "row %d comes from %v, epoch %d", i, row.source.ref(), row.epoch)
		case row.sequence != p.value.sequence+1+uint64(i):
			return refuse("lane", "row %d has sequence %d, the entity's last is %d", i, row.sequence, p.value.sequence+uint64(i))
		case len(row.destination.kind) == 0 || string(row.destination.tenant) != string(c.entity.tenant):
			return refuse("lane", "row %d goes to %v", i, row.destination.ref())
		}
		at, err := s.planLane(row.destination)
		if err != nil {
			return err
		}
		lane := &p.lanes[at].value
		if row.lane != lane.numbered+1 && !mutant.Off(mutant.Lane) {
			return refuse("lane", "row %d has lane sequence %d, the lane's last is %d", i, row.lane, lane.numbered)
		}
		lane.numbered++
		p.laneOf = append(p.laneOf, at)
	}
	return nil
}

// planLane finds the lane to a destination in the plan, loaded if it is new.
func (s *Store) planLane(destination name) (int, error) {
	p := &s.apply.plan
	key := appendName(append(s.apply.key[:0], p.name...), destination)
	s.apply.key = key
	if at, ok := p.index[string(key)]; ok {
		return at, nil
	}
	if len(key)+numberSize > maxKeySize {
		return 0, refuse("size", "the lane's names are too long")
	}
	lane := lanePlan{key: string(key)}
	lane.old, lane.value = s.lane(lane.key)
	p.index[lane.key] = len(p.lanes)
	p.lanes = append(p.lanes, lane)
	return len(p.lanes) - 1, nil
}

// lane looks a lane up.
func (s *Store) lane(key string) (found, laneValue) {
	old := s.apply.view.get(lanesBucket, key)
	if !old.exists() {
		return old, laneValue{}
	}
	value, err := parseLane(old.value)
	if err != nil {
		panic(err) // damage: a value that this code did not write
	}
	return old, value
}

// checkMarks: events are applied once and in the order of their lane. A source
// whose shard was restored counts on from where its backup stood, in a higher
// epoch: its numbers may repeat, but must not leave a gap.
func (s *Store) checkMarks(c *commit) error {
	p := &s.apply.plan
	p.marks = p.marks[:0]
	if len(c.marks) == 0 {
		return nil
	}
	p.reset()
	for i := range c.marks {
		m := &c.marks[i]
		if len(m.source.kind) == 0 || string(m.source.tenant) != string(c.entity.tenant) {
			return refuse("applied", "mark %d is for %v", i, m.source.ref())
		}
		at, err := s.planMark(m.source)
		if err != nil {
			return err
		}
		last := &p.marks[at].value
		next := last.sequence + 1
		fits := m.lane == next && m.epoch >= last.epoch
		restored := m.epoch > last.epoch && m.lane >= 1 && m.lane < next
		if !fits && !restored && !mutant.Off(mutant.Applied) {
			return refuse("applied", "mark %d has epoch %d, lane sequence %d; applied is epoch %d, %d", i, m.epoch, m.lane, last.epoch, last.sequence)
		}
		last.epoch, last.sequence = m.epoch, m.lane
		switch {
		case m.skipped:
			last.skipped = m.lane
		case m.lane <= last.skipped: // a restored source has used the number again
			last.skipped = 0
		}
	}
	return nil
}

func (s *Store) planMark(source name) (int, error) {
	p := &s.apply.plan
	key := appendName(append(s.apply.key[:0], p.name...), source)
	s.apply.key = key
	if at, ok := p.index[string(key)]; ok {
		return at, nil
	}
	if len(key) > maxKeySize {
		return 0, refuse("size", "the lane's names are too long")
	}
	m := markPlan{key: string(key)}
	m.old = s.apply.view.get(appliedBucket, m.key)
	if m.old.exists() {
		var err error
		if m.value, err = parseApplied(m.old.value); err != nil {
			panic(err) // damage: a value that this code did not write
		}
	}
	p.index[m.key] = len(p.marks)
	p.marks = append(p.marks, m)
	return len(p.marks) - 1, nil
}

// checkMutations: in format 1 a record changes its own entity's state and
// timers.
func (s *Store) checkMutations(c *commit) error {
	for i := range c.mutations {
		m := &c.mutations[i]
		switch {
		case m.bucket != stateBucket && m.bucket != timersBucket:
			return refuse("mutation", "mutation %d is for bucket %d", i, m.bucket)
		case m.entity != nil && !m.entity.equal(c.entity):
			return refuse("mutation", "mutation %d is for %v", i, m.entity.ref())
		case m.delete == m.present:
			return refuse("mutation", "mutation %d neither deletes nor sets a value, or both", i)
		case len(s.apply.plan.name)+len(m.subkey)+3*numberSize > maxKeySize:
			return refuse("size", "the sub-key of mutation %d is too long", i)
		}
	}
	return nil
}

// reset empties the index.
func (p *plan) reset() {
	if p.index == nil {
		p.index = make(map[string]int)
	}
	clear(p.index)
}
