package cli

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	nodev1 "writ/proto/writ/node/v1"
)

// slow is a node that works for an hour on each probe.
type slow struct {
	nodev1.UnimplementedAdminServiceServer
	asked chan struct{}
}

func (s *slow) DiskProbe(ctx context.Context, _ *nodev1.DiskProbeRequest) (*nodev1.DiskProbeResponse, error) {
	s.asked <- struct{}{}
	select {
	case <-time.After(time.Hour):
		return &nodev1.DiskProbeResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// machine is what a node runs on. Nothing comes from one that is dead, and what is
// sent there is not refused.
type machine struct {
	*bufconn.Listener
	dead atomic.Bool
}

func (m *machine) dial(ctx context.Context, _ string) (net.Conn, error) {
	if m.dead.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := m.DialContext(ctx)
	return &wire{conn, m}, err
}

type wire struct {
	net.Conn
	to *machine
}

func (w *wire) Read(b []byte) (int, error) {
	for {
		if n, err := w.Conn.Read(b); err != nil || !w.to.dead.Load() {
			return n, err
		}
	}
}

func (w *wire) Write(b []byte) (int, error) {
	if w.to.dead.Load() {
		return len(b), nil
	}
	return w.Conn.Write(b)
}

// TestCallsEndWithTheMachine covers that an operator's call may take as long as its
// node needs, and no longer than its node's machine lives.
func TestCallsEndWithTheMachine(t *testing.T) {
	for name, dies := range map[string]bool{"it lives": false, "it dies": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &machine{Listener: bufconn.Listen(1 << 16)}
				n := &slow{asked: make(chan struct{}, 1)}
				// As a node's own server: more pings would end the connection.
				server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
				nodev1.RegisterAdminServiceServer(server, n)
				go func() { _ = server.Serve(m) }()
				defer server.Stop()
				conn, err := (&target{wait: newPatience(io.Discard)}).dial("n1:7400", grpc.WithContextDialer(m.dial))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				began := time.Now()
				ended := make(chan error, 1)
				go func() {
					_, err := nodev1.NewAdminServiceClient(conn).DiskProbe(t.Context(), &nodev1.DiskProbeRequest{})
					ended <- err
				}()
				<-n.asked
				m.dead.Store(dies)
				err = <-ended
				switch took := time.Since(began); {
				case !dies && err != nil:
					t.Errorf("after %v: %v", took, err)
				case dies && (status.Code(err) != codes.Unavailable || took > time.Minute):
					t.Errorf("after %v: %v", took, err)
				case dies && !strings.Contains(err.Error(), "no node answers at n1:7400"):
					t.Errorf("it says %q", err)
				}
			})
		})
	}
}
