package replica

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// A lease begins when everything that was committed before it is applied, and its
// own TermStart too: what an activation reads then is complete. The log is
// replayed here after a crash that lost all that was not flushed.
func TestALeaseBeginsBehindWhatWasCommitted(t *testing.T) {
	const writes = 300
	type seen struct {
		entities int
		term     uint64
		applied  uint64 // term of the store's last entry
	}
	var host func() *Host
	first := make(chan seen, 16)
	c := newCluster(t, 1, func(config *Config) {
		config.Store.FlushInterval = time.Hour
		config.OnLease = func(_ uint32, l *Lease) {
			h := host()
			if h == nil {
				return
			}
			store := h.Replica(0).store
			s := seen{term: l.Term(), applied: store.Meta().GetTerm()}
			for i := range writes {
				if rec, err := store.Entity(refOf(fmt.Sprint("e", i))); err == nil && rec != nil {
					s.entities++
				}
			}
			first <- s
		}
	})
	host = func() *Host { return c.host("a") }
	c.startAll(1)
	<-first
	for i := range writes {
		c.write(0, fmt.Sprint("e", i), 0, "x")
	}
	// What a crash leaves is the file of the last flush: here, an empty one.
	path := c.host("a").Replica(0).path()
	if err := copyFile(path, path+".crash"); err != nil {
		t.Fatal(err)
	}
	if err := c.stop("a"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".crash", path); err != nil {
		t.Fatal(err)
	}
	c.start("a")
	c.open("a", shardConfig(0, 1, c.servers(1)))
	select {
	case s := <-first:
		if s.entities != writes || s.applied != s.term {
			t.Errorf("the lease of term %d began with %d of %d entities, behind an entry of term %d", s.term, s.entities, writes, s.applied)
		}
	case <-time.After(patience):
		t.Fatal("no lease")
	}
}
