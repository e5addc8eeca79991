package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// guaranteeService states the guarantee to clients.
type guaranteeService struct {
	writv1.UnimplementedGuaranteeServiceServer
	node        *Node
	credentials *gateway.Credentials
}

// peerWait is how long another node may take to tell its view.
const peerWait = 2 * time.Second

// Get implements GuaranteeService: the views of all nodes, put together.
func (s *guaranteeService) Get(ctx context.Context, req *writv1.GetGuaranteeRequest) (*writv1.Guarantee, error) {
	if _, err := s.credentials.Authenticate(ctx); err != nil {
		return nil, gateway.ToStatus(err)
	}
	own := s.node.watcher.view()
	p := s.node.parts()
	if req.GetLocal() || p == nil {
		return own, nil
	}
	views, silent := s.others(ctx, p)
	return merge(append([]*writv1.Guarantee{own}, views...), silent, s.down, time.Now()), nil
}

// others asks all other nodes of the registry at once.
func (s *guaranteeService) others(ctx context.Context, p *parts) (views []*writv1.Guarantee, silent []string) {
	ctx, cancel := context.WithTimeout(ctx, peerWait)
	defer cancel()
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	for name, entry := range p.meta.State().GetNodes() {
		if name == s.node.cfg.ID || entry.GetState() == nodev1.NodeEntry_REMOVED {
			continue
		}
		wg.Go(func() {
			res, err := s.node.peers.Guarantee(ctx, name, &nodev1.GuaranteeRequest{ClusterId: s.node.clusterID()})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || len(res.GetGuarantee().GetPreconditions()) == 0 {
				silent = append(silent, name)
				return
			}
			views = append(views, res.GetGuarantee())
		})
	}
	wg.Wait()
	slices.SortFunc(views, func(a, b *writv1.Guarantee) int { return slices.Compare(a.GetNodes(), b.GetNodes()) })
	slices.Sort(silent)
	return views, silent
}

// down reports whether gossip holds a node for dead.
func (s *guaranteeService) down(name string) bool {
	m, ok := s.node.gossip.Lookup(name)
	return ok && !m.Alive
}

// connected reports whether a node sees a leader of every group, so that a node that
// is down for it has successors: it may itself be the one that is cut off.
func connected(view *writv1.Guarantee) bool {
	met := 0
	for _, pre := range view.GetPreconditions() {
		if (pre.GetName() == "leaders_known" || pre.GetName() == "meta_group") && pre.GetMet() {
			met++
		}
	}
	return met == 2
}

// merge puts views together: a precondition is met if it is on every node, since
// the last of them; if not, it is not met since the first. One of which a node has
// the only evidence is not met, since now, while that node is silent: nobody knows.
// A node that is down leads nothing, and what it knew of the shards that it led their
// new leaders find, if there are any: then it tells of its replicas and its disk only.
// The first view is that of the node that asks.
func merge(views []*writv1.Guarantee, silent []string, down func(node string) bool, now time.Time) *writv1.Guarantee {
	g := &writv1.Guarantee{Contract: views[0].GetContract(), Silent: silent}
	evidence := map[clause][]string{}
	by := map[string]*writv1.Precondition{}
	for _, v := range views {
		g.Nodes = append(g.Nodes, v.GetNodes()...)
		for _, pre := range v.GetPreconditions() {
			if by[pre.GetName()] == nil {
				by[pre.GetName()] = proto.CloneOf(pre)
				g.Preconditions = append(g.Preconditions, by[pre.GetName()])
				continue
			}
			add(by[pre.GetName()], pre)
		}
		for _, c := range v.GetClauses() {
			// The first lines are the node's own; the others are made anew.
			if own := ownEvidence(clause(c.GetName())); own && len(c.GetEvidence()) > 0 {
				evidence[clause(c.GetName())] = append(evidence[clause(c.GetName())], c.GetEvidence()[0])
			}
		}
	}
	gone := func(node string) bool { return connected(views[0]) && down(node) }
	for _, pre := range preconditions() {
		for _, node := range silent {
			if view := by[pre.name]; view != nil && pre.own && (pre.clause == clauseDegradation || !gone(node)) {
				add(view, &writv1.Precondition{Since: timestamppb.New(now), Reasons: []string{node + ": no answer"}})
			}
		}
	}
	conclude(g, evidence)
	return g
}

// ownEvidence reports whether the first line of a clause's evidence tells of one
// node.
func ownEvidence(c clause) bool {
	return c == clauseScope || c == clauseReplay || c == clauseBoundary
}

// add adds one node's view of a precondition to what is known.
func add(to, view *writv1.Precondition) {
	later := view.GetSince().AsTime().After(to.GetSince().AsTime())
	switch {
	case to.GetMet() && !view.GetMet():
		to.Met, to.Since = false, view.GetSince()
	case to.GetMet() && later, !to.GetMet() && !view.GetMet() && !later:
		to.Since = view.GetSince()
	}
	to.Reasons = append(to.Reasons, view.GetReasons()...)
}
