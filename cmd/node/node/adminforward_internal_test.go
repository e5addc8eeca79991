package node

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	nodev1 "writ/proto/writ/node/v1"
)

// busyNode takes a call and does not come back from it.
type busyNode struct {
	nodev1.UnimplementedAdminServiceServer
	asked chan struct{}
}

func (n *busyNode) AuditShard(ctx context.Context, _ *nodev1.AuditShardRequest) (*nodev1.AuditShardResponse, error) {
	close(n.asked)
	<-ctx.Done()
	return nil, ctx.Err()
}

// deadConn is a connection to a machine that may die: then nothing comes from it any
// more, and what is sent to it is not refused.
type deadConn struct {
	net.Conn
	dead *atomic.Bool
}

func (c deadConn) Read(b []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(b); err != nil || !c.dead.Load() {
			return n, err
		}
	}
}

func (c deadConn) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// TestPassedOnCallsEndWithTheMachine covers that a call which is passed on does not
// wait for a machine that has died, before the call or while it is in progress.
func TestPassedOnCallsEndWithTheMachine(t *testing.T) {
	for name, tt := range map[string]struct {
		before bool
		most   time.Duration
	}{
		"before":      {true, nextDialTimeout},
		"in progress": {false, operatorPing + operatorPingTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &busyNode{asked: make(chan struct{})}
				var dead atomic.Bool
				dead.Store(tt.before)
				listener := bufconn.Listen(1 << 16)
				server := grpc.NewServer()
				nodev1.RegisterAdminServiceServer(server, n)
				go func() { _ = server.Serve(listener) }()
				defer server.Stop()
				conn, err := dialNext("n2:7400", 1<<20, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
					if dead.Load() {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					conn, err := listener.DialContext(ctx)
					return deadConn{conn, &dead}, err
				}))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				began := time.Now()
				go func() {
					<-n.asked
					dead.Store(true)
				}()
				_, err = nodev1.NewAdminServiceClient(conn).AuditShard(t.Context(), &nodev1.AuditShardRequest{})
				if tt.before {
					close(n.asked) // nobody was asked
				}
				if took := time.Since(began); status.Code(err) != codes.Unavailable || took > tt.most+time.Second {
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}
