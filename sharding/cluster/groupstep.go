package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"writ/internal/fault"
	nodev1 "writ/proto/writ/node/v1"
)

// lead takes one step for a group that this node leads.
func (p *pass) lead(place *nodev1.ShardPlacement, here *nodev1.ShardStatus) (bool, error) {
	group := p.r.config.Replicas.Group(place.GetShard())
	fit := here.GetState() == stateServing
	if group == nil || (fit && !place.GetFormed()) {
		return false, nil
	}
	voters, learners := group.Members()
	// Whom an old state does not know must not be taken out. A node that does not get a
	// newer one hands over.
	old := slices.ContainsFunc(slices.Concat(voters, learners), func(s Server) bool { return p.older(s.Generation) })
	if len(voters) == 0 || old && fit && p.ready {
		return false, nil
	}
	v := groupView{
		self:   Server{Node: p.r.config.Node, Incarnation: p.r.config.Incarnation, Generation: here.GetReplicaGeneration()},
		voters: voters, learners: learners, placed: servers(place), preferred: place.GetPreferred(),
		health: func(s Server) health { return p.health(s, place.GetShard(), here) },
		steady: p.r.steady,
	}
	step := v.handOver() // raft cannot be kept from electing a node on a low disk
	if fit && !old {
		step = nextGroupStep(v)
	}
	ctx, cancel := context.WithTimeout(p.ctx, changeTimeout)
	defer cancel()
	var err error
	switch step.kind {
	case groupNothing:
		return false, nil
	case groupAdd:
		if err = fault.Point(fault.AddReplica); err == nil {
			err = group.AddLearner(ctx, step.server)
		}
	case groupPromote:
		if err = fault.Point(fault.PromoteReplica); err == nil {
			err = group.Promote(ctx, step.server)
		}
	case groupRemove:
		if err = fault.Point(fault.RemoveReplica); err == nil {
			err = group.Remove(ctx, step.server)
		}
	case groupTransfer:
		if err = fault.Point(fault.Move); err != nil {
			break
		}
		if !p.r.mayTransfer(place.GetShard()) {
			return false, nil
		}
		err = group.TransferLeadership(ctx, step.server.Node)
	}
	if err != nil {
		return false, fmt.Errorf("%s %s: %w", step.kind, step.server, err)
	}
	p.r.config.Logger.Info("replicas: "+string(step.kind), slog.Int("shard", int(place.GetShard())), slog.String("server", step.server.String()))
	return true, nil
}

// mayTransfer keeps a pause between hand-overs, successful or not.
func (r *Reconciler) mayTransfer(shard uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.transfer[shard]; ok && time.Since(last) < r.config.TransferPause {
		return false
	}
	r.transfer[shard] = time.Now()
	return true
}

// health is what a replica is fit for, each level including those below.
type health int

const (
	unseen   health = iota // its node does not answer, or has another replica
	open                   // there, but not hearing the leader
	serving                // follows the leader
	caughtUp               // and is close behind
)

// health asks a replica's node.
func (p *pass) health(s Server, shard uint32, leader *nodev1.ShardStatus) health {
	if s.Node == p.r.config.Node {
		if s.Incarnation == p.r.config.Incarnation && s.Generation == leader.GetReplicaGeneration() {
			return caughtUp
		}
		return unseen
	}
	own := reportOf(p.reports(s.Node), shard)
	switch {
	case own == nil || own.GetReplicaGeneration() != s.Generation || own.GetState() != stateServing:
		return unseen
	case own.GetLeader() != p.r.config.Node || own.GetTerm() < leader.GetTerm():
		return open
	case own.GetAppliedIndex()+lagMax < leader.GetCommitIndex():
		return serving
	}
	return caughtUp
}

type groupKind string

const (
	groupNothing  groupKind = ""
	groupAdd      groupKind = "add learner"
	groupPromote  groupKind = "promote"
	groupRemove   groupKind = "remove"
	groupTransfer groupKind = "hand leadership to"
)

type groupStep struct {
	kind   groupKind
	server Server
}

// groupView is a group as its leader sees it, and as it should be.
type groupView struct {
	self             Server
	voters, learners []Server // of the committed configuration
	placed           []Server
	preferred        string
	health           func(Server) health
	steady           func(node string) bool
}

// nextGroupStep decides the next change of a group: out with learners that are
// no longer wanted, in with those that are missing, votes for those that have
// caught up, out with the voters that are no longer wanted, and at last the
// leadership to where it should be. The group keeps a healthy majority at every
// step, and a vote is taken away before its successor has one only if it is
// worth nothing.
func nextGroupStep(v groupView) groupStep {
	for _, s := range v.learners {
		if !v.wanted(s) {
			return groupStep{groupRemove, s}
		}
	}
	if step, ok := v.addMissing(); ok {
		return step
	}
	unwanted := v.unwantedVoters()
	if ready := slices.IndexFunc(v.learners, func(s Server) bool { return v.health(s) == caughtUp }); ready >= 0 {
		// The vote of a dead replica first: with it, the group would need one more.
		for _, s := range unwanted {
			if v.health(s) == unseen && v.mayRemove(s) {
				return groupStep{groupRemove, s}
			}
		}
		return groupStep{groupPromote, v.learners[ready]}
	}
	if v.pending() {
		return groupStep{}
	}
	for _, s := range unwanted {
		switch {
		case s == v.self:
			return v.handOver()
		case v.mayRemove(s):
			return groupStep{groupRemove, s}
		}
	}
	return v.preferredLeader()
}

func (v groupView) wanted(s Server) bool { return slices.Contains(v.placed, s) }
func (v groupView) member(s Server) bool {
	return slices.Contains(v.voters, s) || slices.Contains(v.learners, s)
}

// unwantedVoters lists this node last.
func (v groupView) unwantedVoters() []Server {
	var list []Server
	for _, s := range v.voters {
		if !v.wanted(s) && s != v.self {
			list = append(list, s)
		}
	}
	if !v.wanted(v.self) && slices.Contains(v.voters, v.self) {
		list = append(list, v.self)
	}
	return list
}

// pending reports whether a wanted replica has no vote yet.
func (v groupView) pending() bool {
	return slices.ContainsFunc(v.placed, func(s Server) bool { return !slices.Contains(v.voters, s) })
}

// addMissing adds a learner. A group has one replica per node, so an older one of
// the same node has to go before: it is damaged, or of a disk that is no more.
func (v groupView) addMissing() (groupStep, bool) {
	for _, w := range v.placed {
		if v.member(w) {
			continue
		}
		old := slices.IndexFunc(v.voters, func(s Server) bool { return s.Node == w.Node })
		switch {
		case old >= 0 && v.voters[old] == v.self:
			return v.handOver(), true
		case old >= 0 && v.mayRemove(v.voters[old]):
			return groupStep{groupRemove, v.voters[old]}, true
		case old < 0 && v.health(w) >= open:
			return groupStep{groupAdd, w}, true
		}
	}
	return groupStep{}, false
}

// mayRemove: the voters that stay must have a healthy majority.
func (v groupView) mayRemove(s Server) bool {
	rest, healthy := 0, 0
	for _, other := range v.voters {
		if other == s {
			continue
		}
		rest++
		if v.health(other) >= serving {
			healthy++
		}
	}
	return rest > 0 && healthy > rest/2
}

// handOver gives leadership to a voter that stays, because this one goes.
func (v groupView) handOver() groupStep {
	var to Server
	for _, s := range v.voters {
		if s == v.self || !v.wanted(s) || v.health(s) != caughtUp {
			continue
		}
		if to == (Server{}) || s.Node == v.preferred {
			to = s
		}
	}
	if to == (Server{}) {
		return groupStep{}
	}
	return groupStep{groupTransfer, to}
}

// preferredLeader gives leadership to the node that should lead, once that node
// has proved steady.
func (v groupView) preferredLeader() groupStep {
	if v.preferred == v.self.Node {
		return groupStep{}
	}
	for _, s := range v.voters {
		if s.Node == v.preferred && v.wanted(s) && v.health(s) == caughtUp && v.steady(s.Node) {
			return groupStep{groupTransfer, s}
		}
	}
	return groupStep{}
}
