package replica

import (
	"context"
	"log/slog"
	"math/rand/v2"
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
	// If this replica's turn comes late, it may have refused its vote to one before it,
	// whose log was behind. Then it knows no leader by now.
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

// runPatience makes takeover from a silent leader faster and its time more even. Raft
// by itself checks only now and then whether it has heard from the leader: one
// follower may find out after one heartbeat timeout and the other after three. Until
// then the other refuses its vote to the first, which waits for an election timeout
// and tries again. Here all followers check as soon as they may. The election itself,
// with its pre-vote, stays raft's.
func (g *group) runPatience() {
	for {
		patience := g.timing.patience()
		wait := patience
		if g.follows() {
			wait = max(patience-time.Since(g.raft.LastContact()), g.timing.Heartbeat/10)
		}
		if !pause(g.ctx, wait) {
			return
		}
		if g.follows() && time.Since(g.raft.LastContact()) >= patience {
			g.lookNow()
		}
	}
}

// patience is how long a follower waits without hearing from its leader before it
// checks: a little longer than the heartbeat timeout. The spread keeps followers
// apart, so that two seldom stand at once. Even if one election fails, after at most
// twice the election timeout, a silent leader is replaced within three seconds by
// default.
func (t Timing) patience() time.Duration {
	return t.Heartbeat + t.Heartbeat/16 + rand.N(t.Heartbeat/4)
}

func (g *group) follows() bool {
	_, id := g.raft.LeaderWithID()
	return id != "" && g.raft.State() == raft.Follower
}

// lookNow makes raft check whether its heartbeat timeout has passed. Raft only does so
// at once when the timeout is shortened, so it is set back and then made a nanosecond
// shorter.
func (g *group) lookNow() {
	config := g.raft.ReloadableConfig()
	for _, timeout := range []time.Duration{g.timing.Heartbeat, g.timing.Heartbeat - time.Nanosecond} {
		config.HeartbeatTimeout = timeout
		if err := g.raft.ReloadConfig(config); err != nil {
			g.logger.Error("look for the leader", slog.Any("error", err))
		}
	}
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
