package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"writ/actors/client"
	"writ/cmd/node/node"
)

// damageLog spoils the list of the tables of a node's log, and returns its
// incarnation.
func damageLog(t *testing.T, dir string) (incarnation string) {
	t.Helper()
	manifests, err := filepath.Glob(filepath.Join(dir, "log", "MANIFEST-*"))
	if err != nil || len(manifests) == 0 {
		t.Fatalf("no manifest: %v", err)
	}
	for _, path := range manifests {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
	}
	return incarnationIn(t, dir)
}

func incarnationIn(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "node.json"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), `"incarnation": "`)
	incarnation, _, _ := strings.Cut(rest, `"`)
	return incarnation
}

// startAnew starts a node whose log is damaged, twice: it finds out, and then it has
// set its data aside.
func (c *testCluster) startAnew(name string) {
	c.t.Helper()
	n, err := node.Start(c.t.Context(), c.config(name))
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	select {
	case err = <-n.Failed():
	case <-ctx.Done():
		c.t.Fatalf("it goes on: %+v", n.Readiness())
	}
	if !errors.Is(err, node.ErrMemoryLost) {
		c.t.Fatalf("it fails with %v", err)
	}
	if err := n.Stop(ctx); err != nil {
		c.t.Fatal(err)
	}
	if n, err = node.Start(c.t.Context(), c.config(name)); err != nil {
		c.t.Fatal(err)
	}
	c.nodes[name] = n
}

// A node whose log is damaged comes back as another incarnation, filled by the
// others, with what it had set aside.
func TestNodeWithADamagedLogIsFilledByTheOthers(t *testing.T) {
	c := newCluster(t, 3, nil)
	cl := c.client()
	for i := range 40 {
		if _, err := cl.Submit(t.Context(), "account", fmt.Sprintf("a%d", i), "k", eur(7), client.SubmitOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	before := c.audit()
	if err := c.nodes["n2"].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	delete(c.nodes, "n2")
	dir := filepath.Join(c.dir, "n2")
	former := damageLog(t, dir)
	c.join = nil
	for _, n := range c.nodes {
		c.join = append(c.join, n.Addresses().Gossip)
	}
	c.startAnew("n2")
	c.awaitReady()
	if now := incarnationIn(t, dir); now == former {
		t.Errorf("it goes on as %s", now)
	}
	aside, err := filepath.Glob(filepath.Join(dir, "quarantine", "*-"+former, "*"))
	if err != nil || len(aside) != 5 { // log, shards, meta, the identity and the reason
		t.Errorf("set aside are %v, %v", aside, err)
	}
	after := c.audit()
	for shard, want := range before {
		if got := after[shard]; got != want {
			t.Errorf("shard %d: %+v, was %+v", shard, got, want)
		}
	}
}

// Where there is nobody to fill it the node stays up, says what is the matter and
// forms nothing.
func TestNodeAloneWithADamagedLogWaits(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.stop()
	dir := filepath.Join(c.dir, "n1")
	former := damageLog(t, dir)
	c.startAnew("n1")
	says := eventually(t, func(context.Context) (string, error) {
		r := c.nodes["n1"].Readiness()
		if reason := r.Reasons["memory"]; strings.Contains(reason, "set aside") {
			return reason, nil
		}
		return "", fmt.Errorf("%+v", r)
	})
	for _, word := range []string{former, "MANIFEST", filepath.Join(dir, "quarantine"), "docs/operations.md"} {
		if !strings.Contains(says, word) {
			t.Errorf("it says %q, which lacks %q", says, word)
		}
	}
	select {
	case err := <-c.nodes["n1"].Failed():
		t.Errorf("it fails: %v", err)
	default:
	}
	for _, name := range []string{"log", "shards", "meta"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was made anew: %v", name, err)
		}
	}
}
