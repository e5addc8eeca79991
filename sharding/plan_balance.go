package sharding

import (
	"cmp"
	"fmt"
	"slices"
)

// spreadZones moves a replica into a zone where its shard has fewer.
func (p *planner) spreadZones() (Change, bool) {
	if !p.mayRebalance() {
		return Change{}, false
	}
	for _, place := range p.places {
		if p.phase(place.Shard) != Settled {
			continue
		}
		for _, r := range place.Replicas {
			keep := without(place.Replicas, r)
			better := func(n Node) bool {
				return n.Name != r.Node && p.inZone(keep, n.Zone) < p.inZone(keep, p.nodes[r.Node].Zone)
			}
			if n, ok := p.best(place.Shard, keep, better); ok && p.healthy(r) {
				return p.swapped(place, r, n, fmt.Sprintf("zones: from %s to %s", r.Node, n.Name)), true
			}
		}
	}
	return Change{}, false
}

// spreadLoad moves a replica from a node that holds at least two more than
// another. Every move lowers the sum of the squared loads, so it comes to an
// end, and a node that joins gets its share by the fewest moves there are.
func (p *planner) spreadLoad() (Change, bool) {
	if !p.mayRebalance() {
		return Change{}, false
	}
	for _, pair := range p.unevenPairs() {
		if place, r, ok := p.movable(pair.from, pair.to); ok {
			return p.swapped(place, r, pair.to, fmt.Sprintf("load: from %s to %s", pair.from, pair.to.Name)), true
		}
	}
	return Change{}, false
}

type pair struct {
	from string
	to   Node
}

func (p *planner) unevenPairs() []pair {
	var pairs []pair
	for _, from := range p.usable {
		for _, to := range p.usable {
			if p.load[from.Name]-p.load[to.Name] >= 2 {
				pairs = append(pairs, pair{from.Name, to})
			}
		}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int {
		return cmp.Compare(p.load[b.from]-p.load[b.to.Name], p.load[a.from]-p.load[a.to.Name])
	})
	return pairs
}

// movable finds the shard whose replica should go from one node to another:
// none that would crowd a zone, rather not the one that leads, then by score.
func (p *planner) movable(from string, to Node) (Placement, Replica, bool) {
	var place Placement
	var replica Replica
	found := false
	for _, candidate := range p.places {
		if p.phase(candidate.Shard) != Settled || holds(candidate.Replicas, to.Name) {
			continue
		}
		i := slices.IndexFunc(candidate.Replicas, func(r Replica) bool { return r.Node == from && p.healthy(r) })
		if i < 0 {
			continue
		}
		keep := without(candidate.Replicas, candidate.Replicas[i])
		if p.inZone(keep, to.Zone) > p.inZone(keep, p.nodes[from].Zone) {
			continue
		}
		if !found || cmp.Or(
			compareBool(candidate.Preferred == from, place.Preferred == from),
			cmp.Compare(score(place.Shard, to.Name), score(candidate.Shard, to.Name)),
		) < 0 {
			place, replica, found = candidate, candidate.Replicas[i], true
		}
	}
	return place, replica, found
}

// mayRebalance: only while every shard has all the replicas it can have, and
// few enough are in motion.
func (p *planner) mayRebalance() bool {
	if p.moving() >= p.maxMoving() {
		return false
	}
	for _, place := range p.places {
		if phase := p.phase(place.Shard); phase == Leaderless || phase == Unformed {
			return false
		}
		if p.countHealthy(place) < min(p.Replication, p.attainable(place)) {
			return false
		}
	}
	return true
}

// attainable counts the nodes that could hold a replica of the shard, the dead
// ones included.
func (p *planner) attainable(place Placement) int {
	n := 0
	for _, node := range p.nodes {
		if !node.Draining || holds(place.Replicas, node.Name) {
			n++
		}
	}
	return n
}

// spreadLeaders hands one preferred leadership on, from a node with at least
// two more than another towards that other, if need be by way of nodes between
// them. It takes the last hop of the shortest way first, so that no node ever
// gets more than the fullest had.
func (p *planner) spreadLeaders() (Change, bool) {
	sources := slices.Clone(p.usable)
	slices.SortStableFunc(sources, func(a, b Node) int { return cmp.Compare(p.leads[b.Name], p.leads[a.Name]) })
	for _, source := range sources {
		if i, to, ok := p.lastHop(source.Name); ok {
			place := p.places[i]
			reason := fmt.Sprintf("leaders: from %s to %s", place.Preferred, to)
			place.Preferred = to
			return Change{Placement: place, Reason: reason}, true
		}
	}
	return Change{}, false
}

// lastHop searches, breadth first, the nearest node that leads at least two
// shards less than the source, and returns the shard of the last hop to it.
func (p *planner) lastHop(source string) (place int, to string, ok bool) {
	seen := map[string]bool{source: true}
	for queue := []string{source}; len(queue) > 0; queue = queue[1:] {
		for i, candidate := range p.places {
			if candidate.Preferred != queue[0] {
				continue
			}
			for _, n := range p.usable {
				if seen[n.Name] || !p.mayLead(candidate, n.Name) {
					continue
				}
				if p.leads[source]-p.leads[n.Name] >= 2 {
					return i, n.Name, true
				}
				seen[n.Name] = true
				queue = append(queue, n.Name)
			}
		}
	}
	return 0, "", false
}

// even takes all balancing steps at once; for placements that nobody serves yet.
func (p *planner) even() {
	for {
		change, ok := p.spreadZones()
		if !ok {
			change, ok = p.spreadLoad()
		}
		if !ok {
			change, ok = p.spreadLeaders()
		}
		if !ok {
			return
		}
		v := p.View
		v.Placements = slices.Clone(p.places)
		v.Placements[change.Placement.Shard] = change.Placement
		*p = *newPlanner(v)
	}
}
