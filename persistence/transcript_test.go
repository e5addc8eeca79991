package persistence_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// A transcript is a script of blocks. A block is some commands, a line "----"
// and the full reaction; an empty line ends it. With -update the reactions are
// written anew.
//
//	entry [index=N] [term=N] [time=D]   one entry; its records follow, indented
//	  commit E base=N [state=X|-] [key=K] [expires=D] [type=T] [row=E:lane:sequence]…
//	         [applied=E:lane]… [timer=K:X|K:-]… [tombstone] [epoch=N] [term=N]
//	  confirm S D N | attempt S D N count reason | park S D N reason
//	  pause S D reason | resume S D | skip S D N
//	  expire N | checkpoint audit | start node
//	flush                               write the file
//	crash                               lose what is not in the file, open it, play the log
//	show                                the whole content
//
// All entities are of tenant t and kind k.
func TestTranscripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.transcript")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".transcript"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			cfg := config(t)
			s := &script{t: t, cfg: cfg, store: create(t, cfg)}
			got := s.run(string(text))
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("the transcript is now:\n%s", got)
			}
			s.replay()
		})
	}
}

type script struct {
	t     *testing.T
	cfg   persistence.Config
	store *persistence.Store
	index uint64
	log   []scriptEntry
}

type scriptEntry struct {
	index, term uint64
	entry       *recordv1.Entry
}

func (s *script) run(text string) string {
	var out strings.Builder
	for i, block := range strings.Split(strings.TrimRight(text, "\n"), "\n\n") {
		if i > 0 {
			out.WriteString("\n")
		}
		commands, _, _ := strings.Cut(block, "----")
		commands = strings.TrimRight(commands, "\n")
		out.WriteString(commands + "\n")
		lines := strings.Split(commands, "\n")
		if !slices.ContainsFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "#") }) {
			continue // a remark
		}
		out.WriteString("----\n")
		for len(lines) > 0 {
			n := 1
			for n < len(lines) && strings.HasPrefix(lines[n], " ") {
				n++
			}
			out.WriteString(s.command(strings.Fields(lines[0]), lines[1:n]))
			lines = lines[n:]
		}
	}
	return out.String()
}

func (s *script) command(words, records []string) string {
	switch words[0] {
	case "#":
		return ""
	case "flush":
		flush(s.t, s.store)
	case "crash":
		s.store.Abandon()
		s.store = open(s.t, s.cfg)
		at, _ := s.store.FlushedIndex()
		for _, e := range s.log {
			if _, err := s.store.Apply(e.index, e.term, mustMarshal(s.t, e.entry)); err != nil {
				s.t.Fatal(err)
			}
		}
		return fmt.Sprintf("opened at %d, played the log up to %d\n", at, s.store.Meta().Index)
	case "show":
		return s.show()
	case "entry":
		return s.entry(words[1:], records)
	default:
		s.t.Fatalf("no such command: %v", words)
	}
	m := s.store.Meta()
	index, _ := s.store.FlushedIndex()
	return fmt.Sprintf("applied %d, in the file %d\n", m.Index, index)
}

func (s *script) entry(words, lines []string) string {
	s.index++
	e := scriptEntry{index: s.index, term: 1, entry: &recordv1.Entry{Format: 1}}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "index":
			e.index = s.number(value)
			s.index = e.index
		case "term":
			e.term = s.number(value)
		case "time":
			e.entry.LogTime = s.duration(value)
		}
	}
	for _, line := range lines {
		e.entry.Records = append(e.entry.Records, s.record(e, strings.Fields(line)))
	}
	s.log = append(s.log, e)
	results, err := s.store.Apply(e.index, e.term, mustMarshal(s.t, e.entry))
	if err != nil {
		s.t.Fatal(err)
	}
	var out strings.Builder
	for _, r := range results {
		if r == nil {
			out.WriteString("taken\n")
		} else {
			fmt.Fprintf(&out, "refused by %s: %s\n", persistence.Refused(r), strings.TrimPrefix(r.Error(), "NOT_EXECUTED: "))
		}
	}
	return out.String()
}

func (s *script) ref(id string) *recordv1.Ref { return &recordv1.Ref{Tenant: "t", Kind: "k", Id: id} }

func (s *script) number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) duration(text string) int64 {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return int64(d)
}

func (s *script) record(e scriptEntry, w []string) *recordv1.Record {
	r := &recordv1.Record{Epoch: 1, Term: e.term}
	switch w[0] {
	case "commit":
		s.commit(r, e, w[1:])
	case "expire":
		r.Body = &recordv1.Record_Expire{Expire: &recordv1.Expire{ThroughGeneration: s.number(w[1])}}
	case "checkpoint":
		r.Body = &recordv1.Record_Checkpoint{Checkpoint: &recordv1.Checkpoint{Audit: w[1]}}
	case "start":
		r.Term = 0
		r.Body = &recordv1.Record_TermStart{TermStart: &recordv1.TermStart{Node: w[1]}}
	default:
		u := &recordv1.LaneUpdate{Source: s.ref(w[1]), Destination: s.ref(w[2])}
		s.change(u, w[0], w[3:])
		r.Body = &recordv1.Record_Lane{Lane: u}
	}
	return r
}

func (s *script) change(u *recordv1.LaneUpdate, what string, w []string) {
	switch what {
	case "confirm":
		u.Change = &recordv1.LaneUpdate_Confirm{Confirm: s.number(w[0])}
	case "attempt":
		u.Change = &recordv1.LaneUpdate_Attempt{Attempt: &recordv1.Attempt{LaneSequence: s.number(w[0]), Count: uint32(s.number(w[1])), Reason: w[2]}}
	case "park":
		u.Change = &recordv1.LaneUpdate_Park{Park: &recordv1.Park{LaneSequence: s.number(w[0]), Reason: w[1]}}
	case "pause":
		u.Change = &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: w[0]}}
	case "resume":
		u.Change = &recordv1.LaneUpdate_Resume{Resume: true}
	case "skip":
		u.Change = &recordv1.LaneUpdate_Skip{Skip: s.number(w[0])}
	default:
		s.t.Fatalf("no such record: %s", what)
	}
}

func (s *script) commit(r *recordv1.Record, e scriptEntry, words []string) {
	c := &recordv1.Commit{Entity: s.ref(words[0])}
	expires := "10m"
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		part := strings.Split(value, ":")
		switch name {
		case "base":
			c.BaseVersion = s.number(value)
		case "state":
			c.Mutations = append(c.Mutations, mutationOf(recordv1.Bucket_STATE, "", value))
		case "timer":
			c.Mutations = append(c.Mutations, mutationOf(recordv1.Bucket_TIMERS, part[0], part[1]))
		case "key":
			c.Key = &recordv1.Key{CommandType: "Do", Key: []byte(value), AcceptedAt: e.entry.LogTime}
			c.Outcome = &recordv1.Outcome{Decision: recordv1.Outcome_EXECUTED}
		case "expires":
			expires = value
		case "row":
			c.Rows = append(c.Rows, &recordv1.Row{
				Source: c.Entity, Epoch: 1, Destination: s.ref(part[0]), LaneSequence: s.number(part[1]), Sequence: s.number(part[2]),
				Event: payload("event " + part[2]),
			})
		case "applied":
			c.Applied = append(c.Applied, &recordv1.AppliedMark{Source: s.ref(part[0]), Epoch: 1, LaneSequence: s.number(part[1])})
		case "tombstone":
			c.Tombstone = true
		case "epoch":
			r.Epoch = s.number(value)
		case "term":
			r.Term = s.number(value)
		default:
			s.t.Fatalf("no such field: %s", w)
		}
	}
	if c.Key != nil {
		c.Key.ExpiresAt = e.entry.LogTime + s.duration(expires)
	}
	r.Body = &recordv1.Record_Commit{Commit: c}
}

func mutationOf(b recordv1.Bucket, subkey, value string) *recordv1.Mutation {
	m := &recordv1.Mutation{Bucket: b, Subkey: []byte(subkey), Delete: value == "-"}
	if !m.Delete {
		m.Value = payload(value)
	}
	return m
}

// show is the content as a reader sees it.
func (s *script) show() string {
	var out strings.Builder
	for _, id := range s.names() {
		r, err := s.store.Entity(id)
		if err != nil {
			s.t.Fatal(err)
		}
		if r != nil {
			fmt.Fprintf(&out, "%s version=%d sequence=%d decided=%d state=%q deleted=%t\n", id.ID, r.Version, r.SourceSequence, r.Decided, r.State.GetData(), r.Deleted)
		}
	}
	if err := s.store.ScanLanes(func(from, to entity.Ref, l *recordv1.Lane, pending uint64) bool {
		fmt.Fprintf(&out, "%s→%s %v numbered=%d confirmed=%d skipped=%d attempts=%d reason=%q:", from.ID, to.ID, l.Status, l.Numbered, l.Confirmed, l.Skipped, l.Attempts, l.Reason)
		rows, err := s.store.Rows(from, to, 0, 0, 0)
		if err != nil || uint64(len(rows)) != pending {
			s.t.Errorf("%d rows of %d, %v", len(rows), pending, err)
		}
		for _, r := range rows {
			fmt.Fprintf(&out, " %d %q", r.LaneSequence, r.Event.GetData())
		}
		out.WriteString("\n")
		return true
	}); err != nil {
		s.t.Fatal(err)
	}
	if err := s.store.ScanApplied(func(at, from entity.Ref, a *recordv1.Applied) bool {
		fmt.Fprintf(&out, "%s has applied %s up to %d\n", at.ID, from.ID, a.LaneSequence)
		return true
	}); err != nil {
		s.t.Fatal(err)
	}
	m := s.store.Meta()
	fmt.Fprintf(&out, "index=%d time=%s forgotten=%d through=%s\n", m.Index, time.Duration(m.LogTime), m.ExpiredGeneration, time.Duration(m.ExpiredThrough))
	n := m.Counters
	fmt.Fprintf(&out, "changes=%d decided=%d live=%d expired=%d numbered=%d confirmed=%d skipped=%d pending=%d parked=%d applied=%d\n",
		n.Changes, n.Decided, n.KeysLive, n.KeysExpired, n.Numbered, n.Confirmed, n.Skipped, n.RowsPending, n.LanesParked, n.Applied)
	audit(s.t, s.store)
	return out.String()
}

func (s *script) names() []entity.Ref {
	seen := map[entity.Ref]bool{}
	for _, e := range s.log {
		for _, r := range e.entry.Records {
			if c := r.GetCommit(); c != nil {
				seen[refIn(c.Entity)] = true
			}
		}
	}
	var all []entity.Ref
	for r := range seen {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b entity.Ref) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// replay: the transcript's log has the same content in two fresh stores, one of
// which flushes after every entry and applies every entry twice.
func (s *script) replay() {
	want := s.store.Dump()
	for _, busy := range []bool{false, true} {
		fresh := create(s.t, config(s.t))
		for _, e := range s.log {
			b := mustMarshal(s.t, proto.CloneOf(e.entry))
			for range 2 {
				if _, err := fresh.Apply(e.index, e.term, b); err != nil {
					s.t.Fatal(err)
				}
				if !busy {
					break
				}
				flush(s.t, fresh)
			}
		}
		if got := fresh.Dump(); got != want {
			s.t.Errorf("replayed (busy %t), the log has another content:\n%s\nwant\n%s", busy, got, want)
		}
	}
}
