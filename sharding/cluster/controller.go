package cluster

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	"writ/sharding"
)

// ControllerConfig is what NewController needs.
type ControllerConfig struct {
	Node      string
	ClusterID string
	// InitialNodes must all be registered before shards are placed.
	InitialNodes []string
	// Shards, Replication and Contract hold for a cluster that begins; later its
	// own numbers do. Defaults: 8 shards, 3 replicas.
	Shards      uint32
	Replication int
	Contract    *nodev1.Contract
	// GenerationWidth is the slice of log time whose idempotency keys are
	// forgotten together, in all shards for good; 0: the replicas' default.
	GenerationWidth time.Duration
	// Grace is how long a node may be out of reach before its replicas are placed
	// elsewhere. Default 5 min.
	Grace time.Duration
	// MovingMax bounds the shards in motion. Default 2.
	MovingMax int
	Meta      Meta
	Members   MetaMembers
	Directory Directory
	Reporter  NodeReporter
	Logger    *slog.Logger
}

func (c ControllerConfig) withDefaults() ControllerConfig {
	if c.Shards == 0 {
		c.Shards = 8
	}
	if c.Replication == 0 {
		c.Replication = 3
	}
	if c.Grace == 0 {
		c.Grace = 5 * time.Minute
	}
	if c.MovingMax == 0 {
		c.MovingMax = 2
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Controller keeps the registry and the placement. Every node has one; it works
// on the leader of the meta group, and on the others refers callers to that leader.
// It holds nothing that a new leader would miss. It is safe for concurrent use, but Step
// belongs to one goroutine.
type Controller struct {
	config ControllerConfig
	notice *notice
	eyes   *observer
}

// NewController makes a controller.
func NewController(c ControllerConfig) *Controller {
	c = c.withDefaults()
	return &Controller{config: c, notice: newNotice(c.Logger), eyes: newObserver()}
}

// Register takes a node into the registry, or says who can. A new incarnation of
// a known name takes the old one's place: the old one's replicas and its vote in
// the meta group go.
func (c *Controller) Register(ctx context.Context, req *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error) {
	state := c.config.Meta.State()
	switch {
	case state.GetClusterId() == "":
		return nil, entity.Errorf(entity.NotExecuted, "the cluster is still being formed")
	case registered(state, req):
		return &nodev1.RegisterResponse{ClusterId: state.GetClusterId(), Registered: true}, nil
	case !c.config.Meta.IsLeader():
		return &nodev1.RegisterResponse{ClusterId: state.GetClusterId(), Leader: c.config.Meta.Leader()}, nil
	}
	err := c.config.Meta.Update(ctx, func(s *nodev1.MetaState) error {
		return register(s, req, c.alive(req.GetNode(), s.GetNodes()[req.GetNode()].GetIncarnation()))
	})
	if err != nil {
		return nil, err
	}
	c.config.Logger.Info("node registered", slog.String("name", req.GetNode()), slog.String("incarnation", req.GetIncarnation()))
	return &nodev1.RegisterResponse{ClusterId: state.GetClusterId(), Registered: true}, nil
}

func (c *Controller) alive(name, incarnation string) bool {
	return slices.ContainsFunc(c.config.Directory.Members(), func(m Member) bool {
		return m.Name == name && m.Incarnation == incarnation && m.Alive
	})
}

// SetNodeState drains, removes or reactivates a node; on the leader of the meta
// group only.
func (c *Controller) SetNodeState(ctx context.Context, req *nodev1.SetNodeStateRequest) error {
	return c.config.Meta.Update(ctx, func(s *nodev1.MetaState) error {
		return setNodeState(s, req.GetNode(), req.GetState())
	})
}

// MoveShard moves one replica or the leadership of a shard; on the leader of the
// meta group only. The plan goes on from there: what makes nodes uneven is evened
// out again.
func (c *Controller) MoveShard(ctx context.Context, req *nodev1.MoveShardRequest) error {
	return c.config.Meta.Update(ctx, func(s *nodev1.MetaState) error { return moveShard(s, req) })
}

// State says what the controller waits for, "" for nothing.
func (c *Controller) State() string { return c.notice.text() }

// Step takes the next steps, and reports whether there may be more to do at
// once. Errors are trouble on the way: the next Step tries again.
func (c *Controller) Step(ctx context.Context) (more bool, err error) {
	if !c.config.Meta.IsLeader() {
		c.eyes.forget()
		c.notice.say("")
		return false, nil
	}
	voters, learners := c.config.Members.Members() // first: the state knows all of them then
	state := c.config.Meta.State()
	if state.GetClusterId() == "" {
		return c.update(ctx, c.begin)
	}
	seen := c.eyes.look(ctx, c.config, state)
	memberErr := errors.Join(c.tendMembers(ctx, voters, learners, state, seen), c.leaveLowDisk(ctx, seen))
	if len(state.GetShards()) == 0 {
		more, err = c.placeInitial(ctx, state)
		return more, errors.Join(memberErr, err)
	}
	var why sharding.Change
	more, err = c.update(ctx, func(s *nodev1.MetaState) (err error) {
		why, err = c.plan(s, seen)
		return err
	})
	if more && why.Reason != "" {
		c.config.Logger.Info("placement: "+why.Reason, slog.Int("shard", int(why.Placement.Shard)))
	}
	return more, errors.Join(memberErr, err)
}

// update changes the state, and reports whether there was anything to change.
func (c *Controller) update(ctx context.Context, change func(*nodev1.MetaState) error) (bool, error) {
	if err := change(proto.CloneOf(c.config.Meta.State())); err != nil {
		if errors.Is(err, errNothing) {
			return false, nil
		}
		return false, err
	}
	err := c.config.Meta.Update(ctx, change)
	if errors.Is(err, errNothing) {
		return false, nil
	}
	return err == nil, err
}

// begin writes what the cluster starts with.
func (c *Controller) begin(s *nodev1.MetaState) error {
	if s.GetClusterId() != "" {
		return errNothing
	}
	s.ClusterId = c.config.ClusterID
	s.Replication = uint32(c.config.Replication)
	s.Contract = c.config.Contract
	s.GenerationWidth = int64(c.config.GenerationWidth)
	return nil
}

// placeInitial places the shards once all initial nodes are there: earlier, the
// first to come would get everything.
func (c *Controller) placeInitial(ctx context.Context, state *nodev1.MetaState) (bool, error) {
	expected := slices.Clone(c.config.InitialNodes)
	voters, _ := c.config.Members.Members()
	for _, s := range voters {
		expected = append(expected, s.Node)
	}
	var missing []string
	slices.Sort(expected)
	for _, name := range slices.Compact(expected) {
		if state.GetNodes()[name] == nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		c.notice.say("placing the shards: waiting for " + strings.Join(missing, ", "))
		return false, nil
	}
	more, err := c.update(ctx, func(s *nodev1.MetaState) error {
		if len(s.GetShards()) > 0 {
			return errNothing
		}
		places := sharding.Initial(c.config.Shards, planNodes(s, nil), int(s.GetReplication()), generations(s))
		if len(places) == 0 {
			return errNothing
		}
		// Nothing is written yet that an older program could miss.
		s.ActiveFormat = max(activeFormat(s), readByAll(s))
		for i, r := range sharding.Split(c.config.Shards) {
			p := places[i]
			s.Shards = append(s.Shards, &nodev1.ShardPlacement{
				Shard: p.Shard, RangeFirst: r.First, RangeLast: r.Last, Epoch: 1, Replicas: replicasOf(p), Preferred: p.Preferred,
			})
		}
		return nil
	})
	if more {
		c.notice.say("")
		c.config.Logger.Info("shards placed", slog.Int("shards", int(c.config.Shards)), slog.Int("nodes", len(state.GetNodes())))
	}
	return more, err
}

// plan notes which shards have formed and takes one step towards the placement
// that should be.
func (c *Controller) plan(s *nodev1.MetaState, seen *observation) (sharding.Change, error) {
	changed := false
	for _, p := range s.GetShards() {
		if !p.GetFormed() && seen.led(p.GetShard()) {
			p.Formed, changed = true, true
		}
	}
	v := sharding.View{
		Nodes: planNodes(s, seen), Replication: int(s.GetReplication()), MaxMoving: c.config.MovingMax,
		Phases: map[uint32]sharding.Phase{}, Broken: seen.broken,
	}
	for _, p := range s.GetShards() {
		v.Placements = append(v.Placements, placementOf(p))
		v.Phases[p.GetShard()] = seen.phase(p)
	}
	change, ok := sharding.Next(v, generations(s))
	if ok {
		return change, apply(s, change.Placement)
	}
	if !changed {
		return change, errNothing
	}
	return change, nil
}

func generations(s *nodev1.MetaState) func() uint64 {
	return func() uint64 {
		s.ReplicaGeneration++
		return s.ReplicaGeneration
	}
}

// planNodes lists the nodes that may hold replicas, with what was seen of them.
func planNodes(s *nodev1.MetaState, seen *observation) []sharding.Node {
	if seen == nil {
		seen = &observation{}
	}
	var list []sharding.Node
	for _, name := range slices.Sorted(maps.Keys(s.GetNodes())) {
		e := s.GetNodes()[name]
		if e.GetState() == nodev1.NodeEntry_REMOVED {
			continue
		}
		list = append(list, sharding.Node{
			Name: name, Incarnation: e.GetIncarnation(), Zone: e.GetZone(),
			Draining: e.GetState() == nodev1.NodeEntry_DRAINING || seen.sick[name], Dead: seen.dead[name],
		})
	}
	return list
}
