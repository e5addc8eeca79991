package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Config describes a node's host of Raft groups.
type Config struct {
	// Node and Incarnation name this node's disk; ClusterID the cluster it belongs
	// to for good.
	Node, Incarnation, ClusterID string
	// Dir holds the shared log (log), the shard files (shards), the meta group's
	// snapshots (meta) and temporary files (tmp). It belongs to one host.
	Dir string
	// HeldLog says that Dir has had a log before: NewHost refuses it if the log is
	// gone, and with it what this node has voted and acknowledged. Without this a
	// node whose log is lost would vote and acknowledge anew.
	HeldLog bool
	// Listener takes the connections of all groups. The host closes it.
	Listener net.Listener
	// Resolve is the Raft address of a node, asked at every dial.
	Resolve func(node string) (addr string, ok bool)
	// Dial opens a connection to an address; TCP if nil.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Timing is DefaultTiming() if zero.
	Timing Timing
	Store  StoreConfig
	// UnflushedMax is the size of what is applied but not yet in the shard file at
	// which a replica gives up; 256 MiB if 0.
	UnflushedMax int64
	// Room is asked before a shard file is copied or received: an error says why the
	// disk should not take so many bytes more, and the file travels later. The bytes
	// are those of all files on their way that are not written yet. Nil: there is
	// always room.
	Room func(bytes int64) error
	// OnLease is given every new lease of a shard. The one before has ended and
	// answered everything. OnLeader is told which node a replica believes to lead,
	// "" for none. Both are called from goroutines of the replica, one call at a
	// time, and must return soon.
	OnLease  func(shard uint32, lease *Lease)
	OnLeader func(shard uint32, node string, epoch, term uint64)
	Logger   *slog.Logger

	fs vfs.FS // of the shared log; tests break it
}

// StoreConfig is what all shard files of the node have in common.
type StoreConfig struct {
	// GenerationWidth is fixed when a shard file is created; 10 min if 0.
	GenerationWidth time.Duration
	// FlushInterval and FlushRecords: see persistence.Config.
	FlushInterval time.Duration
	FlushRecords  int
	// Flushing is called when a flush begins, and what it returns when it has
	// ended; may be nil.
	Flushing func() (ended func())
	// Flushes is how many files may be flushed at once; 2 if 0.
	Flushes int
}

func (c Config) withDefaults() Config {
	if c.Timing == (Timing{}) {
		c.Timing = DefaultTiming()
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
	}
	if c.UnflushedMax == 0 {
		c.UnflushedMax = 256 << 20
	}
	if c.Room == nil {
		c.Room = func(int64) error { return nil }
	}
	if c.Store.GenerationWidth == 0 {
		c.Store.GenerationWidth = 10 * time.Minute
	}
	if c.Store.Flushing == nil {
		c.Store.Flushing = func() func() { return func() {} }
	}
	if c.Store.Flushes == 0 {
		c.Store.Flushes = 2
	}
	if c.OnLease == nil {
		c.OnLease = func(uint32, *Lease) {}
	}
	if c.OnLeader == nil {
		c.OnLeader = func(uint32, string, uint64, uint64) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate names everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.Node == "" || strings.Contains(c.Node, "#") {
		errs = append(errs, fmt.Errorf("node name %q is empty or contains '#'", c.Node))
	}
	if c.Incarnation == "" || strings.Contains(c.Incarnation, "#") {
		errs = append(errs, fmt.Errorf("incarnation %q is empty or contains '#'", c.Incarnation))
	}
	if c.ClusterID == "" {
		errs = append(errs, errors.New("cluster id is empty"))
	}
	if c.Dir == "" {
		errs = append(errs, errors.New("dir is empty"))
	}
	if c.Listener == nil {
		errs = append(errs, errors.New("listener is missing"))
	}
	if c.Resolve == nil {
		errs = append(errs, errors.New("resolve is missing"))
	}
	if c.Store.Flushes < 0 || c.UnflushedMax < 0 {
		errs = append(errs, errors.New("flushes and unflushed max must not be negative"))
	}
	return errors.Join(append(errs, c.Timing.Validate())...)
}
