package replica

import (
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// How far ahead of its end a write-ahead log is filled with zeros. While a step is
// written, about one append in a thousand takes some milliseconds longer.
const (
	aheadStep  = 1 << 20
	aheadLeast = aheadStep / 2 // with less than this ahead the next step begins
	aheadPiece = 64 << 10      // written at once: no append waits for more than this
)

// aheadFS fills the write-ahead logs that it creates with zeros ahead of their end.
// If an append makes the file longer, or is the first to write to reserved blocks,
// its sync also waits for the file system's journal; the sync of an overwrite does
// not, and takes about half as long. pebble reuses old logs for the same reason, but
// has none to reuse when it starts.
type aheadFS struct{ vfs.FS }

// Create implements vfs.FS.
func (a aheadFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := a.FS.Create(name, category)
	if err != nil {
		return nil, err
	}
	return a.ahead(f, name, category, 0), nil
}

// ReuseForWrite implements vfs.FS.
func (a aheadFS) ReuseForWrite(before, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := a.FS.ReuseForWrite(before, name, category)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return f, nil //nolint:nilerr // the log works unfilled too
	}
	return a.ahead(f, name, category, info.Size()), nil
}

// Unwrap implements vfs.FS.
func (a aheadFS) Unwrap() vfs.FS { return a.FS }

func (a aheadFS) ahead(f vfs.File, name string, category vfs.DiskWriteCategory, size int64) vfs.File {
	if !strings.HasSuffix(name, ".log") || f.Fd() == vfs.InvalidFd {
		return f
	}
	return &aheadFile{File: f, filled: size, open: func() (vfs.File, error) { return a.OpenReadWrite(name, category) }}
}

// aheadFile is a write-ahead log that is written from its beginning on. At most one
// goroutine at a time fills it, through a file descriptor of its own: the kernel
// reports a failed write once per descriptor, and the log's own sync must be the one
// to see it. Errors of the filling are ignored: without it the log is only slower.
type aheadFile struct {
	vfs.File
	open func() (vfs.File, error)

	mu      sync.Mutex // held during every write, so that zeros never overwrite what is appended
	end     int64      // of what has been appended
	filled  int64      // the file is written up to here
	filling bool
	closed  bool
}

// Preallocate implements vfs.File. It does nothing: filling replaces it.
func (f *aheadFile) Preallocate(int64, int64) error { return nil }

// Write implements vfs.File.
func (f *aheadFile) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.File.Write(p)
	f.end += int64(n)
	f.filled = max(f.filled, f.end)
	if err == nil && !f.filling && f.filled-f.end < aheadLeast {
		f.filling = true
		go f.fill()
	}
	return n, err
}

// Close implements vfs.File. It also ends the filling: pebble may reuse the file
// under another name.
func (f *aheadFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return f.File.Close()
}

// fill writes one step of zeros and syncs it, so that appends need not. After a
// failure there are no further steps.
func (f *aheadFile) fill() {
	file := f.reopen()
	if file == nil {
		return
	}
	zeros := make([]byte, aheadPiece)
	for range aheadStep / aheadPiece {
		if !f.fillPiece(file, zeros) {
			_ = file.Close()
			return
		}
	}
	err := file.SyncData()
	if file.Close() != nil || err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.filling = false
}

// reopen opens the log a second time, while it surely still has its name, since
// opening would create a missing file. It returns nil if there is nothing to fill.
func (f *aheadFile) reopen() vfs.File {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	file, err := f.open()
	if err != nil {
		return nil
	}
	return file
}

func (f *aheadFile) fillPiece(file vfs.File, zeros []byte) (more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	n, err := file.WriteAt(zeros, f.filled)
	f.filled += int64(n)
	return err == nil
}
