package persistence

import (
	"strings"

	"github.com/tidwall/btree"
	bolt "go.etcd.io/bbolt"
)

// cursor walks the pairs of one bucket whose keys begin with a prefix, in key
// order, the levels merged over the file. In the bucket idem the prefix begins
// with a generation. It belongs to its view and is not changed by later writes
// as long as the view's levels are not.
type cursor struct {
	prefix string
	levels [2]levelCursor // newest first
	file   *bolt.Cursor   // nil: the file holds nothing
	strip  int            // length of the part of the key that the file keeps as a bucket's name

	fileKey, fileValue []byte

	key   string
	value []byte
}

// levelCursor is a place in a level's tree; ok is false past its end.
type levelCursor struct {
	iter btree.MapIter[string, *item]
	used bool
	ok   bool
}

func (v *view) cursor(b bucket, prefix string) *cursor {
	c := &cursor{prefix: prefix}
	for i, l := range []*level{v.active, v.frozen} {
		if l != nil && l.trees[b].Len() > 0 {
			c.levels[i] = levelCursor{iter: l.trees[b].Iter(), used: true}
		}
	}
	in := v.bucket(b)
	if b == idemBucket {
		c.strip = numberSize
		in = in.Bucket([]byte(prefix[:numberSize]))
	}
	if in != nil {
		c.file = in.Cursor()
	}
	return c
}

// seek moves to the first pair at or after key that has the prefix.
func (c *cursor) seek(key string) bool {
	if key < c.prefix {
		key = c.prefix
	}
	for i := range c.levels {
		if l := &c.levels[i]; l.used {
			l.ok = l.iter.Seek(key)
		}
	}
	if c.file != nil {
		if part := key[c.strip:]; part == "" {
			c.fileKey, c.fileValue = c.file.First()
		} else {
			c.fileKey, c.fileValue = c.file.Seek([]byte(part))
		}
	}
	return c.settle()
}

// first moves to the first pair.
func (c *cursor) first() bool { return c.seek(c.prefix) }

// behind moves to the first pair after all keys that begin with a prefix.
func (c *cursor) behind(prefix string) bool {
	if key := after(prefix); key != "" {
		return c.seek(key)
	}
	c.key, c.value = "", nil
	return false
}

// next moves on by one pair. It must not be called after false.
func (c *cursor) next() bool {
	c.skip(c.key)
	return c.settle()
}

// skip moves every part of the cursor that stands at key.
func (c *cursor) skip(key string) {
	for i := range c.levels {
		if l := &c.levels[i]; l.ok && l.iter.Key() == key {
			l.ok = l.iter.Next()
		}
	}
	if c.fileKey != nil && string(c.fileKey) == key[c.strip:] {
		c.fileKey, c.fileValue = c.file.Next()
	}
}

// settle takes the smallest key of all parts, the newest value first, and passes
// over deleted ones.
func (c *cursor) settle() bool {
	for {
		at := -1 // the part with the smallest key: a level, or 2 for the file
		key := ""
		for i := range c.levels {
			l := &c.levels[i]
			l.ok = l.ok && strings.HasPrefix(l.iter.Key(), c.prefix)
			if l.ok && (at < 0 || l.iter.Key() < key) {
				at, key = i, l.iter.Key()
			}
		}
		if c.fileKey != nil && (at < 0 || string(c.fileKey) < key[c.strip:]) {
			at, key = 2, c.prefix[:c.strip]+string(c.fileKey)
		}
		if at < 0 || !strings.HasPrefix(key, c.prefix) {
			c.key, c.value = "", nil
			return false
		}
		c.key, c.value = key, c.fileValue
		if at < 2 {
			c.value = c.levels[at].iter.Value().value
		}
		if c.value != nil {
			return true
		}
		c.skip(key)
	}
}
