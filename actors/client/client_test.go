package client_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"writ/actors/client"
	"writ/actors/entity"
	"writ/actors/gateway"
	accountv1 "writ/proto/writ/account/v1"
	writv1 "writ/proto/writ/v1"
)

// TestRetriesAreTheSameCommand: same key, same bytes, same time of issue.
func TestRetriesAreTheSameCommand(t *testing.T) {
	node := &fakeNode{script: []error{answer(entity.NotExecuted), answer(entity.OutcomeUnknown), answer(entity.Overloaded), plain(codes.Unavailable)}}
	address, _ := serve(t, node)
	key := client.NewKey()
	out, err := submit(t, connect(t, nil, address), key)
	must(t, err)
	if out.Attempts != 5 || out.Version != 3 || out.Replayed || !out.AcceptedAt.Equal(time.Unix(1_700_000_000, 0)) {
		t.Errorf("got %+v", out)
	}
	if reply, ok := out.Reply.(*accountv1.Balance); !ok || reply.GetAmountMinor() != 5 {
		t.Errorf("reply %v", out.Reply)
	}
	seen := node.submits()
	if len(seen) != 5 || seen[0].GetIdempotencyKey() != key || time.Since(seen[0].GetIssuedAt().AsTime()) > ended {
		t.Fatalf("the node has seen %v", seen)
	}
	for _, req := range seen[1:] {
		if !proto.Equal(req, seen[0]) {
			t.Errorf("a retry differs: %v, first %v", req, seen[0])
		}
	}
}

// TestWhatIsRetried: each answer once, then an outcome.
func TestWhatIsRetried(t *testing.T) {
	tests := []struct {
		answer  error
		again   bool
		unknown bool
	}{
		{answer(entity.NotExecuted), true, false},
		{answer(entity.Overloaded), true, false},
		{answer(entity.OutcomeUnknown), true, true},
		{plain(codes.Unavailable), true, true},
		{plain(codes.DeadlineExceeded), true, true},
		{plain(codes.Canceled), true, true},
		{plain(codes.ResourceExhausted), true, true},
		{plain(codes.Internal), true, true},
		{plain(codes.Unknown), true, true},
		{answer(entity.Invalid), false, false},
		{answer(entity.TooLarge), false, false},
		{answer(entity.KeyReused), false, false},
		{answer(entity.VersionMismatch), false, false},
		{answer(entity.Cancelled), false, false},
		{answer(entity.Unauthenticated), false, false},
		{answer(entity.Denied), false, false},
		{answer(entity.HandlerPanic), false, false},
		{answer(entity.InFlight), false, true},
		{answer(entity.Expired), false, true},
		{plain(codes.Unimplemented), false, false},
		{plain(codes.InvalidArgument), false, true},
		{plain(codes.PermissionDenied), false, true},
	}
	for _, tt := range tests {
		t.Run(status.Convert(tt.answer).String(), func(t *testing.T) {
			node := &fakeNode{script: []error{tt.answer}}
			address, _ := serve(t, node)
			out, err := submit(t, connect(t, nil, address), "k")
			if tt.again {
				if err != nil || out.Attempts != 2 {
					t.Errorf("got %+v, %v", out, err)
				}
				return
			}
			var e *client.Error
			if !errors.As(err, &e) || e.Attempts != 1 || e.Unknown != tt.unknown || client.IsUnknown(err) != tt.unknown || e.Code != status.Code(tt.answer) {
				t.Errorf("got %+v", err)
			}
		})
	}
}

// TestUnknownStays: an attempt that may have been executed is not forgotten by a
// later answer that says nothing about it.
func TestUnknownStays(t *testing.T) {
	node := &fakeNode{script: []error{answer(entity.OutcomeUnknown), answer(entity.Unauthenticated)}}
	address, _ := serve(t, node)
	_, err := submit(t, connect(t, nil, address), "k")
	var e *client.Error
	if !errors.As(err, &e) || e.Reason != client.ReasonUnauthenticated || !e.Unknown || e.Attempts != 2 {
		t.Fatalf("got %+v", err)
	}
	if !strings.Contains(err.Error(), "retry with the same key") {
		t.Errorf("the text does not help: %v", err)
	}
}

// TestTimeEnds: the error says whether the command may have been executed.
func TestTimeEnds(t *testing.T) {
	for reason, unknown := range map[entity.Reason]bool{entity.NotExecuted: false, entity.OutcomeUnknown: true} {
		ctx, cancel := context.WithCancel(t.Context())
		node := &fakeNode{reply: func(context.Context, *writv1.SubmitRequest) (*writv1.SubmitResponse, error) {
			cancel() // the caller loses patience after the first answer
			return nil, answer(reason)
		}}
		address, _ := serve(t, node)
		c := connect(t, func(cfg *client.Config) { cfg.BackoffMin, cfg.BackoffMax = ended, ended }, address)
		_, err := c.Submit(ctx, "account", "a", "k", deposit(), client.SubmitOptions{})
		e, ok := errors.AsType[*client.Error](err)
		if !ok || !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: got %+v", reason, err)
		}
		// The cancellation may overtake the answer; then nobody knows.
		overtaken := e.Code == codes.Canceled && e.Unknown
		if e.Unknown != unknown && !overtaken {
			t.Errorf("%s: got %+v", reason, err)
		}
		if e.Unknown && (e.Reason != client.ReasonOutcomeUnknown || !strings.Contains(err.Error(), "retry with the same key")) {
			t.Errorf("%s: got %v", reason, err)
		}
	}
}

// TestDeadlineOfTheCall: a call without a deadline ends by the configured one.
func TestDeadlineOfTheCall(t *testing.T) {
	node := &fakeNode{reply: func(ctx context.Context, req *writv1.SubmitRequest) (*writv1.SubmitResponse, error) {
		if req.GetIdempotencyKey() == "connect" {
			return &writv1.SubmitResponse{}, nil
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	address, _ := serve(t, node)
	c := connect(t, func(cfg *client.Config) { cfg.CallTimeout = 300 * time.Millisecond }, address)
	// Connected first, by a call with a deadline of its own: what was not sent is
	// known not to be executed.
	connecting, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := c.Submit(connecting, "account", "a", "connect", deposit(), client.SubmitOptions{})
	must(t, err)
	_, err = submit(t, c, "k")
	var e *client.Error
	if !errors.As(err, &e) || e.Reason != client.ReasonOutcomeUnknown || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %+v", err)
	}
}

func TestRejected(t *testing.T) {
	for _, replayed := range []bool{false, true} {
		node := &fakeNode{reply: func(ctx context.Context, _ *writv1.SubmitRequest) (*writv1.SubmitResponse, error) {
			if replayed {
				must(t, grpc.SetTrailer(ctx, metadata.Pairs("idempotency-replayed", "true")))
			}
			// The handler's reason is a word that Writ uses too.
			return nil, status.ErrorProto(rejection(codes.NotFound, "NOT_EXECUTED", "no such account"))
		}}
		address, _ := serve(t, node)
		_, err := submit(t, connect(t, nil, address), "k")
		var r *client.RejectedError
		if !errors.As(err, &r) {
			t.Fatalf("got %+v", err)
		}
		want := client.RejectedError{
			Code: codes.NotFound, Reason: "NOT_EXECUTED", Message: "no such account", Replayed: replayed,
			Version: 7, AcceptedAt: time.Unix(1_700_000_000, 0).UTC(), Attempts: 1,
		}
		if *r != want || client.IsUnknown(err) {
			t.Errorf("got %+v", r)
		}
	}
}

// TestFailover: a dead node costs one try and no pause; then it is avoided.
func TestFailover(t *testing.T) {
	a, b := &fakeNode{}, &fakeNode{}
	addressA, _ := serve(t, a)
	addressB, stopB := serve(t, b)
	c := connect(t, func(cfg *client.Config) { cfg.BackoffMin, cfg.BackoffMax = ended, ended }, dead(t), addressA, addressB)
	attempts := 0
	for i := range 30 {
		out, err := submit(t, c, fmt.Sprint(i))
		must(t, err)
		attempts += out.Attempts
	}
	if a.count() < 5 || b.count() < 5 {
		t.Errorf("the calls are not spread: %d and %d", a.count(), b.count())
	}
	if attempts > 40 {
		t.Errorf("%d attempts for 30 calls", attempts)
	}
	stopB()
	for i := range 10 {
		_, err := submit(t, c, fmt.Sprint(i))
		must(t, err)
	}
	// All are dead: definitely not executed.
	c = connect(t, func(cfg *client.Config) { cfg.CallTimeout = 50 * time.Millisecond }, dead(t), dead(t))
	_, err := submit(t, c, "k")
	var e *client.Error
	if !errors.As(err, &e) || e.Unknown || e.Reason != client.ReasonNotExecuted || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %+v", err)
	}
}

// TestSilentNode: a node that takes calls and never answers costs one attempt.
func TestSilentNode(t *testing.T) {
	silent := &fakeNode{reply: func(ctx context.Context, _ *writv1.SubmitRequest) (*writv1.SubmitResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	addressA, _ := serve(t, silent)
	addressB, _ := serve(t, &fakeNode{})
	c := connect(t, func(cfg *client.Config) { cfg.AttemptTimeout = 200 * time.Millisecond }, addressA, addressB)
	out, err := submit(t, c, "k")
	must(t, err)
	if out.Attempts < 2 { // more if the other one had no time to answer
		t.Errorf("%d attempts", out.Attempts)
	}
}

func TestRetryInfo(t *testing.T) {
	const pause = 60 * time.Millisecond
	hint := entity.Errorf(entity.Overloaded, "busy").Retry(pause)
	address, _ := serve(t, &fakeNode{script: []error{toStatus(hint)}})
	began := time.Now()
	_, err := submit(t, connect(t, nil, address), "k")
	must(t, err)
	if took := time.Since(began); took < pause {
		t.Errorf("tried again after %s", took)
	}
}

func TestExhaustedByTheWire(t *testing.T) {
	node := &fakeNode{reply: func(context.Context, *writv1.SubmitRequest) (*writv1.SubmitResponse, error) {
		return nil, plain(codes.ResourceExhausted)
	}}
	address, _ := serve(t, node)
	_, err := submit(t, connect(t, nil, address), "k")
	var e *client.Error
	if !errors.As(err, &e) || e.Code != codes.ResourceExhausted || e.Attempts != 3 {
		t.Errorf("got %+v", err)
	}
}

func TestOptionsAndToken(t *testing.T) {
	tokens := make(chan string, 1)
	node := &fakeNode{reply: func(ctx context.Context, req *writv1.SubmitRequest) (*writv1.SubmitResponse, error) {
		tokens <- strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), "|")
		return &writv1.SubmitResponse{Replayed: true, Reply: &anypb.Any{TypeUrl: "x/not.linked.In"}}, nil
	}}
	address, _ := serve(t, node)
	c := connect(t, func(cfg *client.Config) { cfg.Token = "secret" }, address)
	version, issued := uint64(0), time.Unix(1_600_000_000, 0)
	out, err := c.Submit(t.Context(), "account", "a", "k", packed(deposit()), client.SubmitOptions{IssuedAt: issued, IfVersion: &version, NoWait: true})
	must(t, err)
	if _, ok := out.Reply.(*anypb.Any); !ok || !out.Replayed || !out.AcceptedAt.IsZero() {
		t.Errorf("got %+v", out)
	}
	if got := <-tokens; got != "Bearer secret" {
		t.Errorf("authorization %q", got)
	}
	req := node.submits()[0]
	if !req.GetIssuedAt().AsTime().Equal(issued) || req.IfVersion == nil || !req.GetNoWait() || req.GetCommand().GetTypeUrl() != "type.googleapis.com/writ.account.v1.Deposit" {
		t.Errorf("the node got %v", req)
	}
}

// TestRefusedHere: what cannot work is not sent.
func TestRefusedHere(t *testing.T) {
	node := &fakeNode{}
	address, _ := serve(t, node)
	c := connect(t, func(cfg *client.Config) { cfg.MessageMax = 100 }, address)
	bad := "\xff"
	big := &accountv1.Deposit{Currency: strings.Repeat("x", 200)}
	calls := map[string]func() error{
		"kind": func() error { _, err := c.Read(t.Context(), bad, "a", client.ReadOptions{}); return err },
		"id":   func() error { _, err := c.Cancel(t.Context(), "account", bad, "k", "x"); return err },
		"nil":  func() error { _, err := c.Submit(t.Context(), "a", "a", "k", nil, client.SubmitOptions{}); return err },
		"encoding": func() error {
			_, err := c.Submit(t.Context(), "a", "a", "k", &accountv1.Deposit{Currency: bad}, client.SubmitOptions{})
			return err
		},
		"query": func() error {
			_, err := c.Read(t.Context(), "a", "a", client.ReadOptions{Query: &accountv1.Deposit{Currency: bad}})
			return err
		},
		"size": func() error { _, err := c.Submit(t.Context(), "a", "a", "k", big, client.SubmitOptions{}); return err },
		"read": func() error { _, err := c.Read(t.Context(), "a", "a", client.ReadOptions{Query: big}); return err },
	}
	for _, name := range []string{"size", "read"} {
		var e *client.Error
		if err := calls[name](); !errors.As(err, &e) || e.Reason != client.ReasonTooLarge || e.Details["limit"] != "client.MessageMax" ||
			e.Details["max"] != "100" || e.Details["size"] == "" {
			t.Errorf("%s: %+v", name, e)
		}
	}
	for name, call := range calls {
		var e *client.Error
		if err := call(); !errors.As(err, &e) || e.Code != codes.InvalidArgument || e.Unknown || client.IsUnknown(err) {
			t.Errorf("%s: got %+v", name, e)
		}
	}
	if node.count() != 0 {
		t.Errorf("%d calls were sent", node.count())
	}
}

func TestQueries(t *testing.T) {
	node := &fakeNode{script: []error{answer(entity.NotExecuted)}}
	address, _ := serve(t, node)
	c := connect(t, nil, address)
	state, err := c.Read(t.Context(), "account", "a", client.ReadOptions{})
	must(t, err)
	if b, ok := state.State.(*accountv1.Balance); !ok || b.GetAmountMinor() != 5 || state.Version != 2 || state.LogIndex != 0 {
		t.Errorf("state %+v", state)
	}
	state, err = c.Read(t.Context(), "account", "a", client.ReadOptions{Stale: true, Query: &accountv1.Total{Postings: 4}})
	must(t, err)
	if q, ok := state.State.(*accountv1.Total); !ok || q.GetPostings() != 4 || state.LogIndex != 77 {
		t.Errorf("state %+v", state)
	}
	const deposit = "writ.account.v1.Deposit"
	for key, want := range map[string]client.KeyState{"executed": client.Executed, "rejected": client.Rejected, "none": client.NeverSeen} {
		out, err := c.Outcome(t.Context(), "account", "a", key, deposit)
		must(t, err)
		if out.State != want || (out.Outcome != nil) != (want == client.Executed) || (out.Rejected != nil) != (want == client.Rejected) {
			t.Errorf("%s: %+v", key, out)
		}
		if out.Rejected != nil && (out.Rejected.Reason != "LIMIT" || out.Rejected.Code != codes.OutOfRange || !out.Rejected.Replayed) {
			t.Errorf("%s: %+v", key, out.Rejected)
		}
	}
	out, err := c.Cancel(t.Context(), "account", "a", "k", deposit)
	must(t, err)
	if out.State != client.Cancelled {
		t.Errorf("cancel: %+v", out)
	}
	// A read changes nothing: its fate is never unknown. A cancel's can be.
	for i := range 2 {
		node.mu.Lock()
		node.script = []error{answer(entity.OutcomeUnknown), answer(entity.Invalid)}
		node.mu.Unlock()
		if i == 0 {
			_, err = c.Read(t.Context(), "account", "a", client.ReadOptions{})
		} else {
			_, err = c.Cancel(t.Context(), "account", "a", "k", deposit)
		}
		if client.IsUnknown(err) != (i == 1) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// TestBinaryKey: a key is bytes, and protobuf's text cannot carry all of them.
func TestBinaryKey(t *testing.T) {
	node := &fakeNode{}
	address, _ := serve(t, node)
	c := connect(t, nil, address)
	const key = "\xff\x00\n"
	_, err := submit(t, c, key)
	must(t, err)
	if got := node.seen[0]; got.GetIdempotencyKey() != "" || string(got.GetIdempotencyKeyBytes()) != key {
		t.Errorf("sent as %q and %q", got.GetIdempotencyKey(), got.GetIdempotencyKeyBytes())
	}
	if out, err := c.Outcome(t.Context(), "account", "a", key, "writ.account.v1.Deposit", client.KeyOptions{IssuedAt: time.Unix(5, 0)}); err != nil || out.State != client.Expired {
		t.Errorf("outcome with a time of issue: %v, %v", out, err)
	}
}

func TestConfig(t *testing.T) {
	good := client.Config{Addresses: []string{"localhost:1"}}
	must(t, good.Validate())
	for name, change := range map[string]func(*client.Config){
		"no address":  func(c *client.Config) { c.Addresses = nil },
		"bad address": func(c *client.Config) { c.Addresses = []string{"localhost:1", "localhost"} },
		"negative":    func(c *client.Config) { c.AttemptTimeout = -1 },
		"backoff":     func(c *client.Config) { c.BackoffMin = time.Hour },
	} {
		cfg := good
		change(&cfg)
		if _, err := client.New(cfg); err == nil {
			t.Errorf("%s: passes", name)
		}
	}
	if a, b := client.NewKey(), client.NewKey(); a == b || len(a) < 20 {
		t.Errorf("keys %q, %q", a, b)
	}
}

func TestAddressIsCheckedAtOnce(t *testing.T) {
	for address, want := range map[string]string{
		"localhost:7400": "", "127.0.0.1:1": "", "[::1]:65535": "", ":7400": "", "n1.example:7400": "",
		"":                      "give host:port",
		"localhost":             "give host:port",
		"::1":                   "give host:port",
		"http://localhost:7400": "without scheme or path",
		"localhost:7400/x":      "without scheme or path",
		"localhost:":            "must be a number",
		"localhost:0":           "must be a number",
		"localhost:65536":       "must be a number",
		"localhost:grpc":        "must be a number",
	} {
		err := client.CheckAddress(address)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), strconv.Quote(address))) {
			t.Errorf("%q: %v, want %q", address, err, want)
		}
	}
}

// TestOutOfTime: what a cluster in trouble has said counts for more than that one
// of its nodes is down; and a read, which nobody needs to repeat for safety, does
// not speak of keys.
func TestOutOfTime(t *testing.T) {
	node := &fakeNode{}
	for range 1000 {
		node.script = append(node.script, entityStatus("shard 7 has no leader"))
	}
	address, _ := serve(t, node)
	var mu sync.Mutex
	troubled := map[string]bool{}
	c := connect(t, func(cfg *client.Config) {
		cfg.CallTimeout = 500 * time.Millisecond
		cfg.Troubled = func(e *client.Error) {
			mu.Lock()
			defer mu.Unlock()
			troubled[e.Address] = true
		}
	}, address, dead(t))
	for range 2 { // each node is the first in turn
		_, err := submit(t, c, "k")
		var e *client.Error
		if !errors.As(err, &e) || e.Address != address || !strings.Contains(e.Message, "shard 7 has no leader") {
			t.Errorf("submit: %v", err)
		} else if e.Reason != client.ReasonNotExecuted && e.Reason != client.ReasonOutcomeUnknown { // one was still on its way
			t.Errorf("submit: %v", err)
		}
		_, err = c.Read(t.Context(), "account", "a", client.ReadOptions{})
		if !errors.As(err, &e) || e.Reason != "" || strings.Contains(err.Error(), "key") || !strings.Contains(e.Message, "shard 7 has no leader") || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if !troubled[address] {
		t.Errorf("told of trouble at %v", troubled)
	}
}

func entityStatus(text string) error {
	return gateway.ToStatus(entity.Errorf(entity.NotExecuted, "%s", text))
}
