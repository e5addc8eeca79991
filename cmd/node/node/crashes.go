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
	// started, or that has done what had ended a process, tries to tell each other
	// node. One that is away will ask when it starts itself.
	exchangeFor   = time.Minute
	exchangePause = time.Second
)

// exchangeCrashes tells every member what ended this node's processes, and what has
// been done since and counts no more, and hears what ended theirs. Without it a
// command whose client goes on would end the processes of each node in turn as often
// as is allowed for one; and what is done all day long would be refused because each
// node was killed once while it ran.
func (n *Node) exchangeCrashes(ctx context.Context) {
	var done []string
	told := map[string]int{} // of what is done, by member; a member that is not in it was never told
	until := time.Now().Add(exchangeFor)
	next := time.NewTimer(0)
	defer next.Stop()
	for rests := false; ; {
		news := n.hands.news
		if !rests {
			news = nil // what is done within the pause is told after it
		}
		select {
		case <-ctx.Done():
			return
		case <-news:
			rests = false
			next.Reset(exchangePause)
			continue
		case <-next.C:
		}
		n.hands.keepChanges()
		if more := n.hands.takeDone(); len(more) > 0 {
			done, until = append(done, more...), time.Now().Add(exchangeFor)
		}
		all := n.exchangeWith(ctx, done, told)
		rests = time.Now().After(until)
		if all || rests {
			done = nil
			for name := range told {
				told[name] = 0
			}
		}
		if !rests {
			next.Reset(exchangePause)
		}
	}
}

// exchangeWith exchanges crashes with the members that are alive and were not told
// all, and reports whether all are now.
func (n *Node) exchangeWith(ctx context.Context, done []string, told map[string]int) (all bool) {
	all = true
	for _, m := range n.gossip.Members() {
		from, met := told[m.Name]
		if m.Name == n.cfg.ID || !m.Alive || met && from == len(done) {
			continue
		}
		one, cancel := context.WithTimeout(ctx, reportWait)
		res, err := n.peers.ExchangeCrashes(one, m.Name, &nodev1.ExchangeCrashesRequest{
			ClusterId: n.clusterID(), Node: n.cfg.ID, Crashes: n.hands.own(), Done: done[from:],
		})
		cancel()
		if err != nil {
			all = false
			n.log.Debug("a node could not be told of crashes", slog.String("member", m.Name), slog.Any("error", err))
			continue
		}
		told[m.Name] = len(done)
		for _, what := range done[from:] { // an earlier program does not know that it is done
			delete(res.GetCrashes(), what)
		}
		n.hands.heard(m.Name, res.GetCrashes())
	}
	return all
}

// ExchangeCrashes implements gateway.Control.
func (c control) ExchangeCrashes(_ context.Context, req *nodev1.ExchangeCrashesRequest) (*nodev1.ExchangeCrashesResponse, error) {
	c.node.hands.heardDone(req.GetDone())
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

// own is how often this node's processes have ended with each thing in hand that no
// other node has done since.
func (h *hands) own() map[string]uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]uint32{}
	for what, c := range h.crashes {
		if !c.DoneElsewhere {
			out[what] = uint32(c.Crashes)
		}
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

// heardDone takes in what another node has done.
func (h *hands) heardDone(done []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, what := range done {
		h.dropElsewhere(what)
		if c := h.crashes[what]; c != nil && !c.DoneElsewhere {
			c.DoneElsewhere = true
			h.changed()
		}
	}
}

// takeDone returns what was done here since it was last called.
func (h *hands) takeDone() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	done := h.done
	h.done = nil
	return done
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
	gone := map[string]bool{what: true}
	if what == "" {
		clear(gone)
		for known := range h.crashes {
			gone[known] = true
		}
		for _, crashes := range h.elsewhere {
			for known := range crashes {
				gone[known] = true
			}
		}
	}
	for known := range gone {
		if h.drop(known) {
			forgotten++
		}
	}
	h.mu.Unlock()
	return forgotten, h.save()
}
