package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

// member is a data folder of a member of cluster "c" that has held data; its
// incarnation comes with it.
func member(t *testing.T) (dir, incarnation string) {
	t.Helper()
	dir = t.TempDir()
	id := openIdentity(t, dir, "n1")
	defer closeIdentity(t, id)
	for _, err := range []error{id.promise("c", "hash"), id.join("c"), id.NoteFormat(1), id.NoteData()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	fill(t, dir, "first")
	return dir, id.Incarnation()
}

func fill(t *testing.T, dir, text string) {
	t.Helper()
	for _, name := range memoryDirs() {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, name), 0o750), os.WriteFile(filepath.Join(dir, name, "data"), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// lose notes a loss of memory in a folder at rest.
func lose(t *testing.T, dir, reason string) {
	t.Helper()
	id := openIdentity(t, dir, "n1")
	defer closeIdentity(t, id)
	if err := id.NoteLoss(reason); err != nil {
		t.Fatal(err)
	}
}

// wantSetAside checks a folder after a loss: nothing of the old incarnation is in
// place, all of it in the quarantine, once. What could not be moved is empty.
func wantSetAside(t *testing.T, dir, former string, empty ...string) {
	t.Helper()
	r, err := readIdentity(filepath.Join(dir, identityFile))
	if err != nil {
		t.Fatal(err)
	}
	if r.Incarnation == former || r.Name != "n1" || r.ClusterID != "c" || !r.Member || r.HeldData || !r.rejoins() || r.Bootstrap != nil {
		t.Errorf("the identity is %+v", r)
	}
	for _, name := range memoryDirs() {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		switch {
		case slices.Contains(empty, name) && (err != nil || len(entries) > 0):
			t.Errorf("%s holds %v, %v", name, entries, err)
		case !slices.Contains(empty, name) && !errors.Is(err, os.ErrNotExist):
			t.Errorf("%s is still in place: %v", name, err)
		}
		if text, err := os.ReadFile(filepath.Join(dir, r.Loss.Folder, name, "data")); err != nil || string(text) != "first" {
			t.Errorf("%s in the quarantine: %q, %v", name, text, err)
		}
	}
	kept, err := readIdentity(filepath.Join(dir, r.Loss.Folder, identityFile))
	if err != nil || kept.Incarnation != former || kept.Loss != nil || !kept.HeldData {
		t.Errorf("the identity in the quarantine is %+v, %v", kept, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, r.Loss.Folder, reasonFile)); err != nil || !strings.Contains(string(text), "the log is damaged") {
		t.Errorf("the reason: %q, %v", text, err)
	}
	if list, err := filepath.Glob(filepath.Join(dir, quarantineDir, "*")); err != nil || len(list) != 1 {
		t.Errorf("the quarantine holds %v, %v", list, err)
	}
}

func TestLossIsSetAsideAtTheNextStart(t *testing.T) {
	dir, former := member(t)
	lose(t, dir, "the log is damaged")
	if r := diskOf(t, &citizen{dir: dir}); r.Incarnation != former || r.rejoins() {
		t.Fatalf("noting a loss has changed more: %+v", r)
	}
	id := openIdentity(t, dir, "n1")
	wantSetAside(t, dir, former)
	reason, folder, ok := id.Loss()
	if list, err := id.Quarantine(); !ok || reason != "the log is damaged" || err != nil || !slices.Equal(list, []string{folder}) {
		t.Errorf("loss %v %q %q, quarantine %v, %v", ok, reason, folder, list, err)
	}
	now := id.Incarnation()
	closeIdentity(t, id)
	id = openIdentity(t, dir, "n1") // still waiting
	if id.Incarnation() != now {
		t.Error("a restart has drawn another incarnation")
	}
	if err := id.rejoined(); err != nil {
		t.Fatal(err)
	}
	closeIdentity(t, id)
	id = openIdentity(t, dir, "n1")
	defer closeIdentity(t, id)
	if _, _, ok := id.Loss(); ok || id.Incarnation() != now || !id.Member() {
		t.Errorf("after it was taken in: %+v", id.snapshot())
	}
}

// After a crash anywhere the folder belongs to the old incarnation, whose log is
// known to be missing, or to the new one, with nothing of the old one in place.
func TestLossCrashAtEveryStep(t *testing.T) {
	crash := errors.New("crash")
	for _, step := range []string{"move log", "move shards", "move meta", "write", "rename", "sync folder"} {
		t.Run(step, func(t *testing.T) {
			dir, former := member(t)
			id := openIdentity(t, dir, "n1")
			if err := id.NoteLoss("the log is damaged"); err != nil {
				t.Fatal(err)
			}
			id.fault = func(s string) error {
				if s == step {
					return crash
				}
				return nil
			}
			if err := id.setAside(); !errors.Is(err, crash) {
				t.Fatalf("it did not crash: %v", err)
			}
			closeIdentity(t, id)
			r := diskOf(t, &citizen{dir: dir})
			if r.Incarnation == former && !r.HeldData {
				t.Errorf("the old incarnation could be served without its log: %+v", r)
			}
			if _, err := os.Stat(filepath.Join(dir, "log")); r.Incarnation != former && err == nil {
				t.Error("the new incarnation has the old log")
			}
			closeIdentity(t, openIdentity(t, dir, "n1"))
			wantSetAside(t, dir, former)
		})
	}
}

// What is a disk of its own, or a link to one, stays where it is. The node starts
// as soon as a person has emptied it, wherever it has stopped.
func TestLossWhereAFolderCannotBeMoved(t *testing.T) {
	for kind, put := range map[string]func(t *testing.T, path string){"mount": mountTemp, "link": linkTemp} {
		for _, name := range memoryDirs() {
			t.Run(kind+" "+name, func(t *testing.T) {
				dir, former := member(t)
				path := filepath.Join(dir, name)
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				put(t, path)
				fill(t, dir, "first")
				lose(t, dir, "the log is damaged")
				for range 2 { // as often as it is started
					_, err := OpenIdentity(dir, "n1")
					if err == nil || !strings.Contains(err.Error(), path+" is damaged and cannot be set aside") {
						t.Fatalf("%s is not empty: %v", name, err)
					}
					if _, err := os.Stat(filepath.Join(path, "data")); err != nil {
						t.Fatal(err)
					}
				}
				r := diskOf(t, &citizen{dir: dir})
				if r.Incarnation != former || r.rejoins() {
					t.Fatalf("the identity is %+v", r)
				}
				to := filepath.Join(dir, r.Loss.Folder, name)
				for _, err := range []error{ // what the message says
					os.MkdirAll(to, 0o750), os.WriteFile(filepath.Join(to, "data"), []byte("first"), 0o600), os.Remove(filepath.Join(path, "data")),
				} {
					if err != nil {
						t.Fatal(err)
					}
				}
				was, err := os.Lstat(path)
				if err != nil {
					t.Fatal(err)
				}
				closeIdentity(t, openIdentity(t, dir, "n1"))
				wantSetAside(t, dir, former, name)
				if is, err := os.Lstat(path); err != nil || !os.SameFile(is, was) {
					t.Errorf("another %s is in place: %v, %v", name, is, err)
				}
			})
		}
	}
}

// A disk of its own has a folder lost+found, and is empty nevertheless; a link to a
// disk that is not mounted leads nowhere, and is not taken for an empty one.
func TestLossAndWhatALinkLeadsTo(t *testing.T) {
	dir, former := member(t)
	path := filepath.Join(dir, "log")
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	lose(t, dir, "the log is damaged")
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.Symlink(disk, path); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenIdentity(dir, "n1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a link that leads nowhere: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(disk, "lost+found"), 0o750); err != nil {
		t.Fatal(err)
	}
	id := openIdentity(t, dir, "n1")
	defer closeIdentity(t, id)
	if id.Incarnation() == former {
		t.Error("the old incarnation goes on")
	}
}

// mountTemp makes path a file system of its own.
func mountTemp(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(path, 0); err != nil {
			t.Error(err)
		}
	})
}

func linkTemp(t *testing.T, path string) {
	t.Helper()
	if err := os.Symlink(t.TempDir(), path); err != nil {
		t.Fatal(err)
	}
}

// aside makes folders of the quarantine by their names.
func aside(t *testing.T, dir string, names ...string) (paths []string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(dir, quarantineDir, name)
		if err := os.MkdirAll(path, 0o750); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// The clock was set back before the last loss: what that has set aside is the newest
// nevertheless. What a person has put there is left alone.
func TestQuarantineKeepsTheFirstAndTheLast(t *testing.T) {
	dir, _ := member(t)
	old := aside(t, dir, "000007-29990104T000000Z-00000000000000ab", "000008-29990103T000000Z-00000000000000ab", "000009-29990102T000000Z-00000000000000ab")
	others := aside(t, dir, "000008", "notes", "000008-29990103T000000Z-00000000000000ab.sound")
	lose(t, dir, "again")
	id := openIdentity(t, dir, "n1")
	defer closeIdentity(t, id)
	_, present, _ := id.Loss()
	if !strings.HasPrefix(filepath.Base(present), "000010-") {
		t.Errorf("it is set aside in %s", present)
	}
	want := func(want ...string) {
		t.Helper()
		if err := id.Prune(); err != nil {
			t.Fatal(err)
		}
		if list, err := id.Quarantine(); err != nil || !slices.Equal(list, want) {
			t.Errorf("%v, %v; want %v", list, err, want)
		}
		for _, other := range others {
			if _, err := os.Stat(other); err != nil {
				t.Error(err)
			}
		}
	}
	want(old[0], present)
	// Even if a person moves folders about.
	later := aside(t, dir, "000011-20000101T000000Z-00000000000000ab", "000012-20000101T000000Z-00000000000000ab")
	want(old[0], present, later[1])
}

func TestLossThatCannotBeNoted(t *testing.T) {
	free := openIdentity(t, t.TempDir(), "n1")
	defer closeIdentity(t, free)
	if err := free.NoteLoss("x"); err == nil {
		t.Error("a node without a cluster has nothing to come back to")
	}
	dir, _ := member(t)
	lose(t, dir, "once")
	id := openIdentity(t, dir, "n1")
	defer closeIdentity(t, id)
	if err := id.NoteLoss("twice"); err == nil || !strings.Contains(err.Error(), "disk") {
		t.Errorf("damage to what is empty: %v", err)
	}
}

// lose has a citizen's memory set aside, as its next start would do.
func (c *citizen) lose(t *testing.T) {
	t.Helper()
	c.stop()
	id := openIdentity(t, c.dir, c.name)
	if err := id.NoteLoss("the log is damaged"); err != nil {
		t.Fatal(err)
	}
	closeIdentity(t, id)
	c.configured = false
}

func TestNodeThatLostItsMemoryIsTakenInAnew(t *testing.T) {
	for _, name := range three {
		t.Run(name, func(t *testing.T) {
			w := threeNodes(t)
			for _, c := range w.nodes {
				c.start()
			}
			w.run(4, three...)
			n := w.nodes[name]
			former, cluster := n.id.Incarnation(), n.id.ClusterID()
			n.lose(t)
			n.start()
			w.run(3, three...)
			if _, _, waits := n.id.Loss(); waits || n.id.Incarnation() == former || n.id.ClusterID() != cluster || n.err != nil {
				t.Errorf("%+v, %v", n.id.snapshot(), n.err)
			}
			if w.begun[cluster][name] != n.id.Incarnation() || len(w.begun) != 1 {
				t.Errorf("begun are %v", w.begun)
			}
		})
	}
}

// Where there is nobody left who knows, nothing is formed anew, nobody is helped to
// form anything, and each says what is the matter.
func TestNothingIsFormedWithoutMemory(t *testing.T) {
	w := threeNodes(t)
	for _, c := range w.nodes {
		c.start()
	}
	w.run(4, three...)
	cluster := w.nodes["n1"].id.ClusterID()
	for _, name := range []string{"n2", "n3"} {
		w.nodes[name].lose(t)
		w.nodes[name].start()
	}
	w.nodes["n1"].wipe()
	w.nodes["n1"].start() // the first of the list: it would form a cluster if the others let it
	w.run(5, three...)
	if len(w.begun) != 1 {
		t.Errorf("begun are %v", w.begun)
	}
	for _, name := range []string{"n2", "n3"} {
		n := w.nodes[name]
		_, folder, waits := n.id.Loss()
		if !waits || n.err != nil || n.id.ClusterID() != cluster {
			t.Errorf("%s: %+v, %v", name, n.id.snapshot(), n.err)
		}
		for _, word := range []string{"the log is damaged", folder, cluster} {
			if !strings.Contains(n.formation.State(), word) {
				t.Errorf("%s says %q, which lacks %q", name, n.formation.State(), word)
			}
		}
		if _, err := n.formation.Promise(t.Context(), &nodev1.PromiseRequest{ClusterId: cluster, From: "n1"}); entity.ReasonOf(err) != entity.Denied {
			t.Errorf("%s promises itself: %v", name, err)
		}
	}
}

// A node that had only promised waits for a cluster that there may never be. It says
// how a person ends that; by itself it forms nothing and helps nobody.
func TestNodeThatLostAPromiseSaysHowToBeginAnew(t *testing.T) {
	for _, joined := range []bool{false, true} {
		w := threeNodes(t)
		n := w.nodes["n2"]
		n.start()
		if err := n.id.promise("c", n.formation.listHash); err != nil {
			t.Fatal(err)
		}
		if joined {
			if err := n.id.join("c"); err != nil {
				t.Fatal(err)
			}
		}
		n.lose(t)
		for _, c := range w.nodes {
			c.start()
		}
		w.run(5, three...)
		if _, _, waits := n.id.Loss(); !waits || len(w.begun) != 0 || n.err != nil {
			t.Errorf("%+v, begun are %v, %v", n.id.snapshot(), w.begun, n.err)
		}
		says := n.formation.State()
		if got := strings.Contains(says, "never formed") && strings.Contains(says, "clear the folder "+n.dir+" "); got == joined {
			t.Errorf("a member: %v; it says %q", joined, says)
		}
	}
}
