package persistence_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
	"writ/sharding"
)

const (
	width  = time.Minute // of a key generation
	window = int64(10 * time.Minute)
)

// config is a store of its own in a fresh folder; it is flushed when asked only.
func config(tb testing.TB) persistence.Config {
	tb.Helper()
	return persistence.Config{
		Path:            filepath.Join(tb.TempDir(), "shard"),
		ClusterID:       "cluster",
		Shard:           3,
		Range:           sharding.Range{First: 0, Last: math.MaxUint64},
		Epoch:           1,
		Generation:      7,
		GenerationWidth: width,
		FlushInterval:   time.Hour,
		OnFailure:       func(err error) { tb.Errorf("store failed: %v", err) },
	}
}

// create makes a store that is audited and closed at the end of the test.
func create(tb testing.TB, cfg persistence.Config) *persistence.Store {
	tb.Helper()
	s, err := persistence.Create(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tend(tb, s)
	return s
}

// open opens a store like create.
func open(tb testing.TB, cfg persistence.Config) *persistence.Store {
	tb.Helper()
	s, err := persistence.Open(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tend(tb, s)
	return s
}

func tend(tb testing.TB, s *persistence.Store) {
	tb.Helper()
	tb.Cleanup(func() {
		if a, err := s.Audit(context.WithoutCancel(tb.Context())); err == nil { // not closed yet
			for _, f := range a.Findings {
				tb.Errorf("audit: %s", f)
			}
		}
		_ = s.Close()
	})
}

func flush(tb testing.TB, s *persistence.Store) {
	tb.Helper()
	if err := s.WaitFlushed(tb.Context(), math.MaxUint64); err != nil {
		tb.Fatal(err)
	}
}

func audit(tb testing.TB, s *persistence.Store) *persistence.Audit {
	tb.Helper()
	a, err := s.Audit(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range a.Findings {
		tb.Errorf("audit: %s", f)
	}
	return a
}

func ref(id string) entity.Ref { return entity.Ref{Tenant: "acme", Kind: "account", ID: id} }

func refOf(r entity.Ref) *recordv1.Ref {
	return &recordv1.Ref{Tenant: r.Tenant, Kind: r.Kind, Id: r.ID}
}

// lanesOf are all lanes of a source by destination, read by pages.
func lanesOf(s *persistence.Store, source entity.Ref) (map[entity.Ref]*recordv1.Lane, error) {
	const page = 100
	lanes := map[entity.Ref]*recordv1.Lane{}
	for at := (persistence.Pair{Source: source}); ; {
		list, err := s.LanesFrom(at, false, page)
		for _, l := range list {
			at, lanes[l.Destination] = l.Pair, l.Lane
		}
		if err != nil || len(list) < page {
			return lanes, err
		}
	}
}

func payload(text string) *recordv1.Payload {
	return &recordv1.Payload{Type: "test.Text", Schema: 1, Data: []byte(text)}
}

func encode(tb testing.TB, logTime int64, records ...*recordv1.Record) []byte {
	tb.Helper()
	b, err := proto.Marshal(&recordv1.Entry{Format: 1, LogTime: logTime, Records: records})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// leader makes records as the leader of the store would: it knows the versions
// and numbers of what it has made so far.
type leader struct {
	epoch, term uint64
	logTime     int64
	versions    map[entity.Ref]uint64
	sequences   map[entity.Ref]uint64
	lanes       map[[2]entity.Ref]uint64
	applied     map[[2]entity.Ref]uint64
}

func newLeader() *leader {
	return &leader{
		epoch: 1, term: 1,
		versions:  map[entity.Ref]uint64{},
		sequences: map[entity.Ref]uint64{},
		lanes:     map[[2]entity.Ref]uint64{},
		applied:   map[[2]entity.Ref]uint64{},
	}
}

func (l *leader) record() *recordv1.Record { return &recordv1.Record{Epoch: l.epoch, Term: l.term} }

// commit is a decision without key, rows and marks; its state is the version.
func (l *leader) commit(on entity.Ref) (*recordv1.Record, *recordv1.Commit) {
	c := &recordv1.Commit{
		Entity:      refOf(on),
		BaseVersion: l.versions[on],
		Mutations: []*recordv1.Mutation{{
			Bucket: recordv1.Bucket_STATE,
			Value:  payload(fmt.Sprintf("%s at %d", on.ID, l.versions[on]+1)),
		}},
	}
	l.versions[on]++
	r := l.record()
	r.Body = &recordv1.Record_Commit{Commit: c}
	return r, c
}

func (l *leader) key(c *recordv1.Commit, key string) {
	c.Key = &recordv1.Key{
		CommandType: "test.Do", Key: []byte(key),
		FingerprintAlgorithm: 1, Fingerprint: binary.BigEndian.AppendUint64(nil, uint64(len(key))),
		AcceptedAt: l.logTime + 5, ExpiresAt: l.logTime + window,
	}
	c.Outcome = &recordv1.Outcome{Decision: recordv1.Outcome_EXECUTED, Reply: payload("done " + key), Version: c.BaseVersion + 1}
}

func (l *leader) emit(c *recordv1.Commit, to entity.Ref) {
	from := entity.Ref{Tenant: c.Entity.Tenant, Kind: c.Entity.Kind, ID: c.Entity.Id}
	lane := [2]entity.Ref{from, to}
	l.sequences[from]++
	l.lanes[lane]++
	c.Rows = append(c.Rows, &recordv1.Row{
		Source: refOf(from), Epoch: l.epoch, Sequence: l.sequences[from],
		Destination: refOf(to), LaneSequence: l.lanes[lane],
		Event: payload(fmt.Sprintf("event %d", l.sequences[from])), AcceptedAt: l.logTime + 5, Hops: 1,
	})
}

func (l *leader) mark(c *recordv1.Commit, source entity.Ref) {
	on := entity.Ref{Tenant: c.Entity.Tenant, Kind: c.Entity.Kind, ID: c.Entity.Id}
	lane := [2]entity.Ref{on, source}
	l.applied[lane]++
	c.Applied = append(c.Applied, &recordv1.AppliedMark{Source: refOf(source), Epoch: l.epoch, LaneSequence: l.applied[lane], Skipped: l.applied[lane]%5 == 0})
}

func (l *leader) update(from, to entity.Ref, change any) *recordv1.Record {
	u := &recordv1.LaneUpdate{Source: refOf(from), Destination: refOf(to)}
	switch c := change.(type) {
	case *recordv1.LaneUpdate_Confirm:
		u.Change = c
	case *recordv1.LaneUpdate_Attempt:
		u.Change = c
	case *recordv1.LaneUpdate_Park:
		u.Change = c
	case *recordv1.LaneUpdate_Resume:
		u.Change = c
	case *recordv1.LaneUpdate_Skip:
		u.Change = c
	case *recordv1.LaneUpdate_Pause:
		u.Change = c
	}
	r := l.record()
	r.Body = &recordv1.Record_Lane{Lane: u}
	return r
}

func (l *leader) confirm(from, to entity.Ref, through uint64) *recordv1.Record {
	return l.update(from, to, &recordv1.LaneUpdate_Confirm{Confirm: through})
}

func (l *leader) expire(through uint64) *recordv1.Record {
	r := l.record()
	r.Body = &recordv1.Record_Expire{Expire: &recordv1.Expire{ThroughGeneration: through}}
	return r
}

func (l *leader) checkpoint(audit string) *recordv1.Record {
	r := l.record()
	r.Body = &recordv1.Record_Checkpoint{Checkpoint: &recordv1.Checkpoint{Audit: audit}}
	return r
}

func (l *leader) termStart(index uint64, hash []byte) *recordv1.Record {
	return &recordv1.Record{Epoch: l.epoch, Body: &recordv1.Record_TermStart{TermStart: &recordv1.TermStart{Node: "n1", HashIndex: index, Hash: hash}}}
}

// command is the usual decision: a state, a key, a row to each destination.
func (l *leader) command(on entity.Ref, key string, to ...entity.Ref) *recordv1.Record {
	r, c := l.commit(on)
	if key != "" {
		l.key(c, key)
	}
	for _, d := range to {
		l.emit(c, d)
	}
	return r
}

// shard is a store with its leader and the entry it is at.
type shard struct {
	*persistence.Store
	*leader
	tb    testing.TB
	index uint64
}

func newShard(tb testing.TB, s *persistence.Store) *shard {
	tb.Helper()
	return &shard{Store: s, leader: newLeader(), tb: tb, index: s.Meta().Index}
}

// must applies records that have to take effect, as one entry.
func (s *shard) must(records ...*recordv1.Record) {
	s.tb.Helper()
	for i, err := range s.try(records...) {
		if err != nil {
			s.tb.Fatalf("record %d: %v", i, err)
		}
	}
}

// try applies records as one entry and returns what became of each.
func (s *shard) try(records ...*recordv1.Record) []error {
	s.tb.Helper()
	s.index++
	results, err := s.Apply(s.index, s.term, encode(s.tb, s.logTime, records...))
	if err != nil {
		s.tb.Fatal(err)
	}
	if len(results) != len(records) {
		s.tb.Fatalf("%d results for %d records", len(results), len(records))
	}
	return results
}

func copyFile(tb testing.TB, from, to string) {
	tb.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
}
