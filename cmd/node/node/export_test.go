package node

import (
	"context"
	"errors"

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
