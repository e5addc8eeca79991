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
// counts nowhere any more once one node has done it: not on those that were killed,
// nor after a restart.
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
	counted := func(times uint32) {
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
				if n != times {
					return nil, fmt.Errorf("%s counts %d, want %d: %v", name, n, times, res)
				}
				return nil, nil
			})
		}
	}
	counted(2)
	if _, err := c.client().Read(t.Context(), "deadly", "e", client.ReadOptions{Query: query}); err != nil {
		t.Fatal(err)
	}
	counted(0)
	for name := range killed {
		eventually(t, func(context.Context) (any, error) { // it is saved without the caller
			text, err := os.ReadFile(filepath.Join(c.dir, name, "crashes.json"))
			if err == nil && strings.Contains(string(text), what) {
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
	counted(0)
}
