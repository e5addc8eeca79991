package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A follower loses its disk right after a write that only it and the leader
// have, and comes back under its old name while the leader goes away: the write
// is there or nobody answers, but it is never gone.
func TestProcessWipedDisk(t *testing.T) {
	t.Parallel()
	for round := range pick(1, 6) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			r := start(t, ProcessConfig{})
			ctx := within(t, 4*time.Minute)
			nodes := r.cluster.Nodes()
			home := r.deposits(ctx, "wipe-", 1)
			cut := nodes[(round+2)%3]
			r.kill(cut) // it will not know of the write
			left := others(r.cluster, cut)
			leaders, err := r.links.Leaders(ctx, left)
			must(t, err)
			leader := leaders[home["wipe-0"]]
			follower := left[0]
			if follower == leader {
				follower = left[1]
			}
			op := Op{Action: Deposit, Account: "wipe-0", Key: "precious", Amount: 5}
			first := (&Rounds{Links: r.links, Nodes: left}).Do(ctx, op)
			if first.Verdict != Executed {
				t.Fatalf("write with two of three nodes: %+v", first)
			}

			r.kill(follower)
			must(t, r.cluster.Wipe(follower))
			must(t, r.cluster.Start(follower))
			r.kill(leader)
			must(t, r.cluster.Start(cut))
			r.neverGone(ctx, []string{follower, cut}, pick(4*time.Second, 20*time.Second))

			r.up(leader)
			must(t, AwaitReady(ctx, r.cluster, nodes...))
			again := (&Rounds{Links: r.links, Nodes: nodes}).Do(ctx, op)
			if !again.Replayed || !again.Same(first) {
				t.Errorf("key sent again: first %+v, then %+v", first, again)
			}
			if got := r.balances(ctx, []string{"wipe-0"})["wipe-0"].Amount; got != 105 {
				t.Errorf("balance %d, want 105", got)
			}
			r.audit()
		})
	}
}

// neverGone reads for a while from nodes that may or may not have a leader: a
// read that is answered shows the write.
func (r *rig) neverGone(ctx context.Context, nodes []string, d time.Duration) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	answers := 0
	for ctx.Err() == nil {
		for _, node := range nodes {
			one, cancel := context.WithTimeout(ctx, time.Second)
			a := call(one, r.links.Entity(node), Op{Action: Read, Account: "wipe-0"})
			cancel()
			if a.Verdict != Executed {
				continue
			}
			if answers++; a.Balance.Amount != 105 {
				r.t.Errorf("an acknowledged write is gone: %s answers %+v", node, a)
			}
		}
		pause(ctx, 100*time.Millisecond)
	}
	_, why := Ready(r.t.Context(), r.cluster, nodes[0])
	r.t.Logf("without the old leader: %d reads answered; %s says: %s", answers, nodes[0], why)
}

// shardFiles finds the bbolt files of a data folder by their first bytes.
func shardFiles(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		head := make([]byte, 32)
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		n, _ := f.Read(head)
		// The magic number of bbolt's meta page, behind the page's header.
		if bytes.Contains(head[:n], []byte{0xed, 0xda, 0x0c, 0xed}) {
			files = append(files, path)
		}
		return nil
	}))
	slices.Sort(files)
	return files
}

// shardOf is the shard that a file's name tells.
func shardOf(t *testing.T, file string) uint32 {
	t.Helper()
	var shard uint32
	_, err := fmt.Sscanf(filepath.Base(file), "shard-%d-", &shard)
	must(t, err)
	return shard
}

// quarantined waits until a node says over HTTP that it is not ready, and of the
// shard that its replica is in quarantine; it lives on.
func (r *rig) quarantined(ctx context.Context, node string, shard uint32) {
	r.t.Helper()
	begin := time.Now()
	var seen []string
	err := eventually(ctx, fmt.Sprintf("readiness speaks of shard %d", shard), func(ctx context.Context) error {
		why, err := ReadinessOf(ctx, r.cluster, node)
		if err != nil {
			return err
		}
		reason := why.Shards[shard]
		if len(seen) == 0 || seen[len(seen)-1] != reason {
			seen = append(seen, reason)
		}
		switch {
		case why.Ready && strings.Contains(r.process.Since(node), "quarantined"):
			return nil // rebuilt before anybody looked
		case why.Ready:
			return &finalError{fmt.Errorf("%s is ready again; it had said %q", node, seen)}
		case strings.HasPrefix(reason, "quarantined: "):
			return nil
		}
		return fmt.Errorf("%+v", why)
	})
	must(r.t, err)
	r.t.Logf("%s says after %v of shard %d: %s", node, millis(time.Since(begin)), shard, seen[len(seen)-1])
	r.wantAlive(ctx, node)
}

// damage is one way to spoil a shard's file.
type damage struct {
	name string
	do   func(file, other string) error
}

func damages() []damage {
	return []damage{
		{"zero length", func(file, _ string) error { return os.Truncate(file, 0) }},
		{"swapped", func(file, other string) error {
			return errors.Join(os.Rename(file, file+".tmp"), os.Rename(other, file), os.Rename(file+".tmp", other))
		}},
		{"bits flipped", flipBits},
		// Within the pages in use: bbolt's files have a long unused tail.
		{"truncated", func(file, _ string) error { return os.Truncate(file, 5*4096) }},
		{"deleted", func(file, _ string) error { return os.Remove(file) }},
		{"foreign", func(file, _ string) error {
			return os.WriteFile(file, bytes.Repeat([]byte("this is not a shard\n"), 4096), 0o600)
		}},
	}
}

// flipBits spoils every page but the first few; those hold the free list and
// the roots in a young file, so both kinds of page are hit.
func flipBits(file, _ string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for at := 2*4096 + 20; at < len(content); at += 1024 {
		content[at] ^= 0x5a
	}
	return os.WriteFile(file, content, 0o600)
}

// A shard's file is damaged while its node is down: that replica is set aside
// and rebuilt from the others, the node serves its other shards, nothing is
// served from the damaged file and nothing is forgotten.
func TestProcessDamage(t *testing.T) {
	t.Parallel()
	r := start(t, ProcessConfig{})
	ctx := within(t, 8*time.Minute)
	r.deposits(ctx, "dam-", 200)
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprintf("dam-%d", i))
	}
	money := r.balances(ctx, names)
	keys := r.audit().Keys

	for i, d := range damages() {
		node := r.cluster.Nodes()[i%3]
		t.Run(strings.ReplaceAll(d.name, " ", "-"), func(t *testing.T) {
			r.t = t
			stopping, cancel := context.WithTimeout(ctx, 15*time.Second)
			_, _, err := r.cluster.Stop(stopping, node)
			cancel()
			must(t, err)
			files := shardFiles(t, r.process.Dir(node))
			if len(files) < 2 {
				t.Fatalf("found %d shard files in %s", len(files), r.process.Dir(node))
			}
			must(t, d.do(files[i%len(files)], files[(i+1)%len(files)]))
			must(t, r.cluster.Start(node))
			r.quarantined(within(t, 30*time.Second), node, shardOf(t, files[i%len(files)]))
			// The others serve all the while.
			r.deposit(ctx, "dam-0", fmt.Sprintf("beside-%d", i), 1)
			keys++
			begin := time.Now()
			must(t, AwaitReady(within(t, 90*time.Second), r.cluster, r.cluster.Nodes()...))
			t.Logf("%s, %s of %s: all ready after %v", node, d.name, filepath.Base(files[i%len(files)]), time.Since(begin).Round(time.Millisecond))
			if text := r.process.Since(node); !strings.Contains(text, "quarantined") {
				t.Errorf("%s says nothing of a quarantined replica:\n%s", node, text)
			}
			report := r.audit()
			if report.Keys != keys {
				t.Errorf("%d keys, want %d", report.Keys, keys)
			}
			money["dam-0"] = Balance{Amount: 100 + int64(i) + 1}
			for name, b := range r.balances(ctx, names) {
				if b != money[name] {
					t.Errorf("%s: %+v, was %+v", name, b, money[name])
				}
			}
			if again := r.deposit(ctx, "dam-1", "open-dam-1", 100); !again.Replayed {
				t.Error("a key was forgotten")
			}
		})
		r.t = t
		if t.Failed() {
			break
		}
	}

	// A node whose replica was rebuilt starts again without a word about the old one.
	stopping, cancel := context.WithTimeout(ctx, 15*time.Second)
	_, _, err := r.cluster.Stop(stopping, "n1")
	cancel()
	must(t, err)
	r.up("n1")
	if text := r.process.Since("n1"); strings.Contains(text, "quarantined") || strings.Contains(text, "dropped") {
		t.Errorf("n1 speaks of what was dropped before: %s", text)
	}
}

// copyFolder copies a data folder.
func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.CopyFS(to, os.DirFS(from)))
}

// A second process with a node's folder, a copy of it, another node's folder, or
// another cluster's: each is refused with a reason, and nobody is disturbed.
func TestProcessIdentity(t *testing.T) {
	t.Parallel()
	r := start(t, ProcessConfig{})
	ctx := within(t, 3*time.Minute)
	r.deposits(ctx, "id-", 20)
	members := func() {
		r.t.Helper()
		must(r.t, r.links.AwaitMembers(ctx, r.cluster.Nodes()[:3], 3))
	}
	members()

	// refused starts an intruder and wants it to end with a word of explanation.
	refused := func(t *testing.T, intruder *rig, node string, words ...string) {
		t.Helper()
		must(t, intruder.cluster.Start(node))
		code, err := intruder.process.Exit(within(t, 20*time.Second), node)
		must(t, err)
		text := intruder.cluster.Logs(node, 20)
		if code == 0 {
			t.Errorf("exit code 0: %s", text)
		}
		if !containsAny(text, words...) {
			t.Errorf("none of %q in: %s", words, text)
		}
	}
	// stranger is one process of its own making.
	stranger := func(t *testing.T, name, dir string, args ...string) *rig {
		t.Helper()
		s := prepare(t, ProcessConfig{Nodes: []string{name}})
		s.process.SetArgs(name, append(args, "--join", r.cluster.Addrs("n1").Gossip)...)
		if dir != "" {
			s.process.SetDir(name, dir)
		}
		return s
	}

	t.Run("same folder", func(t *testing.T) {
		refused(t, stranger(t, "n1", r.process.Dir("n1")), "n1", "lock", "in use", "another process", "another node")
	})
	t.Run("other node's folder", func(t *testing.T) {
		// While the owner is away, so that only the name tells.
		r.kill("n3")
		refused(t, stranger(t, "n9", r.process.Dir("n3")), "n9", "n3")
		r.up("n3")
	})
	t.Run("copy of the folder", func(t *testing.T) {
		r.kill("n1")
		dir := filepath.Join(t.TempDir(), "copy")
		copyFolder(t, r.process.Dir("n1"), dir)
		r.up("n1")
		refused(t, stranger(t, "n1", dir), "n1", "n1", "identity", "incarnation")
	})
	t.Run("other cluster's folder", func(t *testing.T) {
		other := prepare(t, ProcessConfig{Nodes: []string{"x1"}, Cluster: "other"})
		other.up("x1")
		other.kill("x1")
		refused(t, stranger(t, "x1", other.process.Dir("x1")), "x1", "cluster")
	})
	t.Run("other cluster name", func(t *testing.T) {
		s := prepare(t, ProcessConfig{Nodes: []string{"n8"}, Cluster: "other"})
		s.process.SetArgs("n8", "--join", r.cluster.Addrs("n1").Gossip)
		must(t, s.cluster.Start("n8"))
		pause(ctx, 2*time.Second)
		if ok, text := Ready(ctx, s.cluster, "n8"); ok {
			t.Errorf("a node of another cluster is ready: %s", text)
		}
		members()
	})
	members()
	must(t, AwaitReady(ctx, r.cluster, r.cluster.Nodes()...))
	r.deposits(ctx, "id-", 20)
	r.audit()
}

func containsAny(text string, words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}
