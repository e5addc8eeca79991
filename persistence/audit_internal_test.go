package persistence

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/internal/format"
	recordv1 "writ/proto/writ/record/v1"
)

// soundStore has something of everything and no contradictions.
func soundStore(tb testing.TB) *Store {
	tb.Helper()
	s, err := Create(Config{
		Path: filepath.Join(tb.TempDir(), "shard"), ClusterID: "c", Epoch: 1, Generation: 1,
		Range:           struct{ First, Last uint64 }{0, ^uint64(0)},
		GenerationWidth: time.Minute, FlushInterval: time.Hour,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	ref := func(id string) *recordv1.Ref { return &recordv1.Ref{Tenant: "t", Kind: "k", Id: id} }
	record := func(c *recordv1.Commit) *recordv1.Record {
		return &recordv1.Record{Epoch: 1, Term: 1, Body: &recordv1.Record_Commit{Commit: c}}
	}
	commit := func(id string) *recordv1.Record {
		c := &recordv1.Commit{Entity: ref(id), Key: &recordv1.Key{Key: []byte(id), ExpiresAt: 5}, Outcome: &recordv1.Outcome{Decision: 1}}
		for i := range uint64(3) {
			c.Rows = append(c.Rows, &recordv1.Row{Source: ref(id), Epoch: 1, Sequence: i + 1, Destination: ref("x"), LaneSequence: i + 1, Event: &recordv1.Payload{}})
		}
		c.Applied = []*recordv1.AppliedMark{{Source: ref("y"), Epoch: 1, LaneSequence: 1}}
		return record(c)
	}
	park := &recordv1.Record{Epoch: 1, Term: 1, Body: &recordv1.Record_Lane{Lane: &recordv1.LaneUpdate{
		Source: ref("a"), Destination: ref("x"), Change: &recordv1.LaneUpdate_Park{Park: &recordv1.Park{LaneSequence: 1, Reason: "r"}},
	}}}
	entry, err := proto.Marshal(&recordv1.Entry{Format: 1, Records: []*recordv1.Record{commit("a"), commit("b"), park}})
	if err != nil {
		tb.Fatal(err)
	}
	results, err := s.Apply(1, 1, entry)
	if err != nil || fmt.Sprint(results) != "[<nil> <nil> <nil>]" {
		tb.Fatal(results, err)
	}
	return s
}

// Every contradiction is found: in what is in memory, and in what is in the file.
func TestAuditFinds(t *testing.T) {
	a, b, x, y := entity.Ref{Tenant: "t", Kind: "k", ID: "a"}, entity.Ref{Tenant: "t", Kind: "k", ID: "b"}, entity.Ref{Tenant: "t", Kind: "k", ID: "x"}, entity.Ref{Tenant: "t", Kind: "k", ID: "y"}
	rowOf := func(from entity.Ref, n uint64) string { return string(appendNumber([]byte(pairKey(from, x)), n)) }
	set := func(b bucket, key string, value []byte) func(*Store) {
		return func(s *Store) { s.active.set(b, key, &item{value: value, hash: 1}) }
	}
	tests := []struct {
		name   string
		tamper func(*Store)
		want   string
	}{
		{"a row is missing", set(outboxBucket, rowOf(a, 2), nil), "row 3 stands where 2 should be"},
		{"the last row is missing", set(outboxBucket, rowOf(a, 3), nil), "2 rows are in the outbox, should be 3"},
		{"a row too many", set(outboxBucket, rowOf(a, 4), []byte{}), "4 rows are in the outbox"},
		{"a row of no lane", set(outboxBucket, rowOf(y, 1), []byte{}), "is in no lane"},
		{"a row before all lanes", set(outboxBucket, "\x00", []byte{}), "is in no lane"},
		{"an outbox that differs", set(outboxBucket, rowOf(a, 2), []byte{1}), "bucket outbox"},
		{"an entity that differs", set(stateBucket, stateKey(a), entityValue{version: 1, sequence: 3, decided: 1, deleted: true}.encode()), "bucket state"},
		{"an effect too many", set(stateBucket, stateKey(a), entityValue{version: 1, sequence: 3, decided: 2}.encode()), "commands decided: counted 3, the counters say 2"},
		{"a version too many", set(stateBucket, stateKey(a), entityValue{version: 2, sequence: 3, decided: 1}.encode()), "commits: counted 3"},
		{"an event too many", set(stateBucket, stateKey(b), entityValue{version: 1, sequence: 4, decided: 1}.encode()), "has emitted 4 events, its lanes have numbered 3"},
		{"an entity that cannot be read", set(stateBucket, stateKey(a), []byte{0xff}), "state"},
		{"a state of no entity", set(stateBucket, "\x09", []byte{}), "key is not a tuple"},
		{"a key is missing", func(s *Store) {
			key := appendPart(appendPart(appendRef(nil, a), ""), "a")
			s.active.set(idemBucket, idemKeyOf(1, key), &item{})
		}, "generation 1 holds 1 keys"},
		{"a lane confirmed too far", set(lanesBucket, pairKey(a, x), laneValue{numbered: 3, confirmed: 1, status: 1}.encode()), "rows confirmed: counted 1"},
		{"a lane skipped", set(lanesBucket, pairKey(a, x), laneValue{numbered: 3, skipped: 1, status: 1}.encode()), "rows skipped: counted 1"},
		{"a lane numbered too far", set(lanesBucket, pairKey(a, x), laneValue{numbered: 4, status: 1}.encode()), "rows numbered: counted 7"},
		{"a parked lane that says it is active", set(lanesBucket, pairKey(a, x), laneValue{numbered: 3}.encode()), "is ACTIVE, listed as standing: true"},
		{"a lane that cannot be read", set(lanesBucket, pairKey(a, x), []byte{0xff}), "cannot be read"},
		{"a parked lane not listed", set(parkedBucket, pairKey(a, x), nil), "is PARKED, listed as standing: false"},
		{"a lane listed that is not there", set(parkedBucket, pairKey(x, a), []byte{}), "is listed as standing, but does not exist"},
		{"an event applied too often", set(appliedBucket, pairKey(a, y), appliedValue{epoch: 1, sequence: 2}.encode()), "events applied: counted 3, the counters say 2"},
		{"a mark that cannot be read", set(appliedBucket, pairKey(a, y), []byte{0xff}), "cannot be read"},
		{"a timer from nowhere", set(timersBucket, "t", []byte{}), "bucket timers"},
		{"keys expired from nowhere", func(s *Store) { s.meta.Counters.KeysExpired++ }, "effects beside keys live and expired: counted 2, the counters say 3"},
		{"rows pending", func(s *Store) { s.meta.Counters.RowsPending-- }, "rows in the outbox: counted 6, the counters say 5"},
		{"lanes parked", func(s *Store) { s.meta.Counters.LanesParked-- }, "lanes parked: counted 1, the counters say 0"},
		{"a hash", func(s *Store) { s.meta.Hashes[0]++ }, "bucket state"},
	}
	for _, flushed := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/flushed=%t", tt.name, flushed), func(t *testing.T) {
				s := soundStore(t)
				if flushed {
					if err := s.WaitFlushed(t.Context(), 1); err != nil {
						t.Fatal(err)
					}
				}
				sound, err := s.Audit(t.Context())
				if err != nil || len(sound.Findings) > 0 {
					t.Fatal(sound.Findings, err)
				}
				tt.tamper(s)
				found, err := s.Audit(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if text := strings.Join(found.Findings, "\n"); !strings.Contains(text, tt.want) {
					t.Errorf("found %s\nwant %q", text, tt.want)
				}
			})
		}
	}
}

func TestAuditNamesAHundredFindings(t *testing.T) {
	s := soundStore(t)
	for i := range uint64(300) {
		s.active.set(outboxBucket, string(appendNumber([]byte("\x00stray"), i)), &item{value: []byte{}})
	}
	a, err := s.Audit(t.Context())
	if err != nil || len(a.Findings) != findingsMax+1 || !strings.HasPrefix(a.Findings[findingsMax], "and ") {
		t.Errorf("%d findings, %v", len(a.Findings), err)
	}
}

// FuzzFile: whatever stands in a file, reading it ends, with content or an
// error, and never panics.
func FuzzFile(f *testing.F) {
	s := soundStore(f)
	if err := s.Close(); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(s.cfg.Path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(0), []byte{})
	f.Add(uint16(4096), []byte{1, 2, 3})
	f.Add(uint16(3*4096+8), []byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, at uint16, patch []byte) {
		b := bytes.Clone(good)
		copy(b[int(at)%len(b):], patch)
		if c, err := readFile(bytes.NewReader(b), int64(len(b))); err == nil && c.head.Format == format.Base && bytes.Equal(b, good) && c.head.Index != 1 {
			t.Error("the file was misread")
		}
	})
}
