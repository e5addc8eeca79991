package persistence_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// model says in maps what Apply should do. It is written for being read, from
// the rules alone.
type model struct {
	logTime  int64
	expired  uint64 // generation
	through  int64
	entities map[entity.Ref]*recordv1.EntityRecord
	parts    map[string]*recordv1.Payload // bucket, entity, sub-key
	keys     map[keyName]*recordv1.KeyRecord
	rows     map[[2]entity.Ref][]*recordv1.Row
	lanes    map[[2]entity.Ref]*recordv1.Lane
	applied  map[[2]entity.Ref]*recordv1.Applied
	counters *recordv1.Counters
}

func newModel() *model {
	return &model{
		entities: map[entity.Ref]*recordv1.EntityRecord{},
		parts:    map[string]*recordv1.Payload{},
		keys:     map[keyName]*recordv1.KeyRecord{},
		rows:     map[[2]entity.Ref][]*recordv1.Row{},
		lanes:    map[[2]entity.Ref]*recordv1.Lane{},
		applied:  map[[2]entity.Ref]*recordv1.Applied{},
		counters: &recordv1.Counters{},
	}
}

func refIn(r *recordv1.Ref) entity.Ref {
	return entity.Ref{Tenant: r.GetTenant(), Kind: r.GetKind(), ID: r.GetId()}
}

// apply returns for every record which check refuses it, "" if none does.
func (m *model) apply(term uint64, e *recordv1.Entry) (refused []string) {
	for _, r := range e.Records {
		switch r.Body.(type) {
		case *recordv1.Record_Commit, *recordv1.Record_Lane, *recordv1.Record_Expire:
			m.logTime = max(m.logTime, e.LogTime)
		}
	}
	for _, r := range e.Records {
		refused = append(refused, m.record(term, r))
	}
	return refused
}

func (m *model) record(term uint64, r *recordv1.Record) string {
	if r.GetTermStart() != nil {
		term = 0
	}
	if r.Epoch != 1 || r.Term != term {
		return "term"
	}
	switch b := r.Body.(type) {
	case *recordv1.Record_Commit:
		return m.commit(b.Commit)
	case *recordv1.Record_Lane:
		return m.lane(b.Lane)
	case *recordv1.Record_Expire:
		return m.expire(b.Expire.ThroughGeneration)
	}
	return ""
}

func (m *model) expire(through uint64) string {
	if through <= m.expired {
		return ""
	}
	if uint64(m.logTime)/uint64(width) < through {
		return "expire"
	}
	m.expired = through
	for k, r := range m.keys {
		if generation(r.Key) <= through {
			m.through = max(m.through, r.Key.AcceptedAt)
			m.counters.KeysLive--
			m.counters.KeysExpired++
			delete(m.keys, k)
		}
	}
	return ""
}

func generation(k *recordv1.Key) uint64 {
	return uint64((k.ExpiresAt + int64(width) - 1) / int64(width))
}

type keyName struct {
	on               entity.Ref
	commandType, key string
}

func (m *model) commit(c *recordv1.Commit) string {
	on := refIn(c.Entity)
	record := proto.CloneOf(m.entities[on])
	if record == nil {
		record = &recordv1.EntityRecord{}
	}
	if record.Version != c.BaseVersion {
		return "version"
	}
	name := keyName{on, c.Key.GetCommandType(), string(c.Key.GetKey())}
	if c.Key != nil {
		if m.keys[name] != nil {
			return "key"
		}
		if generation(c.Key) <= m.expired {
			return "expired"
		}
	}
	numbered := map[[2]entity.Ref]uint64{}
	for i, row := range c.Rows {
		lane := [2]entity.Ref{on, refIn(row.Destination)}
		numbered[lane]++
		if refIn(row.Source) != on || row.Epoch != 1 || row.Sequence != record.SourceSequence+uint64(i)+1 ||
			row.LaneSequence != m.lanes[lane].GetNumbered()+numbered[lane] {
			return "lane"
		}
	}
	marks := map[[2]entity.Ref]*recordv1.Applied{}
	for _, a := range c.Applied {
		lane := [2]entity.Ref{on, refIn(a.Source)}
		if marks[lane] == nil {
			marks[lane] = &recordv1.Applied{
				Epoch: m.applied[lane].GetEpoch(), LaneSequence: m.applied[lane].GetLaneSequence(), Skipped: m.applied[lane].GetSkipped(),
			}
		}
		if a.Epoch != 1 || a.LaneSequence != marks[lane].LaneSequence+1 {
			return "applied"
		}
		marks[lane].Epoch, marks[lane].LaneSequence = a.Epoch, a.LaneSequence
		if a.Skipped {
			marks[lane].Skipped = a.LaneSequence
		}
	}
	for _, u := range c.Mutations {
		if u.Bucket != recordv1.Bucket_STATE && u.Bucket != recordv1.Bucket_TIMERS {
			return "mutation"
		}
	}

	put := false
	for _, u := range c.Mutations {
		switch {
		case u.Bucket == recordv1.Bucket_STATE && len(u.Subkey) == 0:
			record.State, put = u.Value, u.Value != nil
		case u.Delete:
			delete(m.parts, fmt.Sprintf("%v %q %q", u.Bucket, on, u.Subkey))
		default:
			m.parts[fmt.Sprintf("%v %q %q", u.Bucket, on, u.Subkey)] = u.Value
		}
	}
	record.Version++
	record.SourceSequence += uint64(len(c.Rows))
	record.Deleted = c.Tombstone || record.Deleted && !put
	if c.Tombstone {
		record.State = nil
	}
	if c.Key != nil {
		record.Decided++
		m.counters.Decided++
		m.counters.KeysLive++
		m.keys[name] = &recordv1.KeyRecord{Key: c.Key, Outcome: c.Outcome}
	}
	m.entities[on] = record
	for _, row := range c.Rows {
		lane := [2]entity.Ref{on, refIn(row.Destination)}
		if m.lanes[lane] == nil {
			m.lanes[lane] = &recordv1.Lane{}
		}
		m.lanes[lane].Numbered++
		m.rows[lane] = append(m.rows[lane], row)
		m.counters.Numbered++
		m.counters.RowsPending++
	}
	maps.Copy(m.applied, marks)
	m.counters.Applied += uint64(len(c.Applied))
	m.counters.Changes++
	return ""
}

func (m *model) lane(u *recordv1.LaneUpdate) string {
	key := [2]entity.Ref{refIn(u.Source), refIn(u.Destination)}
	lane := m.lanes[key]
	if lane == nil {
		return "lane"
	}
	if lane.Status == recordv1.Lane_PARKED {
		m.counters.LanesParked--
	}
	defer func() {
		if lane.Status == recordv1.Lane_PARKED {
			m.counters.LanesParked++
		}
	}()
	first := func(n uint64) bool { return n == lane.Confirmed+1 && n <= lane.Numbered }
	switch c := u.Change.(type) {
	case *recordv1.LaneUpdate_Confirm:
		if c.Confirm > lane.Numbered {
			return "lane"
		}
		if c.Confirm > lane.Confirmed {
			n := c.Confirm - lane.Confirmed
			m.rows[key] = m.rows[key][n:]
			m.counters.Confirmed += n
			m.counters.RowsPending -= n
			lane.Confirmed, lane.Attempts = c.Confirm, 0
			if lane.Status == recordv1.Lane_ACTIVE {
				lane.Reason = ""
			}
		}
	case *recordv1.LaneUpdate_Attempt:
		if !first(c.Attempt.LaneSequence) || c.Attempt.Count <= lane.Attempts {
			return "lane"
		}
		lane.Attempts = c.Attempt.Count
		if lane.Status == recordv1.Lane_ACTIVE {
			lane.Reason = c.Attempt.Reason
		}
	case *recordv1.LaneUpdate_Park:
		lane.Status, lane.Reason = recordv1.Lane_PARKED, c.Park.Reason
	case *recordv1.LaneUpdate_Pause:
		if lane.Status == recordv1.Lane_PARKED {
			return "lane"
		}
		lane.Status, lane.Reason = recordv1.Lane_PAUSED, c.Pause.Reason
	case *recordv1.LaneUpdate_Resume:
		if lane.Status != recordv1.Lane_ACTIVE {
			lane.Status, lane.Reason, lane.Attempts = recordv1.Lane_ACTIVE, "", 0
		}
	case *recordv1.LaneUpdate_Skip:
		if !first(c.Skip) {
			return "lane"
		}
		lane.Attempts = 0
		if m.rows[key][0].Event != nil {
			empty := proto.CloneOf(m.rows[key][0])
			empty.Event = nil
			m.rows[key][0] = empty
			lane.Skipped++
			m.counters.Skipped++
		}
	}
	return ""
}

// compare reads everything that the model holds back from the store.
func (m *model) compare(t *testing.T, s *persistence.Store) {
	t.Helper()
	equal := func(what any, got proto.Message, err error, want proto.Message) {
		t.Helper()
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%v: got %v %v, want %v", what, got, err, want)
		}
	}
	pending := map[entity.Ref]bool{}
	for on, want := range m.entities {
		got, err := s.Entity(on)
		equal(on, got, err, want)
	}
	for name, want := range m.keys {
		got, err := s.Key(name.on, name.commandType, []byte(name.key))
		equal(name, got, err, want)
	}
	for lane, want := range m.lanes {
		lanes, err := lanesOf(s, lane[0])
		equal(lane, lanes[lane[1]], err, want)
		rows, err := s.Rows(lane[0], lane[1], 0, 0, 0)
		if err != nil || !slices.EqualFunc(rows, m.rows[lane], func(a, b *recordv1.Row) bool { return proto.Equal(a, b) }) {
			t.Errorf("%v: %d rows %v, want %d", lane, len(rows), err, len(m.rows[lane]))
		}
		if want.Status == recordv1.Lane_ACTIVE && want.Numbered > want.Confirmed {
			pending[lane[0]] = true
		}
	}
	for lane, want := range m.applied {
		got, err := s.Applied(lane[0], lane[1])
		equal(lane, got, err, want)
	}
	sources, err := s.PendingSources(entity.Ref{}, 1000)
	if err != nil || len(sources) != len(pending) {
		t.Errorf("%d sources pending %v, want %d", len(sources), err, len(pending))
	}
	for _, source := range sources {
		if !pending[source] {
			t.Errorf("%v is not pending", source)
		}
	}
	meta := s.Meta()
	equal("counters", meta.Counters, nil, m.counters)
	if meta.LogTime != m.logTime || meta.ExpiredGeneration != m.expired || s.ExpiredThrough() != m.through {
		t.Errorf("log time %d, expired generation %d through %d; want %d, %d, %d", meta.LogTime, meta.ExpiredGeneration, s.ExpiredThrough(), m.logTime, m.expired, m.through)
	}
	a := audit(t, s)
	if a.Entities != uint64(len(m.entities)) || a.KeysLive != uint64(len(m.keys)) {
		t.Errorf("audit %+v", a)
	}
}

func againstModel(t *testing.T, seed uint64, entries int) {
	t.Helper()
	l := makeLog(t, seed, entries)
	m, s := newModel(), create(t, config(t))
	for i, e := range l {
		entry := &recordv1.Entry{}
		if err := proto.Unmarshal(e.bytes, entry); err != nil {
			t.Fatal(err)
		}
		want := m.apply(e.term, entry)
		results, err := s.Apply(indexOf(i), e.term, e.bytes)
		if err != nil {
			t.Fatal(err)
		}
		for j, r := range results {
			if got := persistence.Refused(r); got != want[j] {
				t.Fatalf("entry %d record %d refused %q, want %q: %v\n%v", i, j, got, want[j], r, entry.Records[j])
			}
		}
		if i%17 == 16 {
			flush(t, s)
		}
		if i%40 == 39 {
			m.compare(t, s)
		}
	}
	m.compare(t, s)
}

func TestApplyAgainstModel(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) { againstModel(t, seed+100, 200) })
	}
}

func FuzzApplyAgainstModel(f *testing.F) {
	f.Add(uint64(1), uint8(60))
	f.Fuzz(func(t *testing.T, seed uint64, entries uint8) { againstModel(t, seed, int(entries)+40) })
}
