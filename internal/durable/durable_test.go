package durable_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"writ/internal/durable"
)

func TestMkdirAll(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, "a", "b", "c")
	for range 2 { // what is there is no error
		if err := durable.MkdirAll(deep, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(deep); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("%v, %v", info, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := durable.MkdirAll(filepath.Join(file, "x"), 0o750); err == nil {
		t.Error("a folder inside a file")
	}
	if err := durable.SyncDir(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("%v, want %v", err, fs.ErrNotExist)
	}
}
