package node_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/account"
	"writ/actors/client"
	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
)

// alarms is a kind that sets ten timers at once and counts those that fire.
type alarms struct {
	mu    sync.Mutex
	early []string
}

func (k *alarms) kinds() []entity.Definer {
	alarm := entity.NewKind[*wrapperspb.Int64Value]("alarm")
	entity.Handle(alarm, func(c *entity.Context, s *wrapperspb.Int64Value, cmd *wrapperspb.StringValue) (*wrapperspb.Int64Value, error) {
		if d, isSet := strings.CutPrefix(cmd.GetValue(), "set "); isSet {
			after, err := time.ParseDuration(d)
			for i := range 10 {
				c.SetTimer(fmt.Sprint(i), entity.Timer{After: after, Command: &wrapperspb.StringValue{Value: "fire"}})
			}
			return s, err
		}
		if early := time.Until(c.Due()); early > 0 {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.early = append(k.early, early.String())
		}
		s.Value++
		return s, nil
	})
	return append(account.Kinds(), alarm)
}

// Timers fire once and not early, although leaderships move while they are due, and
// all nodes are stopped and started.
func TestTimersSurvive(t *testing.T) {
	const entities = 20
	k := &alarms{}
	c := newCluster(t, 3, func(cfg *node.Config) { cfg.Kinds = k.kinds() })
	set := func(round string, after func(i int) time.Duration) {
		cl := c.client()
		for i := range entities {
			cmd := &wrapperspb.StringValue{Value: fmt.Sprint("set ", after(i))}
			if _, err := cl.Submit(t.Context(), "alarm", fmt.Sprint(i), round, cmd, client.SubmitOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	fired := func(want int64) {
		cl := c.client()
		for i := range entities {
			eventually(t, func(ctx context.Context) (any, error) {
				res, err := cl.Read(ctx, "alarm", fmt.Sprint(i), client.ReadOptions{})
				if err != nil {
					return nil, err
				}
				if n, _ := res.State.(*wrapperspb.Int64Value); n.GetValue() != want {
					return nil, fmt.Errorf("entity %d: %d timers fired, want %d", i, n.GetValue(), want)
				}
				return nil, nil
			})
		}
	}
	set("first", func(i int) time.Duration { return time.Duration(i*50) * time.Millisecond })
	admin := c.admin()
	for shard := range uint32(4) { // some fire here, some there
		if _, err := admin.MoveShard(t.Context(), &nodev1.MoveShardRequest{Shard: shard, To: c.names[int(shard+1)%3]}); err != nil {
			t.Error(err)
		}
	}
	fired(10)
	set("second", func(int) time.Duration { return 100 * time.Millisecond })
	c.stop() // most become due while there is nobody
	c.start()
	fired(20)
	c.audit()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.early) > 0 {
		t.Errorf("early: %v", k.early)
	}
}
