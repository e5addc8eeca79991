package replica

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
	"writ/sharding"
)

// patience bounds every wait of a test; a healthy one takes a fraction of it.
const patience = 30 * time.Second

// testTiming has followers hear of commits soon, and no election without need: see
// openAll for the first one.
func testTiming() Timing {
	t := DefaultTiming()
	t.Commit, t.Stagger = 20*time.Millisecond, 100*time.Millisecond
	t.Enqueue = patience           // raft's main loop takes nothing while it waits for a slow disk
	t.SnapshotInterval = time.Hour // tests take snapshots themselves
	return t
}

// cluster is a few hosts on loopback.
type cluster struct {
	t      testing.TB
	change func(*Config) // applied to every host's configuration
	nodes  []string
	dirs   map[string]string
	logs   io.Writer

	mu    sync.Mutex
	addrs map[string]string
	hosts map[string]*Host
	cut   map[string]bool // nodes that nobody can reach
}

func newCluster(tb testing.TB, size int, change func(*Config)) *cluster {
	tb.Helper()
	c := &cluster{
		t: tb, change: change,
		dirs: map[string]string{}, addrs: map[string]string{}, hosts: map[string]*Host{}, cut: map[string]bool{},
	}
	base := tb.TempDir()
	for i := range size {
		name := string(rune('a' + i))
		c.nodes = append(c.nodes, name)
		c.dirs[name] = filepath.Join(base, name)
	}
	if testing.Verbose() && os.Getenv("WRIT_TEST_LOG") != "" {
		c.logs = os.Stderr
	}
	tb.Cleanup(c.close)
	return c
}

func (c *cluster) close() {
	for _, name := range c.nodes {
		if h := c.host(name); h != nil {
			if err := c.stop(name); err != nil {
				c.t.Logf("close %s: %v", name, err)
			}
		}
	}
}

func (c *cluster) host(name string) *Host {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hosts[name]
}

func (c *cluster) server(name string, generation uint64) Server {
	return Server{Node: name, Incarnation: "disk-" + name, Generation: generation}
}

// servers are all nodes' replicas under one generation.
func (c *cluster) servers(generation uint64) (all []Server) {
	for _, name := range c.nodes {
		all = append(all, c.server(name, generation))
	}
	return all
}

// start starts a node's host, without replicas.
func (c *cluster) start(name string) *Host {
	c.t.Helper()
	h, err := NewHost(c.config(name))
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts[name] = h
	return h
}

func (c *cluster) config(name string) Config {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.addrs[name] = listener.Addr().String()
	c.mu.Unlock()
	config := Config{
		Node: name, Incarnation: "disk-" + name, ClusterID: "cluster-1",
		Dir: c.dirs[name], Listener: listener, Timing: testTiming(),
		Resolve: func(node string) (string, bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			addr, ok := c.addrs[node]
			return addr, ok && !c.cut[node] && !c.cut[name]
		},
	}
	if c.logs != nil {
		config.Logger = slog.New(slog.NewTextHandler(c.logs, &slog.HandlerOptions{Level: slog.LevelInfo})).With(slog.String("node", name))
	}
	if c.change != nil {
		c.change(&config)
	}
	return config
}

func (c *cluster) stop(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c.mu.Lock()
	h := c.hosts[name]
	delete(c.hosts, name)
	c.mu.Unlock()
	return h.Close(ctx)
}

func shardConfig(shard uint32, generation uint64, bootstrap []Server) ShardConfig {
	return ShardConfig{Shard: shard, Range: sharding.Split(1)[0], Epoch: 1, Generation: generation, Bootstrap: bootstrap}
}

// startAll starts every node with the given number of shards.
func (c *cluster) startAll(shards uint32) {
	c.t.Helper()
	for _, name := range c.nodes {
		c.start(name)
	}
	for shard := range shards {
		c.openAll(shard)
	}
}

func (c *cluster) openAll(shard uint32) {
	c.t.Helper()
	for _, name := range c.nodes {
		c.open(name, shardConfig(shard, 1, c.servers(1)))
	}
	// One of them stands at once: waiting for a timeout is most of what a test takes.
	r := c.host(c.nodes[rand.N(len(c.nodes))]).Replica(shard)
	if leader, _ := r.believes(); leader == (Server{}) && r.started() {
		_ = r.trans.timeoutNow()
	}
}

func (c *cluster) open(name string, config ShardConfig) *Replica {
	c.t.Helper()
	h := c.host(name)
	if err := h.Open(config); err != nil {
		c.t.Fatal(err)
	}
	return h.Replica(config.Shard)
}

// lease waits until one of the running nodes has a lease of the shard that is not
// older than term.
func (c *cluster) lease(shard uint32, term uint64) (node string, l *Lease) {
	c.t.Helper()
	eventually(c.t, "a lease", func() bool {
		for _, name := range c.nodes {
			if h := c.host(name); h != nil {
				if r := h.Replica(shard); r != nil {
					if found := r.Lease(); found != nil && found.Term() >= term {
						node, l = name, found
						return true
					}
				}
			}
		}
		return false
	})
	return node, l
}

// onLeader does something through whoever leads shard 0, again if that fails: there may
// have been an election.
func (c *cluster) onLeader(what string, do func(leader *Replica) error) {
	c.t.Helper()
	var err error
	defer func() {
		if err != nil {
			c.t.Logf("%s: %v", what, err)
		}
	}()
	eventually(c.t, what, func() bool {
		node, _ := c.lease(0, 0)
		err = do(c.host(node).Replica(0))
		return err == nil
	})
}

// moveTo makes a node lead shard 0.
func (c *cluster) moveTo(node string) (l *Lease) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	eventually(c.t, node+" to lead", func() bool {
		var leader string
		if leader, l = c.lease(0, 0); leader != node {
			_ = c.host(leader).Replica(0).TransferLeadership(ctx, node)
		}
		return leader == node
	})
	return l
}

// reopen opens shard 0's failed replica anew. How soon the old one ends is up to the
// disk.
func (c *cluster) reopen(node string) *Replica {
	c.t.Helper()
	var err error
	h := c.host(node)
	eventually(c.t, "the end of the failed replica", func() bool {
		err = h.Reopen(shardConfig(0, 1, nil))
		return err == nil || h.Replica(0) == nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return h.Replica(0)
}

// attempt plays a scenario until it is not void: it says what has happened that always
// may, an election or a slow disk, or "". So many times in a row that is no accident.
func attempt(t *testing.T, times int, scenario func() (void string)) {
	t.Helper()
	for range times {
		void := scenario()
		if void == "" || t.Failed() {
			return
		}
		t.Logf("void: %s", void)
	}
	t.Errorf("void %d times in a row", times)
}

func eventually(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-limit.C:
			tb.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// propose proposes a record and waits for its outcome.
func propose(l *Lease, rec *recordv1.Record) error {
	result := make(chan error, 1)
	l.Propose(rec, func(err error) { result <- err })
	return <-result
}

func barrier(l *Lease) error {
	result := make(chan error, 1)
	l.Barrier(func(err error) { result <- err })
	return <-result
}

// commitOf sets an entity's state on top of a version.
func commitOf(id string, version uint64, value string) *recordv1.Record {
	ref := &recordv1.Ref{Tenant: "t", Kind: "k", Id: id}
	return &recordv1.Record{Body: &recordv1.Record_Commit{Commit: &recordv1.Commit{
		Entity: ref, BaseVersion: version,
		Mutations: []*recordv1.Mutation{{
			Bucket: recordv1.Bucket_STATE,
			Value:  &recordv1.Payload{Type: "test.State", Schema: 1, Data: []byte(value)},
		}},
	}}}
}

func refOf(id string) entity.Ref { return entity.Ref{Tenant: "t", Kind: "k", ID: id} }

// write commits an entity's state, following the leadership. A write whose fate is
// unknown is done if it is found afterwards.
func (c *cluster) write(shard uint32, id string, version uint64, value string) {
	c.t.Helper()
	eventually(c.t, "a write of "+id, func() bool {
		node, l := c.lease(shard, 0)
		if propose(l, commitOf(id, version, value)) == nil {
			return true
		}
		if barrier(l) != nil {
			return false
		}
		h := c.host(node)
		if h == nil {
			return false
		}
		rec, err := h.Replica(shard).Store().Entity(refOf(id))
		return err == nil && rec.GetVersion() == version+1 && string(rec.GetState().GetData()) == value
	})
}

// wantEverywhere waits until the running nodes' replicas have the value.
func (c *cluster) wantEverywhere(shard uint32, id, value string) {
	c.t.Helper()
	for _, name := range c.nodes {
		h := c.host(name)
		if h == nil || h.Replica(shard) == nil {
			continue
		}
		eventually(c.t, fmt.Sprintf("%s=%s on %s", id, value, name), func() bool {
			rec, err := h.Replica(shard).Store().Entity(refOf(id))
			return err == nil && rec != nil && string(rec.GetState().GetData()) == value
		})
	}
}

// wantEqualHashes takes a checkpoint and compares the replicas.
func (c *cluster) wantEqualHashes(shard uint32, audit string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tries := 0
	eventually(c.t, "a checkpoint", func() bool {
		tries++
		_, l := c.lease(shard, 0)
		return l.Checkpoint(ctx, fmt.Sprint(audit, tries)) == nil
	})
	audit = fmt.Sprint(audit, tries)
	var first []byte
	var firstIndex uint64
	for _, name := range c.nodes {
		h := c.host(name)
		if h == nil || h.Replica(shard) == nil {
			continue
		}
		index, hash, err := h.Replica(shard).Store().WaitCheckpoint(ctx, audit)
		if err != nil {
			c.t.Fatalf("checkpoint on %s: %v", name, err)
		}
		if first == nil {
			first, firstIndex = hash, index
		}
		if !bytes.Equal(first, hash) || index != firstIndex {
			c.t.Errorf("%s: hash %x at %d, want %x at %d", name, hash, index, first, firstIndex)
		}
	}
}

// sever cuts a node off as if its process had been killed: its listener and all
// its connections end, nothing is flushed and nobody is told.
func (c *cluster) sever(name string) *Host {
	c.mu.Lock()
	h := c.hosts[name]
	delete(c.hosts, name)
	delete(c.addrs, name)
	c.mu.Unlock()
	_ = h.config.Listener.Close()
	for _, g := range h.groups() {
		g.trans.cut()
	}
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = h.Close(ctx)
	})
	return h
}
