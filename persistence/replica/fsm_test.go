package replica

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"writ/persistence"
)

// A store that fails as a received file is swapped in takes its replica with it: it
// would refuse every other file, and is well again once it is opened anew.
func TestStoreThatFailsInASwapFailsItsReplica(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(1)
	c.write(0, "e", 0, "x")
	r := c.host("a").Replica(0)

	// Like the store after a failed sync of its folder, this one has told nobody.
	config := r.storeConfig()
	config.Path = filepath.Join(t.TempDir(), "failed.db")
	config.FlushInterval, config.FlushSlot, config.FlushDue, config.Flushing, config.OnFailure = 10*time.Millisecond, nil, nil, nil, nil
	failed, err := persistence.Create(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(config.Path, int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	failed.SetConfiguration(1, raft.EncodeConfiguration(votersOf(c.servers(1))))
	if err := failed.WaitFlushed(t.Context(), 1); !errors.Is(err, persistence.ErrFailed) {
		t.Fatalf("the store has not failed: %v", err)
	}
	defer func() { _ = failed.Close() }()

	f := &fsm{replica: r, store: failed, received: &raft.SnapshotMeta{ID: filepath.Join(t.TempDir(), "received"), Index: 100}}
	if err := aside(func() error { return f.Restore(nil) }); !errors.Is(err, errEnded) {
		t.Errorf("raft goes on with %v", err)
	}
	if s := r.Status(); s.State != Failed || !strings.Contains(s.Reason, "swap the received file in") {
		t.Errorf("the replica stands as %s: %s", s.State, s.Reason)
	}
	if s := c.reopen("a").Status(); s.State != Serving {
		t.Errorf("opened anew it stands as %s: %s", s.State, s.Reason)
	}
	c.wantEverywhere(0, "e", "x")
}

// Raft's decoder of configurations panics: a file with one that it cannot decode is
// damaged, wherever it is met, and ends no process.
func TestConfigurationThatCannotBeReadIsDamage(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(1)
	c.write(0, "e", 0, "x")
	r := c.host("a").Replica(0)
	r.store.SetConfiguration(1<<20, []byte{0xc1}) // no value begins with this byte
	c.write(0, "e", 1, "y")
	flush(t, r)

	want := func(what string, err error) {
		t.Helper()
		if reason, odd := quarantined(err); !odd || !strings.Contains(reason, "the group's configuration in the shard file") {
			t.Errorf("%s: %v", what, err)
		}
	}
	s := newSnapshots(r, t.TempDir(), nil)
	_, err := s.List()
	want("listed", err)
	_, _, err = s.Open(fileID)
	want("sent", err)

	path, head, err := r.store.CopyFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	copied, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = copied.Close() }()
	received, err := s.Create(1, head.GetIndex(), head.GetTerm(), raft.Configuration{}, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(received, copied); err != nil {
		t.Fatal(err)
	}
	want("received", received.Close())
	if names := filesIn(t, s.dir); len(names) != 0 {
		t.Errorf("files are left: %v", names)
	}

	if err := c.stop("a"); err != nil {
		t.Fatal(err)
	}
	c.start("a")
	if s := c.open("a", shardConfig(0, 1, nil)).Status(); s.State != Quarantined || !strings.Contains(s.Reason, "configuration") {
		t.Errorf("opened it stands as %s: %s", s.State, s.Reason)
	}
}
