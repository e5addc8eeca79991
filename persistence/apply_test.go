package persistence_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"writ/actors/entity"
	"writ/internal/format"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
	"writ/sharding"
)

func TestCommitTakesEffectAsAWhole(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	alice, bob := ref("alice"), ref("bob")
	s.must(s.command(alice, "k1", bob, bob, ref("carol")))
	for _, state := range []string{"in memory", "in the file"} {
		t.Run(state, func(t *testing.T) {
			got, err := s.Entity(alice)
			want := &recordv1.EntityRecord{Version: 1, SourceSequence: 3, Decided: 1, State: payload("alice at 1")}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || err != nil {
				t.Errorf("entity: %v %s", err, diff)
			}
			key, err := s.Key(alice, "test.Do", []byte("k1"))
			if err != nil || key.GetOutcome().GetReply() == nil || key.GetKey().GetAcceptedAt() != 5 {
				t.Errorf("key: %v %v", key, err)
			}
			rows, err := s.Rows(alice, bob, 1, 10, 0)
			if err != nil || len(rows) != 2 || rows[1].Sequence != 2 || rows[1].LaneSequence != 2 || string(rows[1].Event.Data) != "event 2" {
				t.Errorf("rows: %v %v", rows, err)
			}
			lanes, err := lanesOf(s.Store, alice)
			if err != nil || len(lanes) != 2 || lanes[bob].GetNumbered() != 2 || lanes[ref("carol")].GetNumbered() != 1 {
				t.Errorf("lanes: %v %v", lanes, err)
			}
			flush(t, s.Store)
		})
	}
	n := s.Meta().Counters
	want := &recordv1.Counters{Changes: 1, Decided: 1, KeysLive: 1, Numbered: 3, RowsPending: 3}
	if diff := cmp.Diff(want, n, protocmp.Transform()); diff != "" {
		t.Errorf("counters: %s", diff)
	}
}

func TestWhatIsAbsentIsNil(t *testing.T) {
	s := create(t, config(t))
	if r, err := s.Entity(ref("a")); r != nil || err != nil {
		t.Errorf("entity: %v %v", r, err)
	}
	if r, err := s.Key(ref("a"), "t", []byte("k")); r != nil || err != nil {
		t.Errorf("key: %v %v", r, err)
	}
	if r, err := s.Applied(ref("a"), ref("b")); r != nil || err != nil {
		t.Errorf("applied: %v %v", r, err)
	}
	if r, err := s.Rows(ref("a"), ref("b"), 1, 1, 1); len(r) != 0 || err != nil {
		t.Errorf("rows: %v %v", r, err)
	}
	if r, err := s.PendingSources(entity.Ref{}, 10); len(r) != 0 || err != nil {
		t.Errorf("pending: %v %v", r, err)
	}
}

// Every check and refusal of a commit, and that a refused record leaves no trace.
func TestCommitRefused(t *testing.T) {
	alice, bob := ref("alice"), ref("bob")
	tests := []struct {
		name   string
		change func(*recordv1.Record, *recordv1.Commit)
		want   string
	}{
		{"epoch below", func(r *recordv1.Record, _ *recordv1.Commit) { r.Epoch = 0 }, "term"},
		{"epoch above", func(r *recordv1.Record, _ *recordv1.Commit) { r.Epoch = 2 }, "term"},
		{"term below", func(r *recordv1.Record, _ *recordv1.Commit) { r.Term = 0 }, "term"},
		{"term above", func(r *recordv1.Record, _ *recordv1.Commit) { r.Term = 2 }, "term"},
		{"version below", func(_ *recordv1.Record, c *recordv1.Commit) { c.BaseVersion = 1 }, "version"},
		{"version above", func(_ *recordv1.Record, c *recordv1.Commit) { c.BaseVersion = 3 }, "version"},
		{"version of a new entity", func(_ *recordv1.Record, c *recordv1.Commit) { c.Entity = refOf(ref("new")) }, "version"},
		{"no entity", func(_ *recordv1.Record, c *recordv1.Commit) { c.Entity = nil }, "record"},
		{"key in use", func(_ *recordv1.Record, c *recordv1.Commit) { c.Key.Key = []byte("k1") }, "key"},
		{"key in use, another generation", func(_ *recordv1.Record, c *recordv1.Commit) {
			c.Key.Key = []byte("k1")
			c.Key.ExpiresAt += 5 * int64(width)
		}, "key"},
		{"key without outcome", func(_ *recordv1.Record, c *recordv1.Commit) { c.Outcome = nil }, "record"},
		{"key expires in a forgotten generation", func(_ *recordv1.Record, c *recordv1.Commit) { c.Key.ExpiresAt = 0 }, "expired"},
		{"row of another source", func(_ *recordv1.Record, c *recordv1.Commit) { c.Rows[0].Source = refOf(bob) }, "lane"},
		{"row of another epoch", func(_ *recordv1.Record, c *recordv1.Commit) { c.Rows[0].Epoch = 2 }, "lane"},
		{"row without destination", func(_ *recordv1.Record, c *recordv1.Commit) { c.Rows[0].Destination = nil }, "lane"},
		{"row to another tenant", func(_ *recordv1.Record, c *recordv1.Commit) { c.Rows[0].Destination.Tenant = "other" }, "lane"},
		{"source sequence repeated", func(_ *recordv1.Record, c *recordv1.Commit) { c.Rows[0].Sequence-- }, "lane"},
		{"source sequence with a gap", func(_ *recordv1.Record, c *recordv1.Commit) { c.Rows[1].Sequence++ }, "lane"},
		{"lane sequence repeated", func(_ *recordv1.Record, c *recordv1.Commit) { c.Rows[0].LaneSequence-- }, "lane"},
		{"lane sequence with a gap", func(_ *recordv1.Record, c *recordv1.Commit) { c.Rows[1].LaneSequence++ }, "lane"},
		{"rows out of order", func(_ *recordv1.Record, c *recordv1.Commit) { c.Rows[0], c.Rows[1] = c.Rows[1], c.Rows[0] }, "lane"},
		{"mark repeated", func(_ *recordv1.Record, c *recordv1.Commit) { c.Applied[0].LaneSequence-- }, "applied"},
		{"mark with a gap", func(_ *recordv1.Record, c *recordv1.Commit) { c.Applied[0].LaneSequence++ }, "applied"},
		{"mark of an older epoch", func(_ *recordv1.Record, c *recordv1.Commit) { c.Applied[0].Epoch = 0 }, "applied"},
		{"mark of a newer epoch with a gap", func(_ *recordv1.Record, c *recordv1.Commit) {
			c.Applied[0].Epoch = 2
			c.Applied[0].LaneSequence++
		}, "applied"},
		{"mark of number 0", func(_ *recordv1.Record, c *recordv1.Commit) {
			c.Applied[0].Epoch = 2
			c.Applied[0].LaneSequence = 0
		}, "applied"},
		{"mark of no source", func(_ *recordv1.Record, c *recordv1.Commit) { c.Applied[0].Source = nil }, "applied"},
		{"mark of another tenant's source", func(_ *recordv1.Record, c *recordv1.Commit) { c.Applied[0].Source.Tenant = "other" }, "applied"},
		{"mutation of another entity", func(_ *recordv1.Record, c *recordv1.Commit) { c.Mutations[0].Entity = refOf(bob) }, "mutation"},
		{"mutation of no bucket", func(_ *recordv1.Record, c *recordv1.Commit) { c.Mutations[0].Bucket = 0 }, "mutation"},
		{"mutation of an idempotency key", func(_ *recordv1.Record, c *recordv1.Commit) { c.Mutations[0].Bucket = recordv1.Bucket_IDEM }, "mutation"},
		{"mutation of a later format's bucket", func(_ *recordv1.Record, c *recordv1.Commit) { c.Mutations[0].Bucket = 99 }, "mutation"},
		{"mutation without value", func(_ *recordv1.Record, c *recordv1.Commit) { c.Mutations[0].Value = nil }, "mutation"},
		{"mutation deletes and sets", func(_ *recordv1.Record, c *recordv1.Commit) { c.Mutations[0].Delete = true }, "mutation"},
		{"sub-key too long", func(_ *recordv1.Record, c *recordv1.Commit) { c.Mutations[0].Subkey = make([]byte, 32<<10) }, "size"},
		{"key too long", func(_ *recordv1.Record, c *recordv1.Commit) { c.Key.Key = make([]byte, 33<<10) }, "size"},
		{"destination too long", func(_ *recordv1.Record, c *recordv1.Commit) { c.Rows[0].Destination.Id = string(make([]byte, 33<<10)) }, "size"},
		{"source too long", func(_ *recordv1.Record, c *recordv1.Commit) { c.Applied[0].Source.Id = string(make([]byte, 33<<10)) }, "size"},
		{"entity too long", func(_ *recordv1.Record, c *recordv1.Commit) { c.Entity.Id = string(make([]byte, 33<<10)) }, "size"},
		// The order of the checks.
		{"term before version", func(r *recordv1.Record, c *recordv1.Commit) { r.Term, c.BaseVersion = 9, 9 }, "term"},
		{"version before key", func(_ *recordv1.Record, c *recordv1.Commit) { c.BaseVersion, c.Key.Key = 9, []byte("k1") }, "version"},
		{"key before lane", func(_ *recordv1.Record, c *recordv1.Commit) { c.Key.Key, c.Rows[0].LaneSequence = []byte("k1"), 9 }, "key"},
		{"lane before applied", func(_ *recordv1.Record, c *recordv1.Commit) { c.Rows[0].LaneSequence, c.Applied[0].LaneSequence = 9, 9 }, "lane"},
		{"applied before mutation", func(_ *recordv1.Record, c *recordv1.Commit) { c.Applied[0].LaneSequence, c.Mutations[0].Bucket = 9, 0 }, "applied"},
	}
	for _, inFile := range []bool{false, true} {
		s := newShard(t, create(t, config(t)))
		mark := func(r *recordv1.Record) *recordv1.Record {
			s.mark(r.GetCommit(), ref("source"))
			return r
		}
		s.must(mark(s.command(alice, "k1", bob)), mark(s.command(alice, "k2", bob)))
		if inFile {
			flush(t, s.Store)
		}
		good := mark(s.command(alice, "k3", bob, bob))
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/flushed=%t", tt.name, inFile), func(t *testing.T) {
				bad := proto.CloneOf(good)
				tt.change(bad, bad.GetCommit())
				before := contentOf(s.Store)
				results := s.try(bad)
				if entity.ReasonOf(results[0]) != entity.NotExecuted || persistence.Refused(results[0]) != tt.want {
					t.Errorf("result %v, want refused %q", results[0], tt.want)
				}
				if diff := cmp.Diff(before, contentOf(s.Store)); diff != "" {
					t.Errorf("a refused record changed the content: %s", diff)
				}
			})
		}
		s.must(good) // nothing of the refused ones is in its way
	}
}

// contentOf is a dump without Raft's index, which moves for refused records too.
func contentOf(s *persistence.Store) string { return s.DumpContent() }

func TestRecordsOfOneEntryBuildOnEachOther(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	a, b := ref("a"), ref("b")
	first, second, third := s.command(a, "k1", b), s.command(a, "k2", b), s.command(a, "k1", b)
	results := s.try(first, second, third, s.confirm(a, b, 2), s.confirm(a, b, 3))
	for i, want := range []string{"", "", "key", "", "lane"} {
		if got := persistence.Refused(results[i]); got != want {
			t.Errorf("record %d: refused %q, want %q", i, got, want)
		}
	}
	if rows, err := s.Rows(a, b, 0, 0, 0); len(rows) != 0 || err != nil {
		t.Errorf("rows %v %v", rows, err)
	}
}

func TestAnEntityOfAnotherShardIsRefused(t *testing.T) {
	cfg := config(t)
	cfg.Range.Last = sharding.Hash(ref("a"))
	if sharding.Hash(ref("b")) < cfg.Range.Last {
		cfg.Range = sharding.Range{First: sharding.Hash(ref("a")), Last: math.MaxUint64}
	}
	s := newShard(t, create(t, cfg))
	s.must(s.command(ref("a"), "k"))
	other := ref("b")
	for i := 0; cfg.Range.Contains(sharding.Hash(other)); i++ {
		other = ref(fmt.Sprint("b", i))
	}
	if got := persistence.Refused(s.try(s.command(other, "k"))[0]); got != "range" {
		t.Errorf("refused %q", got)
	}
	if got := persistence.Refused(s.try(s.confirm(other, ref("a"), 1))[0]); got != "range" {
		t.Errorf("lane: refused %q", got)
	}
}

func TestIndexesAtOrBelowTheStoredOneAreSkipped(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	entry := encode(t, 0, s.command(ref("a"), "k"))
	for i, index := range []uint64{10, 10, 9, 1} {
		results, err := s.Apply(index, 1, entry)
		if err != nil || len(results) != 1 || results[0] != nil {
			t.Errorf("apply %d: %v %v", i, results, err)
		}
	}
	if m := s.Meta(); m.Index != 10 || m.Counters.Changes != 1 {
		t.Errorf("meta %v", m)
	}
	if results, err := s.Apply(12, 1, entry); err != nil || persistence.Refused(results[0]) != "version" {
		t.Errorf("%v %v", results, err)
	}
}

func TestWhatCannotBeDecodedStopsTheStore(t *testing.T) {
	good := &recordv1.Record{Epoch: 1, Term: 1, Body: &recordv1.Record_Checkpoint{Checkpoint: &recordv1.Checkpoint{}}}
	entries := map[string][]byte{
		"garbage":           []byte("\xff\xff\xff"),
		"empty":             {},
		"newer format":      mustMarshal(t, &recordv1.Entry{Format: format.Max + 1, Records: []*recordv1.Record{good}}),
		"too new a record":  mustMarshal(t, &recordv1.Entry{Format: format.Base, Records: []*recordv1.Record{{Epoch: 1, Term: 1, Body: &recordv1.Record_Note{Note: &recordv1.Note{}}}}}),
		"format missing":    mustMarshal(t, &recordv1.Entry{Records: []*recordv1.Record{good}}),
		"record of no kind": mustMarshal(t, &recordv1.Entry{Format: 1, Records: []*recordv1.Record{good, {Epoch: 1, Term: 1}}}),
		"unknown field":     append(mustMarshal(t, &recordv1.Entry{Format: 1}), 0x78, 1),
		"field twice":       append(mustMarshal(t, &recordv1.Entry{Format: 1}), 0x08, 1),
		"cut":               mustMarshal(t, &recordv1.Entry{Format: 1, Records: []*recordv1.Record{good}})[:5],
		"wrong wire type":   {0x0a, 0},
	}
	for name, entry := range entries {
		t.Run(name, func(t *testing.T) {
			s := newShard(t, create(t, config(t)))
			s.must(s.command(ref("a"), "k"))
			before := s.Dump()
			if _, err := s.Apply(9, 1, entry); err == nil {
				t.Fatal("applied")
			}
			if diff := cmp.Diff(before, s.Dump()); diff != "" {
				t.Errorf("content changed: %s", diff)
			}
			if _, err := s.Apply(10, 1, encode(t, 0, s.command(ref("a"), "k2"))); err == nil {
				t.Error("the store went on")
			}
			if r, err := s.Entity(ref("a")); r.GetVersion() != 1 || err != nil {
				t.Errorf("applied state cannot be read: %v %v", r, err)
			}
		})
	}
}

func mustMarshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestTermStart(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	s.term = 4
	s.must(s.termStart(0, nil))
	start := s.termStart(0, nil)
	start.Term = 4
	if got := persistence.Refused(s.try(start)[0]); got != "term" {
		t.Errorf("a term start with a term: refused %q", got)
	}
	start = s.termStart(0, nil)
	start.Epoch = 2
	if got := persistence.Refused(s.try(start)[0]); got != "term" {
		t.Errorf("a term start of another epoch: refused %q", got)
	}
}

func TestTermStartComparesHashes(t *testing.T) {
	cfg := config(t)
	s, err := persistence.Create(cfg) // not audited at the end
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	h := newShard(t, s)
	h.must(h.command(ref("a"), "k"))
	index, hash := s.StateHash()
	h.must(h.command(ref("a"), "k2"))
	h.must(h.termStart(index, hash))
	h.must(h.termStart(index+1000, []byte("unknown index")))
	if a := audit(t, s); len(a.Findings)+len(a.Differences) > 0 {
		t.Fatal(a.Findings, a.Differences)
	}
	hash[0]++
	h.must(h.termStart(index, hash))
	a, err := s.Audit(t.Context())
	if err != nil || len(a.Differences) != 1 || len(a.Findings) > 0 {
		t.Errorf("differences %v, findings %v, %v", a.Differences, a.Findings, err)
	}
}

func TestLogTimeNeverFalls(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	for _, step := range []struct{ at, want int64 }{{5, 5}, {3, 5}, {0, 5}, {9, 9}, {-1, 9}} {
		s.logTime = step.at
		s.must(s.command(ref("a"), ""))
		if got := s.Meta().LogTime; got != step.want {
			t.Errorf("after %d log time is %d, want %d", step.at, got, step.want)
		}
	}
}

// Elections, reads and audits leave the content as it is, log time included.
func TestTermStartAndCheckpointChangeNothing(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	s.must(s.command(ref("a"), "k"))
	before := s.DumpContent()
	s.logTime += 100
	s.must(s.termStart(0, nil), s.checkpoint(""), s.checkpoint("audit"))
	if diff := cmp.Diff(before, s.DumpContent()); diff != "" {
		t.Error(diff)
	}
}

func TestSubkeysAndTimers(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	mutate := func(b recordv1.Bucket, subkey, value string) {
		r, c := s.commit(ref("a"))
		m := &recordv1.Mutation{Bucket: b, Entity: refOf(ref("a")), Subkey: []byte(subkey), Delete: value == ""}
		if value != "" {
			m.Value = payload(value)
		}
		c.Mutations = append(c.Mutations, m)
		s.must(r)
	}
	empty := s.DumpContent
	mutate(recordv1.Bucket_TIMERS, "t1", "x")
	mutate(recordv1.Bucket_TIMERS, "t1", "y")
	mutate(recordv1.Bucket_STATE, "part", "z")
	flush(t, s.Store)
	mutate(recordv1.Bucket_TIMERS, "t1", "")
	mutate(recordv1.Bucket_STATE, "part", "")
	mutate(recordv1.Bucket_STATE, "part", "")
	audit(t, s.Store)
	flush(t, s.Store)
	mutate(recordv1.Bucket_TIMERS, "t1", "again")
	mutate(recordv1.Bucket_TIMERS, "t1", "")
	if got := s.Meta().Hashes[recordv1.Bucket_TIMERS-1]; got != 0 {
		t.Errorf("hash of an empty bucket is %x: %s", got, empty())
	}
	if r, err := s.Entity(ref("a")); r.GetVersion() != 8 || err != nil {
		t.Errorf("entity %v %v", r, err)
	}
}

func TestADeletedEntityKeepsItsCounters(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	a, x := ref("a"), ref("x")
	for i := range 10 {
		s.must(s.command(a, fmt.Sprint("k", i), x))
	}
	r, c := s.commit(a)
	c.Tombstone, c.Mutations = true, nil
	s.must(r)
	flush(t, s.Store)
	got, _ := s.Entity(a)
	want := &recordv1.EntityRecord{Version: 11, SourceSequence: 10, Decided: 10, Deleted: true}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	rejected, c := s.commit(a) // a rejection does not bring it back
	c.Mutations = nil
	s.key(c, "rejected")
	s.must(rejected)
	if got, _ = s.Entity(a); !got.Deleted {
		t.Error("a rejection undeleted the entity")
	}
	for i := range 10 {
		s.must(s.command(a, fmt.Sprint("again", i), x))
	}
	if got, _ = s.Entity(a); got.Deleted || got.Version != 22 || got.SourceSequence != 20 {
		t.Errorf("after coming back: %v", got)
	}
	rows, err := s.Rows(a, x, 1, 0, 0)
	if err != nil || len(rows) != 20 || rows[19].LaneSequence != 20 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// A source restored from a backup counts on from an older number in a higher
// epoch; its new events are taken, its old ones are not.
func TestMarksAfterARestoreOfTheSource(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	step := func(epoch, lane uint64, want string) {
		t.Helper()
		s.markOne(t, &recordv1.AppliedMark{Epoch: epoch, LaneSequence: lane}, want)
	}
	step(1, 1, "")
	step(1, 2, "")
	step(1, 3, "")
	step(2, 5, "applied") // a gap
	step(2, 2, "")        // restored to 1, emits its second again
	step(1, 3, "applied")
	step(2, 2, "applied")
	step(2, 3, "")
	step(3, 4, "")
	a, err := s.Applied(ref("x"), ref("src"))
	if err != nil || a.Epoch != 3 || a.LaneSequence != 4 {
		t.Errorf("applied %v %v", a, err)
	}
}

// markOne tries a record that marks one row from src as applied by x.
func (s *shard) markOne(t *testing.T, mark *recordv1.AppliedMark, want string) {
	t.Helper()
	r, c := s.commit(ref("x"))
	mark.Source = refOf(ref("src"))
	c.Applied = []*recordv1.AppliedMark{mark}
	got := persistence.Refused(s.try(r)[0])
	if got != want {
		t.Errorf("%v: refused %q, want %q", mark, got, want)
	}
	if got != "" {
		s.versions[ref("x")]--
	}
}

// A mark remembers the row that was skipped, until its number stands for another
// row that was not.
func TestMarksOfSkippedRows(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	for i, step := range []struct {
		mark *recordv1.AppliedMark
		want uint64
	}{
		{&recordv1.AppliedMark{Epoch: 1, LaneSequence: 1}, 0},
		{&recordv1.AppliedMark{Epoch: 1, LaneSequence: 2, Skipped: true}, 2},
		{&recordv1.AppliedMark{Epoch: 1, LaneSequence: 3}, 2},
		{&recordv1.AppliedMark{Epoch: 1, LaneSequence: 4, Skipped: true}, 4},
		{&recordv1.AppliedMark{Epoch: 2, LaneSequence: 5}, 4}, // restored, and nothing lost
		{&recordv1.AppliedMark{Epoch: 3, LaneSequence: 4}, 0}, // restored to 3
		{&recordv1.AppliedMark{Epoch: 3, LaneSequence: 5}, 0},
	} {
		s.markOne(t, step.mark, "")
		if a, err := s.Applied(ref("x"), ref("src")); err != nil || a.GetSkipped() != step.want || a.GetLaneSequence() != step.mark.GetLaneSequence() {
			t.Errorf("step %d: %v, %v, want skipped %d", i, a, err, step.want)
		}
	}
}
