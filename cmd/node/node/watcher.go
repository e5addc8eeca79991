package node

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/persistence/replica"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// watcher looks at the preconditions of the guarantee once a second and keeps this
// node's view of them.
type watcher struct {
	node *Node

	last   atomic.Pointer[writv1.Guarantee] // never changed once stored
	standM sync.Mutex
	stand  map[string]standing
	// oldest are the acceptance times of the oldest rows, by shards led here.
	oldest atomic.Pointer[map[uint32]time.Time]
}

// standing is since when a precondition has been as it is.
type standing struct {
	reason string
	since  time.Time
}

// watchEvery is the pace; an alert sees a change one scrape later.
const watchEvery = time.Second

func newWatcher(n *Node) *watcher {
	w := &watcher{node: n, stand: map[string]standing{}}
	w.last.Store(&writv1.Guarantee{})
	w.oldest.Store(&map[uint32]time.Time{})
	return w
}

// run looks until the context ends.
func (w *watcher) run(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		w.look(time.Now())
		w.lookAtRows(ctx)
		if p := w.node.parts(); p != nil {
			w.node.checkStart(p)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// view is this node's view. It must not be changed.
func (w *watcher) view() *writv1.Guarantee { return w.last.Load() }

// look judges all preconditions and keeps the result.
func (w *watcher) look(now time.Time) {
	o := w.node.observe()
	g := &writv1.Guarantee{Nodes: []string{w.node.cfg.ID}, Contract: contractView(o)}
	w.standM.Lock()
	defer w.standM.Unlock()
	for _, pre := range preconditions() {
		reason := pre.unmet(o)
		st, known := w.stand[pre.name]
		if !known || (st.reason == "") != (reason == "") {
			st.since = now
			w.tell(pre.name, reason, known)
		}
		st.reason = reason
		w.stand[pre.name] = st
		view := &writv1.Precondition{Name: pre.name, About: pre.about, Met: reason == "", Since: timestamppb.New(st.since)}
		if reason != "" {
			view.Reasons = []string{w.node.cfg.ID + ": " + reason}
		}
		g.Preconditions = append(g.Preconditions, view)
	}
	conclude(g, map[clause][]string{
		clauseScope: scopeEvidence(w.node.cfg.ID, o), clauseReplay: replayEvidence(w.node.cfg.ID, o),
		clauseBoundary: boundaryEvidence(w.node.cfg.ID, o),
	})
	w.last.Store(g)
}

func (w *watcher) tell(name, reason string, known bool) {
	switch {
	case reason != "" && known:
		w.node.log.Warn("a precondition of the guarantee is not met", slog.String("precondition", name), slog.String("reason", reason))
	case reason == "" && known:
		w.node.log.Info("a precondition of the guarantee is met again", slog.String("precondition", name))
	}
}

// lookAtRows finds the oldest row of every shard led here.
func (w *watcher) lookAtRows(ctx context.Context) {
	p := w.node.parts()
	if p == nil {
		return
	}
	oldest := map[uint32]time.Time{}
	for _, r := range p.host.Replicas() {
		store := r.Store()
		if r.Lease() == nil || store == nil {
			continue
		}
		if store.Meta().GetCounters().GetRowsPending() == 0 {
			oldest[r.Shard()] = time.Time{}
			continue
		}
		at, err := store.OldestRow(ctx)
		switch {
		case err != nil: // the store is being closed, or has told of its trouble
		case at == 0:
			oldest[r.Shard()] = time.Time{}
		default:
			oldest[r.Shard()] = time.Unix(0, at)
		}
	}
	w.oldest.Store(&oldest)
}

// observe collects what the preconditions are judged by.
func (n *Node) observe() observation {
	o := observation{disk: n.disk.reason(), audits: n.auditor.views()}
	p := n.parts()
	if p == nil {
		o.meta = "the cluster is not formed yet"
		return o
	}
	ok, reason := p.meta.Ready() // first: it says nothing of a state read before
	state := p.meta.State()
	if !ok {
		o.meta = reason
	} else if p.meta.Leader() == "" {
		o.meta = "the meta group has no leader"
	}
	if o.contract = state.GetContract(); o.contract != nil {
		o.drift, o.windows = n.cfg.drift(o.contract), windows(o.contract, n.registry)
	}
	o.replicate = wantedReplicas(state)
	for _, placed := range state.GetShards() {
		o.shards = append(o.shards, n.observeShard(p, placed))
	}
	return o
}

// wantedReplicas is how many voters each shard should have: fewer than the
// replication only where there are not enough nodes.
func wantedReplicas(state *nodev1.MetaState) int {
	nodes := 0
	for _, entry := range state.GetNodes() {
		if entry.GetState() != nodev1.NodeEntry_REMOVED {
			nodes++
		}
	}
	return min(nodes, int(state.GetReplication()))
}

func (n *Node) observeShard(p *parts, placed *nodev1.ShardPlacement) observedShard {
	shard := placed.GetShard()
	s := observedShard{shard: shard}
	s.leader, _ = n.table.Leader(shard)
	for _, r := range placed.GetReplicas() {
		if !n.alive(r.GetNode()) {
			s.dead = append(s.dead, r.GetNode())
		}
	}
	r := p.host.Replica(shard)
	if r == nil {
		return s
	}
	st := r.Status()
	if st.State != replica.Serving && st.State != replica.Opening {
		s.trouble = string(st.State) + ": " + st.Reason
	}
	if s.leads = r.Lease() != nil; !s.leads {
		return s
	}
	s.voters = len(st.Voters)
	for _, v := range st.Voters {
		if n.alive(v.Node) {
			s.live++
		}
	}
	return s
}

// alive reports whether gossip has the node alive; this one is.
func (n *Node) alive(name string) bool {
	m, known := n.gossip.Lookup(name)
	return name == n.cfg.ID || (known && m.Alive)
}

// contractView is the contract for clients.
func contractView(o observation) *writv1.Contract {
	if o.contract == nil {
		return nil
	}
	view := &writv1.Contract{
		Window:       durationpb.New(time.Duration(o.contract.GetWindow())),
		RetryHorizon: durationpb.New(retryHorizon(o.contract)),
		Replication:  uint32(o.replicate),
		WindowByKind: map[string]*durationpb.Duration{},
	}
	for kind, window := range o.windows {
		view.WindowByKind[kind] = durationpb.New(window)
	}
	return view
}

func scopeEvidence(node string, o observation) []string {
	var effects, keys uint64
	counted := 0
	var oldest time.Time
	for _, v := range o.audits {
		if v.finished.IsZero() {
			continue
		}
		counted++
		effects, keys = effects+v.effects, keys+v.keys
		if oldest.IsZero() || v.finished.Before(oldest) {
			oldest = v.finished
		}
	}
	if counted == 0 {
		return []string{node + ": no shard led here has been recounted yet"}
	}
	return []string{fmt.Sprintf("%s: effects %d, keys %d, shards led here %d, recounted since %s", node, effects, keys, counted, oldest.UTC().Format(time.RFC3339))}
}

func replayEvidence(node string, o observation) []string {
	counted := 0
	for _, v := range o.audits {
		if !v.finished.IsZero() {
			counted++
		}
	}
	return []string{fmt.Sprintf("%s: shards led here whose replicas were compared at one index: %d", node, counted)}
}

func boundaryEvidence(node string, o observation) []string {
	var checked uint64
	for _, v := range o.audits {
		checked += v.lanesChecked
	}
	return []string{fmt.Sprintf("%s: ends of lanes that were compared with the other end: %d", node, checked)}
}

// conclude makes the clauses from the preconditions.
func conclude(g *writv1.Guarantee, evidence map[clause][]string) {
	by := map[string]*writv1.Precondition{}
	for _, pre := range g.GetPreconditions() {
		by[pre.GetName()] = pre
	}
	evidence[clauseWindow] = windowEvidence(g.GetContract())
	g.Held = len(by) > 0
	for _, promise := range promises() {
		c := &writv1.Clause{Name: string(promise.clause), Promise: promise.text, Held: true, Evidence: evidence[promise.clause]}
		var since time.Time
		for _, pre := range preconditions() {
			view := by[pre.name]
			if pre.clause != promise.clause || view == nil {
				continue
			}
			at := view.GetSince().AsTime()
			switch {
			case view.GetMet():
				if c.Held && at.After(since) {
					since = at
				}
				c.Evidence = append(c.Evidence, pre.about)
			case c.Held || at.Before(since): // the first violation counts from the earliest
				since = at
				c.Held = false
			}
			if !view.GetMet() {
				c.Violated = append(c.Violated, pre.name)
				for _, reason := range view.GetReasons() {
					if !slices.Contains(c.Evidence, reason) { // a silent node is one for each of them
						c.Evidence = append(c.Evidence, reason)
					}
				}
			}
		}
		c.Since = timestamppb.New(since)
		g.Clauses = append(g.Clauses, c)
		g.Held = g.Held && c.Held
	}
}

func windowEvidence(c *writv1.Contract) []string {
	if c == nil {
		return nil
	}
	out := []string{fmt.Sprintf("window %v, retry horizon %v", c.GetWindow().AsDuration(), c.GetRetryHorizon().AsDuration())}
	for _, kind := range slices.Sorted(maps.Keys(c.GetWindowByKind())) {
		if d := c.GetWindowByKind()[kind].AsDuration(); d != c.GetWindow().AsDuration() {
			out = append(out, fmt.Sprintf("window of kind %s: %v", kind, d))
		}
	}
	return out
}
