package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	nodev1 "writ/proto/writ/node/v1"
)

// TestAnyHistory lets nodes die, come back, lose disks, drain, join and leave,
// one trouble at a time, and wants a cluster in order after each. The model fails
// the test at the first step that would cost data or a quorum.
func TestAnyHistory(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			w := newWorld(t)
			for i, name := range three {
				w.add(name, string(rune('a'+i%2)), config(three...))
			}
			w.found(three...)
			w.settle("begin")
			for event := range 12 {
				what := fmt.Sprintf("seed %d, event %d: %s", seed, event, w.trouble(r, event))
				w.rounds(r.IntN(4))
				w.settle(what)
			}
		})
	}
}

func (w *world) trouble(r *rand.Rand, event int) string {
	names := slices.Sorted(maps.Keys(w.nodes))
	n := w.nodes[names[r.IntN(len(names))]]
	leader := w.nodes[w.meta.leader.Node].controller
	order := func(state nodev1.NodeEntry_State) {
		_ = leader.SetNodeState(w.t.Context(), &nodev1.SetNodeStateRequest{Node: n.name, State: state}) // may be refused
	}
	removed := w.state.GetNodes()[n.name].GetState() == nodev1.NodeEntry_REMOVED
	active := 0
	for _, e := range w.state.GetNodes() {
		if e.GetState() != nodev1.NodeEntry_REMOVED {
			active++
		}
	}
	switch k := r.IntN(8); {
	case k == 0 || active < 3:
		name := fmt.Sprintf("x%d", event)
		w.add(name, string(rune('a'+r.IntN(3))), config(three...))
		return "join " + name
	case k == 1:
		n.stop()
		w.rounds(r.IntN(90))
		n.start("", config(three...))
		return n.name + " away for a while"
	case k == 2 && w.spares(n):
		n.wipe()
		w.rounds(r.IntN(90))
		n.start("", config(three...))
		return n.name + " wiped"
	case k == 3:
		order(nodev1.NodeEntry_DRAINING)
		return "drain " + n.name
	case k == 4:
		order(nodev1.NodeEntry_ACTIVE)
		return "undrain " + n.name
	case k == 5 && active > 3 && !removed:
		order(nodev1.NodeEntry_REMOVED)
		return "remove " + n.name
	}
	// A draining node gets nothing new, so nothing would be repaired there.
	shards := slices.Sorted(maps.Keys(n.replicas))
	if len(shards) == 0 || w.state.GetNodes()[n.name].GetState() != nodev1.NodeEntry_ACTIVE || !w.spares(n) {
		return "nothing"
	}
	n.replicas[shards[0]].broken = true
	return fmt.Sprintf("break %v", n.replicas[shards[0]].server)
}

// spares reports whether every group can lose what a node has.
func (w *world) spares(n *fakeNode) bool {
	for _, g := range w.groups {
		if len(g.voters) < 3 && slices.ContainsFunc(g.voters, func(s Server) bool { return s.Node == n.name }) {
			return false
		}
	}
	return len(w.meta.voters) > 2
}
