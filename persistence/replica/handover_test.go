package replica

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// Raft may refuse everything for a hand-over that never ends. A leader that nobody can
// use would keep the others from leading.
func TestLeaderThatHandsOverForEverFails(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(1)
	c.lease(0, 0)
	r := c.host("a").Replica(0)
	l := &leadership{replica: r, retry: time.NewTimer(time.Hour), cancel: func() {}}
	long := -3 * r.timing.RPC
	refused := func(err error, since time.Duration) (failed bool) {
		if !l.handing.IsZero() {
			l.handing = l.handing.Add(since)
		}
		l.attempted(started{err: err})
		return r.failure.Load() != nil
	}
	if refused(raft.ErrLeadershipTransferInProgress, 0) || refused(raft.ErrLeadershipTransferInProgress, -time.Millisecond) ||
		refused(raft.ErrEnqueueTimeout, long) || refused(raft.ErrLeadershipTransferInProgress, long) {
		t.Fatalf("hand-overs that end have failed the replica: %v", *r.failure.Load())
	}
	if !refused(raft.ErrLeadershipTransferInProgress, long) {
		t.Fatal("the replica leads and takes nothing")
	}
	if failure := *r.failure.Load(); !errors.Is(failure, errHandOver) {
		t.Errorf("failed: %v", failure)
	}
	if !c.host("a").Reopenable(0) {
		t.Error("it is not to be opened anew")
	}
}
