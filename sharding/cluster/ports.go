package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	nodev1 "writ/proto/writ/node/v1"
	"writ/sharding"
)

// Server is one replica for all time: a node, an incarnation of its disk, and a
// generation that placement gave out once.
type Server struct {
	Node        string `json:"node"`
	Incarnation string `json:"incarnation"`
	Generation  uint64 `json:"generation"`
}

func (s Server) String() string {
	return fmt.Sprintf("%s#%s#%d", s.Node, s.Incarnation, s.Generation)
}

// MetaGeneration is the generation of every node's replica of the meta group: an
// incarnation has one such replica in its life.
const MetaGeneration = 1

// MetaVotersMax bounds the voters of the meta group; all other nodes learn.
const MetaVotersMax = 5

// Member is a node as gossip sees it.
type Member struct {
	Name, Incarnation string
	ClusterID         string // empty: belongs to none yet
	Alive             bool
}

// Directory is gossip's view. It decides nothing: a member may be alive and
// believed dead, and the other way round.
type Directory interface {
	// Members lists all members, this node included.
	Members() []Member
}

// Founders are the calls to other nodes by which a node forms or joins a cluster.
// They go by the name of the node. Refusals are *entity.Error with their details.
type Founders interface {
	Promise(ctx context.Context, node string, req *nodev1.PromiseRequest) (*nodev1.PromiseResponse, error)
	Register(ctx context.Context, node string, req *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error)
}

// Reporter asks another node about all its replicas. Voters and learners in the
// answer are names of nodes, of the committed configuration.
type Reporter interface {
	Shards(ctx context.Context, node string) ([]*nodev1.ShardStatus, error)
}

// NodeReporter asks another node about all its replicas, that of the meta group too.
type NodeReporter interface {
	Report(ctx context.Context, node string) (*nodev1.ReportResponse, error)
}

// Meta is this node's replica of the meta group.
type Meta interface {
	// State is the content as applied here, never nil, never changed.
	State() *nodev1.MetaState
	IsLeader() bool
	// Leader is the name of the node believed to lead, "" for none.
	Leader() string
	// Update changes the state by compare-and-set, on the leader only.
	Update(ctx context.Context, change func(*nodev1.MetaState) error) error
}

// MetaMembers is the configuration of the meta group. Changes work on the leader
// only and are nil if there is nothing to change.
type MetaMembers interface {
	Members() (voters, learners []Server)
	AddLearner(ctx context.Context, s Server) error
	AddVoter(ctx context.Context, s Server) error
	Remove(ctx context.Context, s Server) error
	TransferLeadership(ctx context.Context, to string) error
}

// Placements is what the reconciler follows: the state of the meta group, and
// whether it is as new as the group's was when this node started.
type Placements interface {
	State() *nodev1.MetaState
	Ready() (ok bool, reason string)
}

// ReplicaConfig says which replica of which shard to open.
type ReplicaConfig struct {
	Shard      uint32
	Range      sharding.Range
	Epoch      uint64
	Generation uint64
	// GenerationWidth is the same for every replica of the cluster.
	GenerationWidth time.Duration
	// Bootstrap is the group's first configuration, the same for all its
	// replicas; empty for a group that has been formed.
	Bootstrap []Server
}

// ErrOutOfDate says that a node has seen more of the placement than it knows now.
var ErrOutOfDate = errors.New("the placement known here is out of date")

// Replicas are the shard replicas of this node. Calls for different shards come at
// the same time.
type Replicas interface {
	// Open opens a replica or creates it. A damaged one is shown as quarantined. The
	// error is ErrOutOfDate for one that was dropped here before.
	Open(c ReplicaConfig) error
	// Reopen opens a failed replica anew, if that can help, and reports whether it
	// did.
	Reopen(c ReplicaConfig) (opened bool, err error)
	// Kept is the newest generation of a shard's replica under an epoch that was on
	// the disk at the start and has not been dropped since, 0 for none.
	Kept(shard uint32, epoch uint64) uint64
	// Drop shuts a replica down and deletes what it holds.
	Drop(shard uint32) error
	// Statuses describes the replicas that are open.
	Statuses() []*nodev1.ShardStatus
	// Group is the shard's Raft group, nil if there is no replica here.
	Group(shard uint32) Group
}

// Group is a shard's Raft group as its leader sees it. Changes work on the
// leader only, one at a time, and are nil if there is nothing to change.
type Group interface {
	// Members are the servers of the committed configuration.
	Members() (voters, learners []Server)
	AddLearner(ctx context.Context, s Server) error
	Promote(ctx context.Context, s Server) error
	Remove(ctx context.Context, s Server) error
	TransferLeadership(ctx context.Context, to string) error
}
