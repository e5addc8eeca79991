package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"writ/actors/client"
)

// readCommand prints an entity's state.
type readCommand struct {
	target      `embed:""`
	entityFlags `embed:""`
	Stale       bool `help:"Let any replica answer, without waiting for the leader."`
	JSON        bool `name:"json" help:"Print one JSON object: {\"state\",\"version\"}; with --stale also its age."`
}

// readResult is what --json prints.
type readResult struct {
	State    json.RawMessage `json:"state"`
	Version  uint64          `json:"version"`
	LogIndex uint64          `json:"log_index,omitempty"`
	AgeMS    float64         `json:"age_ms,omitempty"`
}

// Run implements the subcommand.
func (c *readCommand) Run(ctx context.Context, std streams) error {
	cl, closeClient, err := c.client()
	if err != nil {
		return err
	}
	defer closeClient()
	res, err := cl.Read(ctx, c.Kind, c.ID, client.ReadOptions{Stale: c.Stale})
	if err != nil {
		return err
	}
	types := c.types(ctx)
	defer types.Close()
	if c.JSON {
		return printJSON(std.out, readResult{State: types.json(res.State), Version: res.Version, LogIndex: res.LogIndex, AgeMS: float64(res.Age.Microseconds()) / 1e3})
	}
	if err := printJSON(std.out, types.json(res.State)); err != nil {
		return err
	}
	fmt.Fprintf(std.err, "version %d\n", res.Version)
	if c.Stale {
		fmt.Fprintf(std.err, "as of log index %d, which was current %v ago\n", res.LogIndex, res.Age)
	}
	return nil
}
