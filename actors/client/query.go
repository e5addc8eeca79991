package client

import (
	"context"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	writv1 "writ/proto/writ/v1"
)

// ReadOptions change one Read. The zero value reads the state, linearizably.
type ReadOptions struct {
	// Query is answered instead of returning the state.
	Query proto.Message
	// Stale lets any replica answer; it says how far it is.
	Stale bool
	// MinVersion waits until the entity has reached this version.
	MinVersion uint64
}

// State is the answer to a Read.
type State struct {
	// State, or the answer to the query. If its type is not linked into the
	// program it is the *anypb.Any that holds it; nil if there is none.
	State   proto.Message
	Version uint64
	// LogIndex and Age say how fresh a stale read is.
	LogIndex uint64
	Age      time.Duration
}

// Read returns an entity's state or the answer to a query. It retries like
// Submit. The error is an *[Error]; its reason is INVALID if the query refuses.
func (c *Client) Read(ctx context.Context, kind, id string, opts ReadOptions) (*State, error) {
	if err := checkNames(kind, id); err != nil {
		return nil, err
	}
	query, err := pack(opts.Query)
	if err != nil {
		return nil, err
	}
	req := &writv1.ReadRequest{Entity: &writv1.EntityRef{Kind: kind, Id: id}, Query: query, MinVersion: opts.MinVersion}
	if opts.Stale {
		req.Consistency = writv1.Consistency_STALE
	}
	if err := c.checkSize(req); err != nil {
		return nil, err
	}
	var resp *writv1.ReadResponse
	err = c.newCall(false, func(ctx context.Context, s writv1.EntityServiceClient, opts ...grpc.CallOption) (err error) {
		resp, err = s.Read(ctx, req, opts...)
		return err
	}).run(ctx)
	if err != nil {
		return nil, err
	}
	return &State{
		State:    unpack(resp.GetState()),
		Version:  resp.GetVersion(),
		LogIndex: resp.GetLogIndex(),
		Age:      resp.GetAge().AsDuration(),
	}, nil
}

// KeyState is what became of an idempotency key.
type KeyState = writv1.OutcomeResponse_State

// States of a key. NeverSeen does not promise that a delayed copy of the command
// cannot still arrive; only Cancel makes sure of that.
const (
	NeverSeen = writv1.OutcomeResponse_NEVER_SEEN
	InFlight  = writv1.OutcomeResponse_IN_FLIGHT
	Executed  = writv1.OutcomeResponse_EXECUTED
	Rejected  = writv1.OutcomeResponse_REJECTED
	Expired   = writv1.OutcomeResponse_EXPIRED
	Cancelled = writv1.OutcomeResponse_CANCELLED
)

// KeyOutcome is the answer of Outcome and Cancel.
type KeyOutcome struct {
	State KeyState
	// Outcome is set if State is Executed.
	Outcome *Outcome
	// Rejected is set if State is Rejected.
	Rejected *RejectedError
}

// KeyOptions change one Outcome or Cancel.
type KeyOptions struct {
	// IssuedAt is when the command was first sent; zero: not said. With it a key
	// that may have been forgotten is Expired, or its Cancel refused as such;
	// without it NeverSeen and Cancelled speak only of the window.
	IssuedAt time.Time
}

// Outcome tells what became of a key. commandType is the full name of the
// command's message type. It changes nothing and is linearizable.
func (c *Client) Outcome(ctx context.Context, kind, id, key, commandType string, opts ...KeyOptions) (*KeyOutcome, error) {
	return c.keyCall(ctx, false, keyRequest(kind, id, key, commandType, opts), writv1.EntityServiceClient.Outcome)
}

// Cancel makes sure that a key that has not executed never will within its window.
// If it has, the answer is its outcome.
func (c *Client) Cancel(ctx context.Context, kind, id, key, commandType string, opts ...KeyOptions) (*KeyOutcome, error) {
	return c.keyCall(ctx, true, keyRequest(kind, id, key, commandType, opts), writv1.EntityServiceClient.Cancel)
}

func keyRequest(kind, id, key, commandType string, opts []KeyOptions) *writv1.OutcomeRequest {
	req := &writv1.OutcomeRequest{Entity: &writv1.EntityRef{Kind: kind, Id: id}, CommandType: commandType}
	req.IdempotencyKey, req.IdempotencyKeyBytes = keyFields(key)
	for _, o := range opts {
		if !o.IssuedAt.IsZero() {
			req.IssuedAt = timestamppb.New(o.IssuedAt)
		}
	}
	return req
}

// keyFields are the fields of a request for a key: a protobuf string must be
// UTF-8, other bytes travel apart.
func keyFields(key string) (text string, raw []byte) {
	if utf8.ValidString(key) {
		return key, nil
	}
	return "", []byte(key)
}

type keyMethod func(writv1.EntityServiceClient, context.Context, *writv1.OutcomeRequest, ...grpc.CallOption) (*writv1.OutcomeResponse, error)

func (c *Client) keyCall(ctx context.Context, effect bool, req *writv1.OutcomeRequest, method keyMethod) (*KeyOutcome, error) {
	if err := checkNames(req.GetEntity().GetKind(), req.GetEntity().GetId()); err != nil {
		return nil, err
	}
	var resp *writv1.OutcomeResponse
	call := c.newCall(effect, func(ctx context.Context, s writv1.EntityServiceClient, opts ...grpc.CallOption) (err error) {
		resp, err = method(s, ctx, req, opts...)
		return err
	})
	if err := call.run(ctx); err != nil {
		return nil, err
	}
	out := &KeyOutcome{State: resp.GetState()}
	stored := resp.GetOutcome()
	switch {
	case stored.GetRejection() != nil:
		a := read(status.FromProto(stored.GetRejection()))
		out.Rejected = a.rejected
		if out.Rejected == nil {
			out.Rejected = &RejectedError{Code: a.err.Code, Reason: a.err.Reason, Message: a.err.Message}
		}
		out.Rejected.Replayed = stored.GetReplayed()
		out.Rejected.Attempts = call.attempts
	case stored != nil:
		out.Outcome = outcome(stored, call.attempts)
	}
	return out, nil
}
