package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"writ/persistence"
	"writ/persistence/replica"
	nodev1 "writ/proto/writ/node/v1"
	"writ/sharding"
)

// The auditor's walk over lanes. A lane has its two ends in two shards that no
// single index joins. The order of the looks makes the comparison sound while
// events travel: what this end says is read first, and the other end is asked
// after a barrier. So
//
//	confirmed (here, first) ≤ applied (there, later): else events were lost
//	applied (here, first) ≤ numbered (there, later): else events are phantoms

// walk compares the next slice of lanes on both sides, and again those that
// disagreed.
func (a *auditor) walk(ctx context.Context, p *parts, r *replica.Replica, s *shardAudit) error {
	if !s.walk.going {
		s.walk = laneWalk{going: true, hash: s.hash, clean: true, sources: &persistence.Pair{}, marks: &persistence.Pair{}}
	}
	w := &s.walk
	var (
		lanes []persistence.LaneState
		marks []persistence.MarkState
	)
	err := a.work(func() (err error) {
		if w.sources != nil {
			lanes, err = r.Store().LanesAfter(*w.sources, laneSlice)
		}
		if w.marks != nil && err == nil {
			marks, err = r.Store().MarksAfter(*w.marks, laneSlice)
		}
		return err
	})
	if err != nil {
		return err
	}
	confirmed, applied := map[persistence.Pair]uint64{}, map[persistence.Pair]uint64{}
	for _, l := range lanes {
		confirmed[l.Pair] = l.Lane.GetConfirmed()
	}
	for _, m := range marks {
		applied[m.Pair] = m.Mark.GetLaneSequence()
	}
	if err := a.addDoubtful(r.Store(), s, confirmed, applied); err != nil {
		return err
	}
	a.compare(ctx, p, r.Shard(), s, foundLost, confirmed)
	a.compare(ctx, p, r.Shard(), s, foundPhantom, applied)
	w.sources, w.marks = nil, nil
	if len(lanes) == laneSlice {
		w.sources = &lanes[laneSlice-1].Pair
	}
	if len(marks) == laneSlice {
		w.marks = &marks[laneSlice-1].Pair
	}
	w.going = w.sources != nil || w.marks != nil
	if !w.going && w.clean && w.hash == s.hash && a.sound(s) {
		s.soundHash, s.soundAt = s.hash, time.Now()
	}
	return nil
}

func (a *auditor) sound(s *shardAudit) bool {
	return len(s.recount)+len(s.replicas)+len(s.lanes) == 0
}

// addDoubtful reads the lanes anew that disagreed before.
func (a *auditor) addDoubtful(store *persistence.Store, s *shardAudit, confirmed, applied map[persistence.Pair]uint64) error {
	for end := range s.lanes {
		side, err := laneSide(store, end.Pair, end.kind == foundPhantom)
		if err != nil {
			return err
		}
		if end.kind == foundPhantom {
			applied[end.Pair] = side.GetApplied()
		} else {
			confirmed[end.Pair] = side.GetConfirmed()
		}
	}
	return nil
}

// compare asks the other ends of lanes for the number that must not be below the
// one here.
func (a *auditor) compare(ctx context.Context, p *parts, shard uint32, s *shardAudit, kind kindOfFinding, here map[persistence.Pair]uint64) {
	shards := a.node.table.Shards()
	byShard := map[uint32][]persistence.Pair{}
	for at := range here {
		other := at.Destination
		if kind == foundPhantom {
			other = at.Source
		}
		to := sharding.Locate(shards, other)
		byShard[to] = append(byShard[to], at)
	}
	for to, pairs := range byShard {
		for len(pairs) > 0 {
			n := min(len(pairs), lookupMax)
			there, err := a.lookup(ctx, p, to, kind == foundLost, pairs[:n])
			if err != nil {
				s.walk.clean = false // no leader just now: the next walk will tell
				break
			}
			for i, at := range pairs[:n] {
				other := there[i].GetApplied()
				if kind == foundPhantom {
					other = there[i].GetNumbered()
				}
				a.judge(shard, s, laneEnd{at, kind}, here[at], other)
			}
			pairs = pairs[n:]
		}
	}
}

// lookup asks the leader of a shard about its side of some lanes.
func (a *auditor) lookup(ctx context.Context, p *parts, shard uint32, asDestination bool, pairs []persistence.Pair) ([]*nodev1.AuditLane, error) {
	req := &nodev1.LookupLanesRequest{ClusterId: a.node.clusterID(), Shard: shard, AsDestination: asDestination}
	for _, at := range pairs {
		req.Lanes = append(req.Lanes, laneName(at))
	}
	leader, _ := a.node.table.Leader(shard)
	var (
		res *nodev1.LookupLanesResponse
		err error
	)
	switch leader {
	case "":
		return nil, errNotFormed()
	case a.node.cfg.ID:
		res, err = p.lookupLanes(ctx, req)
	default:
		res, err = a.node.peers.LookupLanes(ctx, leader, req)
	}
	if err == nil && len(res.GetLanes()) != len(pairs) {
		err = fmt.Errorf("%d lanes were asked for, %d answered", len(pairs), len(res.GetLanes()))
	}
	return res.GetLanes(), err
}

// judge keeps, or takes back, what is found about one end of a lane.
func (a *auditor) judge(shard uint32, s *shardAudit, end laneEnd, here, there uint64) {
	a.metrics.lanes.Inc()
	a.mu.Lock()
	defer a.mu.Unlock()
	s.lanesChecked++
	before := s.lanes[end]
	if here <= there {
		delete(s.lanes, end)
		return
	}
	now := laneFinding{events: here - there}
	if end.kind == foundPhantom {
		now.text = fmt.Sprintf("phantom: lane %v to %v has applied up to %d, but only %d rows were numbered", end.Source, end.Destination, here, there)
		if now.events > before.events {
			a.metrics.phantoms.Add(float64(now.events - before.events))
		}
	} else {
		now.text = fmt.Sprintf("lost: lane %v to %v is confirmed up to %d, but applied only up to %d", end.Source, end.Destination, here, there)
	}
	if len(s.lanes) >= findingsMax && before.events == 0 {
		return // enough is known; the metrics go on counting once it is mended
	}
	if now.text != before.text {
		a.count(shard, end.kind, now.text)
	}
	s.lanes[end] = now
}

// findingsMax bounds what is kept about the lanes of one shard.
const findingsMax = 1000

// auditView is what the auditor knows of one shard, for people and metrics.
type auditView struct {
	shard         uint32
	term, index   uint64
	finished      time.Time
	effects, keys uint64
	lanesChecked  uint64
	findings      map[kindOfFinding][]string
}

// views are the shards that the auditor knows, in no order. One whose replica has
// left the node is none, though the next round may be minutes away. One that another
// node leads by now is, until then: its new leader may not have recounted it yet.
func (a *auditor) views() []auditView {
	held := map[uint32]bool{}
	if p := a.node.parts(); p != nil {
		for _, r := range p.host.Replicas() {
			held[r.Shard()] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]auditView, 0, len(a.shards))
	for shard, s := range a.shards {
		if !held[shard] {
			continue
		}
		v := auditView{
			shard: shard, term: s.term, index: s.index, finished: s.finished, effects: s.effects, keys: s.keys,
			lanesChecked: s.lanesChecked,
			findings:     map[kindOfFinding][]string{foundRecount: s.recount, foundReplicas: slices.Sorted(maps.Values(s.replicas))},
		}
		for end, f := range s.lanes {
			v.findings[end.kind] = append(v.findings[end.kind], f.text)
		}
		list = append(list, v)
	}
	return list
}
