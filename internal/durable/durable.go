// Package durable makes names in folders survive a loss of power: a file or a
// folder that was created or renamed is there afterwards only if its parent was
// synced.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// MkdirAll creates a folder and those above it that are missing, and syncs the
// parent of each that it creates.
func MkdirAll(path string, mode fs.FileMode) error {
	path = filepath.Clean(path)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := MkdirAll(parent, mode); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// SyncDir makes what was created, renamed or removed in the folder durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
