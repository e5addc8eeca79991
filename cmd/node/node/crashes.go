package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"writ/actors"
	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
)

const (
	// exchangeFor and exchangePause are how long, and how often, a node that has
	// started tries to tell each other node what was in hand when its processes
	// ended. One that is away will ask when it starts itself.
	exchangeFor   = time.Minute
	exchangePause = time.Second
)

// exchangeCrashes tells every member what ended this node's processes, and hears
// the same of theirs. Without it a command whose client goes on would end the
// processes of each node in turn as often as is allowed for one.
func (n *Node) exchangeCrashes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, exchangeFor)
	defer cancel()
	tick := time.NewTicker(exchangePause)
	defer tick.Stop()
	told := map[string]bool{}
	for {
		for _, m := range n.gossip.Members() {
			if m.Name == n.cfg.ID || !m.Alive || told[m.Name] {
				continue
			}
			one, cancel := context.WithTimeout(ctx, reportWait)
			res, err := n.peers.ExchangeCrashes(one, m.Name, &nodev1.ExchangeCrashesRequest{
				ClusterId: n.clusterID(), Node: n.cfg.ID, Crashes: n.hands.own(),
			})
			cancel()
			if err != nil {
				n.log.Debug("a node could not be told of crashes", slog.String("member", m.Name), slog.Any("error", err))
				continue
			}
			told[m.Name] = true
			n.hands.heard(m.Name, res.GetCrashes())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ExchangeCrashes implements gateway.Control.
func (c control) ExchangeCrashes(_ context.Context, req *nodev1.ExchangeCrashesRequest) (*nodev1.ExchangeCrashesResponse, error) {
	c.node.hands.heard(req.GetNode(), req.GetCrashes())
	return &nodev1.ExchangeCrashesResponse{Crashes: c.node.hands.own()}, nil
}

// ListCrashes implements AdminService.
func (a *admin) ListCrashes(ctx context.Context, req *nodev1.ListCrashesRequest) (*nodev1.ListCrashesResponse, error) {
	if node := req.GetNode(); node != "" && node != a.node.cfg.ID {
		return forwardToNode(ctx, a, node, req, nodev1.AdminServiceClient.ListCrashes)
	}
	return &nodev1.ListCrashesResponse{Node: a.node.cfg.ID, Crashes: a.node.hands.list()}, nil
}

// ForgetCrashes implements AdminService.
func (a *admin) ForgetCrashes(ctx context.Context, req *nodev1.ForgetCrashesRequest) (*nodev1.ForgetCrashesResponse, error) {
	if node := req.GetNode(); node != "" && node != a.node.cfg.ID {
		return forwardToNode(ctx, a, node, req, nodev1.AdminServiceClient.ForgetCrashes)
	}
	forgotten, err := a.node.hands.forget(req.GetWhat())
	if err != nil {
		return nil, gateway.ToStatus(fmt.Errorf("node %s has forgotten it but could not write its file, so it will remember it again when it starts: %w", a.node.cfg.ID, err))
	}
	a.node.log.Info("crashes are forgotten", slog.Int("count", forgotten), slog.String("what", req.GetWhat()))
	return &nodev1.ForgetCrashesResponse{Node: a.node.cfg.ID, Forgotten: uint32(forgotten)}, nil
}

// own is how often this node's processes have ended with each thing in hand.
func (h *hands) own() map[string]uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]uint32{}
	for what, c := range h.crashes {
		out[what] = uint32(c.Crashes)
	}
	return out
}

// heard takes in what another node says of its own processes.
func (h *hands) heard(node string, crashes map[string]uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(crashes) == 0 {
		delete(h.elsewhere, node)
		return
	}
	h.elsewhere[node] = crashes
}

// others is how often it was in hand when processes of other nodes ended. The
// caller holds mu.
func (h *hands) others(what string) (times int) {
	for _, crashes := range h.elsewhere {
		times += int(crashes[what])
	}
	return times
}

// list is all that is known, in the order of its name.
func (h *hands) list() []*nodev1.Crash {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := map[string]*nodev1.Crash{}
	for what, c := range h.crashes {
		known[what] = &nodev1.Crash{What: what, Times: uint32(c.Crashes), Last: c.Last.UnixNano()}
	}
	for _, crashes := range h.elsewhere {
		for what := range crashes {
			if known[what] == nil {
				known[what] = &nodev1.Crash{What: what}
			}
		}
	}
	list := make([]*nodev1.Crash, 0, len(known))
	for what, c := range known {
		c.Elsewhere = uint32(h.others(what))
		c.Refused = actors.ClientsCall(what) && c.GetTimes()+c.GetElsewhere() >= actors.DefaultMaxCrashes
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *nodev1.Crash) int { return cmp.Compare(a.GetWhat(), b.GetWhat()) })
	return list
}

// forget drops one thing, or with "" all, and reports how many it has dropped.
func (h *hands) forget(what string) (forgotten int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gone := map[string]bool{}
	for known := range h.crashes {
		if what == "" || known == what {
			gone[known] = true
			delete(h.crashes, known)
		}
	}
	for _, crashes := range h.elsewhere {
		for known := range crashes {
			if what == "" || known == what {
				gone[known] = true
				delete(crashes, known)
			}
		}
	}
	return len(gone), h.save()
}
