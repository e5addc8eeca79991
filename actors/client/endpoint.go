package client

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	writv1 "writ/proto/writ/v1"
)

const (
	// avoidFor is how long a node in trouble is asked only if all are.
	avoidFor = time.Second

	pingEvery   = 10 * time.Second
	pingTimeout = 3 * time.Second
	dialTimeout = time.Second
	redialMin   = 50 * time.Millisecond
	redialMax   = time.Second
	headerBytes = 16 << 10
)

// endpoint is one node's address with its connection.
type endpoint struct {
	address string
	conn    *grpc.ClientConn
	service writv1.EntityServiceClient
	// avoid is a Unix time, ns: until then the node is thought to be in trouble.
	avoid atomic.Int64
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
	return &endpoint{address: address, conn: conn, service: writv1.NewEntityServiceClient(conn)}, nil
}

func (e *endpoint) trouble(now time.Time) { e.avoid.Store(now.Add(avoidFor).UnixNano()) }
func (e *endpoint) works()                { e.avoid.Store(0) }

func (e *endpoint) avoided(now time.Time) bool { return e.avoid.Load() > now.UnixNano() }

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
