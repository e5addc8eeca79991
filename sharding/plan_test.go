package sharding_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"writ/sharding"
)

func counter() func() uint64 {
	n := uint64(0)
	return func() uint64 { n++; return n }
}

func nodes(n int, zones ...string) []sharding.Node {
	list := make([]sharding.Node, n)
	for i := range list {
		list[i] = sharding.Node{Name: fmt.Sprintf("n%d", i+1), Incarnation: fmt.Sprintf("i%d", i+1)}
		if len(zones) > 0 {
			list[i].Zone = zones[i%len(zones)]
		}
	}
	return list
}

func loads(places []sharding.Placement) (replicas, leads map[string]int) {
	replicas, leads = map[string]int{}, map[string]int{}
	for _, p := range places {
		leads[p.Preferred]++
		for _, r := range p.Replicas {
			replicas[r.Node]++
		}
	}
	return replicas, leads
}

func spread(counts map[string]int, nodes []sharding.Node) int {
	low, high := 1<<30, 0
	for _, n := range nodes {
		low, high = min(low, counts[n.Name]), max(high, counts[n.Name])
	}
	return high - low
}

func TestInitial(t *testing.T) {
	for _, shards := range []uint32{1, 8, 13, 64} {
		for n := 1; n <= 9; n++ {
			list := nodes(n)
			places := sharding.Initial(shards, list, 3, counter())
			generations := map[uint64]bool{}
			for i, p := range places {
				if p.Shard != uint32(i) {
					t.Fatalf("%d nodes: place %d is of shard %d", n, i, p.Shard)
				}
				names := map[string]bool{}
				for _, r := range p.Replicas {
					names[r.Node] = true
					generations[r.Generation] = true
				}
				if len(names) != min(3, n) || len(p.Replicas) != min(3, n) {
					t.Errorf("%d nodes: shard %d has %v", n, i, p.Replicas)
				}
				if !names[p.Preferred] {
					t.Errorf("%d nodes: shard %d prefers %q, not one of %v", n, i, p.Preferred, names)
				}
			}
			if len(generations) != int(shards)*min(3, n) || generations[0] {
				t.Errorf("%d nodes: generations are not unique", n)
			}
			replicas, leads := loads(places)
			if d := spread(replicas, list); d > 1 {
				t.Errorf("%d shards on %d nodes: replicas differ by %d: %v", shards, n, d, replicas)
			}
			if d := spread(leads, list); d > 1 {
				t.Errorf("%d shards on %d nodes: leaders differ by %d: %v", shards, n, d, leads)
			}
			if change, ok := sharding.Next(sharding.View{Placements: places, Nodes: list, Replication: 3}, counter()); ok {
				t.Errorf("%d shards on %d nodes: not at rest: %v", shards, n, change)
			}
		}
	}
}

func TestInitialDoesNotDependOnTheOrderOfNodes(t *testing.T) {
	list := nodes(7, "a", "b", "c")
	want := sharding.Initial(32, list, 3, counter())
	slices.Reverse(list)
	if diff := cmp.Diff(want, sharding.Initial(32, list, 3, counter())); diff != "" {
		t.Error(diff)
	}
}

func TestInitialUsesAllZones(t *testing.T) {
	list := nodes(7, "a", "b", "c")
	zones := map[string]string{}
	for _, n := range list {
		zones[n.Name] = n.Zone
	}
	for _, p := range sharding.Initial(64, list, 3, counter()) {
		seen := map[string]bool{}
		for _, r := range p.Replicas {
			seen[zones[r.Node]] = true
		}
		if len(seen) != 3 {
			t.Errorf("shard %d is in zones %v", p.Shard, seen)
		}
	}
}

func TestInitialWithoutUsableNodes(t *testing.T) {
	list := []sharding.Node{{Name: "n1", Draining: true}, {Name: "n2", Dead: true}}
	if got := sharding.Initial(4, list, 3, counter()); got != nil {
		t.Errorf("got %v", got)
	}
}

func TestNewNodeGetsItsShareByTheFewestMoves(t *testing.T) {
	for n := 3; n <= 8; n++ {
		v := sharding.View{Placements: sharding.Initial(64, nodes(n), 3, counter()), Nodes: nodes(n + 1), Replication: 3}
		moves := 0
		settle(t, &v, func(c sharding.Change, before sharding.Placement) {
			if !sameReplicas(c.Placement, before) {
				moves++
			}
		})
		replicas, leads := loads(v.Placements)
		share := 64 * 3 / (n + 1)
		if got := replicas[fmt.Sprintf("n%d", n+1)]; got < share || got > share+1 {
			t.Errorf("%d nodes and one more: it got %d replicas, its share is %d", n, got, share)
		}
		if moves > share+1 {
			t.Errorf("%d nodes and one more: %d moves for a share of %d", n, moves, share)
		}
		if d := spread(leads, v.Nodes); d > 1 {
			t.Errorf("%d nodes and one more: leaders differ by %d", n, d)
		}
	}
}

func TestRepairBeforeRebalance(t *testing.T) {
	v := sharding.View{Placements: sharding.Initial(16, nodes(3), 3, counter()), Nodes: nodes(5), Replication: 3}
	v.Nodes[0].Dead = true
	change, ok := sharding.Next(v, counter())
	if !ok || len(change.Placement.Replicas) != 3 || holds(change.Placement, "n1") {
		t.Fatalf("want the replica on n1 replaced, got %+v %v", change, ok)
	}
	// As long as anything is under-replicated, nothing is rebalanced.
	v.Nodes = v.Nodes[:3]
	v.Placements = v.Placements[:1]
	v.Nodes = append(v.Nodes, sharding.Node{Name: "n9", Incarnation: "i9", Draining: true})
	v.Placements[0].Preferred = "n2"
	if change, ok := sharding.Next(v, counter()); ok {
		t.Errorf("nothing can be done, got %+v", change)
	}
}

func TestShardsThatMustNotBeTouched(t *testing.T) {
	for _, phase := range []sharding.Phase{sharding.Leaderless, sharding.Unformed} {
		v := sharding.View{Placements: sharding.Initial(1, nodes(3), 3, counter()), Nodes: nodes(5)[2:], Replication: 3}
		v.Placements[0].Preferred = "n3"
		v.Phases = map[uint32]sharding.Phase{0: phase}
		if change, ok := sharding.Next(v, counter()); ok {
			t.Errorf("phase %d: %+v", phase, change)
		}
	}
}

func TestBoundedMotion(t *testing.T) {
	v := sharding.View{Placements: sharding.Initial(8, nodes(3), 3, counter()), Nodes: nodes(4), Replication: 3, MaxMoving: 2, Phases: map[uint32]sharding.Phase{}}
	generation := counter()
	for range 2 {
		change, ok := sharding.Next(v, generation)
		if !ok {
			t.Fatal("no step")
		}
		v.Placements[change.Placement.Shard] = change.Placement
		v.Phases[change.Placement.Shard] = sharding.Moving
	}
	if change, ok := sharding.Next(v, generation); ok && !sameReplicas(change.Placement, v.Placements[change.Placement.Shard]) {
		t.Errorf("a third shard in motion: %+v", change)
	}
	for shard := range v.Phases {
		if r := v.Placements[shard].Replicas; !slices.ContainsFunc(r, func(r sharding.Replica) bool { return r.Node == "n4" }) {
			t.Errorf("shard %d moved to something else than n4: %v", shard, r)
		}
	}
}

func TestBrokenReplicaComesBackOnItsNode(t *testing.T) {
	v := sharding.View{Placements: sharding.Initial(1, nodes(5), 3, counter()), Nodes: nodes(5), Replication: 3}
	broken := v.Placements[0].Replicas[1]
	v.Broken = map[uint64]bool{broken.Generation: true}
	change, ok := sharding.Next(v, func() uint64 { return 99 })
	want := sharding.Replica{Node: broken.Node, Incarnation: broken.Incarnation, Generation: 99}
	if !ok || !slices.Contains(change.Placement.Replicas, want) || slices.Contains(change.Placement.Replicas, broken) {
		t.Errorf("got %+v, want %+v instead of %+v", change, want, broken)
	}
}

func TestNewIncarnationReplacesTheOld(t *testing.T) {
	v := sharding.View{Placements: sharding.Initial(8, nodes(3), 3, counter()), Nodes: nodes(3), Replication: 3}
	v.Nodes[1].Incarnation = "again"
	settle(t, &v, nil)
	for _, p := range v.Placements {
		if !slices.ContainsFunc(p.Replicas, func(r sharding.Replica) bool { return r.Node == "n2" && r.Incarnation == "again" }) {
			t.Errorf("shard %d: %v", p.Shard, p.Replicas)
		}
	}
}

func TestRemovedNodeWithoutSubstitute(t *testing.T) {
	v := sharding.View{Placements: sharding.Initial(8, nodes(3), 3, counter()), Nodes: nodes(2), Replication: 3}
	settle(t, &v, nil)
	for _, p := range v.Placements {
		if len(p.Replicas) != 2 || holds(p, "n3") || p.Preferred == "n3" {
			t.Errorf("shard %d: %+v", p.Shard, p)
		}
	}
}

func TestDrainingNodeKeepsReplicasAndLeadsNothing(t *testing.T) {
	v := sharding.View{Placements: sharding.Initial(8, nodes(4), 3, counter()), Nodes: nodes(4), Replication: 3}
	before, _ := loads(v.Placements)
	v.Nodes[2].Draining = true
	settle(t, &v, func(c sharding.Change, was sharding.Placement) {
		if !sameReplicas(c.Placement, was) {
			t.Errorf("a replica moved: %s", c.Reason)
		}
	})
	after, leads := loads(v.Placements)
	if after["n3"] != before["n3"] || leads["n3"] != 0 {
		t.Errorf("n3: %d replicas, was %d; leads %d", after["n3"], before["n3"], leads["n3"])
	}
}

// TestAnyHistory drives random clusters through random events and holds every
// single step, and every state of rest, to the rules.
func TestAnyHistory(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 1))
		zones := []string{"", "", "a", "b", "c"}[r.IntN(2):][:1+r.IntN(3)]
		list := nodes(1+r.IntN(6), zones...)
		generation := counter()
		v := sharding.View{Placements: sharding.Initial(uint32(1+r.IntN(20)), list, 3, generation), Nodes: list, Replication: 3, MaxMoving: 1 + r.IntN(3), Broken: map[uint64]bool{}}
		for event := range 12 {
			what := disturb(r, &v, event)
			settleWith(t, &v, generation, func(c sharding.Change, was sharding.Placement) {
				if err := checkStep(v, c, was); err != nil {
					t.Fatalf("seed %d, event %d (%s), %s: %v\n%+v\n%+v", seed, event, what, c.Reason, err, was, c.Placement)
				}
			})
			if err := checkRest(v); err != nil {
				t.Fatalf("seed %d, event %d (%s): %v", seed, event, what, err)
			}
		}
	}
}

func disturb(r *rand.Rand, v *sharding.View, event int) string {
	v.Nodes = slices.Clone(v.Nodes)
	i := r.IntN(len(v.Nodes))
	n := &v.Nodes[i]
	switch r.IntN(7) {
	case 0, 1:
		name := fmt.Sprintf("x%d", event)
		v.Nodes = append(v.Nodes, sharding.Node{Name: name, Incarnation: name, Zone: v.Nodes[i].Zone})
		return "join " + name
	case 2:
		n.Dead = !n.Dead
		return "dead/alive " + n.Name
	case 3:
		n.Draining = !n.Draining
		return "drain/undrain " + n.Name
	case 4:
		n.Incarnation += "+"
		return "wiped " + n.Name
	case 5:
		if len(v.Nodes) > 1 {
			name := n.Name
			v.Nodes = slices.Delete(v.Nodes, i, i+1)
			return "remove " + name
		}
	}
	p := v.Placements[r.IntN(len(v.Placements))]
	b := p.Replicas[r.IntN(len(p.Replicas))]
	v.Broken[b.Generation] = true
	return fmt.Sprintf("break %v of %d", b, p.Shard)
}

func healthy(v sharding.View, p sharding.Placement) int {
	count := 0
	for _, r := range p.Replicas {
		for _, n := range v.Nodes {
			if n.Name == r.Node && n.Incarnation == r.Incarnation && !n.Dead && !v.Broken[r.Generation] {
				count++
			}
		}
	}
	return count
}

func checkStep(v sharding.View, c sharding.Change, was sharding.Placement) error {
	p := c.Placement
	for _, r := range p.Replicas {
		if n := len(loadsOf(p, r.Node)); n > 1 && r.Incarnation != "" {
			// Two incarnations of a name may stand side by side until the old one has gone.
			for _, other := range loadsOf(p, r.Node) {
				if other != r && other.Incarnation == r.Incarnation {
					return fmt.Errorf("two replicas on %s", r.Node)
				}
			}
		}
	}
	if added, removed := diff(was, p); added > 1 || removed > 1 {
		return fmt.Errorf("%d added, %d removed", added, removed)
	}
	if got, before := healthy(v, p), healthy(v, was); got < before && got < v.Replication {
		return fmt.Errorf("healthy replicas went from %d to %d", before, got)
	}
	if len(p.Replicas) == 0 || !holds(p, p.Preferred) {
		return fmt.Errorf("preferred %q is none of %v", p.Preferred, p.Replicas)
	}
	return nil
}

func checkRest(v sharding.View) error {
	usable, calm := 0, true
	for _, n := range v.Nodes {
		if !n.Dead && !n.Draining {
			usable++
		} else {
			calm = false
		}
	}
	for _, p := range v.Placements {
		if got, want := healthy(v, p), min(v.Replication, usable); got < want {
			return fmt.Errorf("shard %d has %d healthy replicas of %d: %v", p.Shard, got, want, p.Replicas)
		}
		if len(p.Replicas) > v.Replication {
			return fmt.Errorf("shard %d has %d replicas", p.Shard, len(p.Replicas))
		}
	}
	zones := map[string]bool{}
	for _, n := range v.Nodes {
		zones[n.Zone] = true
	}
	replicas, leads := loads(v.Placements)
	if calm && len(zones) == 1 {
		if d := spread(replicas, v.Nodes); d > 1 {
			return fmt.Errorf("replicas differ by %d: %v", d, replicas)
		}
		if d := spread(leads, v.Nodes); d > 1 {
			return fmt.Errorf("leaders differ by %d: %v", d, leads)
		}
	}
	return nil
}

// settle takes steps to the end, each shard settling at once.
func settle(t *testing.T, v *sharding.View, each func(sharding.Change, sharding.Placement)) {
	t.Helper()
	next := uint64(1 << 32)
	settleWith(t, v, func() uint64 { next++; return next }, each)
}

func settleWith(t *testing.T, v *sharding.View, generation func() uint64, each func(sharding.Change, sharding.Placement)) {
	t.Helper()
	v.Placements = slices.Clone(v.Placements)
	for range 2000 {
		shuffled := *v
		shuffled.Nodes = slices.Clone(v.Nodes)
		slices.Reverse(shuffled.Nodes)
		shuffled.Placements = slices.Clone(v.Placements)
		slices.Reverse(shuffled.Placements)
		other, _ := sharding.Next(shuffled, func() uint64 { return 1 << 60 })
		change, ok := sharding.Next(*v, func() uint64 { return 1 << 60 })
		if diff := cmp.Diff(change, other); diff != "" {
			t.Fatalf("depends on the order of the input: %s", diff)
		}
		if !ok {
			return
		}
		for i, r := range change.Placement.Replicas {
			if r.Generation == 1<<60 {
				change.Placement.Replicas[i].Generation = generation()
			}
		}
		if each != nil {
			each(change, v.Placements[change.Placement.Shard])
		}
		v.Placements[change.Placement.Shard] = change.Placement
	}
	t.Fatal("does not come to rest")
}

func diff(was, is sharding.Placement) (added, removed int) {
	for _, r := range is.Replicas {
		if !slices.Contains(was.Replicas, r) {
			added++
		}
	}
	for _, r := range was.Replicas {
		if !slices.Contains(is.Replicas, r) {
			removed++
		}
	}
	return added, removed
}

func sameReplicas(a, b sharding.Placement) bool {
	added, removed := diff(a, b)
	return added+removed == 0
}

func holds(p sharding.Placement, node string) bool { return len(loadsOf(p, node)) > 0 }

func loadsOf(p sharding.Placement, node string) []sharding.Replica {
	var found []sharding.Replica
	for _, r := range p.Replicas {
		if r.Node == node {
			found = append(found, r)
		}
	}
	return found
}
