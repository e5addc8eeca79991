//go:build faults

package faults_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	nodev1 "writ/proto/writ/node/v1"
	"writ/test/faults"
)

// TestPointsWhileReplicasMove is TestPoints for the three steps of a replica's move to
// another node: whatever becomes of the leader that makes them, the move is completed.
func TestPointsWhileReplicasMove(t *testing.T) {
	newTownOf(t, []string{"n1", "n2", "n3", "n4"}).attack(faults.Mover)
}

// move is an order to move a replica.
type move struct {
	shard    uint32
	from, to string
}

// move orders one of a shard's replicas to go to the node that has none; the leader's
// stays.
func (w *town) move(shard uint32, leader string) (m move) {
	w.t.Helper()
	ctx, cancel := w.within()
	defer cancel()
	for last := ""; ; {
		status, err := w.links.Status(ctx, leader)
		if err != nil {
			w.t.Fatal(err)
		}
		on := placedOn(status, shard)
		m = move{shard: shard}
		for _, n := range w.nodes.Nodes() {
			switch {
			case !slices.Contains(on, n):
				m.to = n
			case n != leader:
				m.from = n
			}
		}
		if m.to != "" && m.from != "" {
			res, err := w.cli.Run(ctx, "cluster", "move", "--addr", w.addrs(), "--wait", "0s", "--from", m.from, "--to", m.to, fmt.Sprint(shard))
			if err != nil {
				w.t.Fatal(err)
			}
			if res.Code == 0 {
				return m
			}
			last = string(res.Stderr) // placement has not come to rest
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			w.t.Fatalf("the move is not taken: %s", last)
		}
	}
}

func placedOn(status *nodev1.StatusResponse, shard uint32) (nodes []string) {
	for _, p := range status.GetMeta().GetShards() {
		if p.GetShard() != shard {
			continue
		}
		for _, r := range p.GetReplicas() {
			nodes = append(nodes, r.GetNode())
		}
	}
	return nodes
}

// awaitMoved waits until the shard's leader has the new replica for a voter, and the
// old one for nothing.
func (w *town) awaitMoved(m move) {
	w.t.Helper()
	ctx, cancel := w.within()
	defer cancel()
	for last := "nobody leads it"; ; {
		for _, n := range w.nodes.Nodes() {
			status, err := w.links.StatusOnce(ctx, n)
			if err != nil { // it is held up: not yet
				last = err.Error()
				continue
			}
			for _, s := range status.GetShards() {
				if s.GetShard() != m.shard || s.GetLeader() != n {
					continue
				}
				if slices.Contains(s.GetVoters(), m.to) && !slices.Contains(s.GetVoters(), m.from) && len(s.GetVoters()) == 3 && len(s.GetLearners()) == 0 {
					return
				}
				last = fmt.Sprintf("voters %v, learners %v", s.GetVoters(), s.GetLearners())
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			w.t.Fatalf("shard %d has not moved from %s to %s: %s", m.shard, m.from, m.to, last)
		}
	}
}
