package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"writ/actors/entity"
)

// shorten takes a snapshot on a replica and leaves only a few entries in its log.
func shorten(t *testing.T, r *Replica) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.store.WaitFlushed(ctx, r.store.Meta().GetIndex()); err != nil {
		t.Fatal(err)
	}
	if err := r.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	if first, last := r.log.bounds(); first < 2 {
		t.Fatalf("the log still runs from %d to %d", first, last)
	}
}

func fewTrailingLogs(c *Config) { c.Timing.TrailingLogs = trailingMin }

func TestLearnerGetsTheFileWhenTheLogIsTrimmed(t *testing.T) {
	c := newCluster(t, 2, fewTrailingLogs)
	for _, name := range c.nodes {
		c.start(name)
	}
	leader := c.open("a", shardConfig(0, 1, []Server{c.server("a", 1)})) // the only voter, so it leads
	for i := range 100 {
		c.write(0, fmt.Sprintf("e%d", i), 0, fmt.Sprint(i))
	}
	shorten(t, leader)

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	second := c.server("b", 5)
	learner := c.open("b", shardConfig(0, 5, nil))
	if ok, reason := learner.Ready(); ok {
		t.Errorf("ready before it was added: %s", reason)
	}
	if err := leader.Promote(ctx, second); err == nil {
		t.Error("a stranger was promoted")
	}
	add := func(leader *Replica) error { return leader.AddLearner(ctx, second) }
	c.onLeader("addition", add)
	c.wantEverywhere(0, "e99", "99")
	if learner.log.number(stableInstalled) == 0 {
		t.Error("the learner got the log, not the file")
	}
	c.write(0, "e100", 0, "100")
	c.wantEverywhere(0, "e100", "100")
	c.onLeader("adding it again", add)
	if err := leader.AddLearner(ctx, c.server("b", 6)); err == nil {
		t.Error("a second replica on the same node was taken in")
	}
	eventually(t, "the word that only the vote is missing", func() bool {
		ok, reason := learner.Ready()
		if ok {
			t.Error("a learner says that it is ready")
		}
		return ok || reason == "learner: it has caught up and has no vote yet"
	})
	for _, what := range []string{"promotion", "promoting it again"} {
		c.onLeader(what, func(leader *Replica) error { return leader.Promote(ctx, second) })
	}
	c.wantEqualHashes(0, "two")
	eventually(t, "readiness", func() bool { ok, _ := learner.Ready(); return ok })
	eventually(t, "its new standing", func() bool { s := learner.Status(); return len(s.Voters) == 2 && s.Generation == 5 })
	// With two voters there may be elections.
	eventually(t, "a follower to refuse a removal", func() bool {
		follower := learner
		if node, _ := c.lease(0, 0); node == "b" {
			follower = leader
		}
		return entity.ReasonOf(follower.Remove(ctx, c.server("nobody", 1))) == entity.NotExecuted
	})

	// The received file is this replica's own across a restart.
	if err := c.stop("b"); err != nil {
		t.Fatal(err)
	}
	c.start("b")
	c.open("b", shardConfig(0, 5, nil))
	c.write(0, "e101", 0, "101")
	c.wantEverywhere(0, "e101", "101")
	c.wantEqualHashes(0, "restarted")
	if names := filesIn(t, filepath.Join(c.dirs["b"], tmpDir)); len(names) != 0 {
		t.Errorf("temporary files are left: %v", names)
	}

	// A removed replica is dropped, and its generation does not come back.
	c.onLeader("removal", func(leader *Replica) error { return leader.Remove(ctx, second) })
	if err := c.host("b").Drop(0); err != nil {
		t.Fatal(err)
	}
	if err := c.host("b").Open(shardConfig(0, 5, nil)); !errors.Is(err, ErrDropped) || c.host("b").Replica(0) != nil {
		t.Errorf("a dropped generation: %v", err)
	}
}

func TestCopiesOfTheFileAreSharedAndKeepTheLog(t *testing.T) {
	c := newCluster(t, 1, fewTrailingLogs)
	c.startAll(1)
	c.write(0, "e", 0, "x")
	r := c.host("a").Replica(0)
	s := newSnapshots(r, t.TempDir(), nil)
	meta, first, err := s.Open(fileID)
	if err != nil {
		t.Fatal(err)
	}
	more := func(name string) {
		for i := range 100 {
			c.write(0, fmt.Sprintf("%s%d", name, i), 0, "x")
		}
	}
	more("first")
	again, second, err := s.Open(fileID)
	if err != nil {
		t.Fatal(err)
	}
	if again.Index != meta.Index || len(filesIn(t, s.dir)) != 1 {
		t.Errorf("a second copy was made at once: index %d and %d", meta.Index, again.Index)
	}
	shorten := func() (first uint64) {
		flush(t, r)
		if err := r.raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		first, _ = r.log.bounds()
		return first
	}
	if got := shorten(); got > meta.Index {
		t.Errorf("the log begins at %d, behind the copy at %d", got, meta.Index)
	}
	s.copies.latest.made = s.copies.latest.made.Add(-2 * copyLife)
	later, third, err := s.Open(fileID)
	if err != nil {
		t.Fatal(err)
	}
	if later.Index <= meta.Index || len(filesIn(t, s.dir)) != 2 {
		t.Errorf("an old copy was given out: index %d", later.Index)
	}
	more("second")
	if got := shorten(); got > meta.Index {
		t.Errorf("the log begins at %d, though the copy at %d is still read", got, meta.Index)
	}
	for _, source := range []io.Closer{first, second, third, third} {
		if err := source.Close(); err != nil {
			t.Error(err)
		}
	}
	if names := filesIn(t, s.dir); len(names) != 1 {
		t.Errorf("copies left: %v", names)
	}
	more("third")
	if got := shorten(); got <= meta.Index || got > later.Index {
		t.Errorf("the log begins at %d, want the index of the last copy, %d", got, later.Index)
	}
	s.copies.latest.made = s.copies.latest.made.Add(-2 * copyLife)
	s.copies.sweep()
	if names := filesIn(t, s.dir); len(names) != 0 {
		t.Errorf("copies left: %v", names)
	}
	// The reader of an older copy may be the last one, when the latest is gone.
	_, slow, err := s.Open(fileID)
	if err != nil {
		t.Fatal(err)
	}
	s.copies.latest.made = s.copies.latest.made.Add(-2 * copyLife)
	_, quick, err := s.Open(fileID)
	if err != nil {
		t.Fatal(err)
	}
	if err := quick.Close(); err != nil {
		t.Error(err)
	}
	s.copies.latest.made = s.copies.latest.made.Add(-2 * copyLife)
	s.copies.sweep()
	if err := slow.Close(); err != nil {
		t.Error(err)
	}
	if names := filesIn(t, s.dir); len(names) != 0 {
		t.Errorf("copies left: %v", names)
	}
}

func filesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		names = append(names, f.Name())
	}
	return names
}

func TestMessagesForAnOlderGenerationAreRefused(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.startAll(1)
	c.write(0, "e", 0, "x")
	c.wantEverywhere(0, "e", "x")
	// The disk of one follower is replaced by a new replica: the group's leader
	// still believes in the old one.
	node, _ := c.lease(0, 0)
	victim := "a"
	if node == "a" {
		victim = "b"
	}
	if err := c.host(victim).Drop(0); err != nil {
		t.Fatal(err)
	}
	fresh := c.open(victim, shardConfig(0, 2, nil))
	c.write(0, "e", 1, "y") // the other two are enough
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	leader := c.host(node).Replica(0)
	var no *refusal
	eventually(t, "a refusal for the old generation", func() bool { // on a busy machine a handshake may be too late
		_, err := leader.trans.streams.dial(ctx, c.server(victim, 1).String())
		if err == nil {
			t.Fatal("the old generation answers")
		}
		return errorsAs(err, &no)
	})
	t.Log(no.reason)
	if last, _ := fresh.log.LastIndex(); last != 0 {
		t.Errorf("the new replica took entries meant for the old one: up to %d", last)
	}
	c.onLeader("removal of the old replica", func(r *Replica) error { return r.Remove(ctx, c.server(victim, 1)) })
	c.onLeader("the new learner", func(r *Replica) error { return r.AddLearner(ctx, c.server(victim, 2)) })
	c.onLeader("its promotion", func(r *Replica) error { return r.Promote(ctx, c.server(victim, 2)) })
	c.wantEverywhere(0, "e", "y")
	c.wantEqualHashes(0, "replaced")
}

func TestUnflushedEntriesAreReplayedAfterACrash(t *testing.T) {
	c := newCluster(t, 3, func(config *Config) { config.Store.FlushInterval = time.Hour })
	c.startAll(1)
	for i := range 20 {
		c.write(0, fmt.Sprintf("e%d", i), 0, fmt.Sprint(i))
	}
	c.wantEverywhere(0, "e19", "19")
	// What a crash leaves is the file of the last flush: here, an empty one.
	for _, name := range c.nodes {
		path := c.host(name).Replica(0).path()
		if index, _ := c.host(name).Replica(0).Store().FlushedIndex(); index != 0 {
			t.Fatalf("%s has flushed up to %d", name, index)
		}
		if err := copyFile(path, path+".crash"); err != nil {
			t.Fatal(err)
		}
		if err := c.stop(name); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".crash", path); err != nil {
			t.Fatal(err)
		}
	}
	c.startAll(1)
	for i := range 20 {
		c.wantEverywhere(0, fmt.Sprintf("e%d", i), fmt.Sprint(i))
	}
	c.wantEqualHashes(0, "replayed")
}

func TestCrashWhileASnapshotIsSwappedIn(t *testing.T) {
	c := newCluster(t, 2, nil)
	c.startAll(1)
	for i := range 10 {
		c.write(0, fmt.Sprintf("e%d", i), 0, fmt.Sprint(i))
	}
	c.wantEverywhere(0, "e9", "9")
	node, _ := c.lease(0, 0)
	follower := "a"
	if node == "a" {
		follower = "b"
	}
	r := c.host(follower).Replica(0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.store.WaitFlushed(ctx, r.store.Meta().GetIndex()); err != nil {
		t.Fatal(err)
	}
	index, _ := r.store.FlushedIndex()
	if err := c.stop(follower); err != nil {
		t.Fatal(err)
	}
	// The file has been swapped in, the log has not been emptied yet: it ends
	// before the file.
	h := c.start(follower)
	l := newGroupLog(h.log, r.key, nil, func(err error) { t.Error(err) })
	_, last := l.bounds()
	if err := l.DeleteRange(4, last); err != nil {
		t.Fatal(err)
	}
	if r := c.open(follower, shardConfig(0, 1, c.servers(1))); r.Status().State != Quarantined {
		t.Fatalf("a log that ends before its file stands as %s", r.Status().State)
	}
	if err := c.stop(follower); err != nil {
		t.Fatal(err)
	}
	log := openTestLog(t, filepath.Join(c.dirs[follower], logDir))
	newGroupLog(log, r.key, nil, nil).putNumber(stableInstalled, index)
	if err := log.close(); err != nil {
		t.Fatal(err)
	}
	c.start(follower)
	c.open(follower, shardConfig(0, 1, c.servers(1)))
	c.write(0, "e10", 0, "10")
	c.wantEverywhere(0, "e10", "10")
	c.wantEqualHashes(0, "installed")
}

// A file that was swapped in stays as good as it is, with no log behind it, when a
// second one does not get to take its place.
func TestCrashBeforeASecondSnapshotIsSwappedIn(t *testing.T) {
	c := newCluster(t, 2, nil)
	c.startAll(1)
	c.write(0, "e", 0, "x")
	c.wantEverywhere(0, "e", "x")
	leader, _ := c.lease(0, 0)
	follower := "a"
	if leader == "a" {
		follower = "b"
	}
	r := c.host(follower).Replica(0)
	if err := errors.Join(c.stop(leader), c.stop(follower)); err != nil {
		t.Fatal(err)
	}
	log := openTestLog(t, filepath.Join(c.dirs[follower], logDir))
	l := newGroupLog(log, r.key, nil, nil)
	l.empty()
	index, _ := r.store.FlushedIndex()
	l.installing(index, 0)
	if err := log.close(); err != nil {
		t.Fatal(err)
	}
	for attempt := range uint64(3) {
		c.start(follower)
		r = c.open(follower, shardConfig(0, 1, c.servers(1)))
		if s := r.Status(); s.State != Serving {
			t.Fatalf("after %d attempts the replica stands as %s (%s)", attempt, s.State, s.Reason)
		}
		f := &fsm{replica: r, store: r.store, received: &raft.SnapshotMeta{ID: filepath.Join(t.TempDir(), "gone"), Index: index + 10 + attempt}}
		if err := f.Restore(nil); err == nil {
			t.Fatal("a file that is not there was swapped in")
		}
		if err := c.stop(follower); err != nil {
			t.Fatal(err)
		}
	}
	c.startAll(1)
	c.write(0, "e", 1, "y")
	c.wantEverywhere(0, "e", "y")
	c.wantEqualHashes(0, "interrupted")
}

// Only a file that was itself swapped in is excused: else a log that has lost its end
// would pass for one in the middle of a snapshot.
func TestMarksOfASnapshot(t *testing.T) {
	l := newGroupLog(openTestLog(t, t.TempDir()), groupKey{shard: 1, epoch: 1, generation: 1}, nil, nil)
	want := func(what string, indexes ...uint64) {
		t.Helper()
		for index := range uint64(60) {
			if got := l.installed(index); got != slices.Contains(indexes, index) {
				t.Errorf("%s: file at %d excused: %v", what, index, got)
			}
		}
	}
	want("none")
	l.putNumber(stableInstalled, 10) // by a program that keeps one mark
	want("an older program's", 10)
	l.installing(20, 10)
	want("on top of it", 20, 10)
	l.installing(30, 10)
	want("again on top of it", 30, 10)
	l.installing(40, 35)
	want("in the place of a flushed file", 40)
	l.installing(50, 0)
	want("in the place of nothing", 50)
}
