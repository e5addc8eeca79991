package sharding

import (
	"cmp"
	"fmt"
	"slices"
)

// replaceLost gives a shard another replica for one that is lost. Without a
// node to put it on, a replica whose node is dead stays (the node may come
// back), and one whose node is gone for good is dropped.
func (p *planner) replaceLost() (Change, bool) {
	for _, place := range p.byUrgency() {
		if !p.mayRepair(place.Shard) {
			continue
		}
		lost := slices.Clone(place.Replicas)
		lost = slices.DeleteFunc(lost, p.healthy)
		// Those that will never come back first.
		slices.SortStableFunc(lost, func(a, b Replica) int {
			return cmp.Or(compareBool(p.registered(a), p.registered(b)), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Generation, b.Generation))
		})
		for _, r := range lost {
			keep := without(place.Replicas, r)
			if p.countHealthy(place) >= max(p.Replication, 1) {
				place.Replicas = keep
				return p.change(place, "a lost replica too many on "+r.Node), true
			}
			if n, ok := p.substitute(place.Shard, keep, r); ok {
				return p.swapped(place, r, n, fmt.Sprintf("replica on %s is lost: replaced on %s", r.Node, n.Name)), true
			}
			if !p.registered(r) && len(keep) > 0 {
				place.Replicas = keep
				return p.change(place, fmt.Sprintf("node %s#%s is gone and there is no other", r.Node, r.Incarnation)), true
			}
		}
	}
	return Change{}, false
}

// substitute finds the node for the successor of a lost replica. A broken
// replica's own node is as good as ever.
func (p *planner) substitute(shard uint32, keep []Replica, lost Replica) (Node, bool) {
	if p.registered(lost) {
		if n, ok := p.best(shard, keep, func(n Node) bool { return n.Name == lost.Node }); ok {
			return n, true
		}
	}
	return p.best(shard, keep, nil)
}

// addMissing raises the number of replicas of a shard by one.
func (p *planner) addMissing() (Change, bool) {
	for _, place := range p.byUrgency() {
		if len(place.Replicas) >= p.Replication || p.phase(place.Shard) != Settled || p.moving() >= p.maxMoving() {
			continue
		}
		if n, ok := p.best(place.Shard, place.Replicas, nil); ok {
			place.Replicas = append(slices.Clone(place.Replicas), Replica{Node: n.Name, Incarnation: n.Incarnation})
			return p.change(place, "under-replicated: added "+n.Name), true
		}
	}
	return Change{}, false
}

// dropSurplus takes away one replica too many.
func (p *planner) dropSurplus() (Change, bool) {
	for _, place := range p.places {
		if len(place.Replicas) <= max(p.Replication, 1) || p.phase(place.Shard) != Settled || p.moving() >= p.maxMoving() {
			continue
		}
		drop := slices.MaxFunc(place.Replicas, func(a, b Replica) int {
			x, y := p.nodes[a.Node], p.nodes[b.Node]
			return cmp.Or(
				compareBool(!p.healthy(a), !p.healthy(b)),
				compareBool(x.Draining, y.Draining),
				cmp.Compare(p.inZone(place.Replicas, x.Zone), p.inZone(place.Replicas, y.Zone)),
				cmp.Compare(p.load[a.Node], p.load[b.Node]),
				compareBool(a.Node != place.Preferred, b.Node != place.Preferred),
				cmp.Compare(a.Node, b.Node),
			)
		})
		place.Replicas = without(place.Replicas, drop)
		return p.change(place, "over-replicated: dropped "+drop.Node), true
	}
	return Change{}, false
}

// fixLeader names another preferred leader where the present one cannot lead.
func (p *planner) fixLeader() (Change, bool) {
	for _, place := range p.places {
		if p.mayLead(place, place.Preferred) {
			continue
		}
		if to := p.leader(place); to != "" && to != place.Preferred {
			reason := fmt.Sprintf("%q cannot lead: %s should", place.Preferred, to)
			place.Preferred = to
			return Change{Placement: place, Reason: reason}, true
		}
	}
	return Change{}, false
}

// byUrgency lists the shards with the fewest healthy replicas first.
func (p *planner) byUrgency() []Placement {
	places := slices.Clone(p.places)
	slices.SortStableFunc(places, func(a, b Placement) int {
		return cmp.Compare(p.countHealthy(a), p.countHealthy(b))
	})
	return places
}

func (p *planner) countHealthy(place Placement) int {
	n := 0
	for _, r := range place.Replicas {
		if p.healthy(r) {
			n++
		}
	}
	return n
}

func (p *planner) phase(shard uint32) Phase { return p.Phases[shard] }

// mayRepair: a shard that is moving already may change its way, another one has
// to wait until few enough are in motion.
func (p *planner) mayRepair(shard uint32) bool {
	switch p.phase(shard) {
	case Moving:
		return true
	case Settled:
		return p.moving() < p.maxMoving()
	case Leaderless, Unformed:
		return false
	}
	return false
}

func (p *planner) moving() int {
	n := 0
	for _, place := range p.places {
		if p.phase(place.Shard) == Moving {
			n++
		}
	}
	return n
}

func (p *planner) maxMoving() int { return max(p.MaxMoving, 1) }

// swapped puts a new replica in an old one's stead.
func (p *planner) swapped(place Placement, from Replica, to Node, reason string) Change {
	place.Replicas = append(without(place.Replicas, from), Replica{Node: to.Name, Incarnation: to.Incarnation})
	return p.change(place, reason)
}

// change keeps the preferred leader among the replicas.
func (p *planner) change(place Placement, reason string) Change {
	if !p.mayLead(place, place.Preferred) {
		switch leader := p.leader(place); {
		case leader != "":
			place.Preferred = leader
		case !holds(place.Replicas, place.Preferred):
			place.Preferred = place.Replicas[0].Node
		}
	}
	return Change{Placement: place, Reason: reason}
}

func without(replicas []Replica, r Replica) []Replica {
	return slices.DeleteFunc(slices.Clone(replicas), func(x Replica) bool { return x == r })
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
