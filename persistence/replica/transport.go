package replica

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// connsPerPeer is the number of idle connections kept to each peer of a group:
// heartbeats, appends and one for votes.
const connsPerPeer = 3

var (
	errCut       = errors.New("this replica's connections are cut")
	errSuspended = errors.New("this replica is suspended: its disk does not answer")
	errGone      = errors.New("the peer is no longer in the group")
)

// dialer connects to nodes by name, and knows what may be written to them.
type dialer interface {
	dialNode(ctx context.Context, node string) (net.Conn, error)
	ActiveFormat() uint32
}

// transport carries one group's Raft messages. It is raft's own network transport
// over a stream layer that opens connections with a handshake; embedding keeps
// its pre-vote.
//
// Peers are called by server id, not by address: a message can only reach the
// replica generation it is meant for. Votes, too, are recorded by server id.
type transport struct {
	*raft.NetworkTransport
	streams  *streams
	timeout  time.Duration
	incoming chan raft.RPC
}

func newTransport(s *streams, timeout time.Duration, logger hclog.Logger) *transport {
	return &transport{
		streams:  s,
		timeout:  timeout,
		incoming: make(chan raft.RPC),
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream:                s,
			ServerAddressProvider: idsAsAddresses{},
			MaxPool:               connsPerPeer,
			Timeout:               timeout,
			Logger:                logger,
		}),
	}
}

// Consumer implements raft.Transport: the messages that pass has seen. Heartbeats go
// another way.
func (t *transport) Consumer() <-chan raft.RPC { return t.incoming }

// pass hands incoming messages to raft and notes what they tell of how far the
// leader is, until the transport is closed.
func (t *transport) pass(c *catchUp) {
	for {
		var rpc raft.RPC
		select {
		case rpc = <-t.NetworkTransport.Consumer():
		case <-t.streams.done:
			return
		}
		switch said := rpc.Command.(type) {
		case *raft.AppendEntriesRequest:
			c.hear(milestone{said.Term, said.LeaderCommitIndex})
		case *raft.InstallSnapshotRequest:
			sender := string(said.ID)
			on := &reception{from: rpc.Reader, size: said.Size, patience: t.timeout, giveUp: func() { t.streams.hangUp(sender) }}
			c.receiving.Store(on)
			rpc.Reader = on
		}
		select {
		case t.incoming <- rpc:
		case <-t.streams.done:
			return
		}
	}
}

// RequestPreVote implements raft.WithPreVote.
func (t *transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return pastStale(func() error { return t.NetworkTransport.RequestPreVote(id, target, req, resp) })
}

// RequestVote implements raft.Transport.
func (t *transport) RequestVote(id raft.ServerID, target raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return pastStale(func() error { return t.NetworkTransport.RequestVote(id, target, req, resp) })
}

// pastStale asks for a vote again if asking failed at once. That an idle connection
// leads to a process that has since been restarted is noticed only when it is used,
// and raft itself would not ask again before the next election. Asking twice for a
// vote does no harm.
func pastStale(ask func() error) error {
	began := time.Now()
	err := ask()
	for range connsPerPeer {
		if err == nil || time.Since(began) > probeLimit {
			break
		}
		err = ask()
	}
	return err
}

// partFrom ends the connections to servers that have left the group. Raft keeps those
// that it does not use, with a large buffer each, for a next call, which never comes;
// there is no other way to have it let them go than calls that fail.
func (t *transport) partFrom(gone func(server string) bool) {
	for _, id := range t.streams.peers() {
		if !gone(id) {
			continue
		}
		t.streams.refuse(id)
		for range connsPerPeer {
			req := &raft.RequestPreVoteRequest{} // never sent: its connection is closed
			_ = t.NetworkTransport.RequestPreVote(raft.ServerID(id), raft.ServerAddress(id), req, &raft.RequestPreVoteResponse{})
		}
		t.streams.refuse("")
	}
}

// DecodePeer finds the node of the server id in a message's header.
func (t *transport) DecodePeer(encoded []byte) raft.ServerAddress {
	s, err := parseServer(string(encoded))
	if err != nil {
		return raft.ServerAddress(encoded)
	}
	return s.address()
}

// timeoutNow makes the own replica stand for election at once, as if its leader
// had asked it to.
func (t *transport) timeoutNow() error {
	self := t.streams.self
	req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax,
		ID:              []byte(self.id()),
		Addr:            t.EncodePeer(self.id(), self.address()),
	}}
	return t.TimeoutNow(self.id(), self.address(), req, &raft.TimeoutNowResponse{})
}

// cut ends all connections for good. Raft's transport is closed later, by raft.
func (t *transport) cut() {
	t.streams.stop(errCut)
	t.CloseStreams()
}

// suspend ends all connections and refuses new ones until resume.
func (t *transport) suspend() {
	t.streams.stop(errSuspended)
	t.CloseStreams()
}

func (t *transport) resume() { t.streams.resume() }

type idsAsAddresses struct{}

func (idsAsAddresses) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	return raft.ServerAddress(id), nil
}

// streams is the stream layer of one group: raft.StreamLayer on top of the
// node's shared listener.
type streams struct {
	self    Server
	hello   hello // cluster, shard and epoch
	dialer  dialer
	timeout time.Duration
	// broken is told the server id whose last incoming connection has ended. It
	// must not block.
	broken func(from string)

	incoming chan net.Conn
	done     chan struct{} // closed by Close

	mu       sync.Mutex
	closed   bool
	stopped  error  // errCut, errSuspended or nil
	refused  string // server id of a peer that is not dialled now; "": none
	open     map[*groupConn]struct{}
	accepted map[string]int // incoming connections by server id
}

func newStreams(self Server, h hello, d dialer, timeout time.Duration, broken func(string)) *streams {
	h.from = self.String()
	return &streams{
		self: self, hello: h, dialer: d, timeout: timeout, broken: broken,
		incoming: make(chan net.Conn),
		done:     make(chan struct{}),
		open:     map[*groupConn]struct{}{},
		accepted: map[string]int{},
	}
}

// Accept returns the next incoming connection that has passed the handshake.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case conn := <-s.incoming:
		return conn, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Close ends the stream layer and all its connections.
func (s *streams) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	s.mu.Unlock()
	s.stop(errCut)
	return nil
}

// Addr is the node's name: raft takes it for the local server address.
func (s *streams) Addr() net.Addr { return nodeAddr(s.self.Node) }

type nodeAddr string

func (nodeAddr) Network() string  { return "writ" }
func (a nodeAddr) String() string { return string(a) }

// Dial connects to a replica by its server id; to the own one through memory.
func (s *streams) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), min(timeout, s.timeout))
	defer cancel()
	if string(address) == s.hello.from {
		near, far := net.Pipe()
		if err := s.deliver(ctx, far, s.hello.from); err != nil {
			return nil, errors.Join(err, near.Close())
		}
		return s.track(near, "", "")
	}
	return s.dial(ctx, string(address))
}

func (s *streams) dial(ctx context.Context, to string) (net.Conn, error) {
	if err := s.mayDial(to); err != nil {
		return nil, err
	}
	peer, err := parseServer(to)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	conn, err := s.dialer.dialNode(ctx, peer.Node)
	if err != nil {
		return nil, fmt.Errorf("dial node %s: %w", peer.Node, err)
	}
	h := s.hello
	h.to, h.format = to, s.dialer.ActiveFormat()
	deadline, _ := ctx.Deadline()
	if err := greet(conn, h, deadline); err != nil {
		return nil, errors.Join(fmt.Errorf("greet %s: %w", to, err), conn.Close())
	}
	return s.track(conn, "", to)
}

// alive reports whether a peer's replica takes connections.
func (s *streams) alive(ctx context.Context, to string) bool {
	conn, err := s.dial(ctx, to)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// welcome is the group's part in checking an incoming handshake.
func (s *streams) welcome(h hello) error {
	if err := s.usable(); err != nil {
		return err
	}
	switch {
	case h.epoch != s.hello.epoch:
		return fmt.Errorf("shard %d is at epoch %d here, not %d", h.shard, s.hello.epoch, h.epoch)
	case h.to != s.hello.from:
		return fmt.Errorf("the replica of shard %d here is %s, not %s", h.shard, s.hello.from, h.to)
	}
	if _, err := parseServer(h.from); err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	return nil
}

// deliver hands a greeted connection to raft's transport.
func (s *streams) deliver(ctx context.Context, conn net.Conn, from string) error {
	tracked, err := s.track(conn, from, "")
	if err != nil {
		return err
	}
	select {
	case s.incoming <- tracked:
		return nil
	case <-s.done:
		return errors.Join(errCut, tracked.Close())
	case <-ctx.Done():
		return errors.Join(ctx.Err(), tracked.Close())
	}
}

// track keeps a connection until it is closed. From is empty for outgoing ones, and
// to for incoming ones and those to this replica itself.
func (s *streams) track(conn net.Conn, from, to string) (*groupConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped != nil {
		return nil, errors.Join(s.stopped, conn.Close())
	}
	if to != "" && to == s.refused {
		return nil, errors.Join(errGone, conn.Close())
	}
	c := &groupConn{Conn: conn, streams: s, from: from, to: to}
	s.open[c] = struct{}{}
	if from != "" {
		s.accepted[from]++
	}
	return c, nil
}

func (s *streams) untrack(c *groupConn) {
	s.mu.Lock()
	last := false
	if _, open := s.open[c]; open {
		delete(s.open, c)
		if c.from != "" {
			s.accepted[c.from]--
			if last = s.accepted[c.from] == 0; last {
				delete(s.accepted, c.from)
			}
		}
	}
	stopped := s.stopped != nil
	s.mu.Unlock()
	if last && !stopped {
		s.broken(c.from)
	}
}

// connected reports whether a server has an incoming connection here.
func (s *streams) connected(from string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted[from] > 0
}

func (s *streams) usable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

func (s *streams) mayDial(to string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped == nil && to == s.refused {
		return errGone
	}
	return s.stopped
}

// peers are the server ids to which there are outgoing connections.
func (s *streams) peers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]bool{}
	for c := range s.open {
		if c.to != "" {
			ids[c.to] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// refuse ends the connections to a peer and makes no new ones to it, until another
// one is refused, or with "" none.
func (s *streams) refuse(to string) {
	s.mu.Lock()
	s.refused = to
	open := s.those(func(c *groupConn) bool { return to != "" && c.to == to })
	s.mu.Unlock()
	closeAll(open)
}

// hangUp ends the incoming connections from a server. It may make new ones.
func (s *streams) hangUp(from string) {
	s.mu.Lock()
	open := s.those(func(c *groupConn) bool { return c.from == from })
	s.mu.Unlock()
	closeAll(open)
}

// stop ends all connections and refuses new ones, giving the reason. A cut is
// final.
func (s *streams) stop(reason error) {
	s.mu.Lock()
	if !errors.Is(s.stopped, errCut) {
		s.stopped = reason
	}
	open := s.those(func(*groupConn) bool { return true })
	s.mu.Unlock()
	closeAll(open)
}

// those are the open connections of a kind. The caller holds mu.
func (s *streams) those(kind func(*groupConn) bool) (open []*groupConn) {
	for c := range s.open {
		if kind(c) {
			open = append(open, c)
		}
	}
	return open
}

// closeAll closes connections. The caller does not hold mu.
func closeAll(open []*groupConn) {
	for _, c := range open {
		_ = c.Close()
	}
}

func (s *streams) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.stopped, errSuspended) {
		s.stopped = nil
	}
}

// groupConn is a connection that its group knows of.
type groupConn struct {
	net.Conn
	streams  *streams
	from, to string
	once     sync.Once
}

// Close closes the connection and tells the group.
func (c *groupConn) Close() (err error) {
	c.once.Do(func() {
		err = c.Conn.Close()
		c.streams.untrack(c)
	})
	return err
}
