package cli

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "writ/proto/writ/node/v1"
)

// door is a node that answers as the test says.
type door struct {
	nodev1.UnimplementedAdminServiceServer
	name    string
	version atomic.Uint64
	mute    atomic.Bool // answers nothing, and hangs up on nobody
	broken  atomic.Bool
	forming atomic.Bool
}

func (d *door) Status(ctx context.Context, _ *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	switch {
	case d.mute.Load():
		<-ctx.Done()
		return nil, ctx.Err()
	case d.broken.Load():
		return nil, status.Error(codes.Unavailable, "broken")
	}
	res := &nodev1.StatusResponse{Node: d.name}
	if !d.forming.Load() {
		res.Meta = &nodev1.MetaState{Version: d.version.Load(), Shards: []*nodev1.ShardPlacement{{}}}
	}
	return res, nil
}

// doors are n1 and n2, and a watch that has both addresses.
func doors(t *testing.T) (n1, n2 *door, w *watch) {
	t.Helper()
	n1, n2 = &door{name: "n1"}, &door{name: "n2"}
	w = &watch{target: &target{wait: newPatience(io.Discard)}}
	for _, d := range []*door{n1, n2} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		nodev1.RegisterAdminServiceServer(server, d)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		w.target.Addr = append(w.target.Addr, listener.Addr().String())
		d.version.Store(5)
	}
	t.Cleanup(w.close)
	return n1, n2, w
}

// briefly is a context that ends when every address has been tried, some times over.
func briefly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// An order is watched through one node as long as that one can say what has come of it.
func TestWatch(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(n1, n2 *door, w *watch)
		want   string
	}{
		"n1 answers":             {func(*door, *door, *watch) {}, "n1"},
		"n1 is broken":           {func(n1, _ *door, _ *watch) { n1.broken.Store(true) }, "n2"},
		"n1 is mute":             {func(n1, _ *door, _ *watch) { n1.mute.Store(true) }, "n2"},
		"n1 knows nothing":       {func(n1, _ *door, _ *watch) { n1.forming.Store(true) }, "n2"},
		"n1 is older than seen":  {func(n1, _ *door, _ *watch) { n1.version.Store(4) }, "n2"},
		"n1 has not heard of it": {func(_, n2 *door, w *watch) { w.version = 6; n2.version.Store(7) }, "n2"},
		"n2 is broken":           {func(_, n2 *door, _ *watch) { n2.broken.Store(true) }, "n1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2, w := doors(t)
			if _, err := w.connect(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s, err := w.status(t.Context()); err != nil || s.GetNode() != "n1" {
				t.Fatalf("%v, %v", s, err)
			}
			tt.change(n1, n2, w)
			for range 2 { // it stays there
				if s, err := w.status(t.Context()); err != nil || s.GetNode() != tt.want {
					t.Errorf("%v, %v, want %s", s, err, tt.want)
				}
			}
			if tt.want == "n2" && w.version != n2.version.Load() {
				t.Errorf("version %d is the newest seen, not %d", w.version, n2.version.Load())
			}
		})
	}
}

// Once all nodes are well again the watch goes on by itself.
func TestWatchWithoutAnyNode(t *testing.T) {
	t.Parallel()
	n1, n2, w := doors(t)
	n1.forming.Store(true) // an order is given to a node that knows the cluster
	if _, err := w.connect(t.Context()); err != nil || w.version != n2.version.Load() {
		t.Fatal(err, w.version)
	}
	n1.broken.Store(true)
	n2.version.Store(4)
	if s, err := w.status(briefly(t)); err == nil || !strings.Contains(err.Error(), "node n2 is behind") {
		t.Errorf("%v, %v", s, err)
	}
	n2.version.Store(5)
	if s, err := w.status(t.Context()); err != nil || s.GetNode() != "n2" {
		t.Errorf("%v, %v", s, err)
	}
}

// A node that leaves is not asked whether it is out.
func TestWatchOfANodeThatLeaves(t *testing.T) {
	t.Parallel()
	_, n2, w := doors(t)
	w.leaves = "n1"
	if _, err := w.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err := w.status(t.Context()); err != nil || s.GetNode() != "n2" {
		t.Errorf("%v, %v", s, err)
	}
	n2.broken.Store(true)
	if s, err := w.status(briefly(t)); err == nil || !strings.Contains(err.Error(), "name another one in --addr") {
		t.Errorf("%v, %v", s, err)
	}
}
