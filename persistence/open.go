package persistence

import (
	"errors"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"

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
