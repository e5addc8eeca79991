package sharding

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Node is a registered node that may hold replicas: active or draining. A
// removed node is not listed, and an incarnation that has been replaced is not
// either: their replicas have to go.
type Node struct {
	Name, Incarnation, Zone string
	// Draining nodes keep what they hold, get nothing new and should not lead.
	Draining bool
	// Dead nodes have been out of reach for longer than the grace time.
	Dead bool
}

// Replica is one copy of a shard: an incarnation of a node and a generation
// that is never given out twice in a cluster.
type Replica struct {
	Node, Incarnation string
	Generation        uint64
}

// Placement says which replicas a shard should have and which of them should
// lead, by the name of its node.
type Placement struct {
	Shard     uint32
	Replicas  []Replica
	Preferred string
}

// Phase is what a shard's Raft group is doing, compared with its placement.
// Settled → Moving → Settled at every step; Unformed → Settled once, at first
// start; any of them ↔ Leaderless with the quorum.
type Phase uint8

const (
	// Settled means that the voters are the replicas of the placement.
	Settled Phase = iota
	// Moving means that there is a leader, and that it is changing the configuration.
	Moving
	// Leaderless means that there is no quorum, so a new placement would change nothing.
	Leaderless
	// Unformed means that there has never been a leader. The replicas bootstrap
	// the group from the placement, which must therefore stay as it is.
	Unformed
)

// View is all that Next looks at.
type View struct {
	Placements  []Placement
	Nodes       []Node
	Replication int
	// Phases of the shards; a shard that is missing counts as settled.
	Phases map[uint32]Phase
	// Broken holds the generations of replicas that will never work again.
	Broken map[uint64]bool
	// MaxMoving bounds the shards in motion; less than 1 counts as 1.
	MaxMoving int
}

// Change is one step: the new placement of one shard and why.
type Change struct {
	Placement Placement
	Reason    string
}

// Initial places shards 0 … shards-1 on the nodes that are neither draining nor
// dead: min(replication, nodes) replicas each, on different nodes, in as many
// zones as there are, replicas and preferred leaders evenly spread. The answer
// does not depend on the order of the nodes. It is nil without a usable node.
func Initial(shards uint32, nodes []Node, replication int, nextGeneration func() uint64) []Placement {
	p := newPlanner(View{Nodes: nodes, Replication: replication})
	if len(p.usable) == 0 || replication < 1 {
		return nil
	}
	for shard := range shards {
		var replicas []Replica
		for len(replicas) < replication {
			n, ok := p.best(shard, replicas, nil)
			if !ok {
				break
			}
			replicas = append(replicas, Replica{Node: n.Name, Incarnation: n.Incarnation})
			p.load[n.Name]++
		}
		place := Placement{Shard: shard, Replicas: replicas}
		place.Preferred = p.leader(place)
		p.leads[place.Preferred]++
		p.places = append(p.places, place)
	}
	p.even()
	for i := range p.places {
		for j := range p.places[i].Replicas {
			p.places[i].Replicas[j].Generation = nextGeneration()
		}
	}
	return p.places
}

// Next is the next step from the placements in force towards good ones, false
// if there is nothing to do now. In order of urgency it replaces replicas that
// are lost (removed, replaced, dead or broken), adds missing ones, names
// another leader where the preferred one cannot lead, drops surplus replicas,
// and, only while nothing is under-replicated, evens out zones and load; at last
// it evens out the leaders.
//
// It changes one replica at a time, never takes a replica away without a
// substitute unless there is none or one too many, and never touches the
// replicas of a shard that is leaderless or unformed. Repeated with its own
// answers it comes to an end. The answer depends on the view alone, not on the
// order of its lists.
func Next(v View, nextGeneration func() uint64) (Change, bool) {
	p := newPlanner(v)
	steps := []func() (Change, bool){p.replaceLost, p.addMissing, p.fixLeader, p.dropSurplus, p.spreadZones, p.spreadLoad, p.spreadLeaders}
	for _, step := range steps {
		change, ok := step()
		if !ok {
			continue
		}
		for i, r := range change.Placement.Replicas {
			if r.Generation == 0 {
				change.Placement.Replicas[i].Generation = nextGeneration()
			}
		}
		return change, true
	}
	return Change{}, false
}

// planner is a view in a fixed order, with counts.
type planner struct {
	View
	places []Placement // by shard
	nodes  map[string]Node
	usable []Node         // may get replicas and lead, by name
	load   map[string]int // replicas by node
	leads  map[string]int // preferred leaderships by node
}

func newPlanner(v View) *planner {
	p := &planner{View: v, nodes: map[string]Node{}, load: map[string]int{}, leads: map[string]int{}}
	for _, n := range v.Nodes {
		p.nodes[n.Name] = n
	}
	for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
		if n := p.nodes[name]; !n.Draining && !n.Dead {
			p.usable = append(p.usable, n)
		}
	}
	p.places = slices.Clone(v.Placements)
	slices.SortFunc(p.places, func(a, b Placement) int { return cmp.Compare(a.Shard, b.Shard) })
	for i := range p.places {
		p.places[i].Replicas = slices.Clone(p.places[i].Replicas)
		for _, r := range p.places[i].Replicas {
			if p.registered(r) {
				p.load[r.Node]++
			}
		}
		if p.mayLead(p.places[i], p.places[i].Preferred) {
			p.leads[p.places[i].Preferred]++
		}
	}
	return p
}

// registered reports whether the replica's incarnation is still a node.
func (p *planner) registered(r Replica) bool {
	n, ok := p.nodes[r.Node]
	return ok && n.Incarnation == r.Incarnation
}

// healthy reports whether the replica counts for the replication.
func (p *planner) healthy(r Replica) bool {
	return p.registered(r) && !p.nodes[r.Node].Dead && !p.Broken[r.Generation]
}

func (p *planner) mayLead(place Placement, name string) bool {
	n, ok := p.nodes[name]
	return ok && !n.Draining && !n.Dead && slices.ContainsFunc(place.Replicas, func(r Replica) bool {
		return r.Node == name && p.healthy(r)
	})
}

// leader is the node that should lead: the one with the fewest leaderships.
func (p *planner) leader(place Placement) string {
	best := ""
	for _, n := range p.usable {
		if !p.mayLead(place, n.Name) {
			continue
		}
		if best == "" || p.leads[n.Name] < p.leads[best] ||
			(p.leads[n.Name] == p.leads[best] && score(place.Shard, n.Name) > score(place.Shard, best)) {
			best = n.Name
		}
	}
	return best
}

// best is the usable node for one more replica of a shard beside those it
// keeps: the emptiest zone first, then the least load, then the highest score.
func (p *planner) best(shard uint32, keep []Replica, allow func(Node) bool) (Node, bool) {
	var best Node
	found := false
	for _, n := range p.usable {
		if holds(keep, n.Name) || (allow != nil && !allow(n)) {
			continue
		}
		if !found || p.compare(shard, keep, n, best) < 0 {
			best, found = n, true
		}
	}
	return best, found
}

func (p *planner) compare(shard uint32, keep []Replica, a, b Node) int {
	return cmp.Or(
		cmp.Compare(p.inZone(keep, a.Zone), p.inZone(keep, b.Zone)),
		cmp.Compare(p.load[a.Name], p.load[b.Name]),
		cmp.Compare(score(shard, b.Name), score(shard, a.Name)),
		cmp.Compare(a.Name, b.Name),
	)
}

func (p *planner) inZone(replicas []Replica, zone string) int {
	n := 0
	for _, r := range replicas {
		if p.nodes[r.Node].Zone == zone {
			n++
		}
	}
	return n
}

func holds(replicas []Replica, node string) bool {
	return slices.ContainsFunc(replicas, func(r Replica) bool { return r.Node == node })
}

// score is the rendezvous weight of a node for a shard: every node computes the
// same, and a node that comes or goes changes nothing among the others.
func score(shard uint32, node string) uint64 {
	b := make([]byte, 0, 64)
	b = append(b, byte(shard>>24), byte(shard>>16), byte(shard>>8), byte(shard))
	return xxhash.Sum64(append(b, node...))
}
