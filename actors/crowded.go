package actors

import (
	"maps"
	"sync/atomic"

	"writ/actors/entity"
)

// crowded holds the entities of a shard that had no room for another call when the
// gate last looked. The front door (Forward) refuses calls to them, so that excess
// calls to one entity do not take up the gate, which works for all entities.
//
// The gate counts and decides; the front door only reads the gate's counts, and
// the gate counts again what the front door lets pass. Only the gate writes, and it
// always stores a new map of the entities that are full at that moment: there are at
// most ShardCalls/EntityCalls of these.
type crowded struct {
	entries atomic.Pointer[map[entity.Ref]*entry] // nil: none
}

// full reports whether an entity is known to have no room.
func (c *crowded) full(ref entity.Ref, most int) bool {
	entries := c.entries.Load()
	if entries == nil {
		return false
	}
	e := (*entries)[ref]
	return e != nil && e.calls.items.Load() >= int64(most)
}

// add notes an entity, and forgets those that have room again.
func (c *crowded) add(e *entry, most int) {
	old := c.entries.Load()
	if old != nil && (*old)[e.ref] == e {
		return // the front door let a call pass just as another one was answered
	}
	c.store(stillFull(old, most, e))
}

// tidy forgets the entities that have room again.
func (c *crowded) tidy(most int) {
	if old := c.entries.Load(); old != nil {
		c.store(stillFull(old, most))
	}
}

func stillFull(old *map[entity.Ref]*entry, most int, also ...*entry) map[entity.Ref]*entry {
	entries := map[entity.Ref]*entry{}
	if old != nil {
		for ref, e := range *old {
			if e.calls.items.Load() >= int64(most) {
				entries[ref] = e
			}
		}
	}
	for _, e := range also {
		entries[e.ref] = e
	}
	return entries
}

// forget removes an activation that has ended: its counts may never change again.
func (c *crowded) forget(e *entry) {
	if old := c.entries.Load(); old != nil && (*old)[e.ref] == e {
		entries := maps.Clone(*old)
		delete(entries, e.ref)
		c.store(entries)
	}
}

// clear forgets all entities, when their term ends.
func (c *crowded) clear() { c.entries.Store(nil) }

func (c *crowded) store(entries map[entity.Ref]*entry) {
	if len(entries) == 0 {
		c.entries.Store(nil)
		return
	}
	c.entries.Store(&entries)
}
