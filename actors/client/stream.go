package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	writv1 "writ/proto/writ/v1"
)

// Stream sends many commands over one SubmitStream, without waiting for each
// answer. It promises what Submit promises: a command whose answer is a trouble,
// or does not come, is taken off the stream and sent by itself, with the same
// key, as Submit would. It is safe for concurrent use.
type Stream struct {
	client *Client
	ctx    context.Context //nolint:containedctx // the life of the stream, which outlives the call that makes it
	cancel context.CancelFunc
	slots  chan struct{}
	work   sync.WaitGroup // commands without an answer yet, and readers

	mu      sync.Mutex
	current *streamConn
	tag     uint64
}

// streamConn is one gRPC stream; when it breaks the next command opens another.
type streamConn struct {
	stream grpc.BidiStreamingClient[writv1.SubmitRequest, writv1.SubmitResponse]
	cancel context.CancelFunc
	sendMu sync.Mutex // gRPC allows one sender at a time

	mu      sync.Mutex
	pending map[uint64]*pending // nil: broken, takes no more
}

// pending is a command on its way. Whoever takes it out of the map answers it.
type pending struct {
	req   *writv1.SubmitRequest
	done  func(*Outcome, error)
	timer *time.Timer
}

// Stream begins a stream on which up to window commands are in progress. It ends
// with ctx, or with Close.
func (c *Client) Stream(ctx context.Context, window int) *Stream {
	ctx, cancel := context.WithCancel(ctx)
	return &Stream{client: c, ctx: ctx, cancel: cancel, slots: make(chan struct{}, max(window, 1))}
}

// Submit sends a command and returns as soon as there is room in the window. If
// it returns nil then done is called once, from another goroutine, with what
// Client.Submit would return; it must not block, since answers queue up behind
// it. Commands take effect in no order, even those for one entity.
func (s *Stream) Submit(kind, id, key string, command proto.Message, opts SubmitOptions, done func(*Outcome, error)) error {
	req, err := s.client.request(kind, id, key, command, opts)
	if err != nil {
		return err
	}
	select {
	case s.slots <- struct{}{}:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	s.work.Add(1)
	p := &pending{req: req, done: func(o *Outcome, err error) {
		done(o, err)
		<-s.slots
		s.work.Done()
	}}
	if !s.send(p) {
		go s.alone(p, false)
	}
	return nil
}

// Close waits until every command has its answer and ends the stream. Submit
// must not be called any more.
func (s *Stream) Close() {
	for range cap(s.slots) {
		s.slots <- struct{}{} // every command has given its slot back
	}
	s.cancel()
	s.work.Wait()
}

// send puts a command on the current stream. It returns false if there is none.
func (s *Stream) send(p *pending) bool {
	conn, tag := s.connect()
	if conn == nil {
		return false
	}
	p.req.Tag = tag
	if !conn.add(s, p) {
		return false
	}
	conn.sendMu.Lock()
	defer conn.sendMu.Unlock()
	// If it fails the stream is broken: the reader notices and takes over.
	_ = conn.stream.Send(p.req)
	return true
}

// connect returns the current stream, or a new one, and the next tag.
func (s *Stream) connect() (*streamConn, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tag++
	if s.current != nil && s.current.open() {
		return s.current, s.tag
	}
	node, _ := s.client.pick(s.client.first())
	ctx, cancel := context.WithCancel(s.client.authorize(s.ctx))
	stream, err := node.service.SubmitStream(ctx)
	if err != nil {
		cancel()
		node.trouble(time.Now())
		s.current = nil
		return nil, 0
	}
	conn := &streamConn{stream: stream, cancel: cancel, pending: make(map[uint64]*pending)}
	s.current = conn
	s.work.Go(func() { s.receive(conn, node) })
	return conn, s.tag
}

// receive hands the answers of one stream to their commands until it breaks.
func (s *Stream) receive(conn *streamConn, node *endpoint) {
	defer conn.cancel()
	for {
		resp, err := conn.stream.Recv()
		if err != nil {
			if s.ctx.Err() == nil {
				node.trouble(time.Now())
			}
			for _, p := range conn.breakOff() {
				go s.alone(p, true)
			}
			return
		}
		if p := conn.take(resp.GetTag()); p != nil {
			s.answer(p, resp)
		}
	}
}

// answer finishes a command, or sends it again if its answer is a trouble.
func (s *Stream) answer(p *pending, resp *writv1.SubmitResponse) {
	if resp.GetRejection() == nil {
		p.done(outcome(resp, 1), nil)
		return
	}
	a := read(status.FromProto(resp.GetRejection()))
	if a.rejected != nil {
		a.rejected.Replayed = resp.GetReplayed()
		a.rejected.Attempts = 1
		p.done(nil, a.rejected)
		return
	}
	v := judge(a, true)
	if v.again {
		go s.alone(p, v.unknown)
		return
	}
	a.err.Attempts = 1
	a.err.Unknown = v.unknown
	p.done(nil, a.err)
}

// alone sends a command by itself. unknown tells that it may have been executed.
func (s *Stream) alone(p *pending, unknown bool) {
	p.done(s.client.submit(s.ctx, p.req, unknown))
}

func (c *streamConn) open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending != nil
}

// add puts a command on the list of those that wait; false if the stream is
// broken. A command that waits for longer than an attempt is taken off again.
func (c *streamConn) add(s *Stream, p *pending) bool {
	tag := p.req.GetTag()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending == nil {
		return false
	}
	c.pending[tag] = p
	p.timer = time.AfterFunc(s.client.cfg.AttemptTimeout, func() {
		if late := c.take(tag); late != nil {
			s.alone(late, true)
		}
	})
	return true
}

// take removes a command from the list, nil if it is not there any more.
func (c *streamConn) take(tag uint64) *pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending[tag]
	if p == nil {
		return nil
	}
	delete(c.pending, tag)
	p.timer.Stop()
	return p
}

// breakOff empties the list and takes no more.
func (c *streamConn) breakOff() []*pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	var rest []*pending
	for _, p := range c.pending {
		p.timer.Stop()
		rest = append(rest, p)
	}
	c.pending = nil
	return rest
}
