package node

import (
	"log/slog"
	"testing"

	"writ/sharding/membership"
)

// TestDroppedReplicaIsForgotten covers that what a replica last believed, that
// there is no leader, does not outlive it: gossip knows the leader of that term.
func TestDroppedReplicaIsForgotten(t *testing.T) {
	gossip, err := membership.Start(membership.Config{
		Self: membership.Member{Name: "n1", Incarnation: "1", ClusterID: "c"}, Cluster: "test", Bind: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := gossip.Close(); err != nil {
			t.Error(err)
		}
	})
	table := newTable("n1", gossip, func() []shardView { return make([]shardView, 1) })
	gossip.Announce(membership.LeaderHint{Shard: 0, Epoch: 1, Term: 5, Node: "n2"})
	table.observe(0, leaderView{epoch: 1, term: 5})
	if leader, _ := table.Leader(0); leader != "" {
		t.Errorf("leader %q, though the replica has just lost it", leader)
	}
	table.forget(0)
	if leader, term := table.Leader(0); leader != "n2" || term != 5 {
		t.Errorf("leader %q of term %d, gossip knows of n2 in 5", leader, term)
	}
}
