package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"writ/actors/entity"
)

func errorsAs[T error](err error, to *T) bool { return errors.As(err, to) }

func TestDamageQuarantinesTheReplica(t *testing.T) {
	for _, damage := range []struct {
		name string
		// do is called between two lives of node a, which holds shards 0 and 1.
		do func(dir, path, other string) error
		// both shards are hit
		all bool
	}{
		{"zero length", func(_, path, _ string) error { return os.Truncate(path, 0) }, false},
		{"truncated", func(_, path, _ string) error { return halve(path) }, false},
		{"zeroed", func(_, path, _ string) error { return zero(path) }, false},
		{"foreign", func(_, path, _ string) error { return os.WriteFile(path, []byte("not a shard file"), 0o600) }, false},
		{"missing", func(_, path, _ string) error { return os.Remove(path) }, false},
		{"another shard's", func(_, path, other string) error { return copyFile(other, path) }, false},
		{"an older copy", func(_, path, _ string) error { return copyFile(path+".old", path) }, false},
		{"log missing", func(dir, _, _ string) error { return os.RemoveAll(filepath.Join(dir, logDir)) }, true},
		{"log damaged", func(dir, _, _ string) error { return forEach(filepath.Join(dir, logDir, "MANIFEST-*"), zero) }, true},
	} {
		t.Run(damage.name, func(t *testing.T) {
			c := newCluster(t, 3, fewTrailingLogs)
			c.startAll(2)
			c.write(0, "e", 0, "x")
			c.wantEverywhere(0, "e", "x")
			r := c.host("a").Replica(0)
			flush(t, r)
			if err := copyFile(r.path(), r.path()+".old"); err != nil {
				t.Fatal(err)
			}
			for shard := range uint32(2) {
				for i := range 80 {
					c.write(shard, fmt.Sprintf("e%d", i), 0, "x")
				}
				c.wantEverywhere(shard, "e79", "x")
				shorten(t, c.host("a").Replica(shard))
			}
			other := c.host("a").Replica(1).path()
			if err := c.stop("a"); err != nil {
				t.Fatal(err)
			}
			if err := damage.do(c.dirs["a"], r.path(), other); err != nil {
				t.Fatal(err)
			}

			c.start("a")
			s := c.open("a", shardConfig(0, 1, c.servers(1))).Status()
			if s.State != Quarantined || s.Reason == "" {
				t.Fatalf("the replica stands as %s (%s)", s.State, s.Reason)
			}
			t.Log(s.Reason)
			if r := c.host("a").Replica(0); r.Lease() != nil {
				t.Error("a quarantined replica has a lease")
			} else if ok, reason := r.Ready(); ok {
				t.Errorf("a quarantined replica is ready: %s", reason)
			}
			intact := c.open("a", shardConfig(1, 1, c.servers(1))).Status()
			if want := map[bool]State{true: Quarantined, false: Serving}[damage.all]; intact.State != want {
				t.Errorf("the other shard stands as %s (%s), want %s", intact.State, intact.Reason, want)
			}
			c.write(0, "e", 1, "y") // the others are a majority
		})
	}
}

func TestQuarantinedReplicaIsReplacedByANewGeneration(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.startAll(1)
	c.write(0, "e", 0, "x")
	path := c.host("a").Replica(0).path()
	if err := c.stop("a"); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	c.start("a")
	c.open("a", shardConfig(0, 1, c.servers(1)))
	if err := c.host("a").Drop(0); err != nil {
		t.Fatal(err)
	}
	c.open("a", shardConfig(0, 2, nil))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c.onLeader("removal", func(r *Replica) error { return r.Remove(ctx, c.server("a", 1)) })
	c.onLeader("addition", func(r *Replica) error { return r.AddLearner(ctx, c.server("a", 2)) })
	c.onLeader("promotion", func(r *Replica) error { return r.Promote(ctx, c.server("a", 2)) })
	c.wantEverywhere(0, "e", "x")
	c.wantEqualHashes(0, "replaced")
}

func TestFailedReplicaHandsOver(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.startAll(1)
	c.write(0, "e", 0, "x")
	c.wantEverywhere(0, "e", "x")
	node, l := c.lease(0, 0)
	r := c.host(node).Replica(0)
	began := time.Now()
	r.fail(errors.New("the disk is full"))
	c.lease(0, l.Term()+1)
	t.Logf("takeover in %v", time.Since(began))
	if err := propose(l, commitOf("e", 1, "y")); entity.ReasonOf(err) != entity.NotExecuted {
		t.Errorf("a record under the lease of a failed replica: %v", err)
	}
	if s := r.Status(); s.State != Failed || s.Reason == "" {
		t.Errorf("the replica stands as %s (%s)", s.State, s.Reason)
	}
	c.write(0, "e", 1, "z")
}

// breakable is a file system under the shared log whose syncs can be made to fail
// or to hang.
type breakable struct {
	broken atomic.Bool
	hang   atomic.Pointer[chan struct{}]
}

func (b *breakable) fs() vfs.FS {
	return errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !slices.Contains([]errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpFileWrite}, op.Kind) {
			return nil
		}
		if b.broken.Load() {
			return errors.New("the disk is gone")
		}
		if hang := b.hang.Load(); hang != nil {
			<-*hang
		}
		return nil
	}))
}

// TestOverflowFailsTheReplica: what is applied must reach the file at some time.
func TestOverflowFailsTheReplica(t *testing.T) {
	c := newCluster(t, 1, func(config *Config) {
		config.UnflushedMax = 1 << 20
		config.Store.FlushInterval = time.Hour
	})
	c.startAll(1)
	_, l := c.lease(0, 0)
	var err error
	for i := 0; err == nil && i < 100; i++ {
		err = propose(l, commitOf(fmt.Sprintf("e%d", i), 0, string(make([]byte, 100<<10))))
	}
	if entity.ReasonOf(err) != entity.OutcomeUnknown {
		t.Errorf("the record that overflowed: %v, want %s", err, entity.OutcomeUnknown)
	}
	if s := c.host("a").Replica(0).Status(); s.State != Failed {
		t.Errorf("the replica stands as %s", s.State)
	}

	// Opened anew, in the same process, it has what was acknowledged.
	again := c.reopen("a")
	if s := again.Status(); s.State != Serving {
		t.Fatalf("opened anew it stands as %s: %s", s.State, s.Reason)
	}
	c.wantEverywhere(0, "e0", string(make([]byte, 100<<10)))
	if err := c.host("a").Reopen(shardConfig(0, 1, nil)); err != nil || c.host("a").Replica(0) != again {
		t.Errorf("a serving replica was opened anew: %v", err)
	}
}

// startBreakable starts three nodes, each with a disk of its own under its log.
func startBreakable(t *testing.T, change func(*Config)) (*cluster, map[string]*breakable) {
	t.Helper()
	disks := map[string]*breakable{}
	c := newCluster(t, 3, func(config *Config) {
		if disks[config.Node] == nil {
			disks[config.Node] = &breakable{}
		}
		config.fs = disks[config.Node].fs()
		if change != nil {
			change(config)
		}
	})
	c.startAll(2)
	return c, disks
}

// unknown reports whether a record met the fate of one that a disk has swallowed. If its
// lease was over before, it was not even proposed.
func unknown(err error, over bool) bool {
	reason := entity.ReasonOf(err)
	return reason == entity.OutcomeUnknown || over && reason == entity.NotExecuted
}

func TestFailingLogDiskFailsAllReplicasOfTheNode(t *testing.T) {
	c, disks := startBreakable(t, nil)
	c.write(0, "e", 0, "x")
	c.wantEverywhere(0, "e", "x")
	node, l := c.lease(0, 0)
	disks[node].broken.Store(true)
	over := l.Context().Err() != nil
	if err := propose(l, commitOf("e", 1, "y")); !unknown(err, over) {
		t.Errorf("a record on a failing disk: %v, want %s", err, entity.OutcomeUnknown)
	}
	for shard := range uint32(2) {
		eventually(t, "failure", func() bool { return c.host(node).Replica(shard).Status().State == Failed })
	}
	c.lease(0, l.Term()+1)
	c.lease(1, 0)
	c.write(1, "e", 0, "x")
}

func TestHangingLogDiskMovesLeadershipAndComesBack(t *testing.T) {
	c, disks := startBreakable(t, func(config *Config) { config.Timing.Stall = time.Second })
	c.write(0, "e", 0, "x")
	c.wantEverywhere(0, "e", "x")
	node, l := c.lease(0, 0)
	hang := make(chan struct{})
	disks[node].hang.Store(&hang)
	result := make(chan error, 1)
	over := l.Context().Err() != nil
	l.Propose(commitOf("e", 1, "y"), func(err error) { result <- err })
	c.lease(0, l.Term()+1)
	if err := <-result; !unknown(err, over) {
		t.Errorf("a record on a hanging disk: %v, want %s", err, entity.OutcomeUnknown)
	}
	c.write(0, "f", 0, "z")
	disks[node].hang.Store(nil)
	close(hang)
	c.wantEverywhere(0, "f", "z")
	c.wantEqualHashes(0, "thawed")
}

// A replica that fails while a write hangs ends when that has ended, and can be opened
// anew then, not before.
func TestReplicaThatEndsLateIsOpenedAnew(t *testing.T) {
	var disk breakable
	c := newCluster(t, 1, func(config *Config) { config.fs = disk.fs() })
	c.startAll(1)
	c.write(0, "e", 0, "x")
	_, l := c.lease(0, 0)
	r := c.host("a").Replica(0)
	hang := make(chan struct{})
	disk.hang.Store(&hang)
	l.Propose(commitOf("e", 1, "y"), func(error) {})
	eventually(t, "a write", func() bool { return r.log.appendingFor() > 0 })
	r.fail(errors.New("the file is damaged"))
	_ = r.close() // gives up waiting
	if err := c.host("a").Reopen(shardConfig(0, 1, nil)); err == nil || r.ended.Load() {
		t.Errorf("opened anew while the old one writes: %v", err)
	}
	disk.hang.Store(nil)
	close(hang)
	if s := c.reopen("a").Status(); s.State != Serving {
		t.Errorf("opened anew it stands as %s: %s", s.State, s.Reason)
	}
	c.write(0, "f", 0, "z")
	c.wantEverywhere(0, "f", "z")
}

// The first in line to take over is behind the other survivor, which refuses it:
// then the other has to stand, without waiting for a timeout.
func TestTakeoverWhenTheFirstInLineIsBehind(t *testing.T) {
	attempt(t, 3, func() string { return takeoverPastTheFirst(t) })
}

func takeoverPastTheFirst(t *testing.T) (void string) {
	t.Helper()
	c, disks := startBreakable(t, func(config *Config) {
		config.Timing.Heartbeat, config.Timing.Election, config.Timing.Stagger = 2*time.Second, 2*time.Second, 400*time.Millisecond
	})
	defer c.close()
	c.write(0, "e0", 0, "x")
	c.wantEverywhere(0, "e0", "x")
	node, l := c.lease(0, 0)
	first := "a"
	if node == "a" {
		first = "b"
	}
	hang := make(chan struct{})
	disks[first].hang.Store(&hang)
	for i := range 20 {
		if err := propose(l, commitOf(fmt.Sprintf("e%d", i+1), 0, "x")); err != nil && l.Context().Err() == nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
	if l.Context().Err() != nil {
		disks[first].hang.Store(nil)
		close(hang)
		return "the lease was lost before the leader was"
	}
	c.sever(node)
	began := time.Now()
	disks[first].hang.Store(nil)
	close(hang)
	got, _ := c.lease(0, l.Term()+1)
	took := time.Since(began)
	t.Logf("takeover by %s in %v", got, took)
	if got == first {
		t.Errorf("%s leads though its log was behind", got)
	}
	c.wantEverywhere(0, "e20", "x")
	if took > 1600*time.Millisecond { // on a slow disk both may stand in one term, and wait after that
		return fmt.Sprintf("takeover took %v: it waited for a timeout", took)
	}
	return ""
}

func flush(t *testing.T, r *Replica) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.store.WaitFlushed(ctx, r.store.Meta().GetIndex()); err != nil {
		t.Fatal(err)
	}
}

// halve cuts off the second half of a file.
func halve(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, info.Size()/2)
}

// zero overwrites a file with zeros.
func zero(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, make([]byte, info.Size()), 0o600)
}

// forEach does something to the files of a pattern, of which there must be one.
func forEach(pattern string, do func(string) error) error {
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		return fmt.Errorf("no file %s: %w", pattern, err)
	}
	for _, path := range paths {
		if err := do(path); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600)
}

// A flush that hangs takes the leadership from its node, of that shard only and by
// name; a follower whose flush hangs goes on acknowledging. When the disk answers
// the replica is as good as before.
func TestHangingFlushMovesLeadershipAndComesBack(t *testing.T) {
	for role, leader := range map[string]string{"leader": "a", "follower": "b"} {
		t.Run(role, func(t *testing.T) {
			var hang atomic.Pointer[chan struct{}]
			c := newCluster(t, 3, func(config *Config) {
				config.Store.FlushInterval = 10 * time.Millisecond
				if config.Node != "a" {
					return // these are not to leave for a disk that is only slow
				}
				config.Timing.Stall, config.Timing.FlushStall = time.Second, time.Second
				config.Store.Flushing = func() func() {
					if frozen := hang.Load(); frozen != nil {
						<-*frozen
					}
					return func() {}
				}
			})
			c.startAll(1)
			c.write(0, "e", 0, "x")
			c.wantEverywhere(0, "e", "x")
			version := uint64(0)
			r := c.host("a").Replica(0)
			attempt(t, 5, func() (void string) {
				l := c.moveTo(leader)
				frozen := make(chan struct{})
				hang.Store(&frozen)
				c.write(0, "f", version, "y") // something to flush
				eventually(t, "the suspension", func() bool {
					st := r.Status()
					ok, why := r.Ready()
					return st.State == Suspended && strings.Contains(st.Reason, "flush") && !ok && strings.Contains(why, "flush")
				})
				if role == "leader" {
					eventually(t, "another leader", func() bool { now, _ := c.lease(0, l.Term()+1); return now != "a" })
				} else if l.Context().Err() != nil || r.suspended.Load() { // an election, or the log was slow as well
					void = fmt.Sprintf("a follower's flush has cost the lease (%v), or the follower (%v)", l.Context().Err(), r.suspended.Load())
				}
				c.write(0, "f", version+1, "z")
				version += 2
				hang.Store(nil)
				close(frozen)
				eventually(t, "the return", func() bool { ok, _ := r.Ready(); return ok && r.Status().State == Serving })
				c.wantEverywhere(0, "f", "z")
				return void
			})
			c.wantEqualHashes(0, "thawed")
		})
	}
}

// Without its log, and without the files that would tell of it, a replica looks as
// if it had never lived: it would vote and acknowledge anew.
func TestFolderThatLostItsLogIsRefused(t *testing.T) {
	for _, loss := range []struct {
		name string
		do   func(dir string) error
	}{
		{"everything gone", os.RemoveAll},
		{"log gone", func(dir string) error { return os.RemoveAll(filepath.Join(dir, logDir)) }},
		{"log emptied", func(dir string) error {
			return forEach(filepath.Join(dir, logDir, "*"), os.RemoveAll)
		}},
	} {
		t.Run(loss.name, func(t *testing.T) {
			c := newCluster(t, 3, nil)
			c.startAll(1)
			c.write(0, "e", 0, "x")
			if err := c.stop("a"); err != nil {
				t.Fatal(err)
			}
			config := c.config("a")
			config.HeldLog = true
			if err := loss.do(c.dirs["a"]); err != nil {
				t.Fatal(err)
			}
			h, err := NewHost(config)
			if err == nil {
				_ = h.Close(t.Context())
				t.Fatal("it is opened as if it had never held anything")
			}
			if !strings.Contains(err.Error(), "clear the whole data folder") || !strings.Contains(err.Error(), c.dirs["a"]) {
				t.Errorf("it says %v", err)
			}
			if _, err := os.Stat(filepath.Join(c.dirs["a"], shardsDir)); loss.name == "everything gone" && err == nil {
				t.Error("a refused folder was written to")
			}
		})
	}
}

func TestFolderWithItsLogIsTaken(t *testing.T) {
	held := false
	c := newCluster(t, 1, func(config *Config) { config.HeldLog = held })
	c.startAll(1)
	c.write(0, "e", 0, "x")
	if err := c.stop("a"); err != nil {
		t.Fatal(err)
	}
	held = true
	c.startAll(1)
	c.wantEverywhere(0, "e", "x")
}

// What a start has found on the disk is told until it is dropped: it may be a
// voter that the placement has no more.
func TestHostTellsWhatItsDiskHolds(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(2)
	c.lease(0, 0)
	c.lease(1, 0)
	if got := c.host("a").Kept(0, 1); got != 0 {
		t.Errorf("generation %d was there before the first start", got)
	}
	if err := c.host("a").Drop(1); err != nil {
		t.Fatal(err)
	}
	if err := c.stop("a"); err != nil {
		t.Fatal(err)
	}
	h := c.start("a")
	if held, dropped, other, never := h.Kept(0, 1), h.Kept(1, 1), h.Kept(0, 2), h.Kept(2, 1); held != 1 || dropped+other+never != 0 {
		t.Errorf("held %d, dropped %d, of another epoch %d, never held %d", held, dropped, other, never)
	}
	c.open("a", shardConfig(0, 1, nil))
	if err := h.Drop(0); err != nil {
		t.Fatal(err)
	}
	if got := h.Kept(0, 1); got != 0 {
		t.Errorf("generation %d is told of after it was dropped", got)
	}
}
