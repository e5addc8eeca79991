package node

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	nodev1 "writ/proto/writ/node/v1"
)

type answers map[string][]*nodev1.ShardStatus

func (r answers) Shards(_ context.Context, node string) ([]*nodev1.ShardStatus, error) {
	list, ok := r[node]
	if !ok {
		return nil, errors.New("no answer")
	}
	return list, nil
}

// Who votes is asked of the leader: this node may have no replica, or one that is
// damaged, or one that is behind.
func TestAskLeaders(t *testing.T) {
	there := answers{"n2": {
		{Shard: 1, Leader: "n2", Local: true, State: "serving", Voters: []string{"n1", "n2"}, Learners: []string{"n3"}, AppliedIndex: 7, CommitIndex: 8, Epoch: 2},
		{Shard: 2, Leader: "n2", Local: true, State: "failed"},
		{Shard: 4, Leader: "n3", Local: true, State: "serving", Voters: []string{"n1"}},
	}}
	for name, tt := range map[string]struct{ line, want *nodev1.ShardStatus }{
		"no replica": {
			&nodev1.ShardStatus{Shard: 1, Leader: "n2", Term: 4},
			&nodev1.ShardStatus{Shard: 1, Leader: "n2", Term: 4, Voters: []string{"n1", "n2"}, Learners: []string{"n3"}, AppliedIndex: 7, CommitIndex: 8, Epoch: 2, ByLeader: true},
		},
		"quarantined": {
			&nodev1.ShardStatus{Shard: 1, Leader: "n2", Local: true, State: "quarantined", Reason: "torn", Epoch: 1},
			&nodev1.ShardStatus{Shard: 1, Leader: "n2", Local: true, State: "quarantined", Reason: "torn", Epoch: 1, Voters: []string{"n1", "n2"}, Learners: []string{"n3"}, ByLeader: true},
		},
		"behind": {
			&nodev1.ShardStatus{Shard: 1, Leader: "n2", Local: true, State: "serving", Voters: []string{"n2"}, AppliedIndex: 3},
			&nodev1.ShardStatus{Shard: 1, Leader: "n2", Local: true, State: "serving", Voters: []string{"n1", "n2"}, Learners: []string{"n3"}, AppliedIndex: 3, ByLeader: true},
		},
		"behind, and the leader is silent": {
			&nodev1.ShardStatus{Shard: 1, Leader: "n3", Local: true, State: "serving", Voters: []string{"n2"}, AppliedIndex: 3},
			&nodev1.ShardStatus{Shard: 1, Leader: "n3", Local: true, State: "serving", Voters: []string{"n2"}, AppliedIndex: 3},
		},
		"the other no longer leads": {
			&nodev1.ShardStatus{Shard: 4, Leader: "n2", Local: true, State: "serving", Voters: []string{"n2"}, AppliedIndex: 3},
			&nodev1.ShardStatus{Shard: 4, Leader: "n2", Local: true, State: "serving", Voters: []string{"n2"}, AppliedIndex: 3},
		},
		"leads": {
			&nodev1.ShardStatus{Shard: 1, Leader: "n1", Local: true, State: "serving", Voters: []string{"n1"}, AppliedIndex: 3},
			&nodev1.ShardStatus{Shard: 1, Leader: "n1", Local: true, State: "serving", Voters: []string{"n1"}, AppliedIndex: 3, ByLeader: true},
		},
		"the leader's does not serve": {&nodev1.ShardStatus{Shard: 2, Leader: "n2"}, &nodev1.ShardStatus{Shard: 2, Leader: "n2"}},
		"the leader has none":         {&nodev1.ShardStatus{Shard: 3, Leader: "n2"}, &nodev1.ShardStatus{Shard: 3, Leader: "n2"}},
		"the leader is silent":        {&nodev1.ShardStatus{Shard: 1, Leader: "n3"}, &nodev1.ShardStatus{Shard: 1, Leader: "n3"}},
		"no leader":                   {&nodev1.ShardStatus{Shard: 1}, &nodev1.ShardStatus{Shard: 1}},
		"leads by itself":             {&nodev1.ShardStatus{Shard: 1, Leader: "n1", Local: true, State: "failed"}, &nodev1.ShardStatus{Shard: 1, Leader: "n1", Local: true, State: "failed"}},
	} {
		askLeaders(t.Context(), there, "n1", []*nodev1.ShardStatus{tt.line})
		if !proto.Equal(tt.line, tt.want) {
			t.Errorf("%s: %v, want %v", name, tt.line, tt.want)
		}
	}
}
