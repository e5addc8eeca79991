package gateway

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"writ/actors/entity"
	writv1 "writ/proto/writ/v1"
)

// SubmitStream sends many commands. Up to StreamInFlight of them are in progress
// at once, in no order, even those for one entity: a client that needs an order
// waits for the answer. Each answer carries its request's tag; a refusal or a
// rejection stands in it, so the stream itself only fails with its connection.
//
// When the client has closed its side, the stream ends after the last answer.
func (s *EntityService) SubmitStream(stream grpc.BidiStreamingServer[writv1.SubmitRequest, writv1.SubmitResponse]) error {
	ctx := stream.Context()
	id, err := s.credentials.Authenticate(ctx)
	if err != nil {
		return s.status(err)
	}
	for _, header := range []string{keyHeader, keyBytesHeader} {
		if len(metadata.ValueFromIncomingContext(ctx, header)) > 0 {
			return s.status(entity.Errorf(entity.Invalid,
				"a stream carries many commands: set idempotency_key in each of them instead of the metadata %s", header))
		}
	}
	w := &streamWriter{stream: stream}
	slots := make(chan struct{}, s.limits.StreamInFlight)
	var workers sync.WaitGroup
	defer workers.Wait() // a handler must not outlive its stream
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return s.status(ctx.Err())
		}
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			workers.Wait()
			return s.status(w.failure())
		}
		if err != nil {
			return err
		}
		workers.Go(func() {
			defer func() { <-slots }()
			w.send(s.streamAnswer(ctx, id.Tenant, req))
		})
	}
}

// streamAnswer never fails: what Submit returns as an error is in the answer.
func (s *EntityService) streamAnswer(ctx context.Context, tenant string, req *writv1.SubmitRequest) (answer *writv1.SubmitResponse) {
	defer func() {
		if p := recover(); p != nil {
			answer = refused(recovered(s.log, writv1.EntityService_SubmitStream_FullMethodName, p), req.GetTag())
		}
	}()
	answer, err := s.submit(ctx, tenant, req)
	if err != nil {
		logUntyped(s.log, err)
		return refused(err, req.GetTag())
	}
	return answer
}

// streamWriter lets many workers write to one stream.
type streamWriter struct {
	stream interface {
		Send(*writv1.SubmitResponse) error
		Context() context.Context
	}
	mu  sync.Mutex
	err error
}

// send blocks while the client does not read; its slot stays taken meanwhile.
func (w *streamWriter) send(answer *writv1.SubmitResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = w.stream.Send(answer)
	}
}

// failure is why answers could not be sent, nil if all were.
func (w *streamWriter) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
