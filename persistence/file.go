package persistence

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"

	"writ/internal/durable"
	recordv1 "writ/proto/writ/record/v1"
)

const (
	fileMode = 0o600
	// mapSize is the address space that a file's memory map begins with. Growing
	// beyond it waits for all readers, so it is large; it costs no memory.
	mapSize = 16 << (30 * (^uint(0) >> 63)) // 16 GiB on 64 bit
	// lockTimeout bounds the wait for a file that another process has open, and
	// lockPause is the time between two tries.
	lockTimeout = time.Second
	lockPause   = 20 * time.Millisecond
	// ascendingFill is how full pages are left in buckets that grow at their end.
	ascendingFill = 0.9
)

// Keys of the bucket meta.
const (
	metaBucket       = 0 // its number in bucketNames
	headKey          = "head"
	generationPrefix = "generation/"
)

var errInUse = errors.New("file is in use by another process")

// openBolt opens an existing file for writing. The check runs on the locked file
// before bbolt looks at it. Every commit is fsynced: a bbolt file written without
// it does not survive a power cut, whatever log stands beside it.
func openBolt(path string, check func(*os.File) error) (*bolt.DB, error) {
	options := &bolt.Options{
		Timeout:         lockTimeout,
		NoFreelistSync:  true,
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: mapSize,
		OpenFile: func(path string, _ int, _ os.FileMode) (*os.File, error) {
			return openChecked(path, check)
		},
	}
	var db *bolt.DB
	err := guard(path, func() (err error) {
		if db, err = bolt.Open(path, fileMode, options); err == nil {
			// The file ends where its pages end, so that a cut is always noticed.
			db.AllocSize = 0
		}
		return err
	})
	return db, err
}

// openChecked opens the file, locks it as bbolt will do again, and checks it.
func openChecked(path string, check func(*os.File) error) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, fileMode)
	if err != nil {
		return nil, err
	}
	if err = lock(f); err == nil {
		err = check(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lock takes the file for this process, waiting a little for another one to end.
func lock(f *os.File) error {
	for waited := time.Duration(0); ; waited += lockPause {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return fmt.Errorf("lock: %w", err)
		case waited >= lockTimeout:
			return errInUse
		}
		<-time.After(lockPause)
	}
}

// createFile makes a new file that holds nothing but its head. It appears under
// its name complete and on disk, or not at all.
func createFile(path string, head *recordv1.ShardMeta) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s: %w", path, os.ErrExist)
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	db, err := bolt.Open(temp, fileMode, &bolt.Options{Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range bucketNames {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		return putHead(tx, head)
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err = os.Rename(temp, path); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

func putHead(tx *bolt.Tx, head *recordv1.ShardMeta) error {
	return putSummed(tx, []byte(headKey), head)
}

func generationKey(n uint64) []byte { return appendNumber([]byte(generationPrefix), n) }
