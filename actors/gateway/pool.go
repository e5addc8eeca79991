package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"writ/actors/entity"
)

// Addresses tells where a node's gRPC port is, at the moment of asking.
type Addresses interface {
	Address(node string) (grpc string, ok bool)
}

// Timing of connections between nodes. Pings find a peer that has vanished
// without a word within pingEvery + pingTimeout; a broken connection is found at
// once. A server allows pings every pingMin, the client never sends them faster
// than every 10 s (a rule of gRPC).
const (
	pingEvery    = 10 * time.Second
	pingTimeout  = 3 * time.Second
	pingMin      = 5 * time.Second
	dialTimeout  = time.Second
	redialMin    = 50 * time.Millisecond
	redialMax    = time.Second
	redialFactor = 1.6
	redialJitter = 0.2
)

// traffic separates connections: a batch of large events must not stand in the
// way of a command.
type traffic int

const (
	commands traffic = iota
	events
)

// PoolConfig says how to connect to other nodes.
type PoolConfig struct {
	Addresses Addresses
	// Credentials of the connections; nil: plain text.
	Credentials credentials.TransportCredentials
	// Secret is shown with every call; nil: none.
	Secret *NodeSecret
	Limits Limits
}

// Pool keeps two connections to each node that was called: one for commands and
// control, one for events. It is safe for concurrent use.
type Pool struct {
	addresses Addresses
	options   []grpc.DialOption

	mu     sync.Mutex
	links  map[linkKey]*link
	closed bool
}

type linkKey struct {
	node    string
	traffic traffic
}

// link is a connection to one address of a node. If the node moves, its calls in
// progress end on the old link, which is closed after the last of them.
type link struct {
	address string
	conn    *grpc.ClientConn
	users   int // guarded by Pool.mu
	retired bool
}

// NewPool makes a pool without connections.
func NewPool(cfg PoolConfig) (*Pool, error) {
	if cfg.Addresses == nil {
		return nil, errors.New("pool: addresses must be set")
	}
	if err := cfg.Limits.Validate(); err != nil {
		return nil, err
	}
	creds := cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(), // the router decides what is safe to repeat
		grpc.WithDisableServiceConfig(),
		grpc.WithStatsHandler(sentRecorder{}),
		grpc.WithMaxHeaderListSize(headerBytes),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connectionWindow),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(cfg.Limits.Message),
			grpc.MaxCallSendMsgSize(cfg.Limits.Message),
		),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: pingEvery, Timeout: pingTimeout, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: redialMin, Multiplier: redialFactor, Jitter: redialJitter, MaxDelay: redialMax,
			},
			MinConnectTimeout: dialTimeout,
		}),
	}
	if cfg.Secret != nil {
		options = append(options, grpc.WithPerRPCCredentials(cfg.Secret))
	}
	return &Pool{addresses: cfg.Addresses, links: make(map[linkKey]*link), options: options}, nil
}

// Close ends all connections. Calls in progress fail with OUTCOME_UNKNOWN.
func (p *Pool) Close() error {
	p.mu.Lock()
	links := p.links
	p.links = nil
	p.closed = true
	p.mu.Unlock()
	var errs []error
	for _, l := range links {
		errs = append(errs, l.conn.Close())
	}
	return errors.Join(errs...)
}

// acquire finds or makes the connection to a node. The error says that nothing
// was sent.
func (p *Pool) acquire(node string, t traffic) (*link, error) {
	address, ok := p.addresses.Address(node)
	if !ok {
		return nil, entity.Errorf(entity.NotExecuted, "the address of node %s is not known here", short(node, 64))
	}
	l, old, err := p.use(linkKey{node, t}, address)
	if old != nil {
		_ = old.conn.Close() // nobody uses it
	}
	if err != nil {
		return nil, entity.Errorf(entity.NotExecuted, "connect to node %s: %s", short(node, 64), err)
	}
	return l, nil
}

// use takes the link of key to address. A link to an earlier address is retired
// and returned as old if it is free to be closed.
func (p *Pool) use(key linkKey, address string) (l, old *link, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, errors.New("the node is shutting down")
	}
	l = p.links[key]
	if l != nil && l.address != address {
		l.retired = true
		if l.users == 0 {
			old = l
		}
		l = nil
	}
	if l == nil {
		// Dials nothing yet. The address is used as it is, without a resolver.
		conn, err := grpc.NewClient("passthrough:///"+address, p.options...)
		if err != nil {
			delete(p.links, key)
			return nil, old, fmt.Errorf("address %q: %w", address, err)
		}
		l = &link{address: address, conn: conn}
		p.links[key] = l
	}
	l.users++
	return l, old, nil
}

func (p *Pool) release(l *link) {
	p.mu.Lock()
	l.users--
	last := l.retired && l.users == 0
	p.mu.Unlock()
	if last {
		_ = l.conn.Close() // nobody uses it
	}
}

// sentRecorder notes for each call whether gRPC has handed any of it to a
// connection. Before that the call has certainly not left the node.
type sentRecorder struct{}

type sentKey struct{}

func withSent(ctx context.Context) (context.Context, *atomic.Bool) {
	sent := new(atomic.Bool)
	return context.WithValue(ctx, sentKey{}, sent), sent
}

// HandleRPC implements stats.Handler.
func (sentRecorder) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.OutHeader, *stats.OutPayload:
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			sent.Store(true)
		}
	}
}

// TagRPC implements stats.Handler.
func (sentRecorder) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (sentRecorder) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (sentRecorder) HandleConn(context.Context, stats.ConnStats) {}
