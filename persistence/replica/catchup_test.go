package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// throttle lets a node's incoming connections carry so many bytes, all together,
// and then nothing until it is opened: a link on which a node falls behind. Small
// pieces are free, so that heartbeats pass.
type throttle struct {
	mu   sync.Mutex
	left int
	shut chan struct{} // closed when the bytes are used up
	open chan struct{} // closed by release
}

const freePiece = 1 << 10

func newThrottle(bytes int) *throttle {
	return &throttle{left: bytes, shut: make(chan struct{}), open: make(chan struct{})}
}

func (h *throttle) release() { close(h.open) }

// pass takes bytes that have come, and waits if there are too many.
func (h *throttle) pass(n int, closed chan struct{}) {
	h.mu.Lock()
	over := h.left <= 0
	if h.left -= n; h.left <= 0 && !over {
		close(h.shut)
	}
	over = h.left <= 0
	h.mu.Unlock()
	if over {
		select {
		case <-h.open:
		case <-closed:
		}
	}
}

type throttledListener struct {
	net.Listener
	throttle *throttle
}

func (l throttledListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &throttledConn{Conn: conn, throttle: l.throttle, closed: make(chan struct{})}, nil
}

type throttledConn struct {
	net.Conn
	throttle *throttle
	once     sync.Once
	closed   chan struct{}
}

func (c *throttledConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), 4<<10)])
	if n > freePiece {
		c.throttle.pass(n, c.closed)
	}
	return n, err
}

func (c *throttledConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// A voter that comes back far behind is not ready before it has what its leader had
// committed: its own commit index, which ends where its log ends, says nothing of
// that.
func TestVoterFarBehindIsNotReady(t *testing.T) {
	var slow *throttle
	c := newCluster(t, 3, func(config *Config) {
		config.Timing.RPC = patience // a slow link costs no connection
		if slow != nil && config.Node == "c" {
			config.Listener = throttledListener{config.Listener, slow}
		}
	})
	c.startAll(1)
	c.write(0, "e", 0, "x")
	c.wantEverywhere(0, "e", "x")
	eventually(t, "c to be ready", func() bool { ok, _ := c.host("c").Replica(0).Ready(); return ok })
	if err := c.stop("c"); err != nil {
		t.Fatal(err)
	}
	value := strings.Repeat("x", 4<<10)
	for i := range 120 {
		c.write(0, fmt.Sprintf("late%d", i), 0, value)
	}
	node, _ := c.lease(0, 0)
	committed := c.host(node).Replica(0).Status().CommitIndex

	slow = newThrottle(150 << 10)
	c.start("c")
	r := c.open("c", shardConfig(0, 1, c.servers(1)))
	before := r.Status().AppliedIndex
	eventually(t, "the link to be used up", func() bool {
		select {
		case <-slow.shut:
			return true
		default:
			return false
		}
	})
	// It has got some, has applied what it may, and hears its leader.
	var status Status
	eventually(t, "what has come to be applied", func() bool {
		status = r.Status()
		return status.Leader != "" && status.AppliedIndex > before && r.lastApplicable(r.raft.CommitIndex()) == status.AppliedIndex
	})
	if status.AppliedIndex >= committed {
		t.Fatalf("it is not behind: %d of %d", status.AppliedIndex, committed)
	}
	eventually(t, "the reason", func() bool { // it may not hear its leader at times
		ok, reason := r.Ready()
		if ok {
			t.Errorf("with %d of %d entries it is ready", status.AppliedIndex, committed)
		}
		return ok || strings.Contains(reason, "catching up: applied")
	})
	slow.release()
	eventually(t, "c to be ready", func() bool { ok, _ := r.Ready(); return ok })
	if got := r.Status().AppliedIndex; got < committed {
		t.Errorf("ready with %d of %d entries", got, committed)
	}
}

// While nobody leads nobody is ready; whoever leads then makes all of them so, in a
// group in which nothing else happens.
func TestReadyAfterARestartOfAll(t *testing.T) {
	c := newCluster(t, 3, nil)
	metas := startMeta(t, c)
	put(t, metas, "n", "x")
	c.openAll(0)
	c.write(0, "e", 0, "x")
	for _, name := range c.nodes {
		if err := c.stop(name); err != nil {
			t.Fatal(err)
		}
	}
	meta, err := c.start("c").OpenMeta(MetaConfig{Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	alone := c.open("c", shardConfig(0, 1, c.servers(1)))
	for _, ready := range []func() (bool, string){alone.Ready, meta.Ready} {
		if ok, reason := ready(); ok || reason != "no leader is known" {
			t.Errorf("alone: %v, %q", ok, reason)
		}
	}
	all := map[string]*Meta{"c": meta}
	for _, name := range []string{"a", "b"} {
		if all[name], err = c.start(name).OpenMeta(MetaConfig{Generation: 1}); err != nil {
			t.Fatal(err)
		}
		c.open(name, shardConfig(0, 1, c.servers(1)))
	}
	for _, name := range c.nodes {
		eventually(t, name+" to be ready", func() bool {
			shard, _ := c.host(name).Replica(0).Ready()
			meta, _ := all[name].Ready()
			return shard && meta
		})
	}
}

// A leader that is new says less than was committed before it, and a long silence
// makes what was reached before worth nothing.
func TestCatchUpAims(t *testing.T) {
	c := &catchUp{born: time.Now(), silence: time.Hour}
	want := func(what string, term, index uint64) {
		t.Helper()
		if got := c.aim(term, milestone{}); got.index != index {
			t.Errorf("%s: aims at %+v, want %d", what, got, index)
		}
	}
	want("before a word", 3, 0)
	c.hear(milestone{3, 0}) // a message that says nothing of it
	want("after no word", 3, 0)
	c.hear(milestone{3, 10})
	want("the first word", 3, 10)
	c.hear(milestone{3, 20})
	want("it is kept", 3, 10)
	c.missed(milestone{3, 10})
	want("it said too little", 3, 20)
	want("another leader", 4, 0)
	c.hear(milestone{2, 90}) // of a leader that is no more
	want("an old leader", 4, 0)
	c.hear(milestone{4, 15})
	want("its word", 4, 15)
	if c.reached(milestone{3, 10}) || c.done.Load() {
		t.Error("what was aimed at before counts")
	}
	if !c.reached(milestone{4, 15}) || !c.done.Load() {
		t.Error("what is aimed at does not count")
	}
	c.hear(milestone{4, 30})
	if !c.done.Load() {
		t.Error("a word without a silence undoes what was reached")
	}
	c.silence = 0
	c.hear(milestone{4, 40})
	if c.done.Load() {
		t.Error("after a silence it is still ready")
	}
	want("after a silence", 4, 40)
}

// A snapshot that broke off before an election is not on its way to the leader.
func TestLeaderReceivesNothing(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(1)
	c.lease(0, 0)
	r := c.host("a").Replica(0)
	r.catchUp.receiving.Store(&reception{size: 10})
	eventually(t, "the leader to be ready", func() bool { ok, _ := r.Ready(); return ok })
}

// While a snapshot comes in, readiness says how far it is.
func TestReceptionIsShown(t *testing.T) {
	slow := newThrottle(200 << 10)
	c := newCluster(t, 2, func(config *Config) {
		fewTrailingLogs(config)
		config.Timing.RPC = patience
		if config.Node == "b" {
			config.Listener = throttledListener{config.Listener, slow}
		}
	})
	for _, name := range c.nodes {
		c.start(name)
	}
	first := []Server{c.server("a", 1)}
	leader := c.open("a", shardConfig(0, 1, first))
	for i := range 100 {
		c.write(0, fmt.Sprintf("e%d", i), 0, strings.Repeat("x", 8<<10))
	}
	shorten(t, leader)
	r := c.open("b", shardConfig(0, 2, nil))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := leader.AddLearner(ctx, c.server("b", 2)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the snapshot to be on its way", func() bool {
		ok, reason := r.Ready()
		var got, size int
		_, err := fmt.Sscanf(reason, "receiving a snapshot: %d of %d bytes", &got, &size)
		return !ok && err == nil && got > 0 && got < size
	})
	slow.release()
	eventually(t, "the learner to have caught up", func() bool {
		_, reason := r.Ready()
		return strings.Contains(reason, "caught up and has no vote")
	})
}

// stall holds up one of a node's incoming connections for good: the first that has
// carried more than partOfFile.
type stall struct {
	once  sync.Once
	begun chan struct{} // closed when it does
}

const partOfFile = 100 << 10

type stallingListener struct {
	net.Listener
	stall *stall
}

func (l stallingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &stallingConn{Conn: conn, stall: l.stall, closed: make(chan struct{})}, nil
}

type stallingConn struct {
	net.Conn
	stall  *stall
	got    int
	stuck  bool
	once   sync.Once
	closed chan struct{}
}

func (c *stallingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), 4<<10)])
	if c.got += n; c.got > partOfFile {
		c.stall.once.Do(func() {
			c.stuck = true
			close(c.stall.begun)
		})
	}
	if c.stuck {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *stallingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// A voter that is being sent a file has a vote, too: if the leader freezes meanwhile,
// it helps the other one to lead.
func TestLeaderFrozenWhileItSendsAFileIsReplaced(t *testing.T) {
	i := newIce()
	var held *stall
	c := newCluster(t, 3, func(config *Config) {
		fewTrailingLogs(config)
		config.Timing.RPC = 3 * time.Second
		i.change(config)
		if held != nil && config.Node == "c" {
			config.Listener = stallingListener{config.Listener, held}
		}
	})
	c.startAll(1)
	c.write(0, "e", 0, "x")
	c.wantEverywhere(0, "e", "x")
	if err := c.stop("c"); err != nil {
		t.Fatal(err)
	}
	for n := range 120 {
		c.write(0, fmt.Sprintf("late%d", n), 0, strings.Repeat("x", 4<<10))
	}
	for _, name := range []string{"a", "b"} {
		shorten(t, c.host(name).Replica(0))
	}
	held = &stall{begun: make(chan struct{})}
	c.start("c")
	r := c.open("c", shardConfig(0, 1, c.servers(1)))
	eventually(t, "a part of the file", func() bool {
		select {
		case <-held.begun:
			return true
		default:
			return false
		}
	})
	if ok, reason := r.Ready(); ok || !strings.Contains(reason, "receiving a snapshot") {
		t.Errorf("it is not being sent a file: %v, %q", ok, reason)
	}
	leader, old := c.lease(0, 0)
	i.freeze(leader)
	began := time.Now()
	node, _ := c.lease(0, old.Term()+1)
	t.Logf("%s has taken over from %s in %v", node, leader, time.Since(began))
	c.write(0, "e", 1, "y")
	i.thaw(leader)
	c.wantEverywhere(0, "e", "y")
	c.wantEqualHashes(0, "thawed")
}

// A sender may be slow, but not silent.
func TestSilentSenderOfAFileIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, pieces = 5 * time.Second, 20
		from, to := io.Pipe()
		var given atomic.Bool
		r := &reception{from: from, patience: limit, giveUp: func() {
			given.Store(true)
			_ = to.CloseWithError(net.ErrClosed)
		}}
		go func() {
			for range pieces {
				<-time.After(limit - time.Millisecond)
				_, _ = to.Write([]byte{1})
			}
		}()
		if _, err := io.ReadFull(r, make([]byte, pieces)); err != nil || given.Load() {
			t.Errorf("slow: %v, given up: %v", err, given.Load())
		}
		began := time.Now()
		n, err := r.Read(make([]byte, 1))
		if took := time.Since(began); n != 0 || !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), "silent for 5s") || took != limit {
			t.Errorf("silent: %d bytes, %v, after %v", n, err, took)
		}
	})
}

// Whoever asks for readiness gets an answer, even if the log has none.
func TestReadinessOfALogThatCannotBeRead(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(1)
	c.write(0, "e", 0, "x")
	r := c.host("a").Replica(0)
	eventually(t, "readiness", func() bool { ok, _ := r.Ready(); return ok })
	takeEntry(t, r.log, r.raft.CommitIndex())
	r.catchUp.again()
	answers := make(chan string, 1)
	go func() {
		defer close(answers)
		ok, reason := r.Ready()
		answers <- fmt.Sprint(ok, ": ", reason)
	}()
	if got, answered := <-answers; !answered || !strings.HasPrefix(got, "false: the log cannot be read") {
		t.Errorf("answered: %v: %q", answered, got)
	}
	eventually(t, "the failure", func() bool { return r.Status().State == Failed })
}

var _ raft.Transport = (*transport)(nil)
