package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// acceptPause is the pause after the listener has given an error.
const acceptPause = 50 * time.Millisecond

// accept takes connections until the host closes.
func (h *Host) accept() {
	for {
		conn, err := h.config.Listener.Accept()
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed) || h.ctx.Err() != nil:
			return
		default:
			h.logger.Warn("accept", slog.Any("error", err))
			pause(h.ctx, acceptPause)
			continue
		}
		if !h.greet(conn) {
			_ = conn.Close()
			return
		}
		h.goroutine.Go(func() { h.handshake(conn) })
	}
}

// handshake checks one connection and hands it to its group.
func (h *Host) handshake(conn net.Conn) {
	defer h.greeted(conn)
	ctx, cancel := context.WithTimeout(h.ctx, h.config.Timing.Dial)
	defer cancel()
	deadline, _ := ctx.Deadline()
	var to *group
	got, err := receive(conn, func(said hello) (err error) {
		to, err = h.addressee(said)
		return err
	}, deadline)
	if err == nil {
		err = to.trans.streams.deliver(ctx, conn, got.from)
	} else {
		_ = conn.Close()
	}
	if err != nil && h.ctx.Err() == nil {
		h.logger.Debug("connection refused", slog.String("remote", conn.RemoteAddr().String()), slog.String("from", got.from), slog.Any("error", err))
	}
}

// addressee finds the group that a handshake asks for, or says why not.
func (h *Host) addressee(said hello) (*group, error) {
	if said.cluster != h.config.ClusterID {
		return nil, fmt.Errorf("this node belongs to cluster %s, not to %s", h.config.ClusterID, said.cluster)
	}
	for _, g := range h.groups() {
		if g.key.shard != said.shard {
			continue
		}
		return g, g.trans.streams.welcome(said)
	}
	return nil, fmt.Errorf("node %s serves no replica of shard %d", h.config.Node, said.shard)
}

// groups are the groups that run.
func (h *Host) groups() (running []*group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.meta != nil {
		running = append(running, h.meta.group)
	}
	for _, r := range h.replicas {
		if state, _ := r.standing(); state == Serving {
			running = append(running, r.group)
		}
	}
	return running
}

// greet notes a connection whose handshake begins; false if the host closes.
func (h *Host) greet(conn net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return false
	}
	h.greeting[conn] = struct{}{}
	return true
}

func (h *Host) greeted(conn net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.greeting, conn)
}

// dropGreetings closes the connections in the middle of their handshake.
func (h *Host) dropGreetings() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for conn := range h.greeting {
		_ = conn.Close()
	}
}

// dialNode connects to a node by name.
func (h *Host) dialNode(ctx context.Context, node string) (net.Conn, error) {
	addr, ok := h.config.Resolve(node)
	if !ok {
		return nil, errors.New("its address is not known")
	}
	return h.config.Dial(ctx, addr)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
