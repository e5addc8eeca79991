package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The faults of this file are a node's own: its clock and its disk.

// Disk fills the disk of a node. Only drivers that gave one a small disk have it.
type Disk interface {
	// SmallDisk is the node with the small disk, "" if there is none.
	SmallDisk() string
	// Fill takes room on that disk until only so many bytes are free.
	Fill(left uint64) error
	// Empty gives the room back.
	Empty() error
}

const (
	// smallDiskSize is the size of a small disk, lowDiskMB where its node begins to
	// give its leaderships away, and lowDisk what is left of it after that.
	smallDiskSize = "512m"
	lowDiskMB     = "48"
	lowDisk       = 40 << 20
	// fillerPrefix begins the names of the files that fill it.
	fillerPrefix = "filler-"
)

// debug asks a node for a fault of its own. Its program must have fault points.
func debug(v View, node, path string, form url.Values) error {
	asking := http.Client{Timeout: 5 * time.Second}
	res, err := asking.PostForm("http://"+v.Addrs(node).HTTP+path, form)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", path, node, err)
	}
	defer func() { _ = res.Body.Close() }()
	switch text, _ := io.ReadAll(res.Body); res.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusNotFound:
		return fmt.Errorf("%s of %s: its program has no fault points: build it with -tags faults", path, node)
	default:
		return fmt.Errorf("%s of %s: %s: %s", path, node, res.Status, strings.TrimSpace(string(text)))
	}
}

// Arm arms a fault point of a running node, or disarms it with the action none.
// The time is how long the action delay delays.
func Arm(v View, node, point, action string, delay time.Duration) error {
	return debug(v, node, "/debug/fault", url.Values{"point": {point}, "action": {action}, "for": {delay.String()}})
}

// SetClock sets by how much the wall clock of a running node is off. A restart
// makes it right.
func SetClock(v View, node string, offset time.Duration) error {
	return debug(v, node, "/debug/clock", url.Values{"offset": {offset.String()}})
}

// heal undoes a node's own fault. A process that has ended, or ends now, has taken
// it along.
func (n *Nemesis) heal(ctx context.Context, node string, undo func() error) error {
	ctx, cancel := context.WithTimeout(ctx, n.Ready)
	defer cancel()
	return eventually(ctx, "healing "+node, func(context.Context) error {
		if !n.Cluster.Running(node) {
			return nil
		}
		return undo()
	})
}

// clockMost bounds a step of a clock: a leader that is behind by more than a quarter
// of the shortest window, 6 h, refuses what clients issue.
const clockMost = 5 * time.Hour

// clock sets one node's clock forward and back, several times, and right again.
func (n *Nemesis) clock(ctx context.Context, s Step, random *rand.Rand) error {
	steps := 2 + random.IntN(3)
	ahead := random.IntN(2) == 0
	set := func(string) error {
		offset := clockStep(random)
		if !ahead {
			offset = -offset
		}
		ahead = !ahead
		n.note("the clock of %s is off by %v", s.Node, offset)
		return SetClock(n.Cluster, s.Node, offset)
	}
	s.Hold /= time.Duration(steps)
	for range steps - 1 {
		if err := n.heal(ctx, s.Node, func() error { return set(s.Node) }); err != nil {
			return err
		}
		pause(ctx, s.Hold)
	}
	return n.hold(ctx, s, "once more set the clock of", set, func(node string) error {
		return n.heal(ctx, node, func() error { return SetClock(n.Cluster, node, 0) })
	})
}

// clockStep is a second or hours, all magnitudes as likely.
func clockStep(random *rand.Rand) time.Duration {
	return time.Duration(float64(time.Second) * math.Pow(clockMost.Seconds(), random.Float64())).Round(time.Millisecond)
}

// slowDisk delays every write to a node's log, with its sync, and every flush.
func (n *Nemesis) slowDisk(ctx context.Context, s Step, random *rand.Rand) error {
	delay := 10*time.Millisecond + time.Duration(random.Int64N(int64(700*time.Millisecond)))
	arm := func(action string) func(string) error {
		return func(node string) error {
			return errors.Join(Arm(n.Cluster, node, "before-append", action, delay), Arm(n.Cluster, node, "before-flush", action, delay))
		}
	}
	return n.hold(ctx, s, fmt.Sprintf("%v for each write of", delay.Round(time.Millisecond)), arm("delay"), func(node string) error {
		return n.heal(ctx, node, func() error { return arm("none")(node) })
	})
}

// fullDisk fills the small disk: until its node gives its leaderships away, or to
// the last byte. Then what could not be written has failed by name, and a restart
// with some room heals it.
func (n *Nemesis) fullDisk(ctx context.Context, s Step, random *rand.Rand) error {
	disk, ok := n.Cluster.(Disk)
	if !ok || disk.SmallDisk() == "" {
		return errors.New("no node of this driver has a small disk")
	}
	s.Node = disk.SmallDisk()
	left, what := uint64(lowDisk), "filled the disk, but for 40 MiB, of"
	if random.IntN(2) == 0 {
		left, what = 0, "filled the disk to the last byte of"
	}
	fill := func(string) error {
		if err := disk.Fill(left); err != nil || left > 0 {
			return err
		}
		pause(ctx, time.Second) // the node looks at its disk each second, and gives its ballast up
		return disk.Fill(0)
	}
	return n.hold(ctx, s, what, fill, func(node string) error {
		if err := disk.Empty(); err != nil || left > 0 {
			return err
		}
		return errors.Join(n.Cluster.Kill(node), n.Cluster.Start(node))
	})
}
