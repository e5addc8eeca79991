package replica

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"

	"writ/internal/format"
	nodev1 "writ/proto/writ/node/v1"
)

func TestDamageIsToldFromTrouble(t *testing.T) {
	missing := &fs.PathError{Op: "open", Path: "000004.sst", Err: syscall.ENOENT}
	for name, x := range map[string]struct {
		err            error
		opening, later bool // damage while the log is opened, and later
	}{
		"checksum":            {fmt.Errorf("read: %w", pebble.ErrCorruption), true, true},
		"foreign key":         {fmt.Errorf("%w: foreign key", errDamaged), true, true},
		"entry":               {fmt.Errorf("read log: %w", errEntry), true, true},
		"votes are lost":      {oddly("votes are lost"), true, false},
		"panic of a library":  {guarded(func() error { panic("index out of range") }), true, false},
		"panic elsewhere":     {aside(func() error { panic("index out of range") }), false, false},
		"a part is missing":   {missing, true, false},
		"table missing":       {fmt.Errorf("%w table: %w", errDamaged, missing), true, false},
		"table cut off":       {errors.New("L0: 000004: object size mismatch (000004.sst): 10 (disk) != 900 (MANIFEST)"), true, false},
		"no error":            {nil, false, false},
		"locked":              {fmt.Errorf("%w: %w", errLocked, syscall.EAGAIN), false, false},
		"not readable":        {&fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, false, false},
		"disk fails":          {fmt.Errorf("%w: %w", pebble.ErrCorruption, syscall.EIO), false, false},
		"disk full":           {syscall.ENOSPC, false, false},
		"panic of a bad disk": {guarded(func() error { panic(syscall.EIO) }), false, false},
		"newer format":        {&format.NewerError{What: "the log entry", Format: 9}, false, false},
		"newer pebble":        {errors.New("pebble: database written in unknown format major version 99"), false, false},
	} {
		if got := damaged(x.err); got != x.opening {
			t.Errorf("%s: damage while opening is %v", name, got)
		}
		if got := corrupt(x.err); got != x.later {
			t.Errorf("%s: damage later is %v", name, got)
		}
	}
}

// grown is a node with a log of several tables and a write-ahead log, a replica of
// the meta group with a snapshot, and a shard, at rest.
func grown(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, 1, fewTrailingLogs)
	metas := startMeta(t, c)
	c.openAll(0)
	for i := range 80 {
		put(t, metas, "n", fmt.Sprint(i))
		c.write(0, fmt.Sprintf("e%d", i), 0, "x")
		if i == 40 {
			if err := c.host("a").log.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := metas["a"].raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	if first, _ := metas["a"].log.bounds(); first < 2 {
		t.Fatal("the meta group's log is not trimmed")
	}
	if err := c.stop("a"); err != nil {
		t.Fatal(err)
	}
	return c
}

// cut leaves the first third of what is in a file.
func cut(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, content[:len(strings.TrimRight(string(content), "\x00"))/3], 0o600)
}

func flip(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	content[len(content)/2] ^= 0x10
	return os.WriteFile(path, content, 0o600)
}

// Whatever is damaged in the log or in the meta replica, the node knows that it has
// lost its memory before it votes, and says so as that.
func TestDamageToLogOrMetaIsALossOfMemory(t *testing.T) {
	c := grown(t)
	sound := c.dirs["a"]
	empty := func(path string) error { return os.Truncate(path, 0) }
	for _, damage := range []struct {
		name    string
		pattern string
		do      func(path string) error
	}{
		{"manifest of no length", "log/MANIFEST-*", empty},
		{"manifest cut", "log/MANIFEST-*", cut},
		{"manifest zeroed", "log/MANIFEST-*", zero},
		{"manifest gone", "log/MANIFEST-*", os.Remove},
		{"markers gone", "log/marker.*", os.Remove},
		{"tables of no length", "log/*.sst", empty},
		{"tables cut", "log/*.sst", cut},
		{"tables gone", "log/*.sst", os.Remove},
		{"write-ahead log of no length", "log/*.log", empty},
		{"write-ahead log cut", "log/*.log", cut},
		{"write-ahead log altered", "log/*.log", damageMiddle},
		{"write-ahead log gone", "log/*.log", os.Remove},
		{"snapshots gone", "meta/*/*", os.RemoveAll},
		{"snapshot's state cut", "meta/*/*/*/state.bin", cut},
		{"snapshot's state altered", "meta/*/*/*/state.bin", flip},
		{"snapshot's state gone", "meta/*/*/*/state.bin", os.Remove},
		{"snapshot's description of no length", "meta/*/*/*/meta.json", empty},
		{"meta replica gone", "meta/1", func(path string) error { return os.Rename(path, path+"-misplaced") }},
		{"log folder gone", "log", os.RemoveAll}, // with HeldLog it is refused before
	} {
		t.Run(damage.name, func(t *testing.T) {
			c.dirs["a"] = filepath.Join(t.TempDir(), "a")
			if err := os.CopyFS(c.dirs["a"], os.DirFS(sound)); err != nil {
				t.Fatal(err)
			}
			if err := forEach(filepath.Join(c.dirs["a"], damage.pattern), damage.do); err != nil {
				t.Fatal(err)
			}
			h := c.start("a")
			defer func() { _ = c.stop("a") }()
			m, err := h.OpenMeta(MetaConfig{Generation: 1, Bootstrap: c.servers(1)})
			var loss *LostMemory
			if damage.name == "manifest cut" && err == nil { // pebble may have kept what it needs
				c.openAll(0)
				eventually(t, "all that was there", func() bool { return m.State().GetNodes()["n"].GetZone() == "79" })
				c.wantEverywhere(0, "e79", "x")
				return
			}
			if !errors.As(err, &loss) || loss.Reason == "" {
				t.Fatalf("opening the meta replica: %v, want a loss of memory", err)
			}
			t.Log(loss.Reason)
			if strings.HasPrefix(damage.pattern, "log") {
				if s := c.open("a", shardConfig(0, 1, c.servers(1))).Status(); s.State != Quarantined {
					t.Errorf("its shard stands as %s", s.State)
				}
			}
		})
	}
	c.dirs["a"] = sound
	if m, err := c.start("a").OpenMeta(MetaConfig{Generation: 1}); err != nil || m.State().GetNodes()["n"].GetZone() != "79" {
		t.Errorf("the sound folder: %v", err)
	}
}

// A meta folder with nothing in it may be a disk that is not mounted.
func TestMissingMetaFolderIsRefused(t *testing.T) {
	for _, gone := range []string{"meta", "meta/*"} {
		c := grown(t)
		aside := filepath.Join(t.TempDir(), "aside")
		paths, err := filepath.Glob(filepath.Join(c.dirs["a"], gone))
		if err != nil || len(paths) != 1 {
			t.Fatal(paths, err)
		}
		if err := os.Rename(paths[0], aside); err != nil {
			t.Fatal(err)
		}
		_, err = c.start("a").OpenMeta(MetaConfig{Generation: 1, Bootstrap: c.servers(1)})
		if loss := new(LostMemory); err == nil || errors.As(err, &loss) || !strings.Contains(err.Error(), "the disk may not be mounted") ||
			!strings.Contains(err.Error(), filepath.Join(c.dirs["a"], metaDir)+" ") {
			t.Errorf("without %s: %v, want a refusal that names the folder", gone, err)
		}
		if err := errors.Join(c.stop("a"), os.Rename(aside, paths[0])); err != nil {
			t.Fatal(err)
		}
		if m, err := c.start("a").OpenMeta(MetaConfig{Generation: 1}); err != nil || m.State().GetNodes()["n"].GetZone() != "79" {
			t.Errorf("with %s again: %v", gone, err)
		}
	}
}

// holed starts a node with entries in the logs of the meta group and of a shard whose
// file has none of them.
func holed(t *testing.T) (c *cluster, m *Meta, shard *Replica) {
	t.Helper()
	c = newCluster(t, 1, func(config *Config) { config.Store.FlushInterval = time.Hour })
	metas := startMeta(t, c)
	c.openAll(0)
	for i := range 10 {
		put(t, metas, "n", fmt.Sprint(i))
		c.write(0, fmt.Sprintf("e%d", i), 0, "x")
	}
	return c, metas["a"], c.host("a").Replica(0)
}

// pierce makes a hole in a group's log.
func pierce(t *testing.T, l *groupLog, index uint64) {
	t.Helper()
	if err := l.node.db.Delete(l.key.log(index), pebble.Sync); err != nil {
		t.Fatal(err)
	}
}

// An entry that is missing within the log is damage, too: of the meta group for the
// whole node, of a shard for its replica.
func TestHoleInALogIsDamage(t *testing.T) {
	t.Run("meta group, at the start", func(t *testing.T) {
		c, m, _ := holed(t)
		pierce(t, m.log, 5)
		if err := c.stop("a"); err != nil {
			t.Fatal(err)
		}
		_, err := c.start("a").OpenMeta(MetaConfig{Generation: 1})
		if loss := new(LostMemory); !errors.As(err, &loss) || !strings.Contains(loss.Reason, "no entry 5") {
			t.Errorf("%v, want a loss of memory that names the entry", err)
		}
	})
	t.Run("meta group, later", func(t *testing.T) {
		c, m, _ := holed(t)
		pierce(t, m.log, 5)
		m.log.mu.Lock()
		m.log.cache.clear()
		m.log.mu.Unlock()
		if err := aside(func() error { return m.log.GetLog(5, new(raft.Log)) }); !errors.Is(err, errEnded) {
			t.Errorf("reading the entry: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if loss := new(LostMemory); !errors.As(c.host("a").AwaitLoss(ctx), &loss) {
			t.Error("it is no loss of memory")
		}
	})
	t.Run("shard", func(t *testing.T) {
		c, _, r := holed(t)
		pierce(t, r.log, 5)
		if err := copyFile(r.path(), r.path()+".crash"); err != nil { // a stop flushes
			t.Fatal(err)
		}
		if err := errors.Join(c.stop("a"), os.Rename(r.path()+".crash", r.path())); err != nil {
			t.Fatal(err)
		}
		h := c.start("a")
		if s := c.open("a", shardConfig(0, 1, nil)).Status(); s.State != Quarantined || !strings.Contains(s.Reason, "no entry 5") {
			t.Errorf("the replica stands as %s (%s)", s.State, s.Reason)
		}
		if _, err := h.OpenMeta(MetaConfig{Generation: 1}); err != nil {
			t.Errorf("the meta group: %v", err)
		}
	})
}

// Raft panics on an entry of the meta group that makes no sense to it.
func TestEntryThatMakesRaftPanicIsDamage(t *testing.T) {
	c, m, _ := holed(t)
	senseless := &raft.Log{Index: 5, Term: 1, Type: raft.LogConfiguration, Data: []byte("no configuration")}
	if err := m.log.node.db.Set(m.log.key.log(5), appendEntry(nil, senseless), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := c.stop("a"); err != nil {
		t.Fatal(err)
	}
	_, err := c.start("a").OpenMeta(MetaConfig{Generation: 1})
	if loss := new(LostMemory); !errors.As(err, &loss) || !strings.Contains(loss.Reason, "panic") {
		t.Errorf("%v, want a loss of memory", err)
	}
}

// A damaged table is found when it is read: then, too, it is a loss of memory.
func TestDamageThatIsFoundLater(t *testing.T) {
	c := grown(t)
	if err := forEach(filepath.Join(c.dirs["a"], "log/*.sst"), func(path string) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i := range min(256, len(content)) {
			content[i] ^= 0xff // its first block; what is read at once lies at the end
		}
		return os.WriteFile(path, content, 0o600)
	}); err != nil {
		t.Fatal(err)
	}
	h := c.start("a")
	_, err := h.OpenMeta(MetaConfig{Generation: 1})
	if err == nil {
		err = h.Open(shardConfig(0, 1, nil))
		var loss *LostMemory
		if lost := h.AwaitLoss(t.Context()); !errors.As(lost, &loss) {
			t.Fatalf("open: %v, then %v", err, lost)
		}
		return
	}
	if loss := new(LostMemory); !errors.As(err, &loss) {
		t.Errorf("%v, want a loss of memory", err)
	}
}

// What the system does not let the node read is refused, and nothing is taken for
// lost.
func TestTroubleWithTheLogIsRefused(t *testing.T) {
	c := grown(t)
	for _, trouble := range []syscall.Errno{syscall.EIO, syscall.EACCES, syscall.EMFILE} {
		for _, suffix := range []string{".sst", ".log", "MANIFEST-"} {
			c.change = func(config *Config) {
				config.HeldLog = true
				config.fs = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
					if slices.Contains([]errorfs.OpKind{errorfs.OpOpen, errorfs.OpStat, errorfs.OpFileRead}, op.Kind) && strings.Contains(op.Path, suffix) {
						return &fs.PathError{Op: "read", Path: op.Path, Err: trouble}
					}
					return nil
				}))
			}
			h, err := NewHost(c.config("a"))
			if err == nil {
				_ = h.Close(t.Context())
				t.Errorf("%s, %v: it is opened; lost: %v", suffix, trouble, h.lost)
				continue
			}
			if loss := new(LostMemory); errors.As(err, &loss) || !errors.Is(err, trouble) {
				t.Errorf("%s: %v, want %v", suffix, err, trouble)
			}
		}
	}
	c.change = nil
	c.start("a")
}

func TestForeignLogIsRefusedByName(t *testing.T) {
	c := grown(t)
	for name, change := range map[string]func(*Config){
		"node a":    func(config *Config) { config.Node = "b" },
		"disk-a":    func(config *Config) { config.Incarnation = "another" },
		"cluster-1": func(config *Config) { config.ClusterID = "cluster-2" },
	} {
		config := c.config("a")
		change(&config)
		h, err := NewHost(config)
		if err == nil {
			_ = h.Close(t.Context())
			t.Fatalf("%s: it is opened", name)
		}
		if loss := new(LostMemory); errors.As(err, &loss) || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want a refusal that names %s", err, name)
		}
	}
}

func TestForeignMetaReplicaIsRefusedByName(t *testing.T) {
	c := newCluster(t, 1, fewTrailingLogs)
	m := metaLeader(t, startMeta(t, c))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := m.Update(ctx, func(s *nodev1.MetaState) error {
		s.ClusterId = "cluster-2"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := m.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	if err := c.stop("a"); err != nil {
		t.Fatal(err)
	}
	_, err := c.start("a").OpenMeta(MetaConfig{Generation: 1})
	if loss := new(LostMemory); err == nil || errors.As(err, &loss) || !strings.Contains(err.Error(), "cluster cluster-2") {
		t.Errorf("%v, want a refusal that names cluster-2", err)
	}
}
