package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"writ/internal/durable"
)

func readIdentity(path string) (identityRecord, error) {
	var r identityRecord
	b, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%s is damaged (%w): bring it back from a copy, or clear its folder to let the node join anew", path, err)
	}
	switch {
	case r.Format != identityFormat:
		return r, fmt.Errorf("%s has format %d and this program reads %d", path, r.Format, identityFormat)
	case r.Name == "" || r.Incarnation == "":
		return r, fmt.Errorf("%s is damaged (no name or incarnation): bring it back from a copy, or clear its folder to let the node join anew", path)
	}
	return r, nil
}

// write replaces the file: temporary file, fsync, rename, fsync of the folder. The
// caller holds the lock, or is alone.
func (id *Identity) write(r identityRecord) error {
	b, err := encodeIdentity(r)
	if err != nil {
		return err
	}
	path := filepath.Join(id.dir, identityFile)
	temp := path + ".tmp"
	steps := []struct {
		name string
		do   func() error
	}{
		{"write", func() error { return writeSynced(temp, b) }},
		{"rename", func() error { return os.Rename(temp, path) }},
		{"sync folder", func() error { return durable.SyncDir(id.dir) }},
	}
	for _, step := range steps {
		if id.fault != nil {
			if err := id.fault(step.name); err != nil {
				return err
			}
		}
		if err := step.do(); err != nil {
			return folderError(id.dir, fmt.Errorf("%s %s: %w", step.name, identityFile, err))
		}
	}
	id.record = r
	return nil
}

func encodeIdentity(r identityRecord) ([]byte, error) {
	b, err := json.MarshalIndent(r, "", "  ")
	return append(b, '\n'), err
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// folderError says on one line what is wrong with a data folder and what helps.
func folderError(dir string, err error) error {
	uid := os.Getuid()
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("data folder %s cannot be written by user id %d: chown -R %d %s, or give another folder: %w", dir, uid, uid, dir, err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("data folder %s is on a read-only file system: mount it for writing, or give another folder: %w", dir, err)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		return fmt.Errorf("data folder %s is not a folder: give another path: %w", dir, err)
	}
	return fmt.Errorf("data folder %s cannot be used by user id %d: %w", dir, uid, err)
}
