package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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
		eventually(t, func(ctx context.Context) (*nodev1.MoveShardResponse, error) {
			return admin.MoveShard(ctx, &nodev1.MoveShardRequest{Shard: shard, To: c.names[int(shard+1)%3]})
		})
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

// What is listed of timers: by time, by entity, those that are late and those that
// are parked, from any node, without their messages.
func TestTimersAreListed(t *testing.T) {
	k := &alarms{}
	failing := entity.NewKind[*wrapperspb.Int64Value]("failing")
	entity.Handle(failing, func(c *entity.Context, s *wrapperspb.Int64Value, cmd *wrapperspb.StringValue) (*wrapperspb.Int64Value, error) {
		if cmd.GetValue() == "fire" {
			return nil, errors.New("as told")
		}
		c.SetTimer("bomb", entity.Timer{Command: &wrapperspb.StringValue{Value: "fire"}})
		c.SetTimer("later", entity.Timer{After: time.Hour, Every: time.Minute, Event: &wrapperspb.StringValue{Value: "x"}, To: entity.To("alarm", "0")})
		return s, nil
	})
	c := newCluster(t, 3, func(cfg *node.Config) { cfg.Kinds = append(k.kinds(), failing) })
	cl := c.client()
	for i := range 3 {
		cmd := &wrapperspb.StringValue{Value: fmt.Sprint("set ", time.Duration(1+i)*time.Hour)}
		if _, err := cl.Submit(t.Context(), "alarm", fmt.Sprint(i), "k", cmd, client.SubmitOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cl.Submit(t.Context(), "failing", "f", "k", &wrapperspb.StringValue{}, client.SubmitOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range c.names {
		admin := c.adminOf(name)
		list := func(req *nodev1.ListTimersRequest) (found []*nodev1.TimerInfo) {
			t.Helper()
			for shard := range uint32(4) {
				found = append(found, eventually(t, func(ctx context.Context) (found []*nodev1.TimerInfo, err error) {
					req.Shard = shard
					stream, err := admin.ListTimers(ctx, req)
					for err == nil {
						var info *nodev1.TimerInfo
						if info, err = stream.Recv(); err == nil {
							found = append(found, info)
						}
					}
					if errors.Is(err, io.EOF) {
						err = nil
					}
					return found, err
				})...)
			}
			return found
		}
		parked := eventually(t, func(context.Context) ([]*nodev1.TimerInfo, error) {
			found := list(&nodev1.ListTimersRequest{ParkedOnly: true})
			if len(found) != 1 {
				return nil, fmt.Errorf("%d timers are parked", len(found))
			}
			return found, nil
		})[0]
		if parked.GetName() != "bomb" || parked.GetTimer().GetAttempts() != 8 || !strings.Contains(parked.GetTimer().GetReason(), "as told") ||
			parked.GetLate() <= 0 || parked.GetBytes() == 0 || parked.GetTimer().GetMessage().GetData() != nil {
			t.Errorf("parked: %v", parked)
		}
		for what, tt := range map[string]struct {
			req  *nodev1.ListTimersRequest
			want int
		}{
			"by time":    {&nodev1.ListTimersRequest{}, 31},
			"kind":       {&nodev1.ListTimersRequest{Kind: "alarm"}, 30},
			"tenant":     {&nodev1.ListTimersRequest{Tenant: "other"}, 0},
			"entity":     {&nodev1.ListTimersRequest{Tenant: "default", Kind: "failing", Id: "f"}, 2},
			"late":       {&nodev1.ListTimersRequest{LateOnly: true}, 0}, // parked: it waits for no time
			"its late":   {&nodev1.ListTimersRequest{Tenant: "default", Kind: "failing", Id: "f", LateOnly: true}, 1},
			"not parked": {&nodev1.ListTimersRequest{Kind: "alarm", ParkedOnly: true}, 0},
		} {
			found := list(tt.req)
			if len(found) != tt.want {
				t.Errorf("%s: %d timers, want %d", what, len(found), tt.want)
			}
			for _, info := range found {
				if info.GetEntity().GetKind() == "alarm" && (info.GetLate() != 0 || info.GetTimer().GetMessage().GetType() != "google.protobuf.StringValue") {
					t.Errorf("%s: %v", what, info)
				}
			}
		}
		for shard := range uint32(4) { // at most, and the earliest come first
			stream, err := admin.ListTimers(t.Context(), &nodev1.ListTimersRequest{Shard: shard, Limit: 7})
			if err != nil {
				t.Fatal(err)
			}
			n, last := 0, int64(0)
			for info, err := stream.Recv(); err == nil; info, err = stream.Recv() {
				if info.GetTimer().GetDue() < last {
					t.Errorf("%v comes behind one of %d", info, last)
				}
				n, last = n+1, info.GetTimer().GetDue()
			}
			if n > 7 {
				t.Errorf("shard %d: %d timers", shard, n)
			}
		}
	}
}
