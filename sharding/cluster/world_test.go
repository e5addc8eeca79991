package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	nodev1 "writ/proto/writ/node/v1"
)

// round lets every node take its steps once, one second apart.
func (w *world) round() {
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		n := w.nodes[name]
		if !n.up {
			continue
		}
		// Errors are trouble on the way here as there: the next round tries again.
		_, _ = n.registrar.Step(w.t.Context())
		_, _ = n.controller.Step(w.t.Context())
		_, _ = n.reconciler.Step(w.t.Context())
	}
	w.tick()
	<-time.After(time.Second)
	synctest.Wait()
}

func (w *world) rounds(n int) {
	for range n {
		w.round()
	}
}

// settle runs until nothing is wrong any more.
func (w *world) settle(what string) {
	w.t.Helper()
	problem := ""
	for range 1500 {
		w.round()
		if w.t.Failed() {
			w.t.Fatalf("%s: broken on the way", what)
		}
		if problem = w.problem(); problem == "" {
			return
		}
	}
	w.t.Fatalf("%s: %s", what, problem)
}

// problem says in what the cluster is not as it should be, "" if it is.
func (w *world) problem() string {
	registered, active := map[string]bool{}, 0
	for name, e := range w.state.GetNodes() {
		if e.GetState() == nodev1.NodeEntry_ACTIVE {
			active++
		}
		if e.GetState() != nodev1.NodeEntry_REMOVED {
			registered[name] = true
		}
		n := w.nodes[name]
		if n.up && n.id.Incarnation() != e.GetIncarnation() {
			return name + " is registered as another incarnation"
		}
	}
	for name, n := range w.nodes {
		if n.up && w.state.GetNodes()[name] == nil {
			return name + " is not registered"
		}
	}
	if len(w.state.GetShards()) == 0 {
		return "no shards"
	}
	for _, p := range w.state.GetShards() {
		if s := w.shardProblem(p, active); s != "" {
			return fmt.Sprintf("shard %d: %s", p.GetShard(), s)
		}
	}
	for name, n := range w.nodes {
		if n.up && len(n.kept) > 0 {
			return fmt.Sprintf("%s has %d replicas on its disk that are not open", name, len(n.kept))
		}
		for shard, r := range n.replicas {
			if n.up && !slices.Contains(servers(w.state.GetShards()[shard]), r.server) {
				return fmt.Sprintf("%s still holds %v", name, r.server)
			}
		}
	}
	return w.metaProblem(registered)
}

func (w *world) shardProblem(p *nodev1.ShardPlacement, nodes int) string {
	g, placed := w.groups[p.GetShard()], servers(p)
	switch {
	case g == nil || g.leader == (Server{}):
		return "no leader"
	case !p.GetFormed():
		return "not noted as formed"
	case len(placed) < min(nodes, int(w.state.GetReplication())):
		return fmt.Sprintf("%d replicas on %d nodes", len(placed), nodes)
	case !sameServers(g.voters, placed) || len(g.learners) > 0:
		return fmt.Sprintf("voters %v learners %v, placed %v", g.voters, g.learners, placed)
	case g.leader.Node != p.GetPreferred():
		return fmt.Sprintf("led by %v, should be %s", g.leader, p.GetPreferred())
	}
	for _, s := range placed {
		e := w.state.GetNodes()[s.Node]
		if e.GetIncarnation() != s.Incarnation || e.GetState() == nodev1.NodeEntry_REMOVED {
			return fmt.Sprintf("%v is placed", s)
		}
		if w.nodes[s.Node].up && !w.shardLive(p.GetShard(), s) {
			return fmt.Sprintf("%v does not serve", s)
		}
	}
	mayLead := func(node string) bool { return w.state.GetNodes()[node].GetState() == nodev1.NodeEntry_ACTIVE }
	if !mayLead(p.GetPreferred()) && slices.ContainsFunc(placed, func(s Server) bool { return mayLead(s.Node) }) {
		return p.GetPreferred() + " should not lead"
	}
	return ""
}

func (w *world) metaProblem(registered map[string]bool) string {
	members := slices.Concat(w.meta.voters, w.meta.learners)
	for _, s := range members {
		if e := w.state.GetNodes()[s.Node]; !registered[s.Node] || e.GetIncarnation() != s.Incarnation {
			return fmt.Sprintf("%v is in the meta group", s)
		}
	}
	up := 0
	for name := range registered {
		if w.nodes[name].up {
			up++
		}
	}
	if len(members) < up {
		return fmt.Sprintf("%d members of %d in the meta group", len(members), up)
	}
	if want := min(up, MetaVotersMax); len(w.meta.voters) < want || len(w.meta.voters) > MetaVotersMax {
		return fmt.Sprintf("%d voters in the meta group", len(w.meta.voters))
	}
	return ""
}

func sameServers(a, b []Server) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(s Server) bool { return !slices.Contains(b, s) })
}

func config(initial ...string) ControllerConfig {
	return ControllerConfig{InitialNodes: initial, Shards: 8, Grace: 30 * time.Second, Contract: &nodev1.Contract{Window: int64(time.Hour)}}
}

func threeServing(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	for _, name := range three {
		w.add(name, "", config(three...))
	}
	w.found(three...)
	w.settle("begin")
	return w
}

func TestClusterBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		if w.state.GetClusterId() != "c" || w.state.GetReplication() != 3 || w.state.GetContract().GetWindow() != int64(time.Hour) || len(w.state.GetShards()) != 8 {
			t.Errorf("got %v", w.state)
		}
		leads := map[string]int{}
		for _, p := range w.state.GetShards() {
			leads[p.GetPreferred()]++
		}
		for _, name := range three {
			if leads[name] < 2 || leads[name] > 3 {
				t.Errorf("leaders %v", leads)
			}
			if !w.nodes[name].id.Member() {
				t.Errorf("%s does not know that it is a member", name)
			}
		}
		version := w.state.GetVersion()
		w.rounds(20)
		if w.state.GetVersion() != version {
			t.Error("the state changes though there is nothing to do")
		}
	})
}

func TestShardsWaitForAllInitialNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, name := range three {
			w.add(name, "", config(three...))
		}
		w.found(three...)
		w.nodes["n3"].stop()
		w.rounds(20)
		if len(w.state.GetShards()) > 0 {
			t.Fatal("placed without n3")
		}
		if s := w.nodes["n1"].controller.State(); !strings.Contains(s, "n3") {
			t.Errorf("n1 says %q", s)
		}
		w.nodes["n3"].start("", config(three...))
		w.settle("n3 is there")
	})
}

func TestGrowFromOneToSeven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("n1", "", config("n1"))
		w.found("n1")
		w.settle("one")
		for i := 2; i <= 7; i++ {
			w.add(fmt.Sprintf("n%d", i), "", config("n1"))
			w.settle(fmt.Sprint(i))
		}
		if len(w.meta.voters) != MetaVotersMax || len(w.meta.learners) != 2 {
			t.Errorf("meta group: %v, %v", w.meta.voters, w.meta.learners)
		}
	})
}

func TestDeadNodeIsReplacedAfterGraceOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		w.add("n4", "", config(three...))
		w.settle("four")
		w.nodes["n2"].stop()
		w.rounds(20)
		if !placed(w.state, "n2") {
			t.Error("replaced within the grace time")
		}
		w.settle("n2 is dead")
		for range 60 {
			w.round()
		}
		if placed(w.state, "n2") {
			t.Error("n2 still has replicas")
		}
		w.nodes["n2"].start("", config(three...))
		w.settle("n2 is back")
		if !placed(w.state, "n2") {
			t.Error("n2 gets nothing")
		}
	})
}

// Two of five nodes die for good, one after the other, and later a third one: each
// time the living ones are enough for every shard, and for the meta group.
func TestDeadVotersGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		w.add("n4", "", config(three...))
		w.add("n5", "", config(three...))
		w.settle("five")
		for _, name := range []string{"n4", "n5"} {
			w.nodes[name].stop()
			w.rounds(60)
			w.settle(name + " is dead")
		}
		if len(w.meta.voters) != 3 {
			t.Errorf("the meta group has %v", w.meta.voters)
		}
		w.nodes["n1"].stop()
		w.rounds(20)
		if w.meta.leader == (Server{}) {
			t.Error("the meta group has no leader, though two of three live")
		}
		for _, name := range []string{"n1", "n4", "n5"} {
			w.nodes[name].start("", config(three...))
		}
		w.settle("all are back")
		if len(w.meta.voters) != 5 {
			t.Errorf("the meta group has %v", w.meta.voters)
		}
	})
}

// Gossip reaches a node that Raft does not: with a vote it would stop a group of two,
// and weigh on a group of three.
func TestNoVoteForWhoDoesNotFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		w.add("n4", "", config(three...)).deaf = true
		w.rounds(60)
		if len(w.meta.voters) != 3 || len(w.meta.learners) != 1 {
			t.Errorf("meta group: %v, %v", w.meta.voters, w.meta.learners)
		}
		w.nodes["n4"].deaf = false
		w.settle("n4 hears")
		if len(w.meta.voters) != 4 {
			t.Errorf("meta group: %v, %v", w.meta.voters, w.meta.learners)
		}
	})
}

func TestNewMetaLeaderGivesTheFullGraceTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		w.add("n4", "", config(three...))
		w.settle("four")
		lead := func(name string) { w.meta.leader = w.nodes[name].server(MetaGeneration) }
		lead("n1")
		before := w.state.GetReplicaGeneration()
		w.nodes["n4"].stop()
		w.rounds(20)
		lead("n2")
		w.rounds(1)
		lead("n1")
		w.rounds(20)
		if w.state.GetReplicaGeneration() != before {
			t.Error("n1 goes by what it saw in an earlier leadership")
		}
		w.rounds(60)
		if placed(w.state, "n4") {
			t.Error("n4 is never replaced")
		}
	})
}

func TestPausedNodeKeepsItsReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		w.add("n4", "", config(three...))
		w.settle("four")
		before := w.state.GetReplicaGeneration()
		for range 10 {
			w.nodes["n3"].stop()
			w.rounds(20)
			w.nodes["n3"].start("", config(three...))
			w.rounds(20)
		}
		w.settle("quiet")
		if w.state.GetReplicaGeneration() != before {
			t.Errorf("%d replicas were placed anew", w.state.GetReplicaGeneration()-before)
		}
	})
}

func TestWipedNodeIsTakenInAsNewIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, name := range three {
			w := threeServing(t)
			n := w.nodes[name]
			old := n.id.Incarnation()
			n.wipe()
			w.rounds(3)
			n.start("", config(three...))
			w.settle(name + " wiped")
			// The old disk turns up again.
			req := &nodev1.RegisterRequest{ClusterId: "c", Node: name, Incarnation: old}
			_, err := w.nodes[w.meta.leader.Node].controller.Register(t.Context(), req)
			if err == nil || !strings.Contains(err.Error(), "out of date") {
				t.Errorf("the old incarnation is let in: %v", err)
			}
		}
	})
}

func TestQuarantinedReplicaIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		old := w.nodes["n2"].replicas[3].server
		w.nodes["n2"].replicas[3].broken = true
		w.rounds(2)
		w.settle("one broken")
		if w.nodes["n2"].replicas[3].server == old {
			t.Error("not replaced")
		}
		// A leader's replica, too.
		w.nodes[w.groups[5].leader.Node].replicas[5].broken = true
		w.rounds(2)
		w.settle("a leader's replica broken")
	})
}

func TestReplicasThatBreakAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		before := w.state.GetReplicaGeneration()
		for range 25 {
			if r := w.nodes["n2"].replicas[3]; r != nil {
				r.broken = true
			}
			w.round()
		}
		if got := w.state.GetReplicaGeneration() - before; got > 3 {
			t.Errorf("%d generations in 25 s", got)
		}
		w.settle("repaired")
	})
}

func TestDrainAndRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		w.add("n4", "", config(three...))
		w.settle("four")
		order := func(state nodev1.NodeEntry_State) error {
			return w.nodes[w.meta.leader.Node].controller.SetNodeState(t.Context(), &nodev1.SetNodeStateRequest{Node: "n1", State: state})
		}
		held := len(w.nodes["n1"].replicas)
		if err := order(nodev1.NodeEntry_DRAINING); err != nil {
			t.Fatal(err)
		}
		w.settle("drained")
		if len(w.nodes["n1"].replicas) != held {
			t.Errorf("a draining node holds %d replicas, held %d", len(w.nodes["n1"].replicas), held)
		}
		if err := order(nodev1.NodeEntry_REMOVED); err != nil {
			t.Fatal(err)
		}
		w.settle("removed")
		if len(w.nodes["n1"].replicas) > 0 || w.meta.leader.Node == "n1" {
			t.Error("n1 still has a part")
		}
		version := w.state.GetVersion()
		w.rounds(300) // it keeps running
		if w.state.GetVersion() != version {
			t.Error("the removed node stirs things up")
		}
		if s := w.nodes["n1"].registrar.State(); !strings.Contains(s, "clear its data folder") {
			t.Errorf("n1 says %q", s)
		}
		if err := order(nodev1.NodeEntry_ACTIVE); err == nil {
			t.Error("a removed incarnation came back")
		}
		w.nodes["n1"].wipe()
		w.nodes["n1"].start("", config(three...))
		w.settle("back with an empty disk")
		if len(w.nodes["n1"].replicas) == 0 {
			t.Error("n1 gets nothing")
		}
	})
}

func TestRemoveWithoutSubstitute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		err := w.nodes[w.meta.leader.Node].controller.SetNodeState(t.Context(), &nodev1.SetNodeStateRequest{Node: "n3", State: nodev1.NodeEntry_REMOVED})
		if err != nil {
			t.Fatal(err)
		}
		w.settle("removed")
	})
}

func TestMoveShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		w.add("n4", "", config(three...))
		w.settle("four")
		p := w.state.GetShards()[0]
		from, to := p.GetReplicas()[0].GetNode(), ""
		for name := range w.nodes {
			if !slices.ContainsFunc(p.GetReplicas(), func(r *nodev1.ReplicaPlacement) bool { return r.GetNode() == name }) {
				to = name
			}
		}
		c := w.nodes[w.meta.leader.Node].controller
		if err := c.MoveShard(t.Context(), &nodev1.MoveShardRequest{Shard: 0, From: from, To: to}); err != nil {
			t.Fatal(err)
		}
		w.settle("moved")
		if holders := servers(w.state.GetShards()[0]); !slices.ContainsFunc(holders, func(s Server) bool { return s.Node == to }) {
			t.Errorf("%s has no replica: %v", to, holders)
		}
		// A caller that lost the answer asks again: nothing moves a second time.
		before := w.state.GetShards()[0]
		if err := c.MoveShard(t.Context(), &nodev1.MoveShardRequest{Shard: 0, From: from, To: to}); err != nil {
			t.Errorf("asked again: %v", err)
		}
		w.settle("asked again")
		if !proto.Equal(before, w.state.GetShards()[0]) {
			t.Errorf("moved again: %v, then %v", before, w.state.GetShards()[0])
		}
	})
}

// A failed replica is opened anew under its own generation, with growing pauses as
// long as that does not help.
func TestFailedReplicaIsOpenedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		r := w.nodes["n2"].replicas[3]
		before := w.state.GetReplicaGeneration()
		r.failed, r.hard = true, 5
		w.rounds(30)
		if r.opened < 2 || r.opened > 3 {
			t.Errorf("opened anew %d times in 30 s, want after 5 and 15 s", r.opened)
		}
		w.settle("it helps at last")
		if r.failed || r.opened != 6 || w.nodes["n2"].replicas[3] != r || w.state.GetReplicaGeneration() != before {
			t.Errorf("failed %v, opened anew %d times, generations %d and %d", r.failed, r.opened, before, w.state.GetReplicaGeneration())
		}
	})
}

// A failed replica that opening anew cannot help, since a newer program has written
// it, is not said to be opened.
func TestFailedReplicaThatStaysIsNotOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		n := w.nodes["n2"]
		n.log.Reset()
		n.replicas[3].failed, n.replicas[3].newer = true, true
		w.rounds(30)
		if text := n.log.String(); strings.Contains(text, "opened anew") {
			t.Errorf("the log says:\n%s", text)
		}
		n.replicas[3].newer = false
		w.settle("it is another failure")
		if text := n.log.String(); !strings.Contains(text, "a failed replica is opened anew") {
			t.Errorf("the log does not say that it was opened:\n%s", text)
		}
	})
}

// A node whose replicas have all failed waits for somebody to mend it. Meanwhile what
// another node's death took is replaced.
func TestFailedReplicasHoldNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		w.add("n4", "", config(three...))
		w.add("n5", "", config(three...))
		w.settle("five")
		if len(w.nodes["n5"].replicas) < 3 {
			t.Fatalf("n5 has %d replicas: as many shards may be moving at once", len(w.nodes["n5"].replicas))
		}
		for _, r := range w.nodes["n5"].replicas {
			r.failed, r.newer = true, true
		}
		w.nodes["n4"].stop()
		w.rounds(200)
		left := slices.DeleteFunc(slices.Clone(w.state.GetShards()), func(p *nodev1.ShardPlacement) bool {
			on := func(node string) bool {
				return slices.ContainsFunc(p.GetReplicas(), func(r *nodev1.ReplicaPlacement) bool { return r.GetNode() == node })
			}
			return !on("n4") || on("n5") // with both gone, a shard has no quorum
		})
		if len(left) > 0 {
			t.Errorf("not replaced on n4: %v", left)
		}
	})
}

// led says which shard has no leader, "" if all have.
func (w *world) led() string {
	for _, p := range w.state.GetShards() {
		if g := w.groups[p.GetShard()]; g.leader == (Server{}) {
			return fmt.Sprintf("shard %d has no leader: voters %v", p.GetShard(), g.voters)
		}
	}
	return ""
}

// A voter counts until the group's leader has taken its vote away, whatever the
// placement says: after a restart it must be there again.
func TestReplicaOutsideThePlacementIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		w.nodes["n3"].stop()
		w.rounds(3)
		err := w.nodes[w.meta.leader.Node].controller.SetNodeState(t.Context(), &nodev1.SetNodeStateRequest{Node: "n2", State: nodev1.NodeEntry_REMOVED})
		if err != nil {
			t.Fatal(err)
		}
		w.rounds(6)
		if !slices.ContainsFunc(w.state.GetShards(), func(p *nodev1.ShardPlacement) bool {
			n2 := w.nodes["n2"].replicas[p.GetShard()].server
			return !slices.Contains(servers(p), n2) && slices.Contains(w.groups[p.GetShard()].voters, n2)
		}) {
			t.Fatal("every voter is placed: nothing is tested")
		}
		w.nodes["n2"].stop()
		w.rounds(2)
		w.nodes["n2"].start("", config(three...))
		w.rounds(5)
		if problem := w.led(); problem != "" {
			t.Errorf("n1 and n2 run, and %s", problem)
		}
		w.nodes["n3"].start("", config(three...))
		w.settle("n3 is back")
	})
}

// The replica that is being moved away within one node, too: its successor waits.
func TestReplicaThatIsReplacedIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		w.nodes["n3"].stop()
		w.rounds(1)
		old := w.nodes["n2"].replicas[3].server
		w.nodes["n2"].stop()
		w.state = proto.CloneOf(w.state)
		w.state.ReplicaGeneration++
		for _, r := range w.state.GetShards()[3].GetReplicas() {
			if r.GetNode() == "n2" {
				r.Generation = w.state.GetReplicaGeneration()
			}
		}
		w.nodes["n2"].start("", config(three...))
		w.rounds(3)
		if problem := w.led(); problem != "" || w.nodes["n2"].replicas[3].server != old {
			t.Errorf("n2 holds %v, whose vote is with %v; %s", w.nodes["n2"].replicas[3], old, problem)
		}
		w.nodes["n3"].start("", config(three...))
		w.settle("n3 is back")
	})
}

// ledBy lists what a node leads.
func (w *world) ledBy(name string) (list []string) {
	for shard, g := range w.groups {
		if g.leader.Node == name {
			list = append(list, fmt.Sprint("shard ", shard))
		}
	}
	if w.meta.leader.Node == name {
		list = append(list, "the meta group")
	}
	return list
}

// A node whose disk is low refuses commands: whatever it leads, and whenever it
// came to lead it, goes to a node that takes them.
func TestNodeOnALowDiskLeadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		w.nodes["n1"].low = true
		w.rounds(15)
		if list := w.ledBy("n1"); len(list) > 0 {
			t.Errorf("n1 still leads %v", list)
		}
		for _, g := range append(slices.Collect(maps.Values(w.groups)), w.meta) {
			g.leader = w.nodes["n1"].server(0)
			for _, s := range g.voters {
				if s.Node == "n1" {
					g.leader = s
				}
			}
			g.term++
		}
		w.rounds(15)
		if list := w.ledBy("n1"); len(list) > 0 {
			t.Errorf("n1 was elected, and still leads %v", list)
		}
		w.nodes["n1"].low = false
		w.settle("n1 has room again")
	})
}

// If all disks are low nobody is better, and leaderships stay where they are.
func TestLowDisksEverywhereMoveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		for _, n := range w.nodes {
			n.low = true
		}
		terms := func() (sum uint64) {
			for _, g := range w.groups {
				sum += g.term
			}
			return sum + w.meta.term
		}
		before := terms()
		w.rounds(40)
		if got := terms(); got != before {
			t.Errorf("%d changes of leaders", got-before)
		}
	})
}
