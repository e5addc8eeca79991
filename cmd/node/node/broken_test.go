package node_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/cmd/node/node"
	recordv1 "writ/proto/writ/record/v1"
	testingv1 "writ/proto/writ/testing/v1"
	"writ/sharding"
)

// TestBrokenStoresShow covers that what is broken in a node's folder, or on its
// disk, while the node is down flips the precondition that speaks of it within
// 15 s: in the API, in the metric, and, where Prometheus is installed, in the alert;
// and that mending it flips them back. TestBrokenPreconditionsShow has those that
// break in a running cluster.
func TestBrokenStoresShow(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		t.Log("SKIP prometheus: it is not installed (Debian: prometheus); the alerts are not looked at")
	}
	haunted := entity.Ref{Tenant: "default", Kind: "order", ID: "haunted"}
	for _, tt := range []struct {
		precondition string
		size         int
		victim       string
		// spoil works on the victim's folder, or on what it is started with.
		spoil func(t *testing.T, dir string, cfg *node.Config)
		want  string // within the reason
	}{
		{"effects_match_keys", 1, "n1", func(t *testing.T, dir string, _ *node.Config) {
			t.Helper()
			// A command that was decided a second time, under no key.
			rewriteEntity(t, dir, haunted, func(e *recordv1.EntityRecord) { e.Decided++ })
		}, "effects 4, keys 3"},
		{"replicas_equal", 3, "n3", func(t *testing.T, dir string, _ *node.Config) {
			t.Helper()
			rewriteEntity(t, dir, haunted, func(e *recordv1.EntityRecord) {
				e.State = &recordv1.Payload{Type: "writ.testing.v1.Sum", Schema: 1, Data: encoded(t, &testingv1.Sum{AmountMinor: 1_000_000, Orders: 3})}
			})
		}, "differs at index"},
		{"storage_sound", 1, "n1", func(t *testing.T, dir string, _ *node.Config) {
			t.Helper()
			file := shardFile(t, dir, sharding.Locate(4, haunted))
			if err := os.Truncate(file, 3*4096); err != nil { // within the pages in use
				t.Fatal(err)
			}
		}, "quarantine"},
		{"disk_space", 1, "n1", func(_ *testing.T, _ string, cfg *node.Config) {
			cfg.FreeMin = 1 << 60 // more than any disk has
		}, "are free on the data disk"},
	} {
		t.Run(tt.precondition, func(t *testing.T) {
			change := func(*node.Config) {}
			at := ports(t, 1)[0] // Prometheus knows it there
			c := newCluster(t, tt.size, func(cfg *node.Config) {
				newActing().conf(cfg)
				if cfg.ID == tt.victim {
					cfg.HTTP = at
					change(cfg)
				}
			})
			c.settle()
			// Its shard has the same leader throughout, if the victim is one of three: a new
			// one would begin without the findings.
			for i := 0; ; i++ {
				haunted.ID = fmt.Sprint("haunted", i)
				if _, leader := c.leader(haunted.Kind, haunted.ID); leader != tt.victim || tt.size == 1 {
					break
				}
			}
			for i := range 3 {
				cmd := &testingv1.Order{AmountMinor: 1, Currency: "EUR"}
				if _, err := c.client().Submit(t.Context(), haunted.Kind, haunted.ID, fmt.Sprint(i), cmd, clientOptions()); err != nil {
					t.Fatal(err)
				}
			}
			c.audit()
			c.awaitPrecondition("n1", tt.precondition, true)
			c.awaitRest()
			alerts := c.watchAlerts(prometheus)
			alerts.await(tt.precondition, false)

			stop := func() {
				if err := c.nodes[tt.victim].Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				delete(c.nodes, tt.victim)
			}
			start := func() {
				for _, n := range c.nodes {
					c.join = append(c.join, n.Addresses().Gossip)
				}
				n, err := node.Start(t.Context(), c.config(tt.victim))
				if err != nil {
					t.Fatal(err)
				}
				c.nodes[tt.victim] = n
			}
			stop()
			dir := filepath.Join(c.dir, tt.victim)
			good := copyShardFiles(t, dir)
			change = func(cfg *node.Config) { tt.spoil(t, dir, cfg) }
			start()
			broken := time.Now()
			g := c.awaitPrecondition("n1", tt.precondition, false)
			if !strings.Contains(g.String(), tt.want) {
				t.Errorf("no reason says %q: %v", tt.want, g)
			}
			shown := time.Since(broken)
			alerts.await(tt.precondition, true)
			t.Logf("shown after %v, alert after %v", shown, time.Since(broken))
			soon(t, "the alert", time.Since(broken))

			stop()
			for path, content := range good {
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			change = func(*node.Config) {}
			start()
			c.awaitPrecondition("n1", tt.precondition, true)
			alerts.await(tt.precondition, false)
		})
	}
}

// awaitRest waits until the auditor leaves the shards alone because they do not
// change: what breaks then must be noticed all the same.
func (c *testCluster) awaitRest() {
	c.t.Helper()
	recounts := func(ctx context.Context) (text string) {
		for _, name := range c.names {
			for line := range strings.Lines(c.metrics(ctx, name)) {
				if strings.HasPrefix(line, "writ_audit_recounts_total") {
					text += line
				}
			}
		}
		return text
	}
	eventually(c.t, func(ctx context.Context) (string, error) {
		before := recounts(ctx)
		for _, n := range c.nodes { // a round of every node
			n.Recount(ctx)
		}
		if now := recounts(ctx); now != before {
			return "", errors.New("the auditor still recounts")
		}
		return before, nil
	})
}

// shardFiles are the files of a data folder's shards, by number. They are known by
// what is in them, whatever they are called.
func shardFiles(t *testing.T, dir string) map[uint32]string {
	t.Helper()
	files := map[uint32]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second}); err == nil {
			err = db.View(func(tx *bolt.Tx) error {
				head, err := headOf(tx)
				if err == nil {
					files[head.GetShard()] = path
				}
				return nil
			})
			return errors.Join(err, db.Close())
		}
		return nil
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("shard files in %s: %v, %v", dir, files, err)
	}
	return files
}

func shardFile(t *testing.T, dir string, shard uint32) string {
	t.Helper()
	path := shardFiles(t, dir)[shard]
	if path == "" {
		t.Fatalf("no file of shard %d in %s", shard, dir)
	}
	return path
}

func copyShardFiles(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for path := range maps.Values(shardFiles(t, dir)) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[path] = content
	}
	return out
}

func headOf(tx *bolt.Tx) (*recordv1.ShardMeta, error) {
	meta := tx.Bucket([]byte("meta"))
	if meta == nil {
		return nil, errors.New("no shard file")
	}
	head := &recordv1.ShardMeta{}
	return head, proto.Unmarshal(meta.Get([]byte("head")), head)
}

// rewriteEntity changes an entity's record in a shard file that is not open, and
// the file's own hash with it: a fault in code, not in the disk, so that opening
// the file finds nothing odd.
func rewriteEntity(t *testing.T, dir string, ref entity.Ref, change func(*recordv1.EntityRecord)) {
	t.Helper()
	db, err := bolt.Open(shardFile(t, dir, sharding.Locate(4, ref)), 0o600, &bolt.Options{NoFreelistSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		var key []byte
		for _, part := range []string{ref.Tenant, ref.Kind, ref.ID, ""} {
			key = append(binary.AppendUvarint(key, uint64(len(part))), part...)
		}
		state := tx.Bucket([]byte("state"))
		before := slices.Clone(state.Get(key))
		rec := &recordv1.EntityRecord{}
		if err := proto.Unmarshal(before, rec); err != nil || before == nil {
			return fmt.Errorf("no record of %v: %w", ref, err)
		}
		change(rec)
		after := encoded(t, rec)
		head, err := headOf(tx)
		if err != nil {
			return err
		}
		head.Hashes[0] += pairHash(recordv1.Bucket_STATE, key, after) - pairHash(recordv1.Bucket_STATE, key, before)
		return errors.Join(state.Put(key, after), tx.Bucket([]byte("meta")).Put([]byte("head"), encoded(t, head)))
	})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// pairHash is the hash of one pair in a shard file, as package persistence has it.
func pairHash(bucket recordv1.Bucket, key, value []byte) uint64 {
	b := binary.AppendUvarint([]byte{byte(bucket)}, uint64(len(key)))
	return xxhash.Sum64(append(append(b, key...), value...))
}

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
