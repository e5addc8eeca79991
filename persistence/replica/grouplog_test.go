package replica

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// takeEntry takes an entry out of a log behind its back, until it is given back.
func takeEntry(t *testing.T, l *groupLog, index uint64) (giveBack func()) {
	t.Helper()
	key := l.key.log(index)
	value, closer, err := l.node.db.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	value = slices.Clone(value)
	if err := closer.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.node.db.Delete(key, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cache.clear()
	return func() {
		t.Helper()
		if err := l.node.db.Set(key, value, pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
}

// A leader whose log cannot be read as it sends it to its followers fails, and all of
// it ends: it can be opened anew.
func TestReplicaWhoseReplicatorsMetDamageIsOpenedAnew(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.startAll(1)
	for version, value := range []string{"x", "y"} { // the second goes through the pipelines
		c.write(0, "e", uint64(version), value)
		c.wantEverywhere(0, "e", value)
	}
	var node string
	attempt(t, 5, func() (void string) {
		var l *Lease
		node, l = c.lease(0, 0)
		r := c.host(node).Replica(0)
		_, last := r.log.bounds()
		giveBack := takeEntry(t, r.log, last)
		defer giveBack()
		eventually(t, "the failure", func() bool {
			over := l.Context().Err() != nil // before the state: a failure ends the lease last
			failed := r.Status().State == Failed
			if over && !failed {
				void = "an election: a follower does not read it"
			}
			return over || failed
		})
		c.lease(0, l.Term()+1)
		return void
	})
	if s := c.reopen(node).Status(); s.State != Serving {
		t.Errorf("opened anew it stands as %s: %s", s.State, s.Reason)
	}
	c.write(0, "e", 2, "z")
	c.wantEverywhere(0, "e", "z")
	c.wantEqualHashes(0, "reopened")
}
