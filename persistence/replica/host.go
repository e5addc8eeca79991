package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"writ/internal/durable"
	"writ/internal/format"
)

// Folders under Config.Dir, and the pattern of half-received files.
const (
	logDir          = "log"
	shardsDir       = "shards"
	metaDir         = "meta"
	tmpDir          = "tmp"
	receivedPattern = "received-*.db"
)

// ErrClosed is returned by a closed host.
var ErrClosed = errors.New("the host is closed")

// Host runs the Raft groups of one node. It is safe for concurrent use.
type Host struct {
	config    Config
	logger    *slog.Logger
	log       *nodeLog    // nil if it is damaged
	lost      *LostMemory // why
	flushSlot chan struct{}
	copySlot  chan struct{}   // one file is copied at a time
	room      *room           // for files on their way
	ctx       context.Context //nolint:containedctx // the host's life
	cancel    context.CancelFunc
	goroutine sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	replicas map[uint32]*Replica
	meta     *Meta
	kept     []groupKey            // on disk since before this start
	greeting map[net.Conn]struct{} // accepted, not yet handed to a group
}

// NewHost opens the node's log and begins to listen. If the log is damaged the
// host stands nevertheless, every replica opened on it is quarantined with that
// reason, and OpenMeta returns the *LostMemory. A log that is another node's, that
// another process has open or that the system does not let it read is an error.
func NewHost(c Config) (*Host, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("replica host: %w", err)
	}
	h := &Host{
		config: c, logger: c.Logger,
		flushSlot: make(chan struct{}, c.Store.Flushes),
		copySlot:  make(chan struct{}, 1),
		room:      &room{ask: c.Room},
		replicas:  map[uint32]*Replica{},
		greeting:  map[net.Conn]struct{}{},
	}
	if err := h.checkHeld(); err != nil {
		return nil, fmt.Errorf("replica host: %w", err)
	}
	if err := h.prepareDir(); err != nil {
		return nil, fmt.Errorf("replica host: %w", err)
	}
	if err := h.openLog(); err != nil {
		loss, lost := errors.AsType[*LostMemory](err)
		if !lost {
			return nil, fmt.Errorf("replica host: %w", err)
		}
		h.lost = loss
		h.logger.Error("the shared log is damaged: all replicas of this node are quarantined", slog.Any("error", err))
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.goroutine.Go(h.accept)
	if h.log != nil {
		h.goroutine.Go(h.watchLog)
	}
	return h, nil
}

// orClear is the way out if what is missing in a data folder does not come back.
const orClear = "or clear the whole data folder (never in a cluster of one node) to let the node join anew, to be filled by the others"

// checkHeld refuses a folder that has lost its log, before anything is made anew
// in it: who brings the log back needs its place empty.
func (h *Host) checkHeld() error {
	dir := filepath.Join(h.config.Dir, logDir)
	if !h.config.HeldLog || logExists(dir, h.config.fs) || hasLogFiles(dir) {
		return nil
	}
	return fmt.Errorf("data folder %s has held data, but its log (%s) is gone, and with it what this node has voted and acknowledged: the disk may not be mounted; bring the folder %s back as it was last, %s", h.config.Dir, dir, logDir, orClear)
}

// prepareDir makes the folders and removes what was left half-received.
func (h *Host) prepareDir() error {
	if err := os.RemoveAll(h.tempDir()); err != nil {
		return err
	}
	for _, dir := range []string{shardsDir, tmpDir, logDir} {
		if err := durable.MkdirAll(filepath.Join(h.config.Dir, dir), 0o750); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) tempDir() string { return filepath.Join(h.config.Dir, tmpDir) }

// Open opens a replica of a shard, or creates it if it has never existed. A
// replica whose memory is damaged stands as quarantined, and one that a newer
// program has written as failed, with the reason in its status, and Open returns
// nil; everything else that prevents opening is an error, and it may be tried
// again.
func (h *Host) Open(c ShardConfig) error {
	self := Server{Node: h.config.Node, Incarnation: h.config.Incarnation, Generation: c.Generation}
	if err := c.validate(self); err != nil {
		return fmt.Errorf("open shard %d: %w", c.Shard, err)
	}
	logger := h.logger.With(slog.Any("shard", c.Shard), slog.Uint64("generation", c.Generation))
	key := groupKey{shard: c.Shard, epoch: c.Epoch, generation: c.Generation}
	r := &Replica{
		group: newGroup(self, key, h.config.Timing, logger), host: h, config: c,
		stop: make(chan struct{}), state: Opening,
	}
	r.closing = sync.OnceValue(r.closeNow)
	r.onSuspend = func() { r.endLease(errSuspended) }
	r.leads = func() bool { return r.Lease() != nil }
	r.flushes.born = time.Now()
	r.flushingFor = r.flushes.age
	if err := h.add(r); err != nil {
		return fmt.Errorf("open shard %d: %w", c.Shard, err)
	}
	err := r.begin()
	if err == nil {
		r.stand(Serving, "")
		return nil
	}
	if failure := r.failure.Load(); failure != nil {
		err = *failure
	}
	err = errors.Join(err, r.close())
	if newer, ok := errors.AsType[*format.NewerError](err); ok {
		// Nothing is damaged: the replica waits for the program that can read it.
		r.failure.Store(&err)
		r.stand(Failed, newer.Error())
		logger.Error("replica not opened", slog.Any("error", newer))
		return nil
	}
	if reason, odd := quarantined(err); odd {
		r.stand(Quarantined, reason)
		logger.Error("replica quarantined", slog.String("reason", reason))
		return nil
	}
	h.forget(r)
	return fmt.Errorf("open shard %d: %w", c.Shard, err)
}

// Reopenable reports whether a replica has failed and may be well if it is opened
// anew. A failed shared log takes a new process, and what a newer program has
// written a newer program.
func (h *Host) Reopenable(shard uint32) bool {
	r := h.Replica(shard)
	if r == nil || h.log == nil || h.log.failure.Load() != nil {
		return false
	}
	state, _ := r.standing()
	failure := r.failure.Load()
	return state == Failed && (failure == nil || !isNewer(*failure))
}

// Reopen opens a failed replica anew from its file and its log, as a new process
// would.
func (h *Host) Reopen(c ShardConfig) error {
	r := h.Replica(c.Shard)
	if !h.Reopenable(c.Shard) {
		return nil
	}
	// Its error is the failure that is known; it may take for ever on a bad disk.
	_ = within(closeLimit, r.close)
	if !r.closed.Load() || !r.ended.Load() {
		return fmt.Errorf("reopen shard %d: the failed replica has not ended (does its disk hang?): it is tried again; if that does not help, restart the process", c.Shard)
	}
	h.mu.Lock()
	if !slices.Contains(h.kept, r.key) {
		h.kept = append(h.kept, r.key) // the group may need its vote, should it not open
	}
	h.mu.Unlock()
	h.forget(r)
	return h.Open(c)
}

func isNewer(err error) bool {
	_, ok := errors.AsType[*format.NewerError](err)
	return ok
}

func (h *Host) add(r *Replica) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	if old := h.replicas[r.config.Shard]; old != nil {
		return fmt.Errorf("this node holds its replica %s already", old.self)
	}
	h.replicas[r.config.Shard] = r
	return nil
}

func (h *Host) forget(r *Replica) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.replicas[r.config.Shard] == r {
		delete(h.replicas, r.config.Shard)
	}
}

// ActiveFormat is what this node may write: the active format of the cluster as far
// as its replica of the meta group knows, which is never more than the cluster's.
func (h *Host) ActiveFormat() uint32 {
	h.mu.Lock()
	meta := h.meta
	h.mu.Unlock()
	if meta == nil {
		return format.Base
	}
	return ActiveFormat(meta.State())
}

// Replica is the node's replica of a shard, nil if it has none.
func (h *Host) Replica(shard uint32) *Replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.replicas[shard]
}

// Replicas are all replicas of the node, by shard.
func (h *Host) Replicas() []*Replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*Replica, 0, len(h.replicas))
	for _, r := range h.replicas {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Replica) int { return int(int64(a.config.Shard) - int64(b.config.Shard)) })
	return all
}

// Kept is the newest generation of a shard's replica under an epoch that the log
// has remembered since before this start and that has not been dropped since, 0
// for none. It may be a voter that its group needs.
func (h *Host) Kept(shard uint32, epoch uint64) (generation uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.kept {
		if k.shard == shard && k.epoch == epoch {
			generation = max(generation, k.generation)
		}
	}
	return generation
}

// Drop stops a replica and deletes its file, its log and its stable values. Its
// generation cannot be opened again. It is nil if there is no replica.
func (h *Host) Drop(shard uint32) error {
	r := h.Replica(shard)
	if r == nil {
		return nil
	}
	h.forget(r)
	if err := r.close(); err != nil {
		h.logger.Warn("stop a replica to drop it", slog.Any("shard", shard), slog.Any("error", err))
	}
	if err := h.drop(r.key); err != nil {
		return fmt.Errorf("drop shard %d: %w", shard, err)
	}
	return nil
}

// Unclosed are the shards whose replicas have not been closed.
func (h *Host) Unclosed() (shards []uint32) {
	for _, r := range h.Replicas() {
		if !r.closed.Load() {
			shards = append(shards, r.config.Shard)
		}
	}
	return shards
}

// Close ends all leases, stops all groups and flushes all files. It waits until
// that is done or the context ends.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	meta := h.meta
	h.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- h.shut(meta) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("close the replica host: %w", ctx.Err())
	}
}

func (h *Host) shut(meta *Meta) error {
	var mu sync.Mutex
	var errs []error
	note := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	var closing sync.WaitGroup
	for _, r := range h.Replicas() {
		closing.Go(func() { note(r.close()) })
	}
	if meta != nil {
		closing.Go(func() { note(meta.close()) })
	}
	closing.Wait()
	h.cancel()
	note(ignoreClosed(h.config.Listener.Close()))
	h.dropGreetings()
	h.goroutine.Wait()
	if h.log != nil {
		note(h.log.close())
	}
	return errors.Join(errs...)
}
