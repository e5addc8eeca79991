package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// logDamage is one way to spoil what a node remembers of its votes: the log that its
// shards share, or its replica of the meta group.
type logDamage struct {
	name string
	// gently: the node is stopped in order before, so that its shard files have all;
	// with SIGKILL they may lack the last second, and then a log that ends just
	// there looks like one that a crash has left.
	gently bool
	do     func(dir string, random *rand.Rand) error
}

func logDamages() []logDamage {
	return []logDamage{
		{"zero length", false, func(dir string, _ *rand.Rand) error {
			return eachFile(filepath.Join(dir, "log", "MANIFEST-*"), func(path string) error { return os.Truncate(path, 0) })
		}},
		{"truncated", true, func(dir string, _ *rand.Rand) error {
			return eachFile(filepath.Join(dir, "log", "*.log"), func(path string) error {
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				return os.Truncate(path, int64(len(strings.TrimRight(string(content), "\x00")))/3)
			})
		}},
		{"swapped", false, func(dir string, _ *rand.Rand) error {
			logs, err := filepath.Glob(filepath.Join(dir, "log", "*.log"))
			manifests, _ := filepath.Glob(filepath.Join(dir, "log", "MANIFEST-*"))
			if err != nil || len(logs) == 0 || len(manifests) == 0 {
				return fmt.Errorf("%v and %v are there: %w", logs, manifests, err)
			}
			aside := filepath.Join(dir, "aside")
			return errors.Join(os.Rename(logs[0], aside), os.Rename(manifests[0], logs[0]), os.Rename(aside, manifests[0]))
		}},
		{"bits flipped", true, func(dir string, random *rand.Rand) error {
			return eachFile(filepath.Join(dir, "log", "*.log"), func(path string) error {
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				written := len(strings.TrimRight(string(content), "\x00"))
				for range 8 { // well before the end, which a crash may tear
					content[random.IntN(max(written/2, 1))] ^= 1 << random.IntN(8)
				}
				return os.WriteFile(path, content, 0o600)
			})
		}},
		{"meta replica gone", false, func(dir string, _ *rand.Rand) error {
			return eachFile(filepath.Join(dir, "meta", "*"), func(path string) error { // an empty folder is refused
				return os.Rename(path, path+"-misplaced")
			})
		}},
	}
}

// eachFile does something to the files of a pattern; there must be one.
func eachFile(pattern string, do func(path string) error) error {
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		return fmt.Errorf("no file %s: %w", pattern, err)
	}
	for _, path := range paths {
		err = errors.Join(err, do(path))
	}
	return err
}

// A node's log, or its replica of the meta group, is damaged while the node is down.
// The process comes up, sets what is damaged aside, is taken in as a new incarnation
// and filled by the others; nothing is forgotten. When most nodes are damaged at
// once they wait, and nothing is formed anew.
func TestProcessDamageToTheLog(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 11))
	r := start(t, ProcessConfig{})
	ctx := within(t, 8*time.Minute)
	home := r.deposits(ctx, "log-", 60)
	money := r.balances(ctx, accountsOf(home))
	keys := r.audit().Keys

	kinds := logDamages()
	first := random.IntN(3)
	for i, d := range kinds {
		node := r.cluster.Nodes()[(first+i)%3]
		t.Run(strings.ReplaceAll(d.name, " ", "-"), func(t *testing.T) {
			r.t = t
			if d.gently {
				stopping, cancel := context.WithTimeout(ctx, 15*time.Second)
				_, _, err := r.cluster.Stop(stopping, node)
				cancel()
				must(t, err)
			} else {
				r.kill(node)
			}
			former := r.incarnation(node)
			must(t, d.do(r.process.Dir(node), random))
			must(t, r.cluster.Start(node))
			r.deposit(ctx, "log-0", fmt.Sprintf("beside-%d", i), 1) // the others serve
			keys++
			begin := time.Now()
			must(t, AwaitReady(within(t, 90*time.Second), r.cluster, r.cluster.Nodes()...))
			t.Logf("%s, %s: ready again after %v", node, d.name, time.Since(begin).Round(time.Millisecond))
			if text := r.process.Since(node); !strings.Contains(text, "starting anew in this process") {
				t.Errorf("%s says nothing of a loss:\n%s", node, text)
			}
			if now := r.incarnation(node); now == former {
				t.Errorf("%s goes on as incarnation %s", node, now)
			}
			if aside, err := filepath.Glob(filepath.Join(r.process.Dir(node), "quarantine", "*-"+former, "REASON.txt")); err != nil || len(aside) != 1 {
				t.Errorf("nothing of incarnation %s was set aside: %v", former, err)
			}
			money["log-0"] = Balance{Amount: 100 + int64(i) + 1}
			r.unchanged(ctx, money, keys)
		})
		r.t = t
		if t.Failed() {
			return
		}
	}

	t.Run("most-of-them", func(t *testing.T) {
		r.t = t
		nodes := r.cluster.Nodes()
		r.kill(nodes...)
		copies := folder(t)
		random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		hit := nodes[:2]
		for _, node := range hit {
			copyFolder(t, r.process.Dir(node), filepath.Join(copies, node))
			must(t, kinds[0].do(r.process.Dir(node), random))
		}
		for _, node := range nodes {
			must(t, r.cluster.Start(node))
		}
		must(t, eventually(within(t, time.Minute), "the damaged nodes to wait", func(ctx context.Context) error {
			for _, node := range hit {
				ok, text := Ready(ctx, r.cluster, node)
				if ok || !Alive(ctx, r.cluster, node) || !strings.Contains(text, "set aside in") {
					return fmt.Errorf("%s: %s", node, text)
				}
			}
			return nil
		}))
		if ok, text := Ready(ctx, r.cluster, nodes[2]); ok {
			t.Errorf("%s is ready without a majority: %s", nodes[2], text)
		}
		r.kill(nodes...)
		for _, node := range hit { // the operator has the folders as they were last
			must(t, r.cluster.Wipe(node))
			copyFolder(t, filepath.Join(copies, node), r.process.Dir(node))
		}
		r.up(nodes...)
		r.unchanged(ctx, money, keys)
	})
	r.t = t
}

// incarnation reads a node's identity.
func (r *rig) incarnation(node string) string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.process.Dir(node), "node.json"))
	must(r.t, err)
	_, rest, _ := strings.Cut(string(text), `"incarnation": "`)
	incarnation, _, _ := strings.Cut(rest, `"`)
	return incarnation
}

func accountsOf(home map[string]uint32) []string {
	var names []string
	for name := range home {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// unchanged audits the cluster, which includes that all replicas are equal, and
// compares balances and keys with what they were.
func (r *rig) unchanged(ctx context.Context, money map[string]Balance, keys uint64) {
	r.t.Helper()
	if report := r.audit(); report.Keys != keys {
		r.t.Errorf("%d keys, want %d", report.Keys, keys)
	}
	var names []string
	for name := range money {
		names = append(names, name)
	}
	for name, b := range r.balances(ctx, names) {
		if b != money[name] {
			r.t.Errorf("%s: %+v, was %+v", name, b, money[name])
		}
	}
	if again := r.deposit(ctx, "log-1", "open-log-1", 100); !again.Replayed {
		r.t.Error("a key was forgotten")
	}
}
