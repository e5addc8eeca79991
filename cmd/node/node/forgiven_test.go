package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
	// counted waits until each node counts what one of the given states says.
	counted := func(states ...map[string]uint32) map[string]uint32 {
		t.Helper()
		return eventually(t, func(ctx context.Context) (map[string]uint32, error) {
			counts := map[string]uint32{}
			for _, name := range c.names {
				res, err := c.adminOf(name).ListCrashes(ctx, &nodev1.ListCrashesRequest{})
				if err != nil {
					return nil, err
				}
				counts[name] = 0
				for _, crash := range res.GetCrashes() {
					counts[name] += crash.GetTimes() + crash.GetElsewhere()
				}
			}
			for _, state := range states {
				if maps.Equal(counts, state) {
					return state, nil
				}
			}
			return nil, fmt.Errorf("nodes count %v, want one of %v", counts, states)
		})
	}
	counted(map[string]uint32{"n1": 2, "n2": 2, "n3": 2})
	c.settle()
	if _, err := c.client().Read(t.Context(), "deadly", "e", client.ReadOptions{Query: query}); err != nil {
		t.Fatal(err)
	}
	// Whoever led has done it. Each of the others counts its own crash.
	own := counted(map[string]uint32{"n1": 0, "n2": 1, "n3": 0}, map[string]uint32{"n1": 1, "n2": 0, "n3": 0}, map[string]uint32{"n1": 1, "n2": 1, "n3": 0})
	for name := range killed {
		eventually(t, func(context.Context) (any, error) { // it is saved without the caller
			text, err := os.ReadFile(filepath.Join(c.dir, name, "crashes.json"))
			if told := strings.Contains(string(text), "done_elsewhere"); err == nil && (strings.Contains(string(text), "crashes\":") != told || told != (own[name] > 0)) {
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
