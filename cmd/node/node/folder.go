package node

import (
	"context"
	"time"
)

// watchFolder ends the node when its data folder is no longer the one that it
// opened: until then it would acknowledge what no later start can find.
func (n *Node) watchFolder(ctx context.Context) error {
	tick := time.NewTicker(diskCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := n.identity.InPlace(); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
