package replica

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"writ/actors/entity"
)

// ice is a network on which nodes can be frozen: their connections stay open and
// carry nothing, as if the node were stopped or cut off.
type ice struct {
	mu     sync.Mutex
	frozen map[string]chan struct{} // closed at the thaw
}

func newIce() *ice { return &ice{frozen: map[string]chan struct{}{}} }

func (i *ice) freeze(node string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.frozen[node] = make(chan struct{})
}

func (i *ice) thaw(node string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	close(i.frozen[node])
	delete(i.frozen, node)
}

func (i *ice) of(node string) chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.frozen[node]
}

// change puts a node's connections on the ice, both ways.
func (i *ice) change(c *Config) {
	node := c.Node
	c.Listener = &icyListener{Listener: c.Listener, ice: i, node: node}
	c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return &icyConn{Conn: conn, ice: i, node: node, closed: make(chan struct{})}, nil
	}
}

type icyListener struct {
	net.Listener
	ice  *ice
	node string
}

func (l *icyListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &icyConn{Conn: conn, ice: l.ice, node: l.node, closed: make(chan struct{})}, nil
}

type icyConn struct {
	net.Conn
	ice    *ice
	node   string
	once   sync.Once
	closed chan struct{}
}

func (c *icyConn) wait() {
	for f := c.ice.of(c.node); f != nil; f = c.ice.of(c.node) {
		select {
		case <-f:
		case <-c.closed:
			return
		}
	}
}

func (c *icyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wait()
	return n, err
}

func (c *icyConn) Write(b []byte) (int, error) {
	c.wait()
	return c.Conn.Write(b)
}

func (c *icyConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func TestSilentLeaderIsReplacedAndCannotAnswer(t *testing.T) {
	i := newIce()
	c := newCluster(t, 3, func(config *Config) {
		config.Timing = DefaultTiming()
		i.change(config)
	})
	c.startAll(1)
	c.write(0, "e", 0, "x")
	c.wantEverywhere(0, "e", "x")
	version := uint64(0)
	attempt(t, 3, func() (void string) {
		version++
		value := fmt.Sprint(version)
		node, old := c.lease(0, 0)
		i.freeze(node)
		began := time.Now()
		// A read that waits on the old leader must not be answered from its state.
		read := make(chan error, 1)
		old.Barrier(func(err error) { read <- err })
		c.lease(0, old.Term()+1)
		took := time.Since(began)
		t.Logf("takeover in %v", took)
		c.write(0, "e", version, value)
		if err := <-read; entity.ReasonOf(err) != entity.OutcomeUnknown && entity.ReasonOf(err) != entity.NotExecuted {
			t.Errorf("a barrier on the old leader: %v", err)
		}
		i.thaw(node)
		c.wantEverywhere(0, "e", value)
		c.wantEqualHashes(0, "thawed "+value+" ")
		if took > 6*time.Second {
			return fmt.Sprintf("takeover took %v; 3 s are meant, 6 s allow for a busy machine", took)
		}
		return ""
	})
}

// A follower that is cut off and comes back must not unseat the leader.
func TestReturningFollowerDoesNotDisturb(t *testing.T) {
	i := newIce()
	c := newCluster(t, 3, func(config *Config) {
		config.Timing = DefaultTiming()
		i.change(config)
	})
	c.startAll(1)
	c.write(0, "e", 0, "x")
	c.wantEverywhere(0, "e", "x")
	version := uint64(0)
	attempt(t, 3, func() (void string) {
		version++
		value := fmt.Sprint(version)
		node, l := c.lease(0, 0)
		follower := "a"
		if node == "a" {
			follower = "b"
		}
		i.freeze(follower)
		r := c.host(follower).Replica(0)
		eventually(t, "the follower to miss its leader", func() bool { return r.Status().Leader == "" })
		c.write(0, "e", version, value)
		early := l.Context().Err() != nil // it rests on one follower meanwhile, and on no break of the process
		i.thaw(follower)
		c.wantEverywhere(0, "e", value)
		eventually(t, "the follower to find its leader", func() bool { return r.Status().Leader == node || l.Context().Err() != nil })
		if l.Context().Err() != nil {
			return fmt.Sprintf("the lease has ended: %v; before the return: %v", context.Cause(l.Context()), early)
		}
		return ""
	})
}

// A voter that has been started anew is asked for its vote all the same: what is
// left of the connections to its last life costs no election.
func TestVotesArePastStaleConnections(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.startAll(1)
	c.write(0, "e", 0, "x")
	from, to := c.host("a").Replica(0), c.server("b", 1)
	self := from.self
	ask := func() (err error) {
		for range connsPerPeer {
			began := time.Now()
			// Too old to be granted, and to disturb anybody.
			err = from.trans.RequestPreVote(to.id(), to.address(), &raft.RequestPreVoteRequest{
				RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(self.id()), Addr: from.trans.EncodePeer(self.id(), self.address())},
			}, &raft.RequestPreVoteResponse{})
			if err == nil || time.Since(began) <= probeLimit { // else the time was up before all was tried
				return err
			}
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if err := c.stop("b"); err != nil {
		t.Fatal(err)
	}
	c.start("b")
	c.open("b", shardConfig(0, 1, c.servers(1)))
	if err := ask(); err != nil {
		t.Errorf("asked after its restart: %v", err)
	}
}
