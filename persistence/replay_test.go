package persistence_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// log is a Raft log: the entry at i has index 2i+1, so that indexes jump.
type log []logEntry

type logEntry struct {
	term  uint64
	bytes []byte
}

func indexOf(i int) uint64 { return uint64(2*i + 1) }

// play applies the entries from..to. Those at or below the store's index are
// skipped, as they are when Raft replays.
func (l log) play(tb testing.TB, s *persistence.Store, from, to int) {
	tb.Helper()
	for i := from; i < to; i++ {
		if _, err := s.Apply(indexOf(i), l[i].term, l[i].bytes); err != nil {
			tb.Fatal(err)
		}
	}
}

// makeLog makes a random log with everything in it: good records, duplicates,
// reordered and stale ones.
func makeLog(tb testing.TB, seed uint64, entries int) log {
	tb.Helper()
	g := &generator{Rand: rand.New(rand.NewPCG(seed, seed)), leader: newLeader()}
	scratch := create(tb, config(tb))
	var l log
	taken, refused := 0, 0
	for i := range entries {
		var records []*recordv1.Record
		for range 1 + g.IntN(6) {
			records = append(records, g.record())
		}
		if g.IntN(8) == 0 {
			g.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
		}
		l = append(l, logEntry{term: g.term, bytes: encode(tb, g.logTime, records...)})
		results, err := scratch.Apply(indexOf(i), g.term, l[i].bytes)
		if err != nil {
			tb.Fatal(err)
		}
		for _, r := range results {
			if r != nil {
				refused++
				g.resync(tb, scratch)
			} else {
				taken++
			}
		}
		g.logTime += int64(g.IntN(int(width) / 2))
		if g.IntN(10) == 0 {
			g.term++
		}
	}
	if taken < refused || refused*20 < taken {
		tb.Fatalf("the log is of little use: %d records taken, %d refused", taken, refused)
	}
	return l
}

// resync makes the leader know what the store holds, as a new one would.
func (g *generator) resync(tb testing.TB, s *persistence.Store) {
	tb.Helper()
	for _, on := range g.names() {
		r, err := s.Entity(on)
		if err != nil {
			tb.Fatal(err)
		}
		g.versions[on], g.sequences[on] = r.GetVersion(), r.GetSourceSequence()
		lanes, err := lanesOf(s, on)
		if err != nil {
			tb.Fatal(err)
		}
		for _, other := range g.names() {
			a, err := s.Applied(on, other)
			if err != nil {
				tb.Fatal(err)
			}
			g.lanes[[2]entity.Ref{on, other}] = lanes[other].GetNumbered()
			g.applied[[2]entity.Ref{on, other}] = a.GetLaneSequence()
		}
	}
}

func (g *generator) names() (all []entity.Ref) {
	for t := range 2 {
		for e := range 6 {
			all = append(all, entity.Ref{Tenant: fmt.Sprint("t", t), Kind: "k", ID: fmt.Sprint("e", e)})
		}
	}
	return all
}

// generator makes records over few names, so that they meet.
type generator struct {
	*rand.Rand
	*leader
	old []*recordv1.Record
}

func (g *generator) name() entity.Ref {
	return entity.Ref{Tenant: fmt.Sprint("t", g.IntN(2)), Kind: "k", ID: fmt.Sprint("e", g.IntN(6))}
}

// neighbour is an entity of the same tenant.
func (g *generator) neighbour(of entity.Ref) entity.Ref {
	n := g.name()
	n.Tenant = of.Tenant
	return n
}

func (g *generator) record() *recordv1.Record {
	if len(g.old) > 0 && g.IntN(10) == 0 {
		return g.old[g.IntN(len(g.old))] // a duplicate, or of an older term
	}
	r := g.fresh()
	g.old = append(g.old, r)
	return r
}

func (g *generator) fresh() *recordv1.Record {
	switch p := g.IntN(100); {
	case p < 60:
		return g.someCommit()
	case p < 85:
		return g.someUpdate()
	case p < 90:
		return g.expire(uint64(g.logTime/int64(width)) + uint64(g.IntN(3)) - 1)
	case p < 95:
		return g.checkpoint(fmt.Sprint("audit", g.IntN(3)))
	default:
		return g.termStart(0, nil)
	}
}

func (g *generator) someCommit() *recordv1.Record {
	on := g.name()
	r, c := g.commit(on)
	if g.IntN(3) > 0 {
		g.key(c, fmt.Sprint("key", g.IntN(500)))
		c.Key.ExpiresAt += int64(g.IntN(3)) * int64(width)
	}
	for range g.IntN(4) {
		g.emit(c, g.neighbour(on))
	}
	for range g.IntN(3) {
		g.mark(c, g.neighbour(on))
	}
	if g.IntN(3) == 0 {
		c.Mutations = append(c.Mutations, g.someMutation())
	}
	switch g.IntN(12) {
	case 0:
		c.Tombstone = true
	case 1:
		c.Mutations = nil
	case 2: // something that does not fit: it will be refused
		g.spoil(c)
	}
	return r
}

func (g *generator) someMutation() *recordv1.Mutation {
	m := &recordv1.Mutation{Bucket: recordv1.Bucket_TIMERS, Subkey: fmt.Append(nil, "sub", g.IntN(4))}
	if g.IntN(2) == 0 {
		m.Bucket = recordv1.Bucket_STATE
	}
	if m.Delete = g.IntN(3) == 0; !m.Delete {
		m.Value = payload(fmt.Sprint("value", g.IntN(100)))
	}
	return m
}

func (g *generator) spoil(c *recordv1.Commit) {
	switch g.IntN(4) {
	case 0:
		c.BaseVersion++
	case 1:
		for _, row := range c.Rows {
			row.LaneSequence++
		}
	case 2:
		for _, m := range c.Applied {
			m.LaneSequence--
		}
	case 3:
		c.Mutations = append(c.Mutations, &recordv1.Mutation{Bucket: recordv1.Bucket_IDEM})
	}
}

func (g *generator) someUpdate() *recordv1.Record {
	from := g.name()
	to := g.neighbour(from)
	n := g.lanes[[2]entity.Ref{from, to}]
	upTo := func() uint64 { return uint64(g.IntN(int(n) + 2)) }
	switch g.IntN(8) {
	case 0:
		return g.update(from, to, &recordv1.LaneUpdate_Attempt{Attempt: &recordv1.Attempt{LaneSequence: upTo(), Count: uint32(g.IntN(9)), Reason: "no"}})
	case 1:
		return g.update(from, to, &recordv1.LaneUpdate_Park{Park: &recordv1.Park{LaneSequence: upTo(), Reason: "poison"}})
	case 2:
		return g.update(from, to, &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: "wait"}})
	case 3:
		return g.update(from, to, &recordv1.LaneUpdate_Resume{Resume: true})
	case 4:
		return g.update(from, to, &recordv1.LaneUpdate_Skip{Skip: upTo()})
	default:
		return g.confirm(from, to, upTo())
	}
}

// The law of replay: a log has one content, however it is cut into flushes and
// entries seen before a crash, and replaying what the file holds changes nothing.
func TestReplayLaw(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			l := makeLog(t, seed, 120)
			calm := create(t, config(t))
			l.play(t, calm, 0, len(l))
			want := calm.Dump()
			wantIndex, wantHash := calm.StateHash()

			cfg := config(t)
			s := create(t, cfg)
			random := rand.New(rand.NewPCG(seed, 99))
			crashes := 0
			for at := 0; at < len(l); {
				next := min(at+1+random.IntN(20), len(l))
				l.play(t, s, at, next)
				at = next
				switch random.IntN(4) {
				case 0:
					flush(t, s)
				case 1: // a crash: what was not flushed is gone; the log is played again
					s.Abandon()
					s = open(t, cfg)
					at = random.IntN(int(s.Meta().Index)/2 + 1)
					crashes++
				}
			}
			if got := s.Dump(); got != want {
				t.Errorf("content differs after %d crashes", crashes)
			}
			if index, hash := s.StateHash(); index != wantIndex || string(hash) != string(wantHash) {
				t.Errorf("state hash %x at %d, want %x at %d", hash, index, wantHash, wantIndex)
			}
			flush(t, s)
			flush(t, calm)
			if calm.Dump() != want || s.Dump() != want {
				t.Error("a flush changed the content")
			}
			audit(t, s)
		})
	}
}

// The same records, cut into entries in another way, have the same content: what
// one record does does not depend on its entry.
func TestBatchingLaw(t *testing.T) {
	l := makeLog(t, 77, 100)
	one, other := create(t, config(t)), create(t, config(t))
	l.play(t, one, 0, len(l))
	index := uint64(0)
	for _, e := range l {
		entry := &recordv1.Entry{}
		if err := proto.Unmarshal(e.bytes, entry); err != nil {
			t.Fatal(err)
		}
		for _, r := range entry.Records {
			index++
			if _, err := other.Apply(index, e.term, encode(t, entry.LogTime, r)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if one.DumpContent() != other.DumpContent() {
		t.Error("content differs")
	}
}
