package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"writ/actors/client"
)

// keyFlags name one idempotency key of one entity.
type keyFlags struct {
	entityFlags `embed:""`
	Key         string    `required:"" help:"Idempotency key."`
	IssuedAt    time.Time `placeholder:"RFC3339" help:"When the command was first sent: a key that may have been forgotten since then is EXPIRED."`
	Command     string    `required:"" placeholder:"TYPE" help:"Full name of the command's message, e.g. writ.account.v1.Deposit."`
	JSON        bool      `name:"json" help:"Print one JSON object: {\"state\",\"outcome\",\"rejection\"}."`
}

// keyResult is what --json prints.
type keyResult struct {
	State     string         `json:"state"`
	Outcome   *submitResult  `json:"outcome,omitempty"`
	Rejection *rejectionJSON `json:"rejection,omitempty"`
}

// submitResult is an executed command's outcome as JSON.
type submitResult struct {
	Reply      json.RawMessage `json:"reply"`
	Replayed   bool            `json:"replayed"`
	AcceptedAt time.Time       `json:"accepted_at"`
	Version    uint64          `json:"version"`
	Attempts   int             `json:"attempts,omitempty"`
}

type rejectionJSON struct {
	Code    string `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func outcomeJSON(types *messageTypes, o *client.Outcome) *submitResult {
	return &submitResult{Reply: types.json(o.Reply), Replayed: o.Replayed, AcceptedAt: o.AcceptedAt, Version: o.Version, Attempts: o.Attempts}
}

func newRejectionJSON(r *client.RejectedError) *rejectionJSON {
	return &rejectionJSON{Code: r.Code.String(), Reason: r.Reason, Message: r.Message}
}

func (k keyFlags) print(std streams, types *messageTypes, res *client.KeyOutcome) error {
	out := keyResult{State: res.State.String()}
	if res.Outcome != nil {
		out.Outcome = outcomeJSON(types, res.Outcome)
	}
	if r := res.Rejected; r != nil {
		out.Rejection = newRejectionJSON(r)
	}
	if k.JSON {
		return printJSON(std.out, out)
	}
	fmt.Fprintln(std.out, out.State)
	switch {
	case out.Outcome != nil:
		return printJSON(std.out, out.Outcome)
	case out.Rejection != nil:
		return printJSON(std.out, out.Rejection)
	}
	return nil
}

// outcomeCommand tells what became of a key.
type outcomeCommand struct {
	target   `embed:""`
	keyFlags `embed:""`
}

// Run implements the subcommand.
func (c *outcomeCommand) Run(ctx context.Context, std streams) error {
	cl, closeClient, err := c.client()
	if err != nil {
		return err
	}
	defer closeClient()
	res, err := cl.Outcome(ctx, c.Kind, c.ID, c.Key, c.Command, client.KeyOptions{IssuedAt: c.IssuedAt})
	if err != nil {
		return err
	}
	types := c.types(ctx)
	defer types.Close()
	return c.print(std, types, res)
}

// cancelCommand forbids a key.
type cancelCommand struct {
	target   `embed:""`
	keyFlags `embed:""`
}

// Run implements the subcommand.
func (c *cancelCommand) Run(ctx context.Context, std streams) error {
	cl, closeClient, err := c.client()
	if err != nil {
		return err
	}
	defer closeClient()
	res, err := cl.Cancel(ctx, c.Kind, c.ID, c.Key, c.Command, client.KeyOptions{IssuedAt: c.IssuedAt})
	if err != nil {
		return err
	}
	types := c.types(ctx)
	defer types.Close()
	return c.print(std, types, res)
}
