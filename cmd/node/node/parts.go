package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"writ/actors"
	"writ/actors/entity"
	"writ/internal/format"
	"writ/persistence/replica"
	nodev1 "writ/proto/writ/node/v1"
	"writ/sharding/cluster"
	"writ/sharding/membership"
)

// parts are what a node has once it belongs to a cluster.
type parts struct {
	registry *entity.Registry
	meter    *meter
	node     string
	disk     *diskGuard
	limits   Limits
	// stopping is the node's: it hands its leaderships over and takes none.
	stopping *atomic.Bool
	host     *replica.Host
	meta     *replica.Meta
	runtime  *actors.Runtime
	agent    *cluster.Agent
	control  *cluster.Controller
	current  atomic.Bool // the meta group's state has been up to date since the start
}

// form brings the node into its cluster and keeps its part of it in order until
// the context ends.
func (n *Node) form(ctx context.Context) error {
	select {
	case <-n.gossip.Settled():
	case <-ctx.Done():
		return nil
	}
	formed, err := n.formation.Run(ctx)
	if err != nil {
		return err
	}
	if err := n.gossip.SetClusterID(formed.ClusterID); err != nil {
		return err
	}
	p, err := n.openParts(formed)
	if err != nil {
		return n.noteLoss(err)
	}
	n.inner.Store(p)
	n.wg.Go(func() { n.check(n.noteLoss(p.host.AwaitLoss(ctx))) })
	n.wg.Go(func() { n.watchMeta(ctx, p) })
	n.wg.Go(func() { n.exchangeCrashes(ctx) })
	p.agent.Run(ctx)
	return nil
}

// watchMeta passes changes of the meta group on.
func (n *Node) watchMeta(ctx context.Context, p *parts) {
	atChanges(ctx, p.meta.Changed, func() error {
		n.checkStart(p)
		p.agent.Poke()
		n.router.Wake()
		err := n.identity.NoteFormat(replica.ActiveFormat(p.meta.State()))
		if err != nil {
			n.log.Warn("the active format could not be noted; it is tried again", slog.Any("error", err))
		}
		return err
	})
}

// againAfter is the pause before what has failed is tried again.
const againAfter = 10 * time.Second

// atChanges calls do at every change until the context ends, and again after a
// pause if it has failed: the next change may never come.
func atChanges(ctx context.Context, changed func() <-chan struct{}, do func() error) {
	again := time.NewTimer(againAfter)
	again.Stop()
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		case <-changed():
		}
		again.Stop()
		if err := do(); err != nil {
			again.Reset(againAfter)
		}
	}
}

func (n *Node) openParts(formed cluster.Formed) (p *parts, err error) {
	p = &parts{node: n.cfg.ID, disk: n.disk, limits: n.cfg.Limits, stopping: &n.draining, registry: n.registry, meter: n.meter}
	if p.runtime, err = actors.New(actors.Config{
		Node: n.cfg.ID, Registry: n.registry, Shards: n.table.Shards, Window: p.window, Clock: n.cfg.Clock, Courier: n.router, Admit: p.admit,
		Limits: n.cfg.Limits.Entities, Freshness: p.freshness, Hands: n.hands, Metrics: n.metrics, Tracer: n.tracing.port(), Logger: n.log,
	}); err != nil {
		return nil, err
	}
	replicas := newReplicas(p, n.table.forget)
	if p.host, err = replica.NewHost(replica.Config{
		Node: n.cfg.ID, Incarnation: n.identity.Incarnation(), ClusterID: formed.ClusterID, Dir: n.cfg.Dir, HeldLog: n.identity.HeldData(),
		Listener: n.listeners.raft, Resolve: n.raftAddress,
		OnLease: func(shard uint32, lease *replica.Lease) {
			n.gossip.Announce(membership.LeaderHint{Shard: shard, Epoch: lease.Epoch(), Term: lease.Term(), Node: n.cfg.ID})
			replicas.lead(shard, lease)
			n.auditor.lead()
			n.routesChanged()
		},
		OnLeader: func(shard uint32, node string, epoch, term uint64) {
			n.table.observe(shard, leaderView{node: node, epoch: epoch, term: term})
			n.routesChanged()
		},
		UnflushedMax: n.cfg.Limits.unflushedMost(),
		Room:         n.disk.room,
		Store:        replica.StoreConfig{Flushing: n.meter.flushing},
		Logger:       n.log,
	}); err != nil {
		return nil, errors.Join(err, p.runtime.Close(context.Background()))
	}
	if err = n.identity.NoteData(); err != nil {
		return nil, errors.Join(err, p.close(context.Background()))
	}
	if p.meta, err = p.host.OpenMeta(replica.MetaConfig{Generation: cluster.MetaGeneration, Bootstrap: replicaServers(formed.Bootstrap)}); err != nil {
		return nil, errors.Join(err, p.close(context.Background()))
	}
	n.openAgent(p, replicas, formed.ClusterID)
	return p, nil
}

func (n *Node) openAgent(p *parts, replicas *replicas, clusterID string) {
	members, reporter := metaMembers{p.meta}, reporter{n}
	p.control = cluster.NewController(cluster.ControllerConfig{
		Node: n.cfg.ID, ClusterID: clusterID, InitialNodes: n.cfg.InitialNodes, Shards: n.cfg.Shards,
		Contract: n.cfg.defaultContract(), GenerationWidth: n.cfg.generationWidth(),
		Grace: n.cfg.DeadNodeGrace, Meta: p.meta, Members: members, Directory: directory{n.gossip}, Reporter: reporter, Logger: n.log,
	})
	p.agent = cluster.NewAgent(cluster.AgentConfig{
		Registrar: cluster.NewRegistrar(cluster.RegistrarConfig{
			Identity: n.identity, Zone: n.cfg.Zone, FormatMax: format.Max, Meta: p.meta, Members: members,
			Controller: p.control, Peers: n.peers, Directory: directory{n.gossip}, Logger: n.log,
		}),
		Controller: p.control,
		Reconciler: cluster.NewReconciler(cluster.ReconcilerConfig{
			Node: n.cfg.ID, Incarnation: n.identity.Incarnation(), Placements: p.meta, Replicas: replicas, Reporter: reporter, Logger: n.log,
		}),
		Logger: n.log,
	})
}

// raftAddress resolves a node when Raft dials it: addresses may change.
func (n *Node) raftAddress(node string) (string, bool) {
	m, ok := n.gossip.Lookup(node)
	return m.Raft, ok && m.Raft != ""
}

// placement is the placement by shard, in order; nil until there is one.
func (n *Node) placement() []shardView {
	p := n.parts()
	if p == nil {
		return nil
	}
	state := p.meta.State()
	if seen := n.placed.Load(); seen != nil && seen.state == state {
		return seen.views
	}
	placed := state.GetShards()
	views := make([]shardView, len(placed))
	for _, place := range placed {
		if int(place.GetShard()) >= len(views) {
			n.log.Error("placement has gaps", slog.Uint64("shard", uint64(place.GetShard())), slog.Int("shards", len(views)))
			return nil
		}
		for _, r := range place.GetReplicas() {
			views[place.GetShard()].nodes = append(views[place.GetShard()].nodes, r.GetNode())
		}
	}
	n.placed.Store(&placement{state, views})
	return views
}

// placement is the placement of a state of the meta group, which never changes: every
// call asks for it.
type placement struct {
	state *nodev1.MetaState
	views []shardView
}

// window is how long a kind's keys are remembered.
func (p *parts) window(kind string) time.Duration {
	if p.meta == nil {
		return 0
	}
	def := p.registry.Kind(kind)
	if def == nil {
		return 0
	}
	return windowOf(p.meta.State().GetContract(), def)
}

// admit refuses calls while the disk is low, for a shard whose file cannot keep up, and
// after a start until the contract is surely not an old one: by that the keys of what
// is taken now are remembered.
func (p *parts) admit(shard uint32) error {
	if !p.current.Load() { // this look only makes it sooner
		ok, reason := false, "it is starting"
		if p.meta != nil {
			ok, reason = p.meta.Ready()
		}
		if !ok {
			return entity.Errorf(entity.NotExecuted, "node %s may have an old contract: the meta group: %s", p.node, reason)
		}
		p.current.Store(true)
	}
	if err := p.disk.admit(); err != nil {
		return err
	}
	r := p.host.Replica(shard)
	if r == nil || r.Store() == nil {
		return nil // the gate knows better what to answer
	}
	if size, most := r.Store().UnflushedBytes(), p.limits.Store.Unflushed; size > most {
		return entity.Overload("store.Unflushed", most, "shard %d holds %d bytes that are not in its file yet", shard, size).Retry(time.Second)
	}
	return nil
}

// freshness is told by stale reads.
func (p *parts) freshness(shard uint32) (logIndex uint64, age time.Duration) {
	r := p.host.Replica(shard)
	if r == nil {
		return 0, 0
	}
	st := r.Status()
	return st.AppliedIndex, max(0, time.Since(st.Contact))
}

// handlersTimeout bounds the wait for handlers that run.
const handlersTimeout = time.Second

// close ends the parts from the outside in.
func (p *parts) close(ctx context.Context) error {
	// A handler that hangs must not keep the stores from being flushed and closed;
	// its lease ends with them.
	handlers, cancel := context.WithTimeout(ctx, handlersTimeout)
	defer cancel()
	errs := []error{p.runtime.Close(handlers)}
	if err := p.host.Close(ctx); err != nil {
		errs = append(errs, fmt.Errorf("close replicas: %w", err))
	}
	return errors.Join(errs...)
}
