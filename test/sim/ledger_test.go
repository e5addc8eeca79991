package sim_test

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// ledger is what a shard's replicas have applied, index by index, and what must
// hold of it: all apply the same entries with the same results to the same content;
// log time never falls; a key takes effect once; the numbers of lanes and marks are
// dense.
type ledger struct {
	mu    sync.Mutex
	facts map[uint64]fact
	keys  map[string]bool
	rows  map[string]uint64 // by lane, the last number
	marks map[string]uint64
}

// fact is one index.
type fact struct {
	entry, results uint64 // sums
	hash           string
}

func newLedger() *ledger {
	return &ledger{facts: map[uint64]fact{}, keys: map[string]bool{}, rows: map[string]uint64{}, marks: map[string]uint64{}}
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
	p.world.note("shard %d applies %d of term %d", p.shard, e.index, e.term)
	content := &recordv1.Entry{}
	if err := proto.Unmarshal(e.data, content); err != nil {
		p.fail("entry %d: %v", e.index, err)
		return
	}
	for i, r := range content.GetRecords() {
		if results[i] == nil {
			l.commit(p, e.index, r.GetCommit())
		} else {
			p.world.count("records refused: " + persistence.Refused(results[i]))
		}
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
	name := func(r *recordv1.Ref) string { return r.GetKind() + "/" + r.GetId() }
	if k := c.GetKey(); k != nil {
		key := name(c.GetEntity()) + " " + k.GetCommandType() + " " + string(k.GetKey())
		if l.keys[key] {
			p.fail("key %s takes effect again at index %d", key, index)
		}
		l.keys[key] = true
	}
	for _, r := range c.GetRows() {
		lane := name(r.GetSource()) + " to " + name(r.GetDestination())
		if l.rows[lane]++; r.GetLaneSequence() != l.rows[lane] {
			p.fail("lane %s: row %d follows %d", lane, r.GetLaneSequence(), l.rows[lane]-1)
		}
	}
	for _, m := range c.GetApplied() {
		lane := name(m.GetSource()) + " to " + name(c.GetEntity())
		if l.marks[lane]++; m.GetLaneSequence() != l.marks[lane] {
			p.fail("lane %s: %d is applied behind %d", lane, m.GetLaneSequence(), l.marks[lane]-1)
		}
	}
}
