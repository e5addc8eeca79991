package node

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	recordv1 "writ/proto/writ/record/v1"
)

// Propose puts a record into the log of a shard that this node leads.
func (n *Node) Propose(ctx context.Context, shard uint32, rec *recordv1.Record) error {
	p := n.parts()
	if p == nil || p.host.Replica(shard) == nil || p.host.Replica(shard).Lease() == nil {
		return errors.New("this node does not lead the shard")
	}
	done := make(chan error, 1)
	p.host.Replica(shard).Lease().Propose(rec, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Recount does one round of the background auditor now.
func (n *Node) Recount(ctx context.Context) { n.auditor.round(ctx) }

// Current reports whether the node has had the newest state of the meta group.
func (n *Node) Current() bool { return n.parts() != nil && n.parts().current.Load() }

// FindReplicasDiffer has the auditor find that a shard's replicas differ.
func (n *Node) FindReplicasDiffer(shard uint32) {
	term := uint64(0)
	if r := n.parts().host.Replica(shard); r != nil && r.Lease() != nil {
		term = r.Lease().Term()
	}
	s := n.auditor.state(shard, term)
	n.auditor.mu.Lock()
	defer n.auditor.mu.Unlock()
	s.replicas = map[string]string{"some node": "found by a test"}
}

// Audited are the shards of which the auditor remembers anything.
func (n *Node) Audited() []uint32 {
	n.auditor.mu.Lock()
	defer n.auditor.mu.Unlock()
	return slices.Sorted(maps.Keys(n.auditor.shards))
}

// DescribedMetrics are the names of what the runtime and the proposals are counted
// by, those included that have no value yet.
func DescribedMetrics() map[string]bool {
	registry := prometheus.NewRegistry()
	newMetrics(registry)
	newMeter(registry)
	described := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(described)
		close(described)
	}()
	names := map[string]bool{}
	for d := range described {
		_, name, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ = strings.Cut(name, `"`)
		names[name] = true
	}
	return names
}
