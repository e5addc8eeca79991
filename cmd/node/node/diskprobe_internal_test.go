package node

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// TestDiskProbeEndsWithItsCaller covers that a probe does not hold up a stop, and
// leaves nothing behind.
func TestDiskProbeEndsWithItsCaller(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := probeDisk(ctx, dir, 2, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
	if p50, p99, err := probeDisk(t.Context(), dir, 2, 0); err != nil || p50 <= 0 || p99 < p50 {
		t.Errorf("a probe measures %v and %v, %v", p50, p99, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
