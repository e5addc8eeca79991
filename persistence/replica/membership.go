package replica

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"writ/actors/entity"
)

// errNotLeader is the answer of everything that only a leader can do. It carries
// the believed leader and its term as details.
func (g *group) errNotLeader() error {
	leader, term := g.believes()
	e := entity.Errorf(entity.NotExecuted, "this node does not lead shard %d", g.key.shard)
	return e.With("leader", leader.Node).With("term", fmt.Sprint(term))
}

// addLearner takes a server in without a vote. It is nil if the server is in.
func (g *group) addLearner(ctx context.Context, s Server) error {
	if err := s.validate(); err != nil {
		return fmt.Errorf("add learner: %w", err)
	}
	return g.change(ctx, "add learner "+s.String(), func(m *members) (raft.IndexFuture, error) {
		for _, present := range m.configuration.Servers {
			switch {
			case present.ID == s.id():
				return nil, nil
			case present.Address == s.address():
				return nil, fmt.Errorf("node %s still has the replica %s", s.Node, present.ID)
			}
		}
		return g.raft.AddNonvoter(s.id(), s.address(), m.index, g.timing.Enqueue), nil
	})
}

// promote gives a learner its vote. It is nil if the server votes already.
func (g *group) promote(ctx context.Context, s Server) error {
	return g.change(ctx, "promote "+s.String(), func(m *members) (raft.IndexFuture, error) {
		for _, present := range m.configuration.Servers {
			if present.ID != s.id() {
				continue
			}
			if present.Suffrage == raft.Voter {
				return nil, nil
			}
			return g.raft.AddVoter(s.id(), s.address(), m.index, g.timing.Enqueue), nil
		}
		return nil, errors.New("it is not a learner")
	})
}

// remove takes a server out. It is nil if the server is out already.
func (g *group) remove(ctx context.Context, s Server) error {
	return g.change(ctx, "remove "+s.String(), func(m *members) (raft.IndexFuture, error) {
		for _, present := range m.configuration.Servers {
			if present.ID == s.id() {
				return g.raft.RemoveServer(s.id(), m.index, g.timing.Enqueue), nil
			}
		}
		return nil, nil
	})
}

// change makes one membership change, on the condition that the configuration it
// was decided on is still the latest.
func (g *group) change(ctx context.Context, what string, step func(*members) (raft.IndexFuture, error)) error {
	if !g.started() || g.raft.State() != raft.Leader {
		return g.errNotLeader()
	}
	m := g.members.Load()
	if m.index == 0 {
		return fmt.Errorf("%s: no configuration is committed yet", what)
	}
	f, err := step(m)
	if err == nil && f != nil {
		err = await(ctx, f)
	}
	if errors.Is(err, raft.ErrNotLeader) {
		return g.errNotLeader()
	}
	return wrap(what, err)
}

// transfer hands leadership to a node, or to the voter that is furthest if to is
// empty.
func (g *group) transfer(ctx context.Context, to string) error {
	if !g.started() || g.raft.State() != raft.Leader {
		return g.errNotLeader()
	}
	if to == g.self.Node {
		return nil
	}
	f := raft.Future(nil)
	if to == "" {
		f = g.raft.LeadershipTransfer()
	}
	for _, s := range g.members.Load().configuration.Servers {
		if to != "" && s.Address == raft.ServerAddress(to) && s.Suffrage == raft.Voter {
			f = g.raft.LeadershipTransferToServer(s.ID, s.Address)
		}
	}
	if f == nil {
		return fmt.Errorf("transfer leadership: node %s has no vote in shard %d", to, g.key.shard)
	}
	return wrap("transfer leadership", await(ctx, f))
}
