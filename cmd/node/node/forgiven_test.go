package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/client"
	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
)

// TestForgivenEverywhere covers that a query that was in hand when nodes were killed
// counts nowhere any more once one node has done it, nor after a restart, but for the
// crashes of a node's own processes: these it counts until it has done it itself.
func TestForgivenEverywhere(t *testing.T) {
	query := &wrapperspb.StringValue{Value: "dashboard"}
	what := fmt.Sprintf(`query google.protobuf.StringValue %x of "default"/deadly/"e"`, entity.Fingerprint(query))
	killed := map[string]bool{"n1": true, "n2": true} // each once, a day's trouble
	c := newCluster(t, 3, func(cfg *node.Config) {
		cfg.Kinds = append(cfg.Kinds, deadly())
		file := filepath.Join(cfg.Dir, "crashes.json")
		if _, err := os.Stat(file); err == nil || !killed[cfg.ID] {
			return
		}
		text, err := json.Marshal(map[string]any{what: map[string]any{"crashes": 1, "last": time.Now()}})
		if err == nil {
			err = os.MkdirAll(cfg.Dir, 0o700)
		}
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	counted := func(want func(name string) uint32) {
		t.Helper()
		for _, name := range c.names {
			eventually(t, func(ctx context.Context) (any, error) {
				res, err := c.adminOf(name).ListCrashes(ctx, &nodev1.ListCrashesRequest{})
				if err != nil {
					return nil, err
				}
				n := uint32(0)
				for _, crash := range res.GetCrashes() {
					n += crash.GetTimes() + crash.GetElsewhere()
				}
				if n != want(name) {
					return nil, fmt.Errorf("%s counts %d, want %d: %v", name, n, want(name), res)
				}
				return nil, nil
			})
		}
	}
	counted(func(string) uint32 { return 2 })
	_, leader := c.leader("deadly", "e")
	own := func(name string) uint32 {
		if killed[name] && name != leader {
			return 1
		}
		return 0
	}
	if _, err := c.client().Read(t.Context(), "deadly", "e", client.ReadOptions{Query: query}); err != nil {
		t.Fatal(err)
	}
	counted(own)
	for name := range killed {
		eventually(t, func(context.Context) (any, error) { // it is saved without the caller
			text, err := os.ReadFile(filepath.Join(c.dir, name, "crashes.json"))
			if told := strings.Contains(string(text), "done_elsewhere"); err == nil && (strings.Contains(string(text), "crashes\":") != told || told != (own(name) > 0)) {
				err = fmt.Errorf("%s has saved %s", name, text)
			}
			return nil, err
		})
	}
	if err := c.nodes["n1"].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	delete(c.nodes, "n1")
	c.restart("n1")
	counted(own)
}
