package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/actors/entity"
	writv1 "writ/proto/writ/v1"
)

const replayedHeader = "idempotency-replayed"

// Client calls a cluster. It is safe for concurrent use.
type Client struct {
	cfg       Config
	endpoints []*endpoint
	next      atomic.Uint64
}

// New makes a client. It connects on first use.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	c := &Client{cfg: cfg.withDefaults()}
	for _, address := range cfg.Addresses {
		e, err := newEndpoint(address, c.cfg)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("client: address %q: %w", address, err), c.Close())
		}
		c.endpoints = append(c.endpoints, e)
	}
	return c, nil
}

// Close ends all connections; calls in progress fail.
func (c *Client) Close() error {
	var errs []error
	for _, e := range c.endpoints {
		errs = append(errs, e.conn.Close())
	}
	return errors.Join(errs...)
}

// first is where a call begins: the nodes in turn.
func (c *Client) first() uint64 { return c.next.Add(1) - 1 }

// pick is the node at a place in the turn, or the next one that is not thought
// to be in trouble. If all are, it is the node itself. It returns the place after
// the node, for the next attempt.
func (c *Client) pick(at uint64) (node *endpoint, next uint64) {
	now := time.Now()
	n := uint64(len(c.endpoints))
	for i := range n {
		if e := c.endpoints[(at+i)%n]; !e.avoided(now) {
			return e, at + i + 1
		}
	}
	return c.endpoints[at%n], at + 1
}

func (c *Client) authorize(ctx context.Context) context.Context {
	if c.cfg.Token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.cfg.Token)
}

// Outcome is what became of a command that was executed.
type Outcome struct {
	// Reply is the handler's answer. If its type is not linked into the program
	// it is the *anypb.Any that holds it; nil if there is none.
	Reply proto.Message
	// Replayed: an earlier call with the same key has decided it.
	Replayed bool
	// AcceptedAt is when the command was accepted first.
	AcceptedAt time.Time
	// Version of the entity after the command.
	Version uint64
	// Attempts that this call has made.
	Attempts int
}

// SubmitOptions change one Submit. The zero value suits most.
type SubmitOptions struct {
	// IssuedAt is when this command was first sent; zero: now. Set it when the
	// key comes from an earlier call or process, so that a retry that is older
	// than what Writ remembers is refused (EXPIRED) instead of executed again.
	IssuedAt time.Time
	// IfVersion executes only if the entity is at this version.
	IfVersion *uint64
	// NoWait answers IN_FLIGHT at once if the key is being executed.
	NoWait bool
}

// Submit sends one command, as often as it takes, with the same key; see the
// package comment. A command that is an *anypb.Any is sent as it is. The key may
// be empty for commands that are executed at least once. The error is a
// *[RejectedError] or an *[Error].
func (c *Client) Submit(ctx context.Context, kind, id, key string, command proto.Message, opts SubmitOptions) (*Outcome, error) {
	req, err := c.request(kind, id, key, command, opts)
	if err != nil {
		return nil, err
	}
	return c.submit(ctx, req, false)
}

// submit runs a prepared request. unknown tells that it may have been executed.
func (c *Client) submit(ctx context.Context, req *writv1.SubmitRequest, unknown bool) (*Outcome, error) {
	var resp *writv1.SubmitResponse
	call := c.newCall(true, func(ctx context.Context, s writv1.EntityServiceClient, opts ...grpc.CallOption) (err error) {
		resp, err = s.Submit(ctx, req, opts...)
		return err
	})
	call.unknown = unknown
	if err := call.run(ctx); err != nil {
		return nil, err
	}
	return outcome(resp, call.attempts), nil
}

func (c *Client) request(kind, id, key string, command proto.Message, opts SubmitOptions) (*writv1.SubmitRequest, error) {
	if err := checkNames(kind, id); err != nil {
		return nil, err
	}
	packed, err := pack(command)
	if err != nil {
		return nil, err
	}
	if packed == nil {
		return nil, &Error{Reason: ReasonInvalid, Code: codes.InvalidArgument, Message: "the command is nil"}
	}
	issued := opts.IssuedAt
	if issued.IsZero() {
		issued = time.Now()
	}
	req := &writv1.SubmitRequest{
		Entity:    &writv1.EntityRef{Kind: kind, Id: id},
		Command:   packed,
		IssuedAt:  timestamppb.New(issued),
		IfVersion: opts.IfVersion,
		NoWait:    opts.NoWait,
	}
	req.IdempotencyKey, req.IdempotencyKeyBytes = keyFields(key)
	return req, c.checkSize(req)
}

// checkNames refuses what protobuf could not encode.
func checkNames(kind, id string) error {
	for name, value := range map[string]string{"kind": kind, "id": id} {
		if !utf8.ValidString(value) {
			return &Error{
				Reason: ReasonInvalid, Code: codes.InvalidArgument,
				Message: "the " + name + " must be UTF-8: encode binary ones, in hex for example",
			}
		}
	}
	return nil
}

func (c *Client) checkSize(req proto.Message) error {
	if size := proto.Size(req); size > c.cfg.MessageMax {
		over := entity.OverLimit("request", "client.MessageMax", size, c.cfg.MessageMax)
		return &Error{Reason: string(over.Reason), Code: codes.InvalidArgument, Message: over.Message, Details: over.Details}
	}
	return nil
}

func pack(m proto.Message) (*anypb.Any, error) {
	if m == nil {
		return nil, nil
	}
	if packed, ok := m.(*anypb.Any); ok {
		return packed, nil
	}
	packed, err := anypb.New(m)
	if err != nil {
		return nil, &Error{Reason: ReasonInvalid, Code: codes.InvalidArgument, Message: "encode: " + err.Error(), Err: err}
	}
	return packed, nil
}

func unpack(packed *anypb.Any) proto.Message {
	if packed == nil {
		return nil
	}
	m, err := packed.UnmarshalNew()
	if err != nil {
		return packed // its type is not linked in, or is older here
	}
	return m
}

func outcome(resp *writv1.SubmitResponse, attempts int) *Outcome {
	o := &Outcome{Reply: unpack(resp.GetReply()), Replayed: resp.GetReplayed(), Version: resp.GetVersion(), Attempts: attempts}
	if at := resp.GetAcceptedAt(); at != nil {
		o.AcceptedAt = at.AsTime()
	}
	return o
}
