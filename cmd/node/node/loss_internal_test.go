package node

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"writ/sharding/cluster"
)

// Trouble with the quarantine is told, and keeps no node from starting.
func TestQuarantineThatCannotBeReadIsTold(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "quarantine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := cluster.OpenIdentity(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = id.Close() }()
	var log bytes.Buffer
	n := &Node{identity: id, log: slog.New(slog.NewTextHandler(&log, nil))}
	n.tidyQuarantine()
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "quarantine") {
		t.Errorf("it says:\n%s", text)
	}
}
