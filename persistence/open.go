package persistence

import (
	"errors"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"

	"writ/internal/format"
	recordv1 "writ/proto/writ/record/v1"
)

// openFile checks a file and opens it with bbolt, under one lock.
func openFile(path string, want Config, sameReplica bool) (*bolt.DB, *content, error) {
	var c *content
	db, err := openBolt(path, func(f *os.File) (err error) {
		c, err = checkFile(f, path, want, sameReplica)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return db, c, nil
}

// Verify makes the checks of [Open] on a received snapshot file, which nobody
// else has open, and returns its meta. The replica generation is the sender's
// and is not compared. The file is not changed. Like Open, it returns a
// *[Damage] for what is odd about the file.
func Verify(path string, want Config) (*recordv1.ShardMeta, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("verify store: %w", err)
	}
	c, err := checkFile(f, path, want, false)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("verify store: %w", err)
	}
	return c.head, nil
}

// errEnough ends the reading of a file.
var errEnough = errors.New("enough is read")

// Peek reads the meta of a shard file that nobody has open. Of the checks of
// [Verify] it makes that of the meta's checksum only, and reads little: what it
// returns may be that of a damaged file.
func Peek(path string) (*recordv1.ShardMeta, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("peek into store: %w", err)
	}
	info, err := f.Stat()
	r := reading{heads: map[uint64]*recordv1.Generation{}}
	if err == nil {
		err = guard(path, func() error {
			p, err := openPages(f, info.Size())
			if err != nil {
				return err
			}
			return p.walk(bucketNames[metaBucket], func(path []string, key, value []byte) error {
				if r.head != nil || path[0] != bucketNames[metaBucket] {
					return errEnough
				}
				return r.meta(string(key), value)
			})
		})
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	if err == nil && r.head == nil {
		err = &Damage{Path: path, What: "is not a shard file: no head"}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("peek into store: %w", err)
	}
	return r.head, format.Check("shard file "+path, r.head.Format)
}
