package replica

import (
	"slices"

	"github.com/hashicorp/raft"
)

// The cache serves replication and the state machine, which read an entry right
// after it was appended.
const (
	cacheEntries    = 64
	cacheBytes      = 4 << 20
	cacheEntryBytes = cacheBytes / 4
)

// entryCache keeps the youngest entries of a log, bounded by number and bytes.
type entryCache struct {
	entries [cacheEntries]*raft.Log
	bytes   int
	oldest  uint64 // lowest index that may be present
}

func (c *entryCache) get(index uint64) *raft.Log {
	if entry := c.entries[index%cacheEntries]; entry != nil && entry.Index == index {
		return entry
	}
	return nil
}

// put adds the entry that follows the last one put.
func (c *entryCache) put(entry *raft.Log) {
	c.remove(entry.Index % cacheEntries)
	if len(entry.Data) > cacheEntryBytes {
		return
	}
	own := *entry
	c.entries[entry.Index%cacheEntries] = &own
	c.bytes += len(own.Data)
	c.oldest = max(c.oldest, entry.Index-min(entry.Index, cacheEntries-1))
	for c.bytes > cacheBytes && c.oldest < entry.Index {
		c.remove(c.oldest % cacheEntries)
		c.oldest++
	}
}

func (c *entryCache) remove(slot uint64) {
	if old := c.entries[slot]; old != nil {
		c.bytes -= len(old.Data)
		c.entries[slot] = nil
	}
}

func (c *entryCache) clear() { *c = entryCache{} }

// logSizes remembers roughly how many bytes of a log lie above an index.
type logSizes struct {
	total int64
	marks []sizeMark // ascending
}

// sizeMark says that the entries up to index, and above the mark before, have
// that many bytes.
type sizeMark struct {
	index uint64
	bytes int64
}

const markBytes = 1 << 20

func (s *logSizes) add(last uint64, bytes int64) {
	s.total += bytes
	if n := len(s.marks); n > 0 && s.marks[n-1].bytes < markBytes {
		s.marks[n-1].bytes += bytes
		s.marks[n-1].index = last
		return
	}
	s.marks = append(s.marks, sizeMark{last, bytes})
}

// before is the highest index with at least keep bytes above it, 0 if none.
func (s *logSizes) before(keep int64) uint64 {
	above := int64(0)
	for _, mark := range slices.Backward(s.marks) {
		if above >= keep {
			return mark.index
		}
		above += mark.bytes
	}
	return 0
}

// cut forgets the entries below index.
func (s *logSizes) cut(index uint64) {
	n := 0
	for n < len(s.marks) && s.marks[n].index < index {
		s.total -= s.marks[n].bytes
		n++
	}
	s.marks = append(s.marks[:0:0], s.marks[n:]...)
}
