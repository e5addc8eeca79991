package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
)

// startThree runs a cluster of three nodes and sets WRIT_ADDR.
func startThree(t *testing.T) {
	t.Helper()
	dir, names := t.TempDir(), []string{"n1", "n2", "n3"}
	var (
		nodes       []*node.Node
		join, addrs []string
	)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for _, n := range nodes {
			if err := n.Stop(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	for _, name := range names {
		n, err := node.Start(t.Context(), node.Config{
			ID: name, Dir: filepath.Join(dir, name), Cluster: "test", InitialNodes: names, Join: join, Shards: 4, Kinds: ownKinds(),
			GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Gossip: "127.0.0.1:0", Raft: "127.0.0.1:0",
		})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
		join = append(join, n.Addresses().Gossip)
		addrs = append(addrs, n.Addresses().GRPC)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, n := range nodes {
		if err := n.AwaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("WRIT_ADDR", strings.Join(addrs, ","))
}

// object runs a verb with --json and wants one JSON object, and nothing else, on
// standard output.
func object(t *testing.T, status int, into any, args ...string) {
	t.Helper()
	r := call(t, append(args, "--json")...)
	if r.status != status {
		t.Fatalf("%v: exit %d, want %d: %v", args, r.status, status, r)
	}
	d := json.NewDecoder(strings.NewReader(r.out))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil || d.More() {
		t.Fatalf("%v: %v: %v", args, err, r)
	}
	if status == 0 && r.err != "" {
		t.Errorf("%v: on standard error: %s", args, r.err)
	}
}

// TestOrders covers what the verbs say that change nodes and shards, for scripts and
// for people.
func TestOrders(t *testing.T) {
	startThree(t)
	var n nodeResult
	object(t, 0, &n, "cluster", "drain", "n2", "--wait", "0")
	if n.Node != "n2" || n.State != "draining" || n.Done || n.Left != nil {
		t.Errorf("ordered: %+v", n)
	}
	n = nodeResult{}
	object(t, 0, &n, "cluster", "drain", "n2", "--wait", "30s")
	if n.Node != "n2" || n.State != "draining" || !n.Done || n.Left == nil || *n.Left != 0 {
		t.Errorf("drained: %+v", n)
	}
	leads := func(name string) []uint32 {
		var shards []uint32
		for _, s := range clusterStatus(t).GetShards() {
			if s.GetLeader() == name {
				shards = append(shards, s.GetShard())
			}
		}
		return shards
	}
	if still := leads("n2"); len(still) > 0 {
		t.Errorf("drained, and n2 leads %v", still)
	}
	n = nodeResult{}
	object(t, 0, &n, "cluster", "drain", "n2", "--undo")
	if n.State != "active" || !n.Done {
		t.Errorf("undone: %+v", n)
	}

	// Until n2 leads again what it should: then nothing moves by itself.
	var shard, from, to string
	eventually(t, func() bool {
		s := clusterStatus(t)
		count := map[string]int{"n1": 0, "n2": 0, "n3": 0}
		for i, p := range s.GetMeta().GetShards() {
			if p.GetPreferred() != s.GetShards()[i].GetLeader() {
				return false
			}
			count[p.GetPreferred()]++
		}
		shard, from, to = "", "", ""
		for _, p := range s.GetMeta().GetShards() {
			for name := range count {
				if count[p.GetPreferred()] == 2 && count[name] == 1 {
					shard, from, to = fmt.Sprint(p.GetShard()), p.GetPreferred(), name
				}
			}
		}
		return shard != ""
	})
	call(t, "cluster", "move", shard, "--from", from, "--to", to).says(t, 1, "node "+to+" holds a replica of shard "+shard+" already", "to hand the leadership to "+to)
	call(t, "cluster", "move", shard, "--to", "n9").says(t, 1, `there is no node "n9"; registered: n1, n2, n3`)
	var m moveResult
	object(t, 0, &m, "cluster", "move", shard, "--to", to, "--wait", "30s")
	slices.Sort(m.Voters)
	if fmt.Sprint(m.Shard) != shard || m.To != to || m.From != "" || m.Leader != to || !m.Done || !slices.Equal(m.Voters, []string{"n1", "n2", "n3"}) {
		t.Errorf("moved the leadership of shard %s to %s: %+v", shard, to, m)
	}

	// Too little time: the object says so, and the exit status.
	n = nodeResult{}
	object(t, 1, &n, "cluster", "remove", "n3", "--wait", "1ns")
	if n.Node != "n3" || n.State != "removed" || n.Done {
		t.Errorf("no time: %+v", n)
	}
	n = nodeResult{}
	object(t, 0, &n, "cluster", "remove", "n3", "--wait", "50s")
	if n.State != "removed" || !n.Done {
		t.Errorf("removed: %+v", n)
	}
	if s := clusterStatus(t); len(s.GetMetaVoters()) != 2 || slices.Contains(s.GetMetaVoters(), "n3") || len(s.GetMetaLearners()) > 0 {
		t.Errorf("removed, and the meta group has the voters %v and the learners %v", s.GetMetaVoters(), s.GetMetaLearners())
	}
	call(t, "cluster", "remove", "n3").says(t, 0, "done")
}

func clusterStatus(t *testing.T) *nodev1.StatusResponse {
	t.Helper()
	r := call(t, "cluster", "status", "--json")
	s := &nodev1.StatusResponse{}
	if err := protojson.Unmarshal([]byte(r.out), s); err != nil || r.status != 0 {
		t.Fatalf("%v: %v", err, r)
	}
	return s
}

// A move that the placement takes back is not waited for.
func TestMoveTakenBack(t *testing.T) {
	s := &nodev1.StatusResponse{
		Meta:   &nodev1.MetaState{Shards: []*nodev1.ShardPlacement{{Shard: 3, Preferred: "n1", Replicas: []*nodev1.ReplicaPlacement{{Node: "n1"}, {Node: "n2"}}}}},
		Shards: []*nodev1.ShardStatus{{Shard: 3, Leader: "n1", Voters: []string{"n1", "n2"}, Learners: []string{"n3"}, ByLeader: true}},
	}
	for _, tt := range []struct {
		from, to string
		stands   bool
		left     int
	}{
		{"", "n1", true, 0},
		{"", "n2", false, 1},
		{"n3", "n1", true, 1},
		{"n1", "n2", false, 1},
		{"n1", "n3", false, 2},
		{"n4", "n2", true, 0},
	} {
		c := &clusterMoveCommand{Shard: 3, From: tt.from, To: tt.to}
		if got, left := c.stands(s), c.stepsLeft(shardOf(s, 3)); got != tt.stands || left != tt.left {
			t.Errorf("from %q to %q: stands %v, %d left, want %v, %d", tt.from, tt.to, got, left, tt.stands, tt.left)
		}
	}
}

// What is not known is not done: a node that is stopped too early takes its votes with it.
func TestLeft(t *testing.T) {
	placed := func(nodes ...string) *nodev1.MetaState {
		p := &nodev1.ShardPlacement{}
		for _, name := range nodes {
			p.Replicas = append(p.Replicas, &nodev1.ReplicaPlacement{Node: name})
		}
		return &nodev1.MetaState{Shards: []*nodev1.ShardPlacement{p}}
	}
	shard := func(leader string, voters, learners []string) []*nodev1.ShardStatus {
		return []*nodev1.ShardStatus{{Leader: leader, Voters: voters, Learners: learners, ByLeader: leader != ""}}
	}
	none, with, without := []string(nil), []string{"n1", "n2"}, []string{"n2"}
	for name, tt := range map[string]struct {
		s            *nodev1.StatusResponse
		leads, holds int
	}{
		"all elsewhere":              {&nodev1.StatusResponse{Meta: placed("n2"), Shards: shard("n2", without, none), MetaVoters: without}, 0, 0},
		"it leads":                   {&nodev1.StatusResponse{Meta: placed("n1", "n2"), Shards: shard("n1", with, none), MetaVoters: without}, 1, 1},
		"nobody leads":               {&nodev1.StatusResponse{Meta: placed("n2"), Shards: shard("", without, none), MetaVoters: without}, 1, 1},
		"placed only":                {&nodev1.StatusResponse{Meta: placed("n1", "n2"), Shards: shard("n2", without, none), MetaVoters: without}, 0, 1},
		"not the leader's word":      {&nodev1.StatusResponse{Meta: placed("n2"), Shards: []*nodev1.ShardStatus{{Leader: "n2", Voters: without}}, MetaVoters: without}, 0, 1},
		"votes only":                 {&nodev1.StatusResponse{Meta: placed("n2"), Shards: shard("n2", with, none), MetaVoters: without}, 0, 1},
		"learns only":                {&nodev1.StatusResponse{Meta: placed("n2"), Shards: shard("n2", without, with), MetaVoters: without}, 0, 1},
		"voters not known":           {&nodev1.StatusResponse{Meta: placed("n2"), Shards: shard("n2", none, none), MetaVoters: without}, 0, 1},
		"nothing known of the shard": {&nodev1.StatusResponse{Meta: placed("n2"), MetaVoters: without}, 1, 1},
		"votes in the meta group":    {&nodev1.StatusResponse{Meta: placed("n2"), Shards: shard("n2", without, none), MetaVoters: with}, 0, 1},
		"learns in the meta group":   {&nodev1.StatusResponse{Meta: placed("n2"), Shards: shard("n2", without, none), MetaVoters: without, MetaLearners: with}, 0, 1},
		"meta group not known":       {&nodev1.StatusResponse{Meta: placed("n2"), Shards: shard("n2", without, none)}, 0, 1},
	} {
		if leads, holds := leadsOf(tt.s, "n1"), holdsOf(tt.s, "n1"); leads != tt.leads || holds != tt.holds {
			t.Errorf("%s: may lead %d and hold %d, want %d and %d", name, leads, holds, tt.leads, tt.holds)
		}
	}
}

func TestAwait(t *testing.T) {
	errOtherwise := errors.New("placed otherwise")
	// A letter for each poll: d is done, l has one left, o one left and it is placed
	// otherwise, e an error, n a node that knows of no shards. The last one stays.
	for name, tt := range map[string]struct {
		polls  string
		done   bool
		left   int // -1: not known
		polled int // 0: until the time is over
		want   string
	}{
		"done at once":                 {"d", true, 0, 1, ""},
		"done later":                   {"nelod", true, 0, 5, ""},
		"nothing is known":             {"n", false, -1, 0, "knows of no shards"},
		"nobody answers":               {"e", false, -1, 0, "not finished within 1m0s"},
		"last heard of":                {"le", false, 1, 0, "not finished within 1m0s"},
		"taken back":                   {"o", false, 1, 22, "placed otherwise"}, // a poll each 250 ms, for more than 5 s
		"taken back after a silence":   {strings.Repeat("e", 40) + "o", false, 1, 62, "placed otherwise"},
		"not seen in between":          {strings.Repeat("o", 20) + "eo", false, 1, 43, "placed otherwise"},
		"not known in between":         {strings.Repeat("o", 20) + "no", false, 1, 43, "placed otherwise"},
		"as ordered in between":        {strings.Repeat("o", 20) + "lo", false, 1, 43, "placed otherwise"},
		"done though placed otherwise": {strings.Repeat("o", 20) + "d", true, 0, 21, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var poll byte
				polled := 0
				status := func(context.Context) (*nodev1.StatusResponse, error) {
					poll = tt.polls[min(polled, len(tt.polls)-1)]
					polled++
					switch poll {
					case 'e':
						return nil, errors.New("no answer")
					case 'n':
						return nil, knowsShards(&nodev1.StatusResponse{Meta: &nodev1.MetaState{Version: 9}})
					}
					return &nodev1.StatusResponse{Meta: &nodev1.MetaState{Shards: []*nodev1.ShardPlacement{{}}}}, nil
				}
				came, err := waitFlags{Wait: time.Minute}.await(t.Context(), streams{io.Discard, io.Discard}, "steps", status, func(*nodev1.StatusResponse) (int, error) {
					switch poll {
					case 'd':
						return 0, nil
					case 'o':
						return 1, errOtherwise
					}
					return 1, nil
				})
				left := -1
				if came.Left != nil {
					left = *came.Left
				}
				if came.Done != tt.done || left != tt.left || (tt.polled > 0 && polled != tt.polled) {
					t.Errorf("after %d polls: done %v, left %d, want %d, %v, %d", polled, came.Done, left, tt.polled, tt.done, tt.left)
				}
				if (err == nil) != (tt.want == "") || (err != nil && !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("error %v, want %q", err, tt.want)
				}
			})
		})
	}
}

// Scripts find every field in its place, and can tell what is not known from nothing.
func TestShapeOfOrders(t *testing.T) {
	for want, result := range map[string]any{
		`{"node":"n1","state":"draining","done":false,"left":null,"seconds":0}`:                                     nodeResult{Node: "n1", State: "draining"},
		`{"node":"n1","state":"removed","done":true,"left":0,"seconds":1.5}`:                                        nodeResult{Node: "n1", State: "removed", effect: effect{Done: true, Left: new(0), Seconds: 1.5}},
		`{"shard":0,"from":"","to":"n2","leader":"","voters":[],"done":false,"left":null,"seconds":0}`:              moveResult{To: "n2", Voters: []string{}},
		`{"shard":3,"from":"n1","to":"n2","leader":"n2","voters":["n1","n2"],"done":false,"left":1,"seconds":0.25}`: moveResult{Shard: 3, From: "n1", To: "n2", Leader: "n2", Voters: []string{"n1", "n2"}, effect: effect{Left: new(1), Seconds: 0.25}},
	} {
		if got, err := json.Marshal(result); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}
