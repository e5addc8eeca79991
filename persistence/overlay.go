package persistence

import (
	"github.com/tidwall/btree"
	bolt "go.etcd.io/bbolt"
)

// item is a value in memory. Once a level is shared with a reader or the flusher,
// its items do not change.
type item struct {
	value []byte // nil: the key is deleted
	hash  uint64 // of the pair; 0 if deleted
	// fresh: the levels below do not hold the key, so that deleting it leaves
	// nothing to write. Most rows are confirmed before they reach the file.
	fresh bool
}

// level is what was applied since some point: the active level takes changes,
// the frozen one, below it, is being written to the file.
type level struct {
	trees   [bucketCount + 1]*btree.Map[string, *item] // by number of the bucket
	bytes   int64
	records int
	shared  bool // a snapshot uses the same items
}

// itemOverhead is about what an item costs in memory beside key and value.
const itemOverhead = 96

func newLevel() *level {
	l := &level{}
	for _, b := range buckets {
		l.trees[b] = btree.NewMap[string, *item](0)
	}
	return l
}

// set puts an item under a key.
func (l *level) set(b bucket, key string, it *item) {
	old, replaced := l.trees[b].Set(key, it)
	l.bytes += int64(len(it.value))
	if replaced {
		l.bytes -= int64(len(old.value))
	} else {
		l.bytes += int64(len(key)) + itemOverhead
	}
}

// change gives an item of this level, found before, a new value. Where nobody
// shares the item this saves the search.
func (l *level) change(b bucket, key string, it *item, value []byte, hash uint64) {
	if l.shared {
		l.set(b, key, &item{value: value, hash: hash, fresh: it.fresh})
		return
	}
	l.bytes += int64(len(value) - len(it.value))
	it.value, it.hash = value, hash
}

// forget removes a fresh key without a trace.
func (l *level) forget(b bucket, key string) {
	if old, ok := l.trees[b].Delete(key); ok {
		l.bytes -= int64(len(key)+len(old.value)) + itemOverhead
	}
}

// snapshot is a copy on write. The caller must keep writers out.
func (l *level) snapshot() *level {
	c := &level{}
	l.shared = true
	for _, b := range buckets {
		c.trees[b] = l.trees[b].Copy()
	}
	return c
}

// place says where a lookup ended.
type place uint8

const (
	absent place = iota
	inActive
	inFrozen
	inFile
)

// found is the result of a lookup.
type found struct {
	value []byte // nil: nowhere, or deleted
	place place
	item  *item // in a level
}

func (f found) exists() bool { return f.value != nil }

// view is the store's content at one moment: two levels over the file. Its
// methods panic when the file cannot be read (bbolt itself does when a page is
// damaged), so all use of a view happens inside guard. Values are valid until
// close.
type view struct {
	active, frozen *level
	db             *bolt.DB
	tx             *bolt.Tx
	buckets        [bucketCount + 1]*bolt.Bucket
	key            []byte // used again for every lookup in the file
}

// close ends the read transaction, if one was needed.
func (v *view) close() {
	if v.tx != nil {
		_ = v.tx.Rollback() // fails only if the transaction has ended
		v.tx = nil
		v.buckets = [bucketCount + 1]*bolt.Bucket{}
	}
}

// open begins the read transaction. It pins the file's pages until close.
func (v *view) open() {
	if v.tx != nil {
		return
	}
	tx, err := v.db.Begin(false)
	if err != nil {
		panic(err)
	}
	v.tx = tx
}

// bucket is a bucket of the file.
func (v *view) bucket(b bucket) *bolt.Bucket {
	if v.buckets[b] == nil {
		v.open()
		v.buckets[b] = v.tx.Bucket([]byte(bucketNames[b]))
	}
	return v.buckets[b]
}

// get looks a key up, newest level first.
func (v *view) get(b bucket, key string) found {
	if it, ok := v.active.trees[b].Get(key); ok {
		return found{it.value, inActive, it}
	}
	if v.frozen != nil {
		if it, ok := v.frozen.trees[b].Get(key); ok {
			return found{it.value, inFrozen, it}
		}
	}
	if value := v.fromFile(b, key); value != nil {
		return found{value, inFile, nil}
	}
	return found{}
}

func (v *view) fromFile(b bucket, key string) []byte {
	in := v.bucket(b)
	v.key = append(v.key[:0], key...)
	if b != idemBucket {
		return in.Get(v.key)
	}
	if in = in.Bucket(v.key[:numberSize]); in == nil {
		return nil
	}
	return in.Get(v.key[numberSize:])
}
