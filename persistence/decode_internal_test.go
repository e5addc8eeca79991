package persistence

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"writ/internal/format"
	recordv1 "writ/proto/writ/record/v1"
)

// everyRecord has every field of every kind of record set.
func everyRecord() []*recordv1.Record {
	ref := func(id string) *recordv1.Ref { return &recordv1.Ref{Tenant: "t", Kind: "k", Id: id} }
	data := &recordv1.Payload{Type: "T", Schema: 2, Data: []byte("data")}
	lane := func(u *recordv1.LaneUpdate) *recordv1.Record {
		u.Source, u.Destination = ref("a"), ref("b")
		return &recordv1.Record{Epoch: 1, Term: 2, Body: &recordv1.Record_Lane{Lane: u}}
	}
	return []*recordv1.Record{
		{Epoch: 1, Body: &recordv1.Record_TermStart{TermStart: &recordv1.TermStart{Node: "n", HashIndex: 7, Hash: []byte("hash")}}},
		{Epoch: 1, Term: 2, Body: &recordv1.Record_Commit{Commit: &recordv1.Commit{
			Entity: ref("a"), BaseVersion: 3,
			Mutations: []*recordv1.Mutation{{Bucket: 1, Value: data}, {Bucket: 6, Entity: ref("a"), Subkey: []byte("s"), Delete: true}},
			Key:       &recordv1.Key{CommandType: "C", Key: []byte("key"), FingerprintAlgorithm: 1, Fingerprint: []byte("f"), AcceptedAt: -4, ExpiresAt: 5},
			Outcome:   &recordv1.Outcome{Decision: 2, Code: 9, Reason: "R", Message: "m", Reply: data, Version: 4},
			Rows: []*recordv1.Row{{
				Source: ref("a"), Epoch: 1, Sequence: 8, Destination: ref("b"), LaneSequence: 9, Event: data, AcceptedAt: 10,
				Parent: &recordv1.EventId{Source: ref("c"), Epoch: 1, Sequence: 2}, Hops: 3, Trace: "trace",
			}},
			Applied:   []*recordv1.AppliedMark{{Source: ref("c"), Epoch: 1, LaneSequence: 11, Skipped: true}},
			Tombstone: true,
		}}},
		lane(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Confirm{Confirm: 1}}),
		lane(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Attempt{Attempt: &recordv1.Attempt{LaneSequence: 1, Count: 2, Reason: "r"}}}),
		lane(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Park{Park: &recordv1.Park{LaneSequence: 1, Reason: "r"}}}),
		lane(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Resume{Resume: true}}),
		lane(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Skip{Skip: 1}}),
		lane(&recordv1.LaneUpdate{Change: &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: "r"}}}),
		{Epoch: 1, Term: 2, Body: &recordv1.Record_Expire{Expire: &recordv1.Expire{ThroughGeneration: 12}}},
		{Epoch: 1, Term: 2, Body: &recordv1.Record_Checkpoint{Checkpoint: &recordv1.Checkpoint{Audit: "a"}}},
	}
}

// fromProto is what decode should find, by way of the protobuf library.
func fromProto(t *testing.T, r *recordv1.Record) record {
	t.Helper()
	n := func(r *recordv1.Ref) name { return name{[]byte(r.GetTenant()), []byte(r.GetKind()), []byte(r.GetId())} }
	raw := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	d := record{epoch: r.Epoch, term: r.Term}
	switch b := r.Body.(type) {
	case *recordv1.Record_TermStart:
		d.body = bodyTermStart
		d.start = termStart{[]byte(b.TermStart.Node), b.TermStart.HashIndex, b.TermStart.Hash}
	case *recordv1.Record_Commit:
		c := b.Commit
		d.body = bodyCommit
		d.commit = commit{entity: n(c.Entity), base: c.BaseVersion, tombstone: c.Tombstone}
		for _, m := range c.Mutations {
			u := mutation{bucket: m.Bucket, subkey: m.Subkey, delete: m.Delete, present: m.Value != nil}
			if m.Entity != nil {
				e := n(m.Entity)
				u.entity = &e
			}
			if m.Value != nil {
				u.value = raw(m.Value)
			}
			d.commit.mutations = append(d.commit.mutations, u)
		}
		if c.Key != nil {
			d.commit.hasKey = true
			d.commit.key = idemKey{[]byte(c.Key.CommandType), c.Key.Key, c.Key.AcceptedAt, c.Key.ExpiresAt, raw(c.Key)}
		}
		if c.Outcome != nil {
			d.commit.outcome = raw(c.Outcome)
		}
		for _, r := range c.Rows {
			d.commit.rows = append(d.commit.rows, row{n(r.Source), n(r.Destination), r.Epoch, r.Sequence, r.LaneSequence, raw(r)})
		}
		for _, a := range c.Applied {
			d.commit.marks = append(d.commit.marks, mark{n(a.Source), a.Epoch, a.LaneSequence, a.Skipped})
		}
	case *recordv1.Record_Lane:
		d.body = bodyLane
		d.lane = laneFromProto(b.Lane, n)
	case *recordv1.Record_Expire:
		d.body, d.through = bodyExpire, b.Expire.ThroughGeneration
	case *recordv1.Record_Checkpoint:
		d.body, d.audit = bodyCheckpoint, []byte(b.Checkpoint.Audit)
	}
	return d
}

func laneFromProto(u *recordv1.LaneUpdate, n func(*recordv1.Ref) name) laneUpdate {
	l := laneUpdate{source: n(u.Source), destination: n(u.Destination)}
	switch c := u.Change.(type) {
	case *recordv1.LaneUpdate_Confirm:
		l.change, l.sequence = laneConfirm, c.Confirm
	case *recordv1.LaneUpdate_Attempt:
		l.change, l.sequence, l.count, l.reason = laneAttempt, c.Attempt.LaneSequence, uint64(c.Attempt.Count), []byte(c.Attempt.Reason)
	case *recordv1.LaneUpdate_Park:
		l.change, l.sequence, l.reason = lanePark, c.Park.LaneSequence, []byte(c.Park.Reason)
	case *recordv1.LaneUpdate_Resume:
		l.change, l.resume = laneResume, c.Resume
	case *recordv1.LaneUpdate_Skip:
		l.change, l.sequence = laneSkip, c.Skip
	case *recordv1.LaneUpdate_Pause:
		l.change, l.reason = lanePause, []byte(c.Pause.Reason)
	}
	return l
}

func TestDecodeAgreesWithProtobuf(t *testing.T) {
	var e entry
	for range 2 { // the second time over used slices
		records := everyRecord()
		b, err := proto.Marshal(&recordv1.Entry{Format: 1, LogTime: -3, Records: records})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.decode(b); err != nil {
			t.Fatal(err)
		}
		if e.logTime != -3 || len(e.records) != len(records) || countRecords(b) != len(records) {
			t.Fatalf("log time %d, %d records", e.logTime, len(e.records))
		}
		for i := range records {
			if got, want := words(e.records[i]), words(fromProto(t, records[i])); got != want {
				t.Errorf("record %d:\n got %s\nwant %s", i, got, want)
			}
		}
	}
}

// FuzzDecode: nothing panics; what decode takes, protobuf takes too and reads the
// same (texts that are not UTF-8 aside, which only protobuf looks at); what
// protobuf has written, decode takes.
func FuzzDecode(f *testing.F) {
	for _, r := range everyRecord() {
		b, err := proto.Marshal(&recordv1.Entry{Format: 1, LogTime: 9, Records: []*recordv1.Record{r}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e entry
		err := e.decode(b)
		var p recordv1.Entry
		perr := proto.Unmarshal(b, &p)
		if err == nil && perr == nil && len(p.Records) != len(e.records) {
			t.Fatalf("%d records, protobuf finds %d", len(e.records), len(p.Records))
		}
		if perr != nil || p.Format < format.Base || p.Format > format.Max {
			return
		}
		proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, &p) //nolint:errcheck // it was read before
		clean, merr := proto.MarshalOptions{Deterministic: true}.Marshal(&p)
		if merr != nil {
			return
		}
		for _, r := range p.Records {
			if r.Body == nil || (r.GetNote() != nil && p.Format < format.Note) {
				return // nobody writes it
			}
		}
		if err := e.decode(clean); err != nil {
			t.Fatalf("decode refuses what protobuf wrote: %v\n%v", err, &p)
		}
		for i, r := range p.Records {
			if got, want := words(e.records[i]), words(fromProto(t, r)); got != want {
				t.Errorf("record %d:\n got %s\nwant %s", i, got, want)
			}
		}
	})
}

// Values written by hand are what the protobuf library writes and reads.
func TestValuesAgreeWithProtobuf(t *testing.T) {
	same := func(m proto.Message, got []byte) {
		t.Helper()
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%T: got %x, want %x", m, got, want)
		}
	}
	data, err := proto.Marshal(&recordv1.Payload{Type: "T", Schema: 1, Data: []byte("d")})
	if err != nil {
		t.Fatal(err)
	}
	e := entityValue{version: 300, sequence: 2, decided: 1, state: data, deleted: true}
	same(&recordv1.EntityRecord{Version: 300, SourceSequence: 2, Decided: 1, Deleted: true, State: &recordv1.Payload{Type: "T", Schema: 1, Data: []byte("d")}}, e.encode())
	same(&recordv1.EntityRecord{}, entityValue{}.encode())
	l := laneValue{numbered: 1, confirmed: 2, skipped: 3, status: 2, reason: []byte("r"), attempts: 4}
	same(&recordv1.Lane{Numbered: 1, Confirmed: 2, Skipped: 3, Status: 2, Reason: "r", Attempts: 4}, l.encode())
	same(&recordv1.Lane{}, laneValue{}.encode())
	same(&recordv1.Applied{Epoch: 1, LaneSequence: 2, Skipped: 3}, appliedValue{1, 2, 3}.encode())
	same(&recordv1.Park{LaneSequence: 1, Reason: "r"}, encodeParked(1, []byte("r")))

	if got, err := parseEntity(e.encode()); err != nil || words(got) != words(e) {
		t.Errorf("entity %v %v", got, err)
	}
	if got, err := parseLane(l.encode()); err != nil || words(got) != words(l) {
		t.Errorf("lane %v %v", got, err)
	}
	if got, err := parseApplied(appliedValue{1, 2, 3}.encode()); err != nil || got != (appliedValue{1, 2, 3}) {
		t.Errorf("applied %v %v", got, err)
	}
	for _, b := range [][]byte{{0xff}, {0x7a, 0}, protowire.AppendTag(nil, 1, protowire.BytesType), {8, 1, 8, 1}} {
		_, err1 := parseEntity(b)
		_, err2 := parseLane(b)
		_, err3 := parseApplied(b)
		_, err4 := withoutEvent(b[:1])
		if err1 == nil || err2 == nil || err3 == nil || err4 == nil {
			t.Errorf("%x: %v %v %v %v", b, err1, err2, err3, err4)
		}
	}
}
