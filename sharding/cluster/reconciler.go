package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	nodev1 "writ/proto/writ/node/v1"
	"writ/sharding"
)

// ReconcilerConfig is what NewReconciler needs.
type ReconcilerConfig struct {
	Node, Incarnation string
	Placements        Placements
	Replicas          Replicas
	Reporter          Reporter
	// Steady is how long a node must have answered without a break before it is
	// given the leadership that is meant for it. Default 3 s.
	Steady time.Duration
	// TransferPause is the least time between two hand-overs of one shard.
	// Default 10 s.
	TransferPause time.Duration
	Logger        *slog.Logger
}

const (
	changeTimeout     = 5 * time.Second
	shardsAtOnce      = 8
	lagMax            = 256 // log entries a replica may be behind and count as caught up
	steadyDefault     = 3 * time.Second
	transferPauseTime = 10 * time.Second
	// A failed replica is opened anew after a pause, which doubles each time.
	reopenPause    = 5 * time.Second
	reopenPauseMax = 5 * time.Minute
)

// Reconciler brings the replicas of this node, and the groups that it leads, to
// what the placement says: it opens and drops replicas, and, one membership
// change per shard and step, it adds, promotes and removes them. It decides by
// what it sees at that moment and keeps nothing that a restart would miss. Step
// belongs to one goroutine.
type Reconciler struct {
	config ReconcilerConfig
	notice *notice

	mu       sync.Mutex           // guards what follows
	answers  map[string]time.Time // by node: since when it has answered without a break
	transfer map[uint32]time.Time // by shard: last hand-over
	reopen   map[uint32]reopening // by shard: of a failed replica
}

// reopening is when a failed replica is opened anew next, and the pause before.
type reopening struct {
	next  time.Time
	pause time.Duration
}

// NewReconciler makes a reconciler.
func NewReconciler(c ReconcilerConfig) *Reconciler {
	if c.Steady == 0 {
		c.Steady = steadyDefault
	}
	if c.TransferPause == 0 {
		c.TransferPause = transferPauseTime
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Reconciler{config: c, notice: newNotice(c.Logger), answers: map[string]time.Time{}, transfer: map[uint32]time.Time{}, reopen: map[uint32]reopening{}}
}

// State says what is in the way, "" for nothing.
func (r *Reconciler) State() string { return r.notice.text() }

// Step takes one step for every shard, and reports whether there may be more to
// do at once. Errors are trouble on the way: the next Step tries again.
func (r *Reconciler) Step(ctx context.Context) (more bool, err error) {
	ready, _ := r.config.Placements.Ready() // first: it says nothing of a state read before
	state := r.config.Placements.State()
	if state.GetClusterId() == "" {
		return false, nil
	}
	p := &pass{r: r, ctx: ctx, ready: ready, state: state, local: r.config.Replicas.Statuses(), asked: map[string]func() []*nodev1.ShardStatus{}}
	places := state.GetShards()
	moved, errs := make([]bool, len(places)), make([]error, len(places))
	slots := make(chan struct{}, shardsAtOnce)
	each(len(places), func(i int) {
		slots <- struct{}{}
		defer func() { <-slots }()
		moved[i], errs[i] = p.shard(places[i])
		if errs[i] != nil {
			errs[i] = fmt.Errorf("shard %d: %w", places[i].GetShard(), errs[i])
		}
	})
	err = errors.Join(errs...)
	if err != nil && ctx.Err() == nil {
		r.notice.say("replicas: " + err.Error())
	} else {
		r.notice.say("")
	}
	return slices.Contains(moved, true), err
}

// pass is one Step: what is looked up during it is looked up once.
type pass struct {
	r     *Reconciler
	ctx   context.Context //nolint:containedctx // of one call of Step
	ready bool            // the state is up to date
	state *nodev1.MetaState
	local []*nodev1.ShardStatus

	mu    sync.Mutex
	asked map[string]func() []*nodev1.ShardStatus
}

// reports asks a node about its replicas; nil if it does not answer.
func (p *pass) reports(node string) []*nodev1.ShardStatus {
	p.mu.Lock()
	ask := p.asked[node]
	if ask == nil {
		ask = sync.OnceValue(func() []*nodev1.ShardStatus { return p.r.ask(p.ctx, node) })
		p.asked[node] = ask
	}
	p.mu.Unlock()
	return ask()
}

func (r *Reconciler) ask(ctx context.Context, node string) []*nodev1.ShardStatus {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := r.config.Reporter.Shards(ctx, node)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch _, known := r.answers[node]; {
	case err != nil:
		delete(r.answers, node)
		return nil
	case !known:
		r.answers[node] = time.Now()
	}
	return list
}

// steady reports whether a node has been answering for long enough.
func (r *Reconciler) steady(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, ok := r.answers[node]
	return ok && time.Since(since) >= r.config.Steady
}

// shard takes a step for one shard.
func (p *pass) shard(place *nodev1.ShardPlacement) (bool, error) {
	mine := p.mine(place)
	here := reportOf(p.local, place.GetShard())
	switch {
	case here == nil:
		return p.open(place, mine)
	case p.older(here.GetReplicaGeneration()):
		return false, nil // this state does not know the replica yet
	case mine == nil || here.GetReplicaGeneration() < mine.GetGeneration():
		if dropped, err := p.drop(place, here); dropped || err != nil {
			return dropped, err
		}
	case here.GetReplicaGeneration() > mine.GetGeneration():
		return false, nil // this state is older than the replica
	}
	switch {
	case here.GetState() == stateFailed:
		if !p.r.mayReopen(place.GetShard()) {
			return false, nil
		}
		opened, err := p.r.config.Replicas.Reopen(p.config(place, here.GetReplicaGeneration()))
		if opened {
			p.r.config.Logger.Info("a failed replica is opened anew", slog.Int("shard", int(place.GetShard())), slog.String("reason", here.GetReason()))
		}
		return false, err
	case here.GetLeader() != p.r.config.Node:
		return false, nil
	case here.GetState() == stateServing, here.GetState() == StateLowDisk:
		return p.lead(place, here)
	}
	return false, nil // it is stopping, and hands over by itself
}

// older reports whether this state is from before a replica was placed: the number
// given out last rises with each placement. After a restart the state is read again,
// step by step, and one of these knows nothing of what came later.
func (p *pass) older(generation uint64) bool { return generation > p.state.GetReplicaGeneration() }

// mine is this node's replica of a shard by the placement, nil if it has none.
func (p *pass) mine(place *nodev1.ShardPlacement) *nodev1.ReplicaPlacement {
	for _, r := range place.GetReplicas() {
		if r.GetNode() == p.r.config.Node && r.GetIncarnation() == p.r.config.Incarnation {
			return r
		}
	}
	return nil
}

// open opens a replica: first of all one that the last run has left, whatever the
// placement says, for the group may need its vote until its leader has taken that
// away; only drop ends a replica. For a new one, only a state that is surely not
// out of date may bootstrap a group: the group may have been formed, and moved
// away, since.
func (p *pass) open(place *nodev1.ShardPlacement, mine *nodev1.ReplicaPlacement) (bool, error) {
	generation := p.r.config.Replicas.Kept(place.GetShard(), place.GetEpoch())
	switch {
	case generation == 0 && mine == nil:
		return false, nil
	case generation == 0:
		generation = mine.GetGeneration()
	}
	c := p.config(place, generation)
	if !place.GetFormed() && mine.GetGeneration() == generation {
		if !p.ready {
			return false, nil
		}
		c.Bootstrap = servers(place)
	}
	err := p.r.config.Replicas.Open(c)
	if errors.Is(err, ErrOutOfDate) {
		if p.ready {
			return false, fmt.Errorf("replica %d of this node was dropped before and cannot be opened: move the shard from it (node cluster move), or clear its data folder", generation)
		}
		return false, nil // after a restart the placement is read again, step by step
	}
	if err != nil {
		return false, err
	}
	p.r.config.Logger.Info("replica opened", slog.Int("shard", int(c.Shard)), slog.Uint64("generation", c.Generation))
	return true, nil
}

func (p *pass) config(place *nodev1.ShardPlacement, generation uint64) ReplicaConfig {
	return ReplicaConfig{
		Shard: place.GetShard(), Range: sharding.Range{First: place.GetRangeFirst(), Last: place.GetRangeLast()},
		Epoch: place.GetEpoch(), Generation: generation,
		GenerationWidth: time.Duration(p.state.GetGenerationWidth()),
	}
}

// mayReopen says whether it is time to open a failed replica anew.
func (r *Reconciler) mayReopen(shard uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	s, seen := r.reopen[shard]
	switch {
	case !seen || now.Sub(s.next) > 2*reopenPauseMax: // it has been well for long
		r.reopen[shard] = reopening{next: now.Add(reopenPause), pause: reopenPause}
		return false
	case now.Before(s.next):
		return false
	}
	s.pause = min(2*s.pause, reopenPauseMax)
	s.next = now.Add(s.pause)
	r.reopen[shard] = s
	return true
}

func servers(place *nodev1.ShardPlacement) []Server {
	var list []Server
	for _, r := range place.GetReplicas() {
		list = append(list, Server{Node: r.GetNode(), Incarnation: r.GetIncarnation(), Generation: r.GetGeneration()})
	}
	return list
}

// drop deletes a replica that the placement no longer has, but not before the
// group can do without it: the leader's committed configuration must be rid of
// this node. A replica in quarantine takes part in nothing and goes at once. What is
// dropped can never be opened again.
func (p *pass) drop(place *nodev1.ShardPlacement, here *nodev1.ShardStatus) (bool, error) {
	if here.GetState() != stateQuarantined && !p.excluded(place, here) {
		return false, nil
	}
	if err := p.r.config.Replicas.Drop(place.GetShard()); err != nil {
		return false, err
	}
	p.r.config.Logger.Info("replica dropped", slog.Int("shard", int(place.GetShard())),
		slog.Uint64("generation", here.GetReplicaGeneration()), slog.String("state", here.GetState()))
	return true, nil
}

// excluded asks the nodes of the placement, and whom they name, for one that
// leads, in a term that is no older than what the replica has heard, and without
// this node. The leader may be a node that the placement has no more.
func (p *pass) excluded(place *nodev1.ShardPlacement, here *nodev1.ShardStatus) bool {
	self := p.r.config.Node
	nodes := []string{here.GetLeader()}
	for _, r := range place.GetReplicas() {
		nodes = append(nodes, r.GetNode())
	}
	asked := map[string]bool{"": true, self: true}
	for ; len(nodes) > 0; nodes = nodes[1:] {
		node := nodes[0]
		if asked[node] {
			continue
		}
		asked[node] = true
		r := reportOf(p.reports(node), place.GetShard())
		if r.GetLeader() != node {
			nodes = append(nodes, r.GetLeader())
			continue
		}
		// One that has just started may not have applied all its configurations yet.
		current := r.GetTerm() >= here.GetTerm() && r.GetAppliedIndex() >= here.GetAppliedIndex()
		if r.GetState() == stateServing && current && len(r.GetVoters()) > 0 {
			return !slices.Contains(r.GetVoters(), self) && !slices.Contains(r.GetLearners(), self)
		}
	}
	return false
}
