package membership

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// rejoin looks for members that are not there: the seeds, and everyone who was
// ever seen and lost. It runs on every node, seeds too, for as long as the node
// lives: after a long partition nobody else would ask.
func (g *Gossip) rejoin(ctx context.Context) {
	j := joiner{g: g, seen: map[string]string{}}
	for first := true; ; first = false {
		g.contested.Store(false)
		j.round(ctx, first)
		if first {
			if !g.uncontested(ctx) {
				return
			}
			g.established.Store(true)
			close(g.settled)
		}
		if !j.pause(ctx) {
			return
		}
	}
}

type joiner struct {
	g    *Gossip
	seen map[string]string // what was logged last about a seed
	sync bool              // next round: also with someone who is there
}

// How long to the next attempt while there is reason for haste: nobody has been
// found, or the others still hold the ghost of this node's last run.
const hasteInterval = time.Second

// pause waits for the next round, give or take a quarter of the interval.
func (j *joiner) pause(ctx context.Context) bool {
	d := j.g.config.RejoinInterval
	contested := j.g.contested.Load()
	if contested || (len(j.g.config.Join) > 0 && j.g.table.size() == 1) {
		d = min(d, hasteInterval)
	}
	j.sync = contested
	timer := time.NewTimer(d - d/4 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-j.g.poke: // the cluster id has been set
		if err := j.g.list.UpdateNode(time.Second); err != nil {
			j.g.logger.Debug("gossip: new entry not spread yet", slog.Any("error", err))
		}
		j.sync = true // fetches the hints that were dropped before
	}
	return true
}

// round asks everyone who is missing, all at the same time.
func (j *joiner) round(ctx context.Context, first bool) {
	var group sync.WaitGroup
	var mu sync.Mutex
	outcome := map[string]string{}
	asked := j.g.table.present()
	for seed := range seeds(j.g.config.Join) {
		group.Go(func() {
			state := j.seed(ctx, seed, asked, first)
			mu.Lock()
			defer mu.Unlock()
			outcome[seed] = state
		})
	}
	for _, addr := range j.g.table.missing() {
		group.Go(func() { _, _ = j.g.list.Join([]string{addr}) }) // logged by the change it makes
	}
	if addr := j.g.table.anyone(); addr != "" && j.sync {
		group.Go(func() { _, _ = j.g.list.Join([]string{addr}) })
	}
	group.Wait()
	for seed, state := range outcome {
		if ctx.Err() == nil && j.seen[seed] != state {
			j.seen[seed] = state
			j.g.logger.Info("gossip: seed "+state, slog.String("seed", seed))
		}
	}
}

func seeds(list []string) map[string]bool {
	set := map[string]bool{}
	for _, seed := range list {
		set[seed] = true
	}
	return set
}

// States of a seed, as logged when they change.
const (
	seedJoined     = "joined"
	seedSelf       = "is this node"
	seedUnresolved = "has a name that cannot be resolved: trying again"
	seedSilent     = "does not answer: trying again"
)

// seed asks one seed, unless the member at its address is there already.
func (j *joiner) seed(ctx context.Context, seed string, present map[netip.AddrPort]bool, first bool) string {
	host, port, _ := splitPort(seed)
	found, err := resolve(ctx, host)
	if err != nil {
		j.g.logger.Debug("gossip: resolve seed", slog.String("seed", seed), slog.Any("error", err))
		return seedUnresolved
	}
	state := seedSelf
	for _, ip := range found {
		addr := netip.AddrPortFrom(ip, uint16(port))
		switch {
		case addr == j.g.address:
			continue
		case present[addr] && !first:
			return seedJoined
		}
		if _, err = j.g.list.Join([]string{addr.String()}); err == nil {
			return seedJoined
		}
		state = seedSilent
		j.g.logger.Debug("gossip: join seed", slog.String("seed", seed), slog.Any("address", addr), slog.Any("error", err))
	}
	return state
}
