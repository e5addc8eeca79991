package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	nodev1 "writ/proto/writ/node/v1"
)

// tendMembers takes one step from the members of the meta group to the right ones. A
// state from before a member's incarnation was registered would have it go.
func (c *Controller) tendMembers(ctx context.Context, voters, learners []Server, state *nodev1.MetaState, seen *observation) error {
	if len(voters) == 0 {
		return nil // no configuration is committed yet
	}
	step := nextMemberStep(memberView{
		self: c.config.Node, voters: voters, learners: learners, nodes: state.GetNodes(),
		here: func(s Server) bool { return c.alive(s.Node, s.Incarnation) },
		dead: func(s Server) bool { return seen.dead[s.Node] },
		answers: func(node string) bool {
			_, ok := seen.meta[node]
			return ok
		},
		follows: func(s Server) bool {
			own := seen.meta[s.Node]
			return own.leader == c.config.Node && own.version >= state.GetVersion()
		},
		holds: func(node string) bool { return len(seen.reports[node]) > 0 || placed(state, node) },
	})
	var err error
	switch step.kind {
	case memberNothing:
		return nil
	case memberAdd:
		err = c.config.Members.AddLearner(ctx, step.server)
	case memberPromote:
		err = c.config.Members.AddVoter(ctx, step.server)
	case memberRemove:
		err = c.config.Members.Remove(ctx, step.server)
	default:
		err = errors.New("unknown step")
	}
	if err != nil {
		return fmt.Errorf("meta group: %s %s: %w", step.kind, step.server, err)
	}
	c.config.Logger.Info("meta group: "+string(step.kind), slog.String("server", step.server.String()))
	return nil
}

// leaveLowDisk hands the meta group over while this node's disk is low, to a
// voter whose disk is not by its own word.
func (c *Controller) leaveLowDisk(ctx context.Context, seen *observation) error {
	if !seen.lowDisk(c.config.Node) {
		return nil
	}
	voters, _ := c.config.Members.Members()
	for _, s := range voters {
		if len(seen.reports[s.Node]) == 0 || seen.lowDisk(s.Node) || !c.alive(s.Node, s.Incarnation) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, changeTimeout)
		defer cancel()
		if err := c.config.Members.TransferLeadership(ctx, s.Node); err != nil {
			return fmt.Errorf("meta group: hand leadership to %s: %w", s.Node, err)
		}
		c.config.Logger.Info("meta group: leadership handed over, the disk is low", slog.String("to", s.Node))
		return nil
	}
	return nil
}

// lowDisk reports whether a node says so of itself.
func (seen *observation) lowDisk(node string) bool {
	return slices.ContainsFunc(seen.reports[node], func(r *nodev1.ShardStatus) bool { return r.GetState() == StateLowDisk })
}

func placed(state *nodev1.MetaState, node string) bool {
	return slices.ContainsFunc(state.GetShards(), func(p *nodev1.ShardPlacement) bool {
		return slices.ContainsFunc(p.GetReplicas(), func(r *nodev1.ReplicaPlacement) bool { return r.GetNode() == node })
	})
}

type memberKind string

const (
	memberNothing memberKind = ""
	memberAdd     memberKind = "add learner"
	memberPromote memberKind = "promote"
	memberRemove  memberKind = "remove"
)

type memberStep struct {
	kind   memberKind
	server Server
}

type memberView struct {
	self             string
	voters, learners []Server
	nodes            map[string]*nodev1.NodeEntry
	here             func(Server) bool      // alive now
	answers          func(node string) bool // has just been asked, and has answered
	dead             func(Server) bool      // out of reach for longer than the grace time
	follows          func(Server) bool      // says that it has what this leader has
	holds            func(node string) bool // still has, or should have, replicas
}

// nextMemberStep decides the next change of the meta group's configuration. In
// order: out with incarnations that are no more (their node's name is free for
// the new one only then), in with nodes that are missing, votes up to the limit,
// and the vote of a dead node for a living learner. A learner gets its vote when it
// has followed: gossip may reach a node that Raft does not, and its vote would count
// against everyone else's. Votes of dead nodes go also without a learner, if the
// living ones can then lose one node more.
func nextMemberStep(v memberView) memberStep {
	for _, s := range slices.Concat(v.learners, v.voters) {
		if v.gone(s) && v.mayRemove(s) {
			return memberStep{memberRemove, s}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.nodes)) {
		s := Server{Node: name, Incarnation: v.nodes[name].GetIncarnation(), Generation: MetaGeneration}
		if v.nodes[name].GetState() != nodev1.NodeEntry_REMOVED && v.here(s) && !v.named(name) {
			return memberStep{memberAdd, s}
		}
	}
	learner := slices.IndexFunc(v.learners, func(s Server) bool { return v.here(s) && !v.gone(s) && v.follows(s) })
	if learner >= 0 && len(v.voters) < MetaVotersMax {
		return memberStep{memberPromote, v.learners[learner]}
	}
	if learner < 0 && !v.deadWeigh() {
		return memberStep{}
	}
	for _, s := range v.voters {
		if v.dead(s) && v.mayRemove(s) {
			return memberStep{memberRemove, s}
		}
	}
	return memberStep{}
}

// deadWeigh reports whether the living voters alone could lose more of them than they
// can together with the dead ones. Where they could not, as two of three, a dead node
// may still come back with what it had, and keeps its vote.
func (v memberView) deadWeigh() bool {
	living := 0
	for _, s := range v.voters {
		if !v.dead(s) {
			living++
		}
	}
	return living/2 < len(v.voters)/2
}

// named reports whether any incarnation of a node is in the configuration.
func (v memberView) named(node string) bool {
	return slices.ContainsFunc(slices.Concat(v.voters, v.learners), func(s Server) bool { return s.Node == node })
}

// gone reports whether a server has to go: its node has another incarnation, or
// was removed and is rid of its replicas. A node that has not registered yet is
// on its way.
func (v memberView) gone(s Server) bool {
	e := v.nodes[s.Node]
	switch {
	case e == nil:
		return false
	case e.GetIncarnation() != s.Incarnation:
		return true
	case e.GetState() == nodev1.NodeEntry_REMOVED:
		// As long as it is there it needs to hear which replicas to drop. Only its own
		// answer says that it has none.
		if v.answers(s.Node) {
			return !v.holds(s.Node)
		}
		return !v.here(s)
	}
	return false
}

// mayRemove: the voters that stay must have a living majority, and the leader
// goes last.
func (v memberView) mayRemove(s Server) bool {
	if !slices.Contains(v.voters, s) {
		return true
	}
	rest, here := 0, 0
	for _, other := range v.voters {
		if other == s {
			continue
		}
		rest++
		if other.Node == v.self || v.here(other) {
			here++
		}
	}
	if s.Node == v.self && slices.ContainsFunc(v.voters, func(o Server) bool { return o != s && v.gone(o) }) {
		return false
	}
	return rest > 0 && here > rest/2
}
