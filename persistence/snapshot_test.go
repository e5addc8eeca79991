package persistence_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"writ/persistence"
)

// receiver is the configuration of another replica of the same shard.
func receiver(t *testing.T, sender persistence.Config) persistence.Config {
	t.Helper()
	cfg := sender
	cfg.Path = filepath.Join(t.TempDir(), "shard")
	cfg.Generation = sender.Generation + 10
	return cfg
}

func TestCopyIsTheFlushedState(t *testing.T) {
	cfg := config(t)
	s := newShard(t, create(t, cfg))
	s.must(s.command(ref("a"), "k", ref("b")))
	s.SetConfiguration(1, []byte("voters"))
	flush(t, s.Store)
	want := s.Dump()
	s.must(s.command(ref("a"), "k2", ref("b")))
	path, meta, err := s.CopyFile(t.TempDir())
	if err != nil || meta.Index != 1 {
		t.Fatal(meta, err)
	}
	got, err := persistence.Verify(path, cfg)
	if err != nil || got.Index != 1 || string(got.Configuration) != "voters" {
		t.Fatal(got, err)
	}
	cfg.Path = path
	if diff := cmp.Diff(want, open(t, cfg).Dump()); diff != "" {
		t.Error(diff)
	}
	if _, _, err := s.CopyFile(filepath.Join(t.TempDir(), "nowhere")); err == nil {
		t.Error("copied into a folder that does not exist")
	}
}

func TestReplace(t *testing.T) {
	cfg := config(t)
	from := newShard(t, create(t, cfg))
	for i := range 100 {
		from.logTime += int64(time.Second)
		from.must(from.command(ref(fmt.Sprint("a", i%9)), fmt.Sprint("k", i), ref("x")))
	}
	flush(t, from.Store)
	want := from.Dump()

	toCfg := receiver(t, cfg)
	to := newShard(t, create(t, toCfg))
	to.must(to.command(ref("old"), "in the file", ref("y")))
	flush(t, to.Store)
	to.must(to.command(ref("old"), "in memory", ref("y")))

	path, _, err := from.CopyFile(filepath.Dir(toCfg.Path))
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Replace(path); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the received file is still there: %v", err)
	}
	for _, when := range []string{"at once", "opened again"} {
		if diff := cmp.Diff(want, to.Dump()); diff != "" {
			t.Fatalf("%s: %s", when, diff)
		}
		if index, _ := to.FlushedIndex(); index != 100 || to.Meta().ReplicaGeneration != toCfg.Generation || to.UnflushedBytes() != 0 {
			t.Errorf("%s: index %d, meta %v", when, index, to.Meta())
		}
		if k, err := to.Key(ref("a3"), "test.Do", []byte("k3")); k == nil || err != nil {
			t.Errorf("%s: key %v %v", when, k, err)
		}
		if k, err := to.Key(ref("old"), "test.Do", []byte("in memory")); k != nil || err != nil {
			t.Errorf("%s: old key %v %v", when, k, err)
		}
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		to.Store = open(t, toCfg)
	}
	// The log goes on behind the snapshot, on both.
	next := encode(t, from.logTime, from.command(ref("a1"), "next", ref("x")))
	for _, s := range []*persistence.Store{from.Store, to.Store} {
		if results, err := s.Apply(101, 1, next); err != nil || results[0] != nil {
			t.Fatal(results, err)
		}
	}
	if diff := cmp.Diff(from.Dump(), to.Dump()); diff != "" {
		t.Error(diff)
	}
}

// A received file that is not sound leaves the store as it was.
func TestReplaceRefused(t *testing.T) {
	cfg := config(t)
	s := newShard(t, create(t, cfg))
	s.must(s.command(ref("a"), "k"))
	flush(t, s.Store)
	s.must(s.command(ref("a"), "k2"))
	want := s.Dump()
	dir := filepath.Dir(cfg.Path)
	good, _, err := s.CopyFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	foreign := config(t)
	foreign.ClusterID = "other"
	create(t, foreign)
	empty, half, cut := filepath.Join(dir, "empty"), filepath.Join(dir, "half"), filepath.Join(dir, "cut")
	for path, b := range map[string][]byte{empty: nil, half: content[:len(content)/2], cut: content[:len(content)-1]} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{empty, half, cut, foreign.Path, filepath.Join(dir, "nowhere")} {
		err := s.Replace(path)
		var d *persistence.Damage
		missing := errors.Is(err, os.ErrNotExist)
		if err == nil || errors.As(err, &d) == missing {
			if path != foreign.Path { // it is in use
				t.Errorf("%s: %v", path, err)
			}
		}
		if diff := cmp.Diff(want, s.Dump()); diff != "" {
			t.Fatalf("%s: the store changed: %s", path, diff)
		}
	}
	s.must(s.command(ref("a"), "k3")) // and it goes on
	flush(t, s.Store)
}

// Snapshots at random points of a log, into a replica at a random point of its
// own, with a crash before or after; then the rest of the log.
func TestReplaceAtRandomPoints(t *testing.T) {
	cfg := config(t)
	log := makeLog(t, 11, 60)
	random := rand.New(rand.NewPCG(5, 6))
	whole := create(t, cfg)
	log.play(t, whole, 0, len(log))
	want := whole.Dump()
	for round := range 25 {
		at, own := random.IntN(len(log)+1), random.IntN(len(log)+1)
		crash := random.IntN(3)
		sender := config(t)
		from := create(t, sender)
		log.play(t, from, 0, at)
		flush(t, from)
		toCfg := receiver(t, sender)
		to := create(t, toCfg)
		log.play(t, to, 0, own/2)
		flush(t, to)
		log.play(t, to, own/2, own)
		path, _, err := from.CopyFile(filepath.Dir(toCfg.Path))
		if err != nil {
			t.Fatal(err)
		}
		if crash == 1 { // before the swap
			to.Abandon()
			to = open(t, toCfg)
		}
		if err := to.Replace(path); err != nil {
			t.Fatal(err)
		}
		if crash == 2 { // after it
			to.Abandon()
			to = open(t, toCfg)
		}
		log.play(t, to, at, len(log))
		if to.Dump() != want {
			t.Errorf("round %d: snapshot at %d into a replica at %d, crash %d: content differs", round, at, own, crash)
		}
		audit(t, to)
	}
}
