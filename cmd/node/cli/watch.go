package cli

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "writ/proto/writ/node/v1"
)

// watch asks what has come of an order. It stays with one node as long as that one has
// something to say.
type watch struct {
	target *target
	// The node that leaves the cluster by the order, if one does: it is not asked, for
	// nobody tells it when it is out.
	leaves string
	// Version of the order, then of the newest state seen: an older one may not know of
	// the order, or of what has come of it.
	version uint64

	conn      *grpc.ClientConn
	closeConn func()
}

// connect connects to the first node that may be asked.
func (w *watch) connect(ctx context.Context) (nodev1.AdminServiceClient, error) {
	_, err := w.choose(ctx)
	return nodev1.NewAdminServiceClient(w.conn), err
}

// status asks the node that answered last, and if that one fails or is behind, the
// first that does better.
func (w *watch) status(ctx context.Context) (*nodev1.StatusResponse, error) {
	if w.conn != nil {
		asked, cancel := context.WithTimeout(ctx, probeFor)
		s, err := w.ask(asked, w.conn)
		cancel()
		if err == nil {
			return s, nil
		}
		w.close()
	}
	return w.choose(ctx)
}

func (w *watch) choose(ctx context.Context) (s *nodev1.StatusResponse, err error) {
	w.conn, w.closeConn, err = w.target.connect(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		s, err = w.ask(ctx, conn)
		return err
	})
	return s, err
}

func (w *watch) ask(ctx context.Context, conn *grpc.ClientConn) (*nodev1.StatusResponse, error) {
	s, err := nodev1.NewAdminServiceClient(conn).Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return nil, err
	}
	if err := knowsShards(s); err != nil {
		return nil, err
	}
	switch version := s.GetMeta().GetVersion(); {
	case w.leaves != "" && s.GetNode() == w.leaves:
		return nil, noNews("node %s is the one to be removed, and does not hear when it is out: name another one in --addr", w.leaves)
	case version < w.version:
		return nil, noNews("node %s is behind: it does not know yet what the cluster has decided", s.GetNode())
	default:
		w.version = version
		return s, nil
	}
}

func (w *watch) close() {
	if w.conn != nil {
		w.closeConn()
		w.conn = nil
	}
}

// noNews is the error of an answer that is of no use, as if none had come: another
// node is asked.
func noNews(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return &callError{text: text, err: status.Error(codes.Unavailable, text)}
}
