package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// probeBlock is the size of one probing write, bytes.
const probeBlock = 4096

// probeDisk measures writing and fdatasync-ing 4 KiB in dir: what one durable
// acknowledgement costs at least. It pauses before each sample, and returns the
// median and the 99th percentile. It ends with its caller: a stop waits for it.
func probeDisk(ctx context.Context, dir string, samples int, pause time.Duration) (p50, p99 time.Duration, err error) {
	f, err := os.CreateTemp(dir, "probe-*")
	if err != nil {
		return 0, 0, fmt.Errorf("disk probe in %s: %w", filepath.Base(dir), err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, probeBlock)
	took := make([]time.Duration, 0, samples)
	idle := time.NewTimer(pause)
	defer idle.Stop()
	for i := range samples {
		select {
		case <-idle.C:
		case <-ctx.Done():
			return 0, 0, fmt.Errorf("disk probe: %w", ctx.Err())
		}
		start := time.Now()
		if _, err := f.WriteAt(block, int64(i)*probeBlock); err != nil {
			return 0, 0, fmt.Errorf("disk probe: %w", err)
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return 0, 0, fmt.Errorf("disk probe: %w", err)
		}
		took = append(took, time.Since(start))
		idle.Reset(pause)
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100], nil
}
