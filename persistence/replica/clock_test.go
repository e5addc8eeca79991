package replica

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"writ/internal/format"
)

// TestLogTimeIsMonotonic covers that a lease measures its time by the monotonic
// clock, so that steps of the wall clock move no key's expiry.
func TestLogTimeIsMonotonic(t *testing.T) {
	l := newLease(0, 1, 2, int64(time.Hour), func() uint32 { return format.Base }, func([]byte) raft.ApplyFuture { return nil })
	defer l.batcher.close()
	defer l.end(context.Canceled)
	//nolint:staticcheck // Round(0) takes the monotonic reading away: without one the two would be the same
	if l.began == l.began.Round(0) {
		t.Error("the beginning of the lease has no monotonic reading: a step of the wall clock would move log time")
	}
	first := l.LogTime()
	if second := l.LogTime(); first < int64(time.Hour) || second < first {
		t.Errorf("log time %d, then %d; the lease began at %d", first, second, int64(time.Hour))
	}
}
