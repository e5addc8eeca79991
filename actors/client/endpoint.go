package client

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	writv1 "writ/proto/writ/v1"
)

const (
	// avoidFor is how long a node in trouble is asked only if all nodes are in trouble.
	avoidFor = time.Second
	// silentFor is how long a node may answer nothing at all, while an attempt waits,
	// before the next calls go to other nodes first: a lost machine never answers. A
	// node that is merely slow only loses its turn.
	silentFor = 500 * time.Millisecond

	pingEvery   = 10 * time.Second
	pingTimeout = 3 * time.Second
	dialTimeout = time.Second
	redialMin   = 50 * time.Millisecond
	redialMax   = time.Second
	headerBytes = 16 << 10

	// Windows of fixed size, bytes: those that grow cost a ping for almost every
	// call of a client that makes one at a time.
	streamWindow     = 1 << 20
	connectionWindow = 4 << 20
)

// endpoint is one node's address with its connection.
type endpoint struct {
	address string
	conn    *grpc.ClientConn
	service writv1.EntityServiceClient
	// born is where the times of this struct begin, nanoseconds by the monotonic
	// clock: a step of the wall clock must not make a node look silent.
	born time.Time
	// avoid: until then the node is thought to be in trouble.
	avoid atomic.Int64
	// asked is when the first attempt began since one has last ended; 0: none has.
	asked atomic.Int64
	// met: there has been a connection.
	met atomic.Bool
}

func newEndpoint(address string, cfg Config) (*endpoint, error) {
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		creds = credentials.NewTLS(cfg.TLS)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, // the dialer resolves names, at each dial
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(), // the client's own loop knows what is safe
		grpc.WithDisableServiceConfig(),
		grpc.WithStatsHandler(sentRecorder{}),
		grpc.WithMaxHeaderListSize(headerBytes),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connectionWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(cfg.MessageMax), grpc.MaxCallSendMsgSize(cfg.MessageMax)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: redialMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: redialMax},
			MinConnectTimeout: dialTimeout,
		}),
	)
	if err != nil {
		return nil, err
	}
	return &endpoint{born: time.Now(), address: address, conn: conn, service: writv1.NewEntityServiceClient(conn)}, nil
}

// at is a time since the endpoint was made, never 0.
func (e *endpoint) at(now time.Time) int64 { return 1 + int64(now.Sub(e.born)) }

func (e *endpoint) trouble(now time.Time) { e.avoid.Store(e.at(now.Add(avoidFor))) }

func (e *endpoint) works() {
	e.avoid.Store(0)
	e.met.Store(true)
}

// ask is called when an attempt begins, heard when one ends.
func (e *endpoint) ask(now time.Time) { e.asked.CompareAndSwap(0, e.at(now)) }
func (e *endpoint) heard()            { e.asked.Store(0) }

// avoided reports whether others should be asked first.
func (e *endpoint) avoided(now time.Time) bool {
	return e.avoid.Load() > e.at(now) || e.silent(now) || e.down()
}

func (e *endpoint) silent(now time.Time) bool {
	asked := e.asked.Load()
	return asked != 0 && asked < e.at(now.Add(-silentFor))
}

// down reports whether the connection has ended, or could not be made, and there
// is no new one yet: whatever is sent now would fail. gRPC goes on dialling.
func (e *endpoint) down() bool {
	switch e.conn.GetState() {
	case connectivity.Ready:
		e.met.Store(true)
		return false
	case connectivity.Idle: // before the first call, or after the connection has ended
		if !e.met.Load() {
			return false
		}
		e.conn.Connect()
		return true
	case connectivity.Connecting:
		return e.met.Load()
	case connectivity.TransientFailure, connectivity.Shutdown:
	}
	return true
}

// sentRecorder notes for each attempt whether gRPC has handed any of it to a
// connection. Before that it has certainly not left the process.
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
