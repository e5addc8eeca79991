package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// mountDisk mounts a disk of its own, in memory, at a folder.
func mountDisk(dir, size string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("small disk: %w", err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		return fmt.Errorf("a small disk cannot be mounted here: %w", err)
	}
	return nil
}

// unmountDisk takes it away, once nobody uses it any more.
func unmountDisk(dir string) error { return syscall.Unmount(dir, syscall.MNT_DETACH) }

// isDisk reports whether a folder is the root of a disk in memory.
func isDisk(dir string) bool {
	const tmpfs = 0x01021994
	var st syscall.Statfs_t
	return syscall.Statfs(dir, &st) == nil && st.Type == tmpfs
}

func freeOf(dir string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// fillDisk takes room on a disk, in a new file, until only so much is left.
func fillDisk(dir string, left uint64) (err error) {
	f, err := os.CreateTemp(dir, fillerPrefix)
	if err != nil {
		return fmt.Errorf("fill a disk: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var at int64
	for step := int64(1 << 20); step >= 4096; {
		free, err := freeOf(dir)
		if err != nil {
			return err
		}
		if free < left+uint64(step) {
			step /= 2
			continue
		}
		err = syscall.Fallocate(int(f.Fd()), 0, at, step)
		switch {
		case errors.Is(err, syscall.ENOSPC):
			step /= 2
		case err == nil:
			at += step
		case !errors.Is(err, syscall.EINTR):
			return fmt.Errorf("fill a disk: %w", err)
		}
	}
	return nil
}

// emptyDisk removes what fillDisk has written.
func emptyDisk(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, fillerPrefix+"*"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}
