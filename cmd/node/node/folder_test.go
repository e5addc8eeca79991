package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"writ/actors/client"
	"writ/cmd/node/node"
)

// awaitFailure waits until the node says that it cannot go on.
func awaitFailure(t *testing.T, n *node.Node, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	select {
	case err := <-n.Failed():
		if !strings.Contains(err.Error(), want) {
			t.Errorf("it fails with %q, want %q", err, want)
		}
	case <-ctx.Done():
		t.Fatalf("it goes on: %+v", n.Readiness())
	}
}

// A folder that holds the identity and nothing else must not be served from as if
// the node had never acknowledged anything.
func TestIdentityWithoutItsDataIsRefused(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.stop()
	dir := filepath.Join(c.dir, "n1")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == "node.json" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	n, err := node.Start(t.Context(), c.config("n1"))
	if err != nil {
		t.Fatal(err)
	}
	c.nodes["n1"] = n
	awaitFailure(t, n, "clear the whole data folder")
}

// A node whose folder is gone would acknowledge what no later start can find.
func TestNodeEndsWhenItsFolderIsDeleted(t *testing.T) {
	c := newCluster(t, 3, nil)
	if err := os.Rename(filepath.Join(c.dir, "n2"), filepath.Join(c.dir, "away")); err != nil {
		t.Fatal(err)
	}
	awaitFailure(t, c.nodes["n2"], "was deleted or moved")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := c.nodes["n2"].Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	delete(c.nodes, "n2")
	select {
	case err := <-c.nodes["n1"].Failed():
		t.Errorf("n1 fails too: %v", err)
	default:
	}
	c.names = []string{"n1", "n3"}
	if _, err := c.client().Submit(t.Context(), "account", "a", "k", eur(1), client.SubmitOptions{}); err != nil {
		t.Errorf("without n2: %v", err)
	}
}
