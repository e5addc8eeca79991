package node

import (
	"sync"

	"writ/sharding/membership"
)

// table is what this node knows about shards and nodes: the router's map. It
// joins three sources and trusts the newest word on a leader: the local
// replica's view and gossip's hint, compared by (epoch, term).
type table struct {
	node   string
	gossip *membership.Gossip
	shards func() []shardView

	mu    sync.Mutex
	local map[uint32]leaderView
}

// shardView is one line of the placement.
type shardView struct {
	nodes []string
}

// leaderView is what this node's own replica believes.
type leaderView struct {
	node        string
	epoch, term uint64
}

func newTable(node string, gossip *membership.Gossip, shards func() []shardView) *table {
	return &table{node: node, gossip: gossip, shards: shards, local: map[uint32]leaderView{}}
}

// observe takes what a local replica believes.
func (t *table) observe(shard uint32, v leaderView) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.local[shard] = v
}

// forget drops what a local replica believed that is no more: nobody would ever
// correct it, and gossip's hint of the same term would not count against it.
func (t *table) forget(shard uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.local, shard)
}

// Shards implements gateway.Table.
func (t *table) Shards() uint32 { return uint32(len(t.shards())) }

// Leader implements gateway.Table.
func (t *table) Leader(shard uint32) (node string, term uint64) {
	t.mu.Lock()
	own := t.local[shard]
	t.mu.Unlock()
	hint, ok := t.gossip.Hint(shard)
	if ok && (hint.Epoch > own.epoch || (hint.Epoch == own.epoch && hint.Term > own.term)) {
		own = leaderView{node: hint.Node, term: hint.Term}
	}
	if own.node == "" || own.node == t.node {
		return own.node, own.term
	}
	// A leader that gossip holds for dead is no use; its successor is on the way.
	if m, ok := t.gossip.Lookup(own.node); ok && !m.Alive {
		return "", own.term
	}
	return own.node, own.term
}

// Address implements gateway.Table.
func (t *table) Address(node string) (string, bool) {
	m, ok := t.gossip.Lookup(node)
	return m.GRPC, ok && m.GRPC != ""
}

// Replicas implements gateway.Table.
func (t *table) Replicas(shard uint32) []string {
	views := t.shards()
	if int(shard) >= len(views) {
		return nil
	}
	return views[shard].nodes
}
