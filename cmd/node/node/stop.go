package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// How an orderly stop shares out its time.
const (
	handOverTimeout = 2 * time.Second
	inFlightTimeout = 4 * time.Second
	leaveTimeout    = time.Second
)

// ErrUnfinished is wrapped by the error of a Stop that ran out of time. The process
// may end all the same: what is acknowledged is synced in the log, and the next start
// replays what did not get into the files.
var ErrUnfinished = errors.New("stopped before the end")

// Stop ends the node in order: not ready, leaderships handed over, calls in
// progress finished, gossip left, files closed. It may be called more than once;
// all calls wait for the same stop, each for its own time. After ErrUnfinished
// the node must not be started again in this process.
func (n *Node) Stop(ctx context.Context) error {
	n.stopOnce.Do(func() {
		n.stopped = make(chan struct{})
		go func() { // ends when everything has; a hanging disk may keep it for good
			defer close(n.stopped)
			n.stopErr = n.stop(ctx)
		}()
	})
	select {
	case <-n.stopped:
		return n.stopErr
	case <-ctx.Done():
		return fmt.Errorf("%w, while %s", ErrUnfinished, n.stopping())
	}
}

// The steps of a stop that may take their time.
const (
	stepHandOver = "leaderships were handed over"
	stepCalls    = "calls in progress were finished"
	stepGossip   = "gossip was left"
	stepFiles    = "files were closed"
)

// stopping says what a stop is doing.
func (n *Node) stopping() string {
	step, _ := n.step.Load().(string)
	p := n.parts()
	if step != stepFiles || p == nil {
		return step
	}
	if open := p.host.Unclosed(); len(open) > 0 {
		return fmt.Sprintf("%s: not flushed are shards %v, which the next start replays from the log", step, open)
	}
	return step
}

func (n *Node) stop(ctx context.Context) error {
	n.draining.Store(true)
	n.log.Info("stopping")
	n.step.Store(stepHandOver)
	if p := n.parts(); p != nil {
		n.handOver(ctx, p)
	}
	n.step.Store(stepCalls)
	calls, cancel := context.WithTimeout(ctx, inFlightTimeout)
	defer cancel()
	n.server.Shutdown(calls)
	n.step.Store(stepGossip)
	if err := n.gossip.Leave(leaveTimeout); err != nil {
		// Nobody heard; they will notice.
		n.log.Warn("gossip was not told of the stop", slog.Any("error", err))
	}
	n.cancel()
	n.step.Store(stepFiles)
	closed := n.parts()
	unbounded := context.WithoutCancel(ctx) // whoever waits gives up by itself
	err := n.close(unbounded)
	n.wg.Wait()
	if p := n.parts(); p != nil && closed == nil { // opened meanwhile
		err = errors.Join(err, p.close(unbounded))
	}
	n.log.Info("stopped")
	return err
}

// leaveLeading has leaderships handed over at once, while the node goes on: the
// agent gives each one, then and later, to a node that is better off.
func (n *Node) leaveLeading() {
	if p := n.parts(); p != nil {
		p.agent.Poke()
	}
}

// handOver gives every leadership to another voter, all shards at once.
func (n *Node) handOver(ctx context.Context, p *parts) {
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, r := range p.host.Replicas() {
		if r.Lease() == nil || len(r.Status().Voters) < 2 {
			continue
		}
		wg.Go(func() {
			if err := r.TransferLeadership(ctx, ""); err != nil {
				n.log.Warn("leadership not handed over", slog.Uint64("shard", uint64(r.Shard())), slog.Any("error", err))
			}
		})
	}
	if voters, _ := p.meta.Members(); p.meta.IsLeader() && len(voters) > 1 {
		wg.Go(func() {
			if err := p.meta.TransferLeadership(ctx, ""); err != nil {
				n.log.Warn("leadership of the meta group not handed over", slog.Any("error", err))
			}
		})
	}
	wg.Wait()
}

// close ends whatever is open.
func (n *Node) close(ctx context.Context) error {
	var errs []error
	if n.http != nil {
		errs = append(errs, n.http.Close())
	}
	if p := n.parts(); p != nil {
		errs = append(errs, p.close(ctx))
	}
	if n.pool != nil {
		errs = append(errs, n.pool.Close())
	}
	if n.gossip != nil {
		errs = append(errs, n.gossip.Close())
	}
	for _, l := range []net.Listener{n.listeners.grpc, n.listeners.http, n.listeners.raft} {
		if l != nil {
			_ = l.Close() // its server may have closed it
		}
	}
	if n.tracing != nil {
		n.tracing.close(ctx)
	}
	if n.hands != nil {
		n.hands.close() // before another process may have the folder
	}
	if n.identity != nil {
		errs = append(errs, n.identity.Close())
	}
	return errors.Join(errs...)
}
