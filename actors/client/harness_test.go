package client_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/actors/client"
	"writ/actors/entity"
	"writ/actors/gateway"
	accountv1 "writ/proto/writ/account/v1"
	writv1 "writ/proto/writ/v1"
)

const ended = 30 * time.Second // a test that waits longer than this has failed

// fakeNode answers each call with the next of its script, and with reply after
// the last. It notes the submits.
type fakeNode struct {
	writv1.UnimplementedEntityServiceServer
	reply func(ctx context.Context, req *writv1.SubmitRequest) (*writv1.SubmitResponse, error)

	mu     sync.Mutex
	script []error
	seen   []*writv1.SubmitRequest
	calls  int
}

func (n *fakeNode) next() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls++
	if len(n.script) == 0 {
		return nil
	}
	err := n.script[0]
	n.script = n.script[1:]
	return err
}

func (n *fakeNode) submits() []*writv1.SubmitRequest {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen
}

func (n *fakeNode) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls
}

func (n *fakeNode) Submit(ctx context.Context, req *writv1.SubmitRequest) (*writv1.SubmitResponse, error) {
	n.mu.Lock()
	n.seen = append(n.seen, req)
	n.mu.Unlock()
	if err := n.next(); err != nil {
		return nil, err
	}
	if n.reply != nil {
		return n.reply(ctx, req)
	}
	return executed(req), nil
}

func (n *fakeNode) Read(_ context.Context, req *writv1.ReadRequest) (*writv1.ReadResponse, error) {
	if err := n.next(); err != nil {
		return nil, err
	}
	resp := &writv1.ReadResponse{State: packed(&accountv1.Balance{AmountMinor: 5}), Version: 2}
	if req.GetConsistency() == writv1.Consistency_STALE {
		resp.LogIndex = 77
	}
	if req.GetQuery() != nil {
		resp.State = req.GetQuery()
	}
	return resp, nil
}

func (n *fakeNode) Outcome(_ context.Context, req *writv1.OutcomeRequest) (*writv1.OutcomeResponse, error) {
	if err := n.next(); err != nil {
		return nil, err
	}
	if req.GetIssuedAt() != nil && len(req.GetIdempotencyKeyBytes()) > 0 {
		return &writv1.OutcomeResponse{State: writv1.OutcomeResponse_EXPIRED}, nil
	}
	switch req.GetIdempotencyKey() {
	case "executed":
		return &writv1.OutcomeResponse{State: writv1.OutcomeResponse_EXECUTED, Outcome: executed(nil)}, nil
	case "rejected":
		return &writv1.OutcomeResponse{State: writv1.OutcomeResponse_REJECTED, Outcome: &writv1.SubmitResponse{
			Replayed: true, Rejection: rejection(codes.OutOfRange, "LIMIT", "too much"),
		}}, nil
	}
	return &writv1.OutcomeResponse{State: writv1.OutcomeResponse_NEVER_SEEN}, nil
}

func (n *fakeNode) Cancel(context.Context, *writv1.OutcomeRequest) (*writv1.OutcomeResponse, error) {
	if err := n.next(); err != nil {
		return nil, err
	}
	return &writv1.OutcomeResponse{State: writv1.OutcomeResponse_CANCELLED}, nil
}

func executed(req *writv1.SubmitRequest) *writv1.SubmitResponse {
	return &writv1.SubmitResponse{
		Reply:      packed(&accountv1.Balance{AmountMinor: 5, Currency: "EUR"}),
		Version:    3,
		AcceptedAt: timestamppb.New(time.Unix(1_700_000_000, 0)),
		Tag:        req.GetTag(),
	}
}

// rejection is a stored rejection as the gateway sends it.
func rejection(code codes.Code, reason, text string) *spb.Status {
	return &spb.Status{Code: int32(code), Message: text, Details: []*anypb.Any{packed(&errdetails.ErrorInfo{
		Reason: reason, Domain: "writ",
		Metadata: map[string]string{"outcome": "rejected", "version": "7", "accepted_at": "2023-11-14T22:13:20Z"},
	})}}
}

// answer is an answer without an outcome as the gateway sends it.
func answer(reason entity.Reason) error {
	return gateway.ToStatus(entity.Errorf(reason, "because").Retry(time.Millisecond))
}

func plain(code codes.Code) error { return status.Error(code, "from the wire") }

func packed(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return a
}

// serve runs a node until the test ends, or until stop.
func serve(t *testing.T, node writv1.EntityServiceServer) (address string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := grpc.NewServer()
	writv1.RegisterEntityServiceServer(s, node)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	stop = func() {
		s.Stop()
		<-served
	}
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// connect makes a client with short pauses.
func connect(t *testing.T, change func(*client.Config), addresses ...string) *client.Client {
	t.Helper()
	cfg := client.Config{
		Addresses: addresses, AttemptTimeout: ended, CallTimeout: ended,
		BackoffMin: time.Microsecond, BackoffMax: time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	c, err := client.New(cfg)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// dead is an address on which nobody listens.
func dead(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return l.Addr().String()
}

func submit(t *testing.T, c *client.Client, key string) (*client.Outcome, error) {
	t.Helper()
	return c.Submit(t.Context(), "account", "a", key, deposit(), client.SubmitOptions{})
}

func deposit() *accountv1.Deposit { return &accountv1.Deposit{AmountMinor: 5, Currency: "EUR"} }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
