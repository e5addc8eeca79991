package cluster

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"writ/actors/entity"
	"writ/internal/format"
	nodev1 "writ/proto/writ/node/v1"
)

func TestUpgrade(t *testing.T) {
	entry := func(reads uint32, state nodev1.NodeEntry_State) *nodev1.NodeEntry {
		return &nodev1.NodeEntry{State: state, FormatMax: reads}
	}
	const active, draining, removed = nodev1.NodeEntry_ACTIVE, nodev1.NodeEntry_DRAINING, nodev1.NodeEntry_REMOVED
	on := func(nodes ...string) (list []*nodev1.ShardPlacement) {
		p := &nodev1.ShardPlacement{}
		for _, n := range nodes {
			p.Replicas = append(p.Replicas, &nodev1.ReplicaPlacement{Node: n})
		}
		return append(list, p)
	}
	for name, x := range map[string]struct {
		state *nodev1.MetaState
		want  uint32
		text  string // of the refusal
	}{
		"nobody":                        {state: &nodev1.MetaState{}, want: 1},
		"nothing newer":                 {state: &nodev1.MetaState{Nodes: map[string]*nodev1.NodeEntry{"a": entry(1, active), "b": entry(0, active)}}, want: 1},
		"all":                           {state: &nodev1.MetaState{Nodes: map[string]*nodev1.NodeEntry{"a": entry(3, active), "b": entry(2, active)}}, want: 2},
		"it never falls":                {state: &nodev1.MetaState{ActiveFormat: 3, Nodes: map[string]*nodev1.NodeEntry{"a": entry(3, active)}}, want: 3},
		"one is missing":                {state: &nodev1.MetaState{Nodes: map[string]*nodev1.NodeEntry{"a": entry(2, active), "b": entry(1, active), "c": entry(0, active)}}, want: 1, text: "format 2 is not read by b, c"},
		"a draining one counts":         {state: &nodev1.MetaState{Nodes: map[string]*nodev1.NodeEntry{"a": entry(2, active), "b": entry(1, draining)}}, want: 1, text: "by b"},
		"a removed one does not":        {state: &nodev1.MetaState{Nodes: map[string]*nodev1.NodeEntry{"a": entry(2, active), "b": entry(1, removed)}}, want: 2},
		"unless it still holds a shard": {state: &nodev1.MetaState{Shards: on("a", "b"), Nodes: map[string]*nodev1.NodeEntry{"a": entry(2, active), "b": entry(1, removed)}}, want: 1, text: "by b"},
	} {
		err := upgrade(x.state)
		if (err == nil) != (x.text == "") || (err != nil && !strings.Contains(err.Error(), x.text)) {
			t.Errorf("%s: %v", name, err)
		}
		if got := activeFormat(x.state); got != x.want {
			t.Errorf("%s: active format %d, want %d", name, got, x.want)
		}
	}
}

// A cluster goes from one format to the next: nothing rises by itself, a node may
// go back until an operator has raised the format, and none may afterwards.
func TestRollingUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeServing(t)
		restart := func(name string, reads uint32) {
			w.nodes[name].stop()
			w.nodes[name].reads = reads
			w.nodes[name].start("", config(three...))
			w.settle(name + " again")
			w.rounds(5)
		}
		order := func() error {
			_, _, err := w.nodes[w.meta.leader.Node].controller.Upgrade(t.Context())
			return err
		}
		restart("n1", 2)
		if err := order(); entity.ReasonOf(err) != entity.Invalid || !strings.Contains(err.Error(), "n2, n3") {
			t.Errorf("one of three: %v", err)
		}
		restart("n2", 2)
		restart("n3", 2)
		if got := activeFormat(w.state); got != 1 {
			t.Errorf("it has risen to %d by itself", got)
		}
		restart("n2", 1) // back again
		if err := order(); err == nil || !strings.Contains(err.Error(), "by n2") {
			t.Errorf("n2 went back: %v", err)
		}
		restart("n2", 2)
		if err := order(); err != nil || activeFormat(w.state) != 2 {
			t.Errorf("all three: %v, active format %d", err, activeFormat(w.state))
		}
		if err := order(); err != nil {
			t.Errorf("once more: %v", err)
		}
		version := w.state.GetVersion()
		restart("n3", 1)
		if s := w.nodes["n3"].registrar.State(); !strings.Contains(s, "start a newer version") {
			t.Errorf("n3 says %q", s)
		}
		if w.state.GetVersion() != version || w.state.GetNodes()["n3"].GetFormatMax() != 2 {
			t.Error("the refused node has changed the registry")
		}
	})
}

// A new cluster begins with what all its nodes read.
func TestANewClusterBeginsWithTheNewestFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i, name := range three {
			w.add(name, "", config(three...)).stop()
			w.nodes[name].reads = uint32(2 + i%2)
			w.nodes[name].start("", config(three...))
		}
		w.found(three...)
		w.settle("begin")
		if got := activeFormat(w.state); got != 2 {
			t.Errorf("active format %d, want 2", got)
		}
	})
}

func TestAFolderOfANewerFormatIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n1")
	id := openIdentity(t, dir, "n1")
	for _, active := range []uint32{format.Max, 0} { // it never falls
		if err := id.NoteFormat(active); err != nil {
			t.Fatal(err)
		}
	}
	closeIdentity(t, id)
	id = openIdentity(t, dir, "n1")
	if err := id.NoteFormat(format.Max + 1); err != nil {
		t.Fatal(err)
	}
	closeIdentity(t, id)
	if _, err := OpenIdentity(dir, "n1"); err == nil || !strings.Contains(err.Error(), "start a newer version") {
		t.Errorf("got %v", err)
	}
}
