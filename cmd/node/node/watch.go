package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// watchGossip passes news of members and leaders on.
func (n *Node) watchGossip(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-n.gossip.Failed():
			n.check(err)
			return
		case <-n.gossip.Changed():
			n.routesChanged()
		}
	}
}

// routesChanged wakes whoever waits for a leader.
func (n *Node) routesChanged() {
	n.router.Wake()
	if p := n.parts(); p != nil {
		p.runtime.RoutesChanged()
		p.agent.Poke()
	}
}

// servingCheck is the pace at which the gRPC health follows readiness.
const servingCheck = 100 * time.Millisecond

// The names under which gRPC health tells liveness, startup and readiness apart;
// shardName tells a shard. "" is what a probe asks that names none, and the usual
// example of a liveness probe names none: it stands for liveness, for a restart
// cures no lost quorum and would interrupt a replica that is being refilled.
const (
	healthAlive = "liveness"
	healthStart = "startup"
	healthReady = "readiness"
)

// keepServing keeps the gRPC health service in step with what HTTP says.
func (n *Node) keepServing(ctx context.Context) {
	tick := time.NewTicker(servingCheck)
	defer tick.Stop()
	for {
		n.sayHealth()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sayHealth names no reasons: the protocol has no room for them, /readyz does.
func (n *Node) sayHealth() {
	r := n.Readiness()
	n.server.SetServing("", true)
	n.server.SetServing(healthAlive, true)
	n.server.SetServing(healthStart, n.parts() != nil)
	n.server.SetServing(healthReady, r.Ready)
	n.server.SetServing(writv1.EntityService_ServiceDesc.ServiceName, r.Ready)
	for shard := range n.table.Shards() {
		n.server.SetServing(fmt.Sprintf("shard/%d", shard), r.Shards[shard] == "")
	}
}

// AwaitReady waits until this node is ready and every shard has a leader.
func (n *Node) AwaitReady(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if n.Readiness().Ready && n.allLed() {
			return nil
		}
		select {
		case err := <-n.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// allLed reports whether every shard has a known leader, and those led here
// have their lease.
func (n *Node) allLed() bool {
	p := n.parts()
	if p == nil {
		return false
	}
	for shard := range n.table.Shards() {
		leader, _ := n.table.Leader(shard)
		if leader == "" {
			return false
		}
		if r := p.host.Replica(shard); leader == n.cfg.ID && (r == nil || r.Lease() == nil) {
			return false
		}
	}
	return true
}

// Readiness says whether the node is ready, and if not why.
func (n *Node) Readiness() Readiness {
	r := n.unready()
	r.Ready = len(r.Reasons)+len(r.Shards) == 0
	return r
}

// unready collects the reasons.
func (n *Node) unready() Readiness {
	r := Readiness{Node: n.cfg.ID, Reasons: map[string]string{}, Shards: map[uint32]string{}}
	if n.draining.Load() {
		r.Reasons["node"] = "stopping"
	}
	if reason := n.disk.reason(); reason != "" {
		r.Reasons["disk"] = reason
	}
	if reason := n.rival(); reason != "" {
		r.Reasons["cluster"] = reason
	}
	p := n.parts()
	if p == nil {
		part := "formation"
		if _, _, lost := n.identity.Loss(); lost {
			part = "memory"
		}
		r.Reasons[part] = "starting"
		if state := n.formation.State(); state != "" {
			r.Reasons[part] = state
		}
		return r
	}
	if ok, reason := p.meta.Ready(); !ok {
		r.Reasons["meta"] = reason
	}
	if reason := p.agent.Refused(); reason != "" {
		r.Reasons["registry"] = reason
	}
	placed := p.meta.State().GetShards()
	if len(placed) == 0 {
		r.Reasons["placement"] = "no shards are placed yet"
		if state := p.agent.State(); state != "" {
			r.Reasons["placement"] = state
		}
	}
	for _, place := range placed {
		if reason := n.shardReason(p, place); reason != "" {
			r.Shards[place.GetShard()] = reason
		}
	}
	return r
}

// rival names another cluster under this cluster's name, "" for none. What a
// client writes to one of them the other does not know, its idempotency keys
// neither. Which of the two is the stray nobody can know, but one that has fewer
// nodes must not take the other one down.
func (n *Node) rival() string {
	self, own := n.gossip.Self().ClusterID, 0
	for _, m := range n.gossip.Members() {
		if m.Alive && m.ClusterID == self {
			own++
		}
	}
	strangers := n.gossip.Strangers()
	for _, id := range slices.Sorted(maps.Keys(strangers)) {
		if names := strangers[id]; len(names) >= own {
			return fmt.Sprintf("this node belongs to cluster %s, and %s, under the same name, to cluster %s: keep one cluster, and start the nodes of the other on empty folders with --join", self, strings.Join(names, ", "), id)
		}
	}
	return ""
}

// shardReason says why a shard is not served from here, "" if it is or if this
// node has no part in it.
func (n *Node) shardReason(p *parts, place *nodev1.ShardPlacement) string {
	if r := p.host.Replica(place.GetShard()); r != nil {
		st := r.Status()
		if st.Reason != "" {
			return string(st.State) + ": " + st.Reason
		}
		_, reason := r.Ready()
		return reason
	}
	for _, r := range place.GetReplicas() {
		switch {
		case r.GetNode() != n.cfg.ID:
		case r.GetIncarnation() == n.identity.Incarnation():
			return "the replica is not open yet"
		default:
			// Whoever restarts nodes one by one must wait: until then the group is
			// one voter short, and the next loss may be one too many.
			return "the replica was lost with this node's former disk and is not replaced yet"
		}
	}
	return ""
}
