package replica

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

// startMeta starts the nodes and their replicas of the meta group.
func startMeta(t *testing.T, c *cluster) map[string]*Meta {
	t.Helper()
	metas := map[string]*Meta{}
	for _, name := range c.nodes {
		m, err := c.start(name).OpenMeta(MetaConfig{Generation: 1, Bootstrap: c.servers(1)})
		if err != nil {
			t.Fatal(err)
		}
		metas[name] = m
	}
	return metas
}

func metaLeader(t *testing.T, metas map[string]*Meta) *Meta {
	t.Helper()
	var leader *Meta
	eventually(t, "a meta leader", func() bool {
		for _, m := range metas {
			if m.IsLeader() {
				leader = m
				return true
			}
		}
		return false
	})
	return leader
}

// put sets a node's zone through whichever replica leads.
func put(t *testing.T, metas map[string]*Meta, node, zone string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	eventually(t, "an update", func() bool {
		return metaLeader(t, metas).Update(ctx, func(s *nodev1.MetaState) error {
			if s.Nodes == nil {
				s.Nodes = map[string]*nodev1.NodeEntry{}
			}
			s.Nodes[node] = &nodev1.NodeEntry{Name: node, Zone: zone}
			return nil
		}) == nil
	})
}

func TestMetaUpdatesAreCompareAndSet(t *testing.T) {
	attempt(t, 3, func() string { return compareAndSet(t) })
}

// compareAndSet is void if the leader changes: then the fate of updates is unknown.
func compareAndSet(t *testing.T) (void string) {
	t.Helper()
	c := newCluster(t, 3, nil)
	defer c.close()
	metas := startMeta(t, c)
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	leader := metaLeader(t, metas)
	_, term := leader.believes()
	deposed := func() bool { _, now := leader.believes(); return now != term || !leader.IsLeader() }
	check := func(ok bool, format string, args ...any) {
		t.Helper()
		if !ok && !deposed() {
			t.Errorf(format, args...)
		}
	}
	before := leader.State()
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for range 10 {
				err := leader.Update(ctx, func(s *nodev1.MetaState) error {
					s.ReplicaGeneration++
					return nil
				})
				check(err == nil, "writer %d: %v", w, err)
			}
		})
	}
	writers.Wait()
	got := leader.State()
	check(got.GetReplicaGeneration() == 40 && got.GetVersion() == before.GetVersion()+40,
		"generation %d, version %d after 40 updates", got.GetReplicaGeneration(), got.GetVersion())
	if before.GetReplicaGeneration() != 0 {
		t.Error("an update has changed a state that was handed out")
	}
	for name, m := range metas {
		eventually(t, "the state on "+name, func() bool { return proto.Equal(m.State(), leader.State()) })
		eventually(t, name+" to be ready", func() bool { ok, _ := m.Ready(); return ok })
		select {
		case <-m.Changed():
		default:
			t.Errorf("%s told of no change", name)
		}
		if m == leader {
			continue
		}
		eventually(t, "a refusal by "+name+" that names the leader", func() bool {
			err := m.Update(ctx, func(*nodev1.MetaState) error { return nil })
			var e *entity.Error
			return deposed() || errors.As(err, &e) && e.Reason == entity.NotExecuted && e.Details["leader"] == leader.self.Node
		})
	}
	unwilling := errors.New("unwilling")
	err := leader.Update(ctx, func(*nodev1.MetaState) error { return unwilling })
	check(errors.Is(err, unwilling), "an update that refuses itself: %v", err)
	version := leader.State().GetVersion()
	err = leader.Update(ctx, func(*nodev1.MetaState) error { return nil })
	check(err == nil && leader.State().GetVersion() == version, "an update that changes nothing: %v, version %d", err, leader.State().GetVersion())
	if deposed() {
		return "an election"
	}
	return ""
}

func TestMetaSurvivesRestartsAndTheLossOfItsLeader(t *testing.T) {
	c := newCluster(t, 3, nil)
	metas := startMeta(t, c)
	for round := range 3 {
		put(t, metas, "n", fmt.Sprint(round))
		for _, name := range c.nodes {
			if err := c.stop(name); err != nil {
				t.Fatal(err)
			}
		}
		metas = startMeta(t, c)
		for _, m := range metas {
			eventually(t, "the state", func() bool { return m.State().GetNodes()["n"].GetZone() == fmt.Sprint(round) })
		}
	}
	leader := metaLeader(t, metas).Server().Node
	c.sever(leader)
	delete(metas, leader)
	put(t, metas, "n", "after")
}

func TestMetaMembersGrowAndShrink(t *testing.T) {
	c := newCluster(t, 3, fewTrailingLogs)
	metas := map[string]*Meta{}
	for _, name := range c.nodes {
		c.start(name)
	}
	first, err := c.host("a").OpenMeta(MetaConfig{Generation: 1, Bootstrap: []Server{c.server("a", 1)}})
	if err != nil {
		t.Fatal(err)
	}
	metas["a"] = first
	for i := range 80 {
		put(t, metas, "n", fmt.Sprint(i))
	}
	if err := first.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, name := range []string{"b", "c"} {
		m, err := c.host(name).OpenMeta(MetaConfig{Generation: 2})
		if err != nil {
			t.Fatal(err)
		}
		metas[name] = m
		// With two voters there may be elections.
		eventually(t, name+" to be in", func() bool {
			leader := metaLeader(t, metas)
			if name == "c" {
				return leader.AddLearner(ctx, c.server(name, 2)) == nil
			}
			return leader.AddVoter(ctx, c.server(name, 2)) == nil
		})
		eventually(t, "the state on "+name, func() bool { return m.State().GetNodes()["n"].GetZone() == "79" })
		eventually(t, name+" to be ready", func() bool { ok, _ := m.Ready(); return ok })
	}
	eventually(t, "two voters and a learner", func() bool {
		voters, learners := first.Members()
		return len(voters) == 2 && len(learners) == 1
	})
	eventually(t, "b to be out", func() bool {
		if leader := metaLeader(t, metas); leader != first {
			_ = leader.TransferLeadership(ctx, "a")
			return false
		}
		return first.Remove(ctx, c.server("b", 2)) == nil
	})
	put(t, map[string]*Meta{"a": first}, "n", "alone")
}

// A log that ends before its snapshot has lost its end, votes and acknowledged entries
// with it, unless the snapshot came from the leader and a crash came between.
func TestMetaLogThatEndsBeforeItsSnapshot(t *testing.T) {
	c := newCluster(t, 2, fewTrailingLogs)
	for _, name := range c.nodes {
		c.start(name)
	}
	m, err := c.host("a").OpenMeta(MetaConfig{Generation: 1, Bootstrap: []Server{c.server("a", 1)}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 80 {
		put(t, map[string]*Meta{"a": m}, "n", fmt.Sprint(i))
	}
	f := m.raft.Snapshot()
	if err := f.Error(); err != nil {
		t.Fatal(err)
	}
	snapshot, source, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}
	if m.log.installed(snapshot.Index) {
		t.Error("a snapshot of its own passes for a received one")
	}
	learner, err := c.host("b").OpenMeta(MetaConfig{Generation: 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	eventually(t, "a learner", func() bool { return m.AddLearner(ctx, c.server("b", 2)) == nil })
	eventually(t, "the state on b", func() bool { return learner.State().GetNodes()["n"].GetZone() == "79" })
	if !learner.log.installed(snapshot.Index) {
		t.Error("a received snapshot has left no mark")
	}
	eventually(t, "its removal", func() bool { return m.Remove(ctx, c.server("b", 2)) == nil })
	if err := c.stop("a"); err != nil {
		t.Fatal(err)
	}

	change := func(what func(*groupLog)) {
		t.Helper()
		log := openTestLog(t, filepath.Join(c.dirs["a"], logDir))
		what(newGroupLog(log, m.key, nil, nil))
		if err := log.close(); err != nil {
			t.Fatal(err)
		}
	}
	change(func(l *groupLog) {
		_, last := l.bounds()
		if err := l.DeleteRange(snapshot.Index, last); err != nil {
			t.Error(err)
		}
	})
	var lost *LostMemory
	if _, err := c.start("a").OpenMeta(MetaConfig{Generation: 1}); !errors.As(err, &lost) || !strings.Contains(err.Error(), "the end of the log is lost") {
		t.Errorf("a log without its end: %v", err)
	}
	if err := c.stop("a"); err != nil {
		t.Fatal(err)
	}
	change(func(l *groupLog) { l.putNumber(stableInstalled, snapshot.Index) })
	m, err = c.start("a").OpenMeta(MetaConfig{Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	put(t, map[string]*Meta{"a": m}, "n", "after")
	if got := m.State().GetNodes()["n"].GetZone(); got != "after" {
		t.Errorf("after an interrupted installation the state is %q", got)
	}
}
