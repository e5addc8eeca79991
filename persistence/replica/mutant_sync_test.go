package replica

import (
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// What the log has acknowledged survives the loss of everything that was not
// synced, and so do votes.
func TestAcknowledgedEntriesSurviveAPowerCut(t *testing.T) {
	disk := vfs.NewCrashableMem()
	node, err := openNodeLog("log", disk, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = node.close() }()
	var floor atomic.Uint64
	l := testGroup(t, node, 1, &floor)
	for n := range uint64(20) {
		store(t, l, entries(n+1, n+1, 3))
		if err := l.SetUint64([]byte("CurrentTerm"), n+1); err != nil {
			t.Fatal(err)
		}
		after, err := openNodeLog("log", disk.CrashClone(vfs.CrashCloneCfg{}), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		found := testGroup(t, after, 1, &floor)
		wantBounds(t, found, 1, n+1)
		var entry raft.Log
		if err := found.GetLog(n+1, &entry); err != nil {
			t.Errorf("entry %d: %v", n+1, err)
		}
		if term, err := found.GetUint64([]byte("CurrentTerm")); err != nil || term != n+1 {
			t.Errorf("remembered term %d, %v, want %d", term, err, n+1)
		}
		if err := after.close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
}
