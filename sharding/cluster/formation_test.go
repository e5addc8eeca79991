package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

func permutations(list []string) [][]string {
	if len(list) < 2 {
		return [][]string{list}
	}
	var all [][]string
	for i := range list {
		rest := slices.Concat(list[:i], list[i+1:])
		for _, p := range permutations(rest) {
			all = append(all, append([]string{list[i]}, p...))
		}
	}
	return all
}

func TestAnyStartOrderFormsOneCluster(t *testing.T) {
	for _, order := range permutations(three) {
		w := threeNodes(t)
		for i, name := range order {
			w.nodes[name].list = order // the order of the list does not matter either
			w.nodes[name].start()
			w.run(2, order[:i+1]...)
			if i < 2 && len(w.begun) > 0 {
				t.Errorf("%v: begun without %v", order, order[i+1:])
			}
		}
		w.run(2, three...)
		w.expectOne(three...)
		for id, known := range w.begun {
			for _, name := range three {
				if known[name] != w.nodes[name].id.Incarnation() || w.nodes[name].id.ClusterID() != id {
					t.Errorf("%v: %s is not part of it: %v", order, name, known)
				}
			}
		}
	}
}

func TestOneNodeAlone(t *testing.T) {
	w := newTown(t)
	c := w.add("n1", "n1")
	c.start()
	defer c.stop()
	w.run(1, "n1")
	w.expectOne("n1")
}

func TestMessagesSayWhoIsMissingOnce(t *testing.T) {
	w := threeNodes(t)
	w.nodes["n1"].start()
	w.nodes["n3"].start()
	w.run(5, "n1", "n3")
	if s := w.nodes["n1"].formation.State(); !strings.Contains(s, "n2 (not seen in gossip)") || strings.Contains(s, "n3") {
		t.Errorf("n1 waits for %q", s)
	}
	if s := w.nodes["n3"].formation.State(); !strings.Contains(s, "waiting for node n1") || !strings.Contains(s, "n2") {
		t.Errorf("n3 waits for %q", s)
	}
	if n := strings.Count(w.nodes["n1"].log.String(), "waiting for"); n != 1 {
		t.Errorf("%d lines:\n%s", n, w.nodes["n1"].log.String())
	}
	w.nodes["n2"].start()
	w.run(3, three...)
	w.expectOne(three...)
	if s := w.nodes["n1"].formation.State(); s != "" && w.nodes["n1"].id.Member() {
		t.Logf("state after the end: %q", s)
	}
}

func TestPartitionWhileForming(t *testing.T) {
	w := threeNodes(t)
	for _, c := range w.nodes {
		c.start()
	}
	for _, pair := range [][2]string{{"n1", "n2"}, {"n1", "n3"}, {"n2", "n3"}} {
		w.cut[pair] = true
	}
	w.run(5, three...)
	if len(w.begun) != 0 {
		t.Fatalf("begun while all were cut off: %v", w.begun)
	}
	delete(w.cut, [2]string{"n1", "n2"})
	w.run(5, three...)
	if len(w.begun) != 0 || w.nodes["n1"].id.ClusterID() != "" {
		t.Fatalf("n1 went on without n3")
	}
	clear(w.cut)
	w.run(5, three...)
	w.expectOne(three...)
}

func TestListMismatchIsNamed(t *testing.T) {
	w := threeNodes(t)
	w.nodes["n2"].list = []string{"n1", "n2"}
	for _, c := range w.nodes {
		c.start()
	}
	w.run(5, three...)
	if s := w.nodes["n1"].formation.State(); !strings.Contains(s, "n2: it was started with another list") {
		t.Errorf("got %q", s)
	}
	if len(w.begun) != 0 || w.nodes["n2"].id.ClusterID() != "" {
		t.Error("n2 took part with another list")
	}
	// After a promise the list is fixed until the cluster has begun.
	w.nodes["n3"].stop()
	w.nodes["n3"].list = []string{"n3"}
	w.nodes["n3"].start()
	if err := w.nodes["n3"].err; err == nil || !strings.Contains(err.Error(), "another list") {
		t.Errorf("got %v", err)
	}
}

func TestWipedFirstNodeJoinsInsteadOfForming(t *testing.T) {
	w := threeNodes(t)
	for _, c := range w.nodes {
		c.start()
	}
	w.run(3, three...)
	w.nodes["n1"].wipe()
	w.nodes["n1"].start()
	w.run(3, three...)
	w.expectOne(three...)
	n1 := w.nodes["n1"].id
	if !n1.Member() || w.begun[n1.ClusterID()]["n1"] != n1.Incarnation() {
		t.Errorf("n1 is not a new incarnation in the cluster: %+v", n1.snapshot())
	}
}

func TestTwoWipedNodesDoNotOverruleTheOneWithData(t *testing.T) {
	w := threeNodes(t)
	for _, c := range w.nodes {
		c.start()
	}
	w.run(3, three...)
	id := w.nodes["n3"].id.ClusterID()
	w.nodes["n1"].wipe()
	w.nodes["n2"].wipe()
	w.nodes["n3"].stop()
	w.nodes["n1"].start()
	w.nodes["n2"].start()
	w.run(5, "n1", "n2")
	if len(w.begun) != 1 || w.nodes["n1"].id.ClusterID() != "" {
		t.Fatalf("the wiped nodes went on alone: %v", w.begun)
	}
	w.nodes["n3"].start()
	w.run(5, three...)
	for _, name := range three {
		if got := w.nodes[name].id.ClusterID(); got != id {
			t.Errorf("%s belongs to %q, not %q", name, got, id)
		}
	}
}

func TestAllListedNodesWipedBesideALaterOne(t *testing.T) {
	w := threeNodes(t)
	w.add("n4")
	for _, c := range w.nodes {
		c.start()
	}
	w.run(4, "n1", "n2", "n3", "n4")
	id := w.nodes["n4"].id.ClusterID()
	if id == "" || !w.nodes["n4"].id.Member() {
		t.Fatal("n4 has not joined")
	}
	for _, name := range three {
		w.nodes[name].wipe()
		w.nodes[name].start()
	}
	w.nodes["n4"].configured = true
	w.run(4, "n1", "n2", "n3", "n4")
	w.expectOne("n1", "n2", "n3", "n4")
}

func TestFounderWipedBeforeAnybodyHeard(t *testing.T) {
	w := threeNodes(t)
	for _, c := range w.nodes {
		c.start()
	}
	for _, name := range []string{"n1", "n2", "n3"} { // n1 collects, nobody is reached
		w.nodes[name].step()
	}
	id := w.nodes["n2"].id.ClusterID()
	if id == "" || w.nodes["n2"].configured {
		t.Fatal("n2 should be promised, and no more")
	}
	w.nodes["n1"].wipe()
	w.nodes["n1"].start()
	w.run(3, three...)
	w.expectOne(three...)
	if got := w.nodes["n1"].id.ClusterID(); got != id {
		t.Errorf("n1 took cluster %s up, not %s", got, id)
	}
}

func TestFounderWipedWhenOneHasHeard(t *testing.T) {
	w := threeNodes(t)
	for _, c := range w.nodes {
		c.start()
	}
	for _, name := range three {
		w.nodes[name].step()
	}
	w.reach(w.nodes["n2"]) // its replica has a configuration, its identity does not say so yet
	founder := w.nodes["n1"].id.Incarnation()
	w.nodes["n1"].wipe()
	w.nodes["n1"].start()
	w.nodes["n1"].step()
	if r := w.nodes["n1"].id.snapshot(); !r.Member || r.Bootstrap != nil {
		t.Errorf("n1 founds what has begun without it: %+v", r)
	}
	if w.begun[w.nodes["n1"].id.ClusterID()]["n1"] == founder {
		t.Error("n1 is not registered as a new incarnation")
	}
}

func TestForeignClusterIsNamed(t *testing.T) {
	w := threeNodes(t)
	other := w.add("n2", three...)
	other.start()
	if err := other.id.promise("beefbeefbeefbeef", other.formation.listHash); err != nil {
		t.Fatal(err)
	}
	if err := other.id.join("beefbeefbeefbeef"); err != nil {
		t.Fatal(err)
	}
	w.nodes["n1"].start()
	w.nodes["n3"].start()
	w.run(3, three...)
	if s := w.nodes["n1"].formation.State(); !strings.Contains(s, "beefbeefbeefbeef") {
		t.Errorf("n1 says %q", s)
	}
	// One that is promised elsewhere refuses by name too.
	_, err := w.nodes["n1"].Promise(t.Context(), "n2", &nodev1.PromiseRequest{ClusterId: "other", From: "n1"})
	if e := new(entity.Error); !errors.As(err, &e) || e.Reason != entity.Denied || e.Details[detailCluster] != "beefbeefbeefbeef" || e.Details[detailBound] != boundMember {
		t.Errorf("got %v", err)
	}
}

func TestJoinRefusedForGood(t *testing.T) {
	w := threeNodes(t)
	c := w.nodes["n2"]
	c.start()
	c.formation.config.Peers = refuser{}
	c.formation.config.Directory = fixed{{Name: "n9", ClusterID: "x", Alive: true}}
	_, err := c.formation.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("got %v", err)
	}
}

type refuser struct{ Founders }

func (refuser) Register(context.Context, string, *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error) {
	return nil, entity.Errorf(entity.Denied, "no room")
}

type fixed []Member

func (f fixed) Members() []Member { return f }

func TestRunTriesForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeNodes(t)
		for _, name := range three {
			w.nodes[name].start()
		}
		w.cut[[2]string{"n1", "n2"}] = true
		ctx, cancel := context.WithTimeout(t.Context(), 10*formationInterval)
		defer cancel()
		if _, err := w.nodes["n1"].formation.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		clear(w.cut)
		formed, err := w.nodes["n1"].formation.Run(t.Context())
		if err != nil || len(formed.Bootstrap) != 3 || formed.ClusterID == "" || w.nodes["n1"].formation.State() != "" {
			t.Errorf("got %+v, %v", formed, err)
		}
		again, err := w.nodes["n1"].formation.Run(t.Context())
		if err != nil || !slices.Equal(again.Bootstrap, formed.Bootstrap) {
			t.Errorf("a second run gives %+v, %v", again, err)
		}
		other, err := w.nodes["n2"].formation.Run(t.Context())
		if err != nil || other.ClusterID != formed.ClusterID || other.Bootstrap != nil {
			t.Errorf("n2 got %+v, %v", other, err)
		}
	})
}

// TestAnyHistoryFormsOneCluster lets nodes stop, crash while writing, lose their
// links and their disks at random. There is never a second cluster while a disk
// of the first is left, and once all is well there is one.
func TestAnyHistoryFormsOneCluster(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := threeNodes(t)
		if r.IntN(2) == 0 {
			w.add("n4")
		}
		names := make([]string, 0, len(w.nodes))
		for name := range w.nodes {
			names = append(names, name)
		}
		slices.Sort(names)
		wipes := 0
		for range 60 {
			c := w.nodes[names[r.IntN(len(names))]]
			switch r.IntN(10) {
			case 0:
				c.stop()
			case 1, 2:
				c.start()
			case 3:
				w.cut[[2]string{names[r.IntN(len(names))], c.name}] = true
			case 4:
				clear(w.cut)
			case 5:
				w.reach(c)
				if r.IntN(2) == 0 {
					w.settle(c)
				}
			case 6:
				if c.up { // a crash while its next step writes
					step := []string{"write", "rename", "sync folder"}[r.IntN(3)]
					c.id.fault = func(s string) error {
						if s == step {
							return fmt.Errorf("crash")
						}
						return nil
					}
					c.step()
					c.stop()
				}
			case 7:
				if wipes == 0 && r.IntN(3) == 0 { // one disk may be lost
					wipes++
					c.wipe()
				}
			default:
				c.step()
			}
		}
		clear(w.cut)
		for _, name := range names {
			w.nodes[name].start()
		}
		w.run(6, names...)
		for _, name := range names {
			if err := w.nodes[name].err; err != nil {
				t.Errorf("seed %d: %s: %v", seed, name, err)
			}
		}
		w.expectOne(names...)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		for _, c := range w.nodes {
			c.stop()
		}
	}
}
