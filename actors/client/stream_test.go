package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"writ/actors/client"
	"writ/actors/entity"
	"writ/actors/gateway"
	writv1 "writ/proto/writ/v1"
)

func toStatus(err error) error { return gateway.ToStatus(err) }

// streamNode counts by key what it has executed: a command is executed once.
// On its stream it answers as its function says; alone always with the outcome.
type streamNode struct {
	fakeNode
	onStream func(req *writv1.SubmitRequest) *writv1.SubmitResponse // nil: no answer

	once     sync.Mutex
	executed map[string]int
}

func (n *streamNode) execute(key string) {
	n.once.Lock()
	defer n.once.Unlock()
	if n.executed == nil {
		n.executed = map[string]int{}
	}
	n.executed[key]++
}

func (n *streamNode) SubmitStream(stream grpc.BidiStreamingServer[writv1.SubmitRequest, writv1.SubmitResponse]) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil
		}
		if resp := n.onStream(req); resp != nil {
			resp.Tag = req.GetTag()
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
	}
}

// results collects what a stream's commands came to.
type results struct {
	mu   sync.Mutex
	outs map[string]*client.Outcome
	errs map[string]error
	n    int
}

func (r *results) done(key string) func(*client.Outcome, error) {
	return func(out *client.Outcome, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.n++
		if err != nil {
			r.errs[key] = err
		} else {
			r.outs[key] = out
		}
	}
}

func newResults() *results {
	return &results{outs: map[string]*client.Outcome{}, errs: map[string]error{}}
}

// TestStream: every command has one answer; troubles are sent again alone.
func TestStream(t *testing.T) {
	const commands = 500
	var n atomic.Int64
	node := &streamNode{}
	node.onStream = func(req *writv1.SubmitRequest) *writv1.SubmitResponse {
		switch n.Add(1) % 5 {
		case 0:
			return &writv1.SubmitResponse{Rejection: status.Convert(answer(entity.NotExecuted)).Proto()}
		case 1:
			node.execute(req.GetIdempotencyKey())
			return &writv1.SubmitResponse{Rejection: rejection(codes.OutOfRange, "LIMIT", "no"), Replayed: true}
		case 2:
			return &writv1.SubmitResponse{Rejection: status.Convert(answer(entity.Invalid)).Proto()}
		default:
			node.execute(req.GetIdempotencyKey())
			return executed(req)
		}
	}
	address, _ := serve(t, node)
	s := connect(t, nil, address).Stream(t.Context(), 32)
	r := newResults()
	for i := range commands {
		key := fmt.Sprint(i)
		must(t, s.Submit("account", "a", key, deposit(), client.SubmitOptions{}, r.done(key)))
	}
	s.Close()
	if r.n != commands || len(r.outs) != commands*3/5 || len(r.errs) != commands*2/5 {
		t.Errorf("%d answers, %d outcomes, %d errors", r.n, len(r.outs), len(r.errs))
	}
	rejected := 0
	for _, err := range r.errs {
		var rej *client.RejectedError
		if errors.As(err, &rej) && rej.Replayed && rej.Reason == "LIMIT" {
			rejected++
		}
	}
	if rejected != commands/5 || len(node.submits()) != commands/5 {
		t.Errorf("%d rejected, %d sent alone", rejected, len(node.submits()))
	}
	if err := s.Submit("account", "a", "late", deposit(), client.SubmitOptions{}, r.done("late")); err == nil {
		t.Error("a closed stream takes commands")
	}
}

// TestStreamBreaks: the node dies with commands in hand; each is finished at the
// other node, with its own key, and no answer is lost.
func TestStreamBreaks(t *testing.T) {
	const commands = 200
	var taken atomic.Int64
	half := make(chan struct{})
	dying := &streamNode{onStream: func(req *writv1.SubmitRequest) *writv1.SubmitResponse {
		if taken.Add(1) == commands/4 {
			close(half)
		}
		return nil
	}}
	heir := &streamNode{onStream: executed}
	addressA, stopA := serve(t, dying)
	addressB, _ := serve(t, heir)
	s := connect(t, nil, addressA, addressB).Stream(t.Context(), commands)
	r := newResults()
	go func() {
		<-half
		stopA()
	}()
	for i := range commands {
		key := fmt.Sprint(i)
		must(t, s.Submit("account", "a", key, deposit(), client.SubmitOptions{}, r.done(key)))
	}
	s.Close()
	if r.n != commands || len(r.outs) != commands {
		t.Errorf("%d answers, %d outcomes; %v", r.n, len(r.outs), r.errs)
	}
}

// TestStreamAnswerMissing: a command without an answer is sent alone in time.
func TestStreamAnswerMissing(t *testing.T) {
	node := &streamNode{onStream: func(*writv1.SubmitRequest) *writv1.SubmitResponse { return nil }}
	address, _ := serve(t, node)
	c := connect(t, func(cfg *client.Config) { cfg.AttemptTimeout = 20 * time.Millisecond }, address)
	node.reply = func(_ context.Context, req *writv1.SubmitRequest) (*writv1.SubmitResponse, error) {
		return executed(req), nil
	}
	s := c.Stream(t.Context(), 4)
	r := newResults()
	must(t, s.Submit("account", "a", "k", deposit(), client.SubmitOptions{}, r.done("k")))
	s.Close()
	sent := node.submits() // more than one if an attempt has taken too long
	if len(r.outs) != 1 || len(sent) == 0 || slices.ContainsFunc(sent, func(r *writv1.SubmitRequest) bool { return r.GetIdempotencyKey() != "k" }) {
		t.Errorf("got %v, %v of %v", r.outs, r.errs, sent)
	}
}

// TestStreamWithoutNodes: no stream can be opened; the errors are Submit's.
func TestStreamWithoutNodes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := connect(t, nil, dead(t)).Stream(ctx, 4)
	r := newResults()
	must(t, s.Submit("account", "a", "k", deposit(), client.SubmitOptions{}, r.done("k")))
	cancel()
	s.Close()
	var e *client.Error
	if !errors.As(r.errs["k"], &e) || e.Unknown || e.Reason != client.ReasonNotExecuted {
		t.Errorf("got %v", r.errs)
	}
	if err := s.Submit("account", "\xff", "k", deposit(), client.SubmitOptions{}, r.done("k")); err == nil {
		t.Error("a bad id passes")
	}
}
