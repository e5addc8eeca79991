package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"writ/actors/entity"
	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// TestStreamAnswersAll: every request has one answer with its tag; outcomes,
// rejections and refusals stand side by side; the stream ends after the last.
func TestStreamAnswersAll(t *testing.T) {
	_, client := single(t, &fakeHost{forward: func(_ context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		switch tag := req.GetSubmit().GetTag(); tag % 4 {
		case 1:
			return submitted(&writv1.SubmitResponse{Version: tag, Replayed: true, Rejection: stored(codes.OutOfRange, "LIMIT", "no")}), nil
		case 2:
			return nil, entity.Errorf(entity.NotExecuted, "no leader")
		default:
			return submitted(&writv1.SubmitResponse{Version: tag}), nil
		}
	}})
	stream, err := client.SubmitStream(ctx(t))
	must(t, err)
	const commands = 1000
	go func() {
		for tag := range uint64(commands) {
			req := deposit(fmt.Sprint(tag))
			req.Tag = tag
			if tag%4 == 3 {
				req.IdempotencyKey = "" // malformed
			}
			if err := stream.Send(req); err != nil {
				t.Errorf("send: %v", err)
			}
		}
		_ = stream.CloseSend()
	}()
	seen := map[uint64]bool{}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		tag := resp.GetTag()
		if seen[tag] {
			t.Fatalf("tag %d answered twice", tag)
		}
		seen[tag] = true
		code, reason, details, _ := info(status.ErrorProto(resp.GetRejection()))
		want := []string{"OK ", "OutOfRange LIMIT rejected", "Unavailable NOT_EXECUTED ", "InvalidArgument INVALID "}[tag%4]
		if tag%4 == 0 {
			code, reason, details = codes.OK, "", nil
		}
		if got := fmt.Sprintf("%v %s %s", code, reason, details["outcome"]); tag%4 != 0 && got != want {
			t.Fatalf("tag %d: %q, want %q", tag, got, want)
		}
		if tag%4 == 0 && (resp.GetRejection() != nil || resp.GetVersion() != tag) || tag%4 == 1 && !resp.GetReplayed() {
			t.Fatalf("tag %d: %v", tag, resp)
		}
	}
	if len(seen) != commands {
		t.Errorf("%d answers to %d commands", len(seen), commands)
	}
}

// TestStreamIsBounded: commands beyond the stream's bound stay in the network.
func TestStreamIsBounded(t *testing.T) {
	const bound, commands = 4, 64
	var running, most atomic.Int64
	entered := make(chan struct{}, commands)
	open := make(chan struct{})
	host := &fakeHost{forward: func(c context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		now := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
		}
		entered <- struct{}{}
		select {
		case <-open:
		case <-c.Done():
		}
		return submitted(&writv1.SubmitResponse{}), nil
	}}
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": host}, leader: "n1", limits: func(l *gateway.Limits) { l.StreamInFlight = bound }})
	stream, err := c.client("n1").SubmitStream(ctx(t))
	must(t, err)
	for i := range commands {
		must(t, stream.Send(deposit(fmt.Sprint(i))))
	}
	must(t, stream.CloseSend())
	for range bound {
		<-entered
	}
	close(open)
	for range commands {
		_, err := stream.Recv()
		must(t, err)
	}
	if most.Load() != bound {
		t.Errorf("%d commands at once, the bound is %d", most.Load(), bound)
	}
}

func TestStreamRefusesOneKeyForAll(t *testing.T) {
	_, client := single(t, echoes(1))
	stream, err := client.SubmitStream(metadata.AppendToOutgoingContext(ctx(t), "idempotency-key", "k"))
	must(t, err)
	_, err = stream.Recv()
	if code, reason, _, _ := info(err); code != codes.InvalidArgument || reason != "INVALID" {
		t.Errorf("got %v", err)
	}
}

// TestStreamEndsWithItsClient: no handler outlives the stream.
func TestStreamEndsWithItsClient(t *testing.T) {
	entered, left := make(chan struct{}), make(chan struct{})
	_, client := single(t, &fakeHost{forward: func(c context.Context, _ *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		close(entered)
		<-c.Done()
		close(left)
		return nil, c.Err()
	}})
	c, cancel := context.WithCancel(ctx(t))
	stream, err := client.SubmitStream(c)
	must(t, err)
	must(t, stream.Send(deposit("k")))
	<-entered
	cancel()
	<-left
}
