package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	nodev1 "writ/proto/writ/node/v1"
)

// waitFlags say how long a verb waits for its effect, and how it tells it.
type waitFlags struct {
	target `embed:""`
	Wait   time.Duration `default:"10m" help:"How long to wait for the effect; 0: return once it is ordered."`
	JSON   bool          `name:"json" help:"Print one JSON object when it is over; progress goes to standard error."`
}

// effect is what has come of an order when a verb ends. The cluster goes on with
// what is left.
type effect struct {
	Done bool `json:"done"`
	// Shards, for remove the meta group as well, or steps of a move, as they were last
	// heard of; null: never.
	Left    *int    `json:"left"`
	Seconds float64 `json:"seconds"`
}

// nodeResult is the JSON of drain and remove.
type nodeResult struct {
	Node  string `json:"node"`
	State string `json:"state"`
	effect
}

// moveResult is the JSON of move. From is empty if only the leadership moves; leader
// and voters are while they are not known.
type moveResult struct {
	Shard  uint32   `json:"shard"`
	From   string   `json:"from"`
	To     string   `json:"to"`
	Leader string   `json:"leader"`
	Voters []string `json:"voters"`
	effect
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
		return c.order(ctx, std, &watch{target: &c.target}, c.Node, nodev1.NodeEntry_ACTIVE, nil)
	}
	return c.order(ctx, std, &watch{target: &c.target}, c.Node, nodev1.NodeEntry_DRAINING, leadsOf)
}

// clusterRemoveCommand takes a node out.
type clusterRemoveCommand struct {
	waitFlags `embed:""`
	Node      string `arg:"" help:"Name of the node."`
}

// Run implements the subcommand.
func (c *clusterRemoveCommand) Run(ctx context.Context, std streams) error {
	return c.order(ctx, std, &watch{target: &c.target, leaves: c.Node}, c.Node, nodev1.NodeEntry_REMOVED, holdsOf)
}

// leadsOf counts the shards that a node may still lead: all but those that another
// one is known to lead.
func leadsOf(s *nodev1.StatusResponse, node string) int {
	n := 0
	for _, p := range s.GetMeta().GetShards() {
		if leader := shardOf(s, p.GetShard()).GetLeader(); leader == "" || leader == node {
			n++
		}
	}
	return n
}

// holdsOf counts the shards of which a node may still hold a replica, by the placement
// or by the shard's own configuration, and the meta group likewise. The placement alone
// proves nothing: a node that it does not name any more votes until it is taken out. Nor
// does a configuration that is not the leader's word: it may be an old one.
func holdsOf(s *nodev1.StatusResponse, node string) int {
	n := 0
	for _, p := range s.GetMeta().GetShards() {
		if sh := shardOf(s, p.GetShard()); placedOn(p, node) || !sh.GetByLeader() || mayBeIn(sh.GetVoters(), sh.GetLearners(), node) {
			n++
		}
	}
	if mayBeIn(s.GetMetaVoters(), s.GetMetaLearners(), node) {
		n++
	}
	return n
}

func placedOn(p *nodev1.ShardPlacement, node string) bool {
	return slices.ContainsFunc(p.GetReplicas(), func(r *nodev1.ReplicaPlacement) bool { return r.GetNode() == node })
}

// mayBeIn reports whether a node is in a group, or may be: no group is without voters,
// so if there are none they are not known.
func mayBeIn(voters, learners []string, node string) bool {
	return len(voters) == 0 || slices.Contains(voters, node) || slices.Contains(learners, node)
}

// order sets a node's state and waits until left says 0, or for nothing without left.
func (f waitFlags) order(ctx context.Context, std streams, w *watch, node string, state nodev1.NodeEntry_State, left func(s *nodev1.StatusResponse, node string) int) error {
	admin, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	ordered, err := admin.SetNodeState(ctx, &nodev1.SetNodeStateRequest{Node: node, State: state})
	if err != nil {
		return err
	}
	came := effect{Done: true, Left: new(0)}
	if left != nil {
		w.version = max(w.version, ordered.GetVersion())
		came, err = f.await(ctx, std, "shards", w.status, func(s *nodev1.StatusResponse) (int, error) { return left(s, node), nil })
	}
	return f.tell(std, came, nodeResult{Node: node, State: strings.ToLower(state.String()), effect: came}, err)
}

// tell prints how a verb ended, and passes its error on.
func (f waitFlags) tell(std streams, came effect, result any, err error) error {
	switch {
	case f.JSON:
		if failed := printJSON(std.out, result); failed != nil {
			return failed
		}
		return err
	case err != nil:
		return err
	case came.Done:
		fmt.Fprintln(std.out, "done")
	default:
		fmt.Fprintln(std.out, "ordered")
	}
	return nil
}

// takenBackAfter is how long every status must speak against an order before it counts
// as taken back: a leader of an older version does not say which states know of it.
const takenBackAfter = 5 * time.Second

// await polls the status until left says 0, with a bar on a terminal. An error of left
// ends it if it stays for takenBackAfter, with no poll that has failed in between: what
// was not seen may have been otherwise.
func (f waitFlags) await(ctx context.Context, std streams, what string, status func(context.Context) (*nodev1.StatusResponse, error), left func(*nodev1.StatusResponse) (int, error)) (effect, error) {
	if f.Wait == 0 {
		return effect{}, nil
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, f.Wait)
	defer cancel()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	total := -1
	bar := progress(std.err, 1, what)
	var came effect
	var against time.Time // since when left has an error; zero: it has none
	for {
		s, err := status(ctx)
		came.Seconds = time.Since(begin).Seconds()
		if err != nil {
			against = time.Time{}
		} else {
			n, otherwise := left(s)
			if total < n {
				total = n
				bar.ChangeMax(max(n, 1))
			}
			_ = bar.Set(total - n)
			came.Left, came.Done = &n, n == 0 && otherwise == nil
			switch {
			case otherwise == nil:
				against = time.Time{}
			case against.IsZero():
				against = time.Now()
			}
			if came.Done || (otherwise != nil && time.Since(against) > takenBackAfter) {
				_ = bar.Finish()
				return came, otherwise
			}
		}
		select {
		case <-ctx.Done():
			came.Seconds = time.Since(begin).Seconds()
			return came, errors.Join(fmt.Errorf("not finished within %v; it goes on in the background: see node cluster status", f.Wait), err)
		case <-tick.C:
		}
	}
}

// clusterMoveCommand moves one replica, or the leadership alone.
type clusterMoveCommand struct {
	waitFlags `embed:""`
	Shard     uint32 `arg:"" help:"Number of the shard."`
	From      string `help:"Node that gives its replica up. Without it the replicas stay, and the leadership goes to a node that holds one."`
	To        string `required:"" help:"Node that takes it."`
}

// Run implements the subcommand.
func (c *clusterMoveCommand) Run(ctx context.Context, std streams) error {
	w := &watch{target: &c.target}
	admin, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	ordered, err := admin.MoveShard(ctx, &nodev1.MoveShardRequest{Shard: c.Shard, From: c.From, To: c.To})
	if err != nil {
		return err
	}
	w.version = max(w.version, ordered.GetVersion())
	result := moveResult{Shard: c.Shard, From: c.From, To: c.To, Voters: []string{}}
	came, err := c.await(ctx, std, "steps", w.status, func(s *nodev1.StatusResponse) (int, error) {
		now := shardOf(s, c.Shard)
		result.Leader, result.Voters = now.GetLeader(), append([]string{}, now.GetVoters()...)
		left := c.stepsLeft(now)
		if left > 0 && !c.stands(s) {
			return left, fmt.Errorf("the cluster has placed shard %d otherwise meanwhile: it keeps replicas and leaderships even, see node cluster shards", c.Shard)
		}
		return left, nil
	})
	result.effect = came
	return c.tell(std, came, result, err)
}

func shardOf(s *nodev1.StatusResponse, shard uint32) *nodev1.ShardStatus {
	for _, sh := range s.GetShards() {
		if sh.GetShard() == shard {
			return sh
		}
	}
	return nil
}

// stands reports whether the placement still says what was ordered.
func (c *clusterMoveCommand) stands(s *nodev1.StatusResponse) bool {
	for _, p := range s.GetMeta().GetShards() {
		if p.GetShard() != c.Shard {
			continue
		}
		if c.From == "" {
			return p.GetPreferred() == c.To
		}
		return placedOn(p, c.To) && !placedOn(p, c.From)
	}
	return false
}

// stepsLeft counts what a move still needs: the new replica a voter, the old
// one out; or the leadership.
func (c *clusterMoveCommand) stepsLeft(now *nodev1.ShardStatus) int {
	if c.From == "" {
		if now.GetLeader() == c.To {
			return 0
		}
		return 1
	}
	steps := 2
	if !now.GetByLeader() {
		return steps
	}
	if slices.Contains(now.GetVoters(), c.To) {
		steps--
	}
	if !mayBeIn(now.GetVoters(), now.GetLearners(), c.From) {
		steps--
	}
	return steps
}
