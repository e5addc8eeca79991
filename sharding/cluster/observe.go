package cluster

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	nodev1 "writ/proto/writ/node/v1"
	"writ/sharding"
)

// observation is what the leader of the meta group sees at one moment.
type observation struct {
	reports map[string][]*nodev1.ShardStatus // by node; nodes that did not answer are missing
	meta    map[string]metaReport            // by node, in the same way
	dead    map[string]bool                  // out of reach for longer than the grace time
	broken  map[uint64]bool                  // generations of replicas in quarantine
	sick    map[string]bool                  // nodes whose replicas break again and again
}

// metaReport is what a node says of its replica of the meta group.
type metaReport struct {
	leader  string
	version uint64 // of the state
}

// observer remembers what one look does not show. It starts anew with every
// leadership, so that a new leader gives everyone the full grace time.
type observer struct {
	mu     sync.Mutex
	seen   map[string]time.Time // by name#incarnation: when last seen
	broken map[site]damage
}

type site struct {
	node  string
	shard uint32
}

// damage: the generation that stands in quarantine at a site, since when, and
// whether another one had broken there shortly before.
type damage struct {
	generation uint64
	since      time.Time
	again      bool
}

func newObserver() *observer {
	return &observer{seen: map[string]time.Time{}, broken: map[site]damage{}}
}

func (o *observer) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.seen)
	clear(o.broken)
}

// look asks all nodes about their replicas. A node counts as seen if gossip
// holds it for alive or if it answers: gossip alone condemns nobody.
func (o *observer) look(ctx context.Context, c ControllerConfig, state *nodev1.MetaState) *observation {
	nodes := allNodes(state)
	members := c.Directory.Members()
	answers := make([]*nodev1.ReportResponse, len(nodes))
	answered := make([]bool, len(nodes))
	each(len(nodes), func(i int) {
		timeout := callTimeout
		if !slices.ContainsFunc(members, func(m Member) bool { return m.Name == nodes[i].Name && m.Alive }) {
			timeout = callTimeoutDead
		}
		callCtx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		answer, err := c.Reporter.Report(callCtx, nodes[i].Name)
		answers[i], answered[i] = answer, err == nil
	})
	seen := &observation{
		reports: map[string][]*nodev1.ShardStatus{}, meta: map[string]metaReport{},
		dead: map[string]bool{}, broken: map[uint64]bool{}, sick: map[string]bool{},
	}
	for i, n := range nodes {
		if answered[i] {
			seen.reports[n.Name] = answers[i].GetShards()
			seen.meta[n.Name] = metaReport{answers[i].GetMetaLeader(), answers[i].GetMetaVersion()}
		}
		gossip := slices.IndexFunc(members, func(m Member) bool { return m.Name == n.Name && m.Alive })
		alive := gossip >= 0 && members[gossip].Incarnation == n.Incarnation
		// Another incarnation may be the one that answers under this name.
		other := gossip >= 0 && !alive
		seen.dead[n.Name] = o.since(n.Name+"#"+n.Incarnation, alive || (answered[i] && !other)) > c.Grace
	}
	o.findBroken(seen, c.Grace)
	return seen
}

// allNodes lists the removed nodes too: they have replicas to drop.
func allNodes(state *nodev1.MetaState) []sharding.Node {
	nodes := planNodes(state, nil)
	for _, name := range slices.Sorted(maps.Keys(state.GetNodes())) {
		if e := state.GetNodes()[name]; e.GetState() == nodev1.NodeEntry_REMOVED {
			nodes = append(nodes, sharding.Node{Name: name, Incarnation: e.GetIncarnation()})
		}
	}
	return nodes
}

// since tells for how long a node has not been seen; the first look at a node
// counts as seen.
func (o *observer) since(key string, now bool) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	last, known := o.seen[key]
	if now || !known {
		o.seen[key] = time.Now()
		return 0
	}
	return time.Since(last)
}

// States of a replica. A quarantined one will never work again, a failed one may
// when it is opened anew. StateLowDisk is that of a sound one on a node that takes
// no commands, for its disk is nearly full: what it leads should be led elsewhere.
const (
	stateServing     = "serving"
	stateQuarantined = "quarantined"
	stateFailed      = "failed"
	StateLowDisk     = "low disk"
)

// findBroken notes the replicas in quarantine. A node on which a replica breaks
// and then its successor too gets nothing new for the grace time: its disk or its
// log is damaged, and new generations would break without end.
func (o *observer) findBroken(seen *observation, grace time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for node, list := range seen.reports {
		for _, r := range list {
			if r.GetLocal() && r.GetState() == stateQuarantined {
				seen.broken[r.GetReplicaGeneration()] = true
				o.note(site{node, r.GetShard()}, r.GetReplicaGeneration(), grace)
			}
		}
	}
	for at, d := range o.broken {
		switch {
		case time.Since(d.since) > grace:
			delete(o.broken, at)
		case d.again:
			seen.sick[at.node] = true
		}
	}
}

func (o *observer) note(at site, generation uint64, grace time.Duration) {
	d, known := o.broken[at]
	if !known || d.generation != generation {
		again := known && time.Since(d.since) <= grace
		o.broken[at] = damage{generation: generation, since: time.Now(), again: again}
	}
}

// report is a node's report about a shard, nil if there is none.
func (seen *observation) report(node string, shard uint32) *nodev1.ShardStatus {
	return reportOf(seen.reports[node], shard)
}

func reportOf(list []*nodev1.ShardStatus, shard uint32) *nodev1.ShardStatus {
	i := slices.IndexFunc(list, func(r *nodev1.ShardStatus) bool { return r.GetShard() == shard && r.GetLocal() })
	if i < 0 {
		return nil
	}
	return list[i]
}

// leader is the report of the node that leads a shard by its own word, the
// newest if there are several, nil if there is none.
func (seen *observation) leader(shard uint32) *nodev1.ShardStatus {
	var best *nodev1.ShardStatus
	for node, list := range seen.reports {
		r := reportOf(list, shard)
		if r.GetLeader() == node && r.GetState() == stateServing && (best == nil || r.GetTerm() > best.GetTerm()) {
			best = r
		}
	}
	return best
}

// led reports whether a shard has had a leader.
func (seen *observation) led(shard uint32) bool { return seen.leader(shard) != nil }

// phase compares a shard's group with its placement.
func (seen *observation) phase(p *nodev1.ShardPlacement) sharding.Phase {
	if !p.GetFormed() {
		return sharding.Unformed
	}
	leader := seen.leader(p.GetShard())
	if leader == nil {
		return sharding.Leaderless
	}
	if len(leader.GetLearners()) > 0 || len(leader.GetVoters()) != len(p.GetReplicas()) {
		return sharding.Moving
	}
	for _, r := range p.GetReplicas() {
		if !slices.Contains(leader.GetVoters(), r.GetNode()) {
			return sharding.Moving
		}
		// A node has one vote at most, so a replica that knows the leader and has
		// the right generation is the one that votes. One that does not answer
		// voted when its node was last here. One that has failed hears no leader, and
		// would keep all other shards from moving until somebody mends its node.
		own := seen.report(r.GetNode(), p.GetShard())
		deaf := own.GetLeader() == "" && own.GetState() != stateFailed
		if own != nil && (own.GetReplicaGeneration() != r.GetGeneration() || deaf) {
			return sharding.Moving
		}
	}
	return sharding.Settled
}
