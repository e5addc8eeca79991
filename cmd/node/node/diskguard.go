package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"writ/actors/entity"
)

// A disk that fills up is dealt with long before it is full: a store that cannot
// write is lost to its group until the process is restarted.
const (
	// freeMinDefault is the free space below which a node takes no commands.
	freeMinDefault = 256 << 20
	// ballastShare of the free space wanted lies in a file that is removed then,
	// so that what is in flight can still be written.
	ballastShare = 4
	diskCheck    = 500 * time.Millisecond
)

// diskGuard watches the free space of the data folder. It is safe for concurrent
// use.
type diskGuard struct {
	dir     string
	freeMin uint64
	log     *slog.Logger
	low     atomic.Bool
	// onLow is called when the disk has become low: leaderships should go, now.
	onLow func()
}

func newDiskGuard(dir string, freeMin uint64, log *slog.Logger, onLow func()) *diskGuard {
	if freeMin == 0 {
		freeMin = freeMinDefault
	}
	return &diskGuard{dir: dir, freeMin: freeMin, log: log, onLow: onLow}
}

func (g *diskGuard) ballast() string { return filepath.Join(g.dir, "ballast") }

// run watches until the context ends.
func (g *diskGuard) run(ctx context.Context) {
	tick := time.NewTicker(diskCheck)
	defer tick.Stop()
	for {
		g.look()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look compares the free space with the watermark. A disk that was low must gain
// some more than that before it counts as good again.
func (g *diskGuard) look() {
	free, _, err := diskSpace(g.dir)
	if err != nil {
		g.log.Warn("free space is not known", slog.Any("error", err))
		return
	}
	was := g.low.Load()
	switch {
	case free < g.freeMin && !was:
		g.low.Store(true)
		g.log.Error("the disk is nearly full: no commands are taken, leaderships are handed over",
			slog.Uint64("free", free), slog.Uint64("wanted", g.freeMin))
		if err := os.Remove(g.ballast()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			g.log.Warn("ballast not released", slog.Any("error", err))
		}
		g.onLow()
	case was && free > g.freeMin+g.freeMin/2:
		g.low.Store(false)
		g.log.Info("the disk has room again", slog.Uint64("free", free))
	case !was && free > 2*g.freeMin:
		g.load()
	}
}

// load puts the ballast in place, in real blocks.
func (g *diskGuard) load() {
	f, err := os.OpenFile(g.ballast(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return // it is there
	}
	err = syscall.Fallocate(int(f.Fd()), 0, 0, int64(g.freeMin/ballastShare))
	if err = errors.Join(err, f.Close()); err != nil {
		g.log.Warn("ballast not written", slog.Any("error", err))
		_ = os.Remove(g.ballast())
	}
}

// reason says why the disk keeps the node from serving, "" if it does not.
func (g *diskGuard) reason() string {
	if !g.low.Load() {
		return ""
	}
	return fmt.Sprintf("less than %d MiB are free on the data disk: make room", g.freeMin>>20)
}

// room refuses shard files on their way that would take what must stay free.
func (g *diskGuard) room(bytes int64) error {
	free, _, err := diskSpace(g.dir)
	if err != nil {
		return err
	}
	if need := uint64(max(bytes, 0)); free < g.freeMin || free-g.freeMin < need {
		const mib = 1 << 20
		return fmt.Errorf("shard files on their way need %d MiB, and of the %d MiB free on the data disk %d MiB must stay free (--free-min-mb): make room",
			(need+mib-1)/mib, free/mib, g.freeMin/mib)
	}
	return nil
}

// admit refuses commands while the disk is low.
func (g *diskGuard) admit() error {
	if reason := g.reason(); reason != "" {
		return entity.Errorf(entity.Overloaded, "%s", reason).With("limit", "disk").Retry(time.Second)
	}
	return nil
}
