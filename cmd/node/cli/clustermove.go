package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	nodev1 "writ/proto/writ/node/v1"
)

// waitFlags say how long a verb waits for its effect.
type waitFlags struct {
	target `embed:""`
	Wait   time.Duration `default:"10m" help:"How long to wait for the effect; 0: return once it is ordered."`
}

// clusterDrainCommand empties a node.
type clusterDrainCommand struct {
	waitFlags `embed:""`
	Node      string `arg:"" help:"Name of the node."`
	Undo      bool   `help:"Let the node take replicas and leaderships again."`
}

// Run implements the subcommand.
func (c *clusterDrainCommand) Run(ctx context.Context, std streams) error {
	if c.Undo { // done as soon as it is ordered: nothing is taken back by force
		return c.order(ctx, std, c.Node, nodev1.NodeEntry_ACTIVE, func(*nodev1.StatusResponse) int { return 0 })
	}
	return c.order(ctx, std, c.Node, nodev1.NodeEntry_DRAINING, func(s *nodev1.StatusResponse) int { return leadsOf(s, c.Node) })
}

// clusterRemoveCommand takes a node out.
type clusterRemoveCommand struct {
	waitFlags `embed:""`
	Node      string `arg:"" help:"Name of the node."`
}

// Run implements the subcommand.
func (c *clusterRemoveCommand) Run(ctx context.Context, std streams) error {
	return c.order(ctx, std, c.Node, nodev1.NodeEntry_REMOVED, func(s *nodev1.StatusResponse) int { return holdsOf(s, c.Node) })
}

// leadsOf counts the shards that a node still leads.
func leadsOf(s *nodev1.StatusResponse, node string) int {
	n := 0
	for _, sh := range s.GetShards() {
		if sh.GetLeader() == node {
			n++
		}
	}
	return n
}

// holdsOf counts the replicas that a node still holds, in the placement or in
// a shard's own configuration.
func holdsOf(s *nodev1.StatusResponse, node string) int {
	held := map[uint32]bool{}
	for _, p := range s.GetMeta().GetShards() {
		for _, r := range p.GetReplicas() {
			if r.GetNode() == node {
				held[p.GetShard()] = true
			}
		}
	}
	for _, sh := range s.GetShards() {
		for _, v := range append(sh.GetVoters(), sh.GetLearners()...) {
			if v == node {
				held[sh.GetShard()] = true
			}
		}
	}
	return len(held)
}

// order sets a node's state and waits until left says 0.
func (f waitFlags) order(ctx context.Context, std streams, node string, state nodev1.NodeEntry_State, left func(*nodev1.StatusResponse) int) error {
	admin, closeConn, err := f.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	if _, err := admin.SetNodeState(ctx, &nodev1.SetNodeStateRequest{Node: node, State: state}); err != nil {
		return err
	}
	if f.Wait == 0 {
		fmt.Fprintln(std.out, "ordered")
		return nil
	}
	return f.await(ctx, std, admin, "shards", left)
}

// await polls the status until left says 0, with a bar on a terminal.
func (f waitFlags) await(ctx context.Context, std streams, admin nodev1.AdminServiceClient, what string, left func(*nodev1.StatusResponse) int) error {
	ctx, cancel := context.WithTimeout(ctx, f.Wait)
	defer cancel()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	total := -1
	bar := progress(std.err, 1, what)
	for {
		s, err := admin.Status(ctx, &nodev1.StatusRequest{})
		if err == nil {
			n := left(s)
			if total < n {
				total = n
				bar.ChangeMax(max(n, 1))
			}
			_ = bar.Set(total - n)
			if n == 0 {
				_ = bar.Finish()
				fmt.Fprintln(std.out, "done")
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not finished within %v; it goes on in the background: see node cluster status", f.Wait), err)
		case <-tick.C:
		}
	}
}

// clusterMoveCommand moves one replica.
type clusterMoveCommand struct {
	waitFlags `embed:""`
	Shard     uint32 `arg:"" help:"Number of the shard."`
	From      string `required:"" help:"Node that gives its replica up."`
	To        string `required:"" help:"Node that takes it."`
}

// Run implements the subcommand.
func (c *clusterMoveCommand) Run(ctx context.Context, std streams) error {
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	if _, err := admin.MoveShard(ctx, &nodev1.MoveShardRequest{Shard: c.Shard, From: c.From, To: c.To}); err != nil {
		return err
	}
	if c.Wait == 0 {
		fmt.Fprintln(std.out, "ordered")
		return nil
	}
	return c.await(ctx, std, admin, "steps", c.stepsLeft)
}

// stepsLeft counts what a move still needs: the new replica a voter, the old
// one out.
func (c *clusterMoveCommand) stepsLeft(s *nodev1.StatusResponse) int {
	steps := 2
	for _, sh := range s.GetShards() {
		if sh.GetShard() != c.Shard {
			continue
		}
		if slices.Contains(sh.GetVoters(), c.To) {
			steps--
		}
		if len(sh.GetVoters()) > 0 && !slices.Contains(sh.GetVoters(), c.From) && !slices.Contains(sh.GetLearners(), c.From) {
			steps--
		}
	}
	return steps
}
