package node_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"writ/actors/client"
	nodev1 "writ/proto/writ/node/v1"
)

// A cluster that nobody uses writes nothing into its logs, whatever its auditor,
// its relays and its timers do.
func TestIdleClusterWritesNothing(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.settle()
	cl := c.client()
	for i := range 20 {
		if _, err := cl.Submit(t.Context(), "account", fmt.Sprint("idle", i), "1", eur(1), client.SubmitOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.audit() // until nothing is pending
	admin := c.admin()
	indexes := func(ctx context.Context) (map[uint32]uint64, error) {
		res, err := admin.Status(ctx, &nodev1.StatusRequest{})
		if err == nil && len(res.GetShards()) != 4 {
			err = fmt.Errorf("shards %v", res.GetShards())
		}
		list := map[uint32]uint64{}
		for _, s := range res.GetShards() {
			list[s.GetShard()] = s.GetCommitIndex()
		}
		return list, err
	}
	// Many heartbeats and one round of the auditor without an entry.
	const still = 7 * time.Second
	before, since := map[uint32]uint64{}, time.Now()
	eventually(t, func(ctx context.Context) (any, error) {
		now, err := indexes(ctx)
		if err != nil {
			return nil, err
		}
		if !maps.Equal(before, now) {
			before, since = now, time.Now()
		}
		if d := time.Since(since); d < still {
			return nil, fmt.Errorf("the logs have stood still for %v only: %v", d, now)
		}
		return nil, nil
	})
}
