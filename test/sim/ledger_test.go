package sim_test

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// ledger is what a shard's replicas have applied, index by index, and what must
// hold of it: all apply the same entries with the same results to the same content;
// log time never falls; a key takes effect once, and is not forgotten within its
// window; an entity's versions, and the numbers of lanes and marks, are dense, also
// behind its deletion; a timer fires once and not before its time, and dies with its
// entity; a row is the same whenever it is sent.
type ledger struct {
	mu       sync.Mutex
	facts    map[uint64]fact
	keys     map[string]stamp
	versions map[string]uint64
	counts   map[string]int64  // by guest, what has taken effect since its deletion
	timers   map[string]alarm  // by entity and name
	rows     map[string]uint64 // by lane, the last number
	marks    map[string]uint64
	sent     map[string]uint64 // by lane and number, the sum of a row
}

// stamp is a key that has taken effect.
type stamp struct {
	ref         entity.Ref
	commandType string
	key         []byte
	acceptedAt  int64
	forgotten   bool
}

// alarm is a timer that waits.
type alarm struct {
	set uint64
	due int64
}

// fact is one index.
type fact struct {
	entry, results uint64 // sums
	hash           string
}

func newLedger() *ledger {
	return &ledger{
		facts: map[uint64]fact{}, keys: map[string]stamp{}, versions: map[string]uint64{}, counts: map[string]int64{},
		timers: map[string]alarm{}, rows: map[string]uint64{}, marks: map[string]uint64{}, sent: map[string]uint64{},
	}
}

func (l *ledger) applied(p *peer, e entry, results []error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.look(p, e, results)
	known, ok := l.facts[e.index]
	if ok {
		if known != now {
			p.fail("at index %d replicas differ: term and bytes equal %v, results equal %v, content equal %v", e.index,
				known.entry == now.entry, known.results == now.results, known.hash == now.hash)
		}
		return
	}
	l.facts[e.index] = now
	p.world.note("shard %d applies %d of term %d: %016x", p.shard, e.index, e.term, now.entry)
	content := &recordv1.Entry{}
	if err := proto.Unmarshal(e.data, content); err != nil {
		p.fail("entry %d: %v", e.index, err)
		return
	}
	for i, r := range content.GetRecords() {
		if results[i] != nil {
			p.world.count("records refused: " + persistence.Refused(results[i]))
			continue
		}
		l.commit(p, e.index, r.GetCommit())
		if r.GetExpire() != nil {
			l.expired(p)
		}
	}
}

// expired: what a replica has forgotten just now was accepted at least a window ago.
func (l *ledger) expired(p *peer) {
	for name, s := range l.keys {
		if s.forgotten || s.ref.Kind != guestKind {
			continue
		}
		known, err := p.store.Key(s.ref, s.commandType, s.key)
		if err != nil {
			p.fail("key %s: %v", name, err)
		}
		if known != nil {
			continue
		}
		if age := time.Duration(time.Now().UnixNano() - s.acceptedAt); age < guestWindow {
			p.fail("key %s is forgotten %v after it was accepted", name, age)
		}
		s.forgotten = true
		l.keys[name] = s
	}
}

func (l *ledger) look(p *peer, e entry, results []error) fact {
	meta := p.store.Meta()
	if meta.GetLogTime() < p.node.logTime[p.shard] {
		p.fail("log time falls from %d to %d at index %d", p.node.logTime[p.shard], meta.GetLogTime(), e.index)
	}
	p.node.logTime[p.shard] = meta.GetLogTime()
	var named []byte
	for _, r := range results {
		named = append(named, persistence.Refused(r)+";"...)
	}
	_, hash := p.store.StateHash()
	return fact{entry: sum(fmt.Append(nil, e.term), e.data), results: sum(named), hash: string(hash)}
}

// restored: a file that was swapped in holds what was applied up to its index.
func (l *ledger) restored(p *peer, index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.node.logTime[p.shard] = p.store.Meta().GetLogTime()
	at, hash := p.store.StateHash()
	if known := l.facts[index]; at != index || known.hash != string(hash) {
		p.fail("the file received for index %d stands at %d, its content equal: %v", index, at, known.hash == string(hash))
	}
}

func (l *ledger) commit(p *peer, index uint64, c *recordv1.Commit) {
	if c == nil {
		return
	}
	entityName := nameOf(c.GetEntity())
	if c.GetBaseVersion() != l.versions[entityName] {
		p.fail("%s: version %d follows %d at index %d", entityName, c.GetBaseVersion()+1, l.versions[entityName], index)
	}
	l.versions[entityName] = c.GetBaseVersion() + 1
	if k := c.GetKey(); k != nil {
		key := entityName + " " + k.GetCommandType() + " " + string(k.GetKey())
		if _, again := l.keys[key]; again {
			p.fail("key %s takes effect again at index %d", key, index)
		}
		l.keys[key] = stamp{
			ref:         entity.Ref{Tenant: c.GetEntity().GetTenant(), Kind: c.GetEntity().GetKind(), ID: c.GetEntity().GetId()},
			commandType: k.GetCommandType(), key: k.GetKey(), acceptedAt: k.GetAcceptedAt(),
		}
		if strings.HasPrefix(k.GetCommandType(), "timer ") {
			l.fires(p, entityName, string(k.GetKey()))
		}
	}
	for _, m := range c.GetMutations() {
		l.timer(p, entityName, m)
	}
	l.counts[entityName]++
	if c.GetTombstone() {
		l.counts[entityName] = 0
		p.world.count("entities deleted")
		for of := range l.timers {
			if strings.HasPrefix(of, entityName+" ") {
				p.fail("timer %s outlives its entity", of)
			}
		}
	}
	for _, r := range c.GetRows() {
		lane := laneOf(r)
		if l.rows[lane]++; r.GetLaneSequence() != l.rows[lane] {
			p.fail("lane %s: row %d follows %d", lane, r.GetLaneSequence(), l.rows[lane]-1)
		}
	}
	for _, m := range c.GetApplied() {
		lane := nameOf(m.GetSource()) + " to " + entityName
		if l.marks[lane]++; m.GetLaneSequence() != l.marks[lane] {
			p.fail("lane %s: %d is applied behind %d", lane, m.GetLaneSequence(), l.marks[lane]-1)
		}
	}
}

func nameOf(r *recordv1.Ref) string { return r.GetKind() + "/" + r.GetId() }

func laneOf(r *recordv1.Row) string {
	return nameOf(r.GetSource()) + " to " + nameOf(r.GetDestination())
}

// fires: the key of a timer's command says which setting of which timer it is.
func (l *ledger) fires(p *peer, of, key string) {
	var set uint64
	number, name, _ := strings.Cut(key, "/")
	_, _ = fmt.Sscan(number, &set) // 0 is the set of none
	waiting, ok := l.timers[of+" "+name]
	if !ok || waiting.set != set {
		p.fail("%s: timer %s fires, set by version %d; there is %+v", of, name, set, waiting)
	}
	if early := waiting.due - time.Now().UnixNano(); early > 0 {
		p.fail("%s: timer %s fires %v early", of, name, time.Duration(early))
	}
	p.world.count("timers fired")
}

// timer keeps what a commit does to a timer.
func (l *ledger) timer(p *peer, of string, m *recordv1.Mutation) {
	if m.GetBucket() != recordv1.Bucket_TIMERS {
		return
	}
	name := of + " " + string(m.GetSubkey())
	if m.GetDelete() {
		delete(l.timers, name)
		return
	}
	t := &recordv1.Timer{}
	if err := proto.Unmarshal(m.GetValue().GetData(), t); err != nil {
		p.fail("timer %s: %v", name, err)
	}
	l.timers[name] = alarm{t.GetSet(), t.GetDue()}
	p.world.count("timers set or moved")
}

// send takes notice of rows on their way. Whatever node sends a row and however often,
// it is the one that its source has emitted: the same number and event id, and the same
// bytes. So an event that its consumer makes of it is the same too (in these
// worlds leaders die at every step of a chain, payer to receiver to payer and to the
// statement).
func (l *ledger) send(w *world, rows []*recordv1.Row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
		if err != nil {
			w.fail("%v", err)
		}
		at := fmt.Sprint(laneOf(r), " ", r.GetLaneSequence())
		now := sum(data)
		if before, again := l.sent[at]; again && before != now {
			w.fail("row %s is sent again as another one: event %d of epoch %d", at, r.GetSequence(), r.GetEpoch())
		} else if again {
			w.count("rows sent again")
		}
		l.sent[at] = now
	}
}
