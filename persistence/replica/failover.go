package replica

import (
	"context"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
)

// probeLimit bounds the attempt to reach a leader whose connections have ended.
const probeLimit = 150 * time.Millisecond

// runFailover makes takeover after the death of a process quick. When the last
// connection from the believed leader ends, the first surviving voter in
// configuration order stands for election at once; each later one gives it a
// head start. If the leader can still be reached nobody stands. A false alarm
// costs one short change of leaders; elections by timeout go on beside this.
func (g *group) runFailover() {
	for {
		select {
		case from := <-g.broken:
			g.standIfLost(from)
		case <-g.ctx.Done():
			return
		}
	}
}

func (g *group) standIfLost(leader string) {
	rank, ok := g.rankWithout(leader)
	if !ok || !g.lost(leader, false) {
		return
	}
	if rank > 0 && !pause(g.ctx, time.Duration(rank)*g.timing.Stagger) {
		return
	}
	// One whose turn comes later may have refused its vote to one before it, for a
	// log that is behind its own: then it knows no leader by now.
	late := rank > 0
	if !g.lost(leader, late) || g.reachable(leader) || !g.lost(leader, late) {
		return
	}
	g.logger.Info("the leader's connections have ended: standing for election", slog.String("leader", leader))
	if err := g.trans.timeoutNow(); err != nil {
		g.logger.Warn("stand for election", slog.Any("error", err))
	}
}

// lost reports whether this replica still follows a leader that it has no
// connection from, or none at all if that will do.
func (g *group) lost(leader string, orNone bool) bool {
	_, id := g.raft.LeaderWithID()
	return (string(id) == leader || (orNone && id == "")) &&
		g.raft.State() == raft.Follower && !g.trans.streams.connected(leader)
}

func (g *group) reachable(leader string) bool {
	ctx, cancel := context.WithTimeout(g.ctx, probeLimit)
	defer cancel()
	return g.trans.streams.alive(ctx, leader)
}

// rankWithout is this replica's place among the voters but one; false if it does
// not vote.
func (g *group) rankWithout(leader string) (rank int, ok bool) {
	f := g.raft.GetConfiguration() // answered from a copy, never blocks
	for _, s := range f.Configuration().Servers {
		switch {
		case s.Suffrage != raft.Voter || string(s.ID) == leader:
		case s.ID == g.self.id():
			return rank, true
		default:
			rank++
		}
	}
	return 0, false
}

// pause waits; false if the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
