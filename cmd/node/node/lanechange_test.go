package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/account"
	"writ/actors/client"
	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// picky is a consumer that refuses every event while it is closed. Its commands
// emit to each "kind/id" that they name.
type picky struct{ closed atomic.Bool }

func (p *picky) kinds() []entity.Definer {
	k := entity.NewKind[*wrapperspb.Int64Value]("picky")
	entity.Handle(k, func(c *entity.Context, s *wrapperspb.Int64Value, cmd *wrapperspb.StringValue) (*wrapperspb.Int64Value, error) {
		for to := range strings.FieldsSeq(cmd.GetValue()) {
			kind, id, _ := strings.Cut(to, "/")
			c.Emit(entity.To(kind, id), &wrapperspb.Int64Value{Value: 1})
		}
		return s, nil
	})
	entity.On(k, func(c *entity.Context, s *wrapperspb.Int64Value, e *wrapperspb.Int64Value) error {
		if p.closed.Load() {
			return c.Reject(entity.NotFound, "CLOSED", "come back later")
		}
		s.Value += e.GetValue()
		return nil
	})
	return append(account.Kinds(), k)
}

func pickyRef(id string) *recordv1.Ref {
	return &recordv1.Ref{Tenant: "default", Kind: "picky", Id: id}
}

// lanes lists lanes of all shards.
func (c *testCluster) lanes(filter *nodev1.LaneFilter, standing bool) []*nodev1.LaneInfo {
	c.t.Helper()
	var list []*nodev1.LaneInfo
	admin := c.admin()
	for shard := range uint32(4) {
		list = append(list, eventually(c.t, func(ctx context.Context) (found []*nodev1.LaneInfo, err error) {
			stream, err := admin.ListLanes(ctx, &nodev1.ListLanesRequest{Shard: shard, ParkedOnly: standing, Filter: filter})
			for err == nil {
				var l *nodev1.LaneInfo
				if l, err = stream.Recv(); err == nil {
					found = append(found, l)
				}
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return found, err
		})...)
	}
	return list
}

func (c *testCluster) state(kind, id string) int64 {
	c.t.Helper()
	res, err := c.client().Read(c.t.Context(), kind, id, client.ReadOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	n, _ := res.State.(*wrapperspb.Int64Value)
	return n.GetValue()
}

func TestOperatorsVerbs(t *testing.T) {
	p := &picky{}
	p.closed.Store(true)
	c := newCluster(t, 3, func(cfg *node.Config) { cfg.Kinds = p.kinds() })
	cl, admin := c.client(), c.admin()
	// Two sources whose lanes are refused, three rows each, and a kind that nobody
	// has.
	for _, id := range []string{"a", "b"} {
		for i := range 3 {
			to := &wrapperspb.StringValue{Value: "picky/x-" + id}
			if _, err := cl.Submit(t.Context(), "picky", id, fmt.Sprint(i), to, client.SubmitOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := cl.Submit(t.Context(), "picky", "a", "n", &wrapperspb.StringValue{Value: "nobody/1"}, client.SubmitOptions{}); err != nil {
		t.Fatal(err)
	}
	parked := eventually(t, func(context.Context) ([]*nodev1.LaneInfo, error) {
		list := c.lanes(nil, true)
		if len(list) != 3 {
			return nil, fmt.Errorf("%d lanes stand", len(list))
		}
		return list, nil
	})
	for _, l := range parked {
		if l.GetLane().GetStatus() != recordv1.Lane_PARKED || l.GetLane().GetReason() == "" {
			t.Errorf("lane %v", l)
		}
	}
	for name, tt := range map[string]struct {
		filter *nodev1.LaneFilter
		want   int
	}{
		"source":      {&nodev1.LaneFilter{SourceKind: "picky", SourceId: "b"}, 1},
		"destination": {&nodev1.LaneFilter{DestinationKind: "nobody"}, 1},
		"reason":      {&nodev1.LaneFilter{Reason: "CLOSED"}, 2},
		"tenant":      {&nodev1.LaneFilter{Tenant: "other"}, 0},
	} {
		if got := len(c.lanes(tt.filter, true)); got != tt.want {
			t.Errorf("%s: %d lanes, want %d", name, got, tt.want)
		}
	}
	change := func(id string, verb nodev1.ChangeLaneRequest_Verb, sequence uint64) (*recordv1.Lane, error) {
		res, err := patiently(t, func(ctx context.Context) (*nodev1.ChangeLaneResponse, error) {
			return admin.ChangeLane(ctx, &nodev1.ChangeLaneRequest{
				Lane: &nodev1.LaneName{Source: pickyRef(id), Destination: pickyRef("x-" + id)},
				Verb: verb, Sequence: sequence, Reason: "no" + strings.Repeat("€", 500), // longer than is kept
			})
		})
		return res.GetLane().GetLane(), err
	}
	show := func(id string) *nodev1.ShowLaneResponse {
		t.Helper()
		res, err := patiently(t, func(ctx context.Context) (*nodev1.ShowLaneResponse, error) {
			return admin.ShowLane(ctx, &nodev1.ShowLaneRequest{
				Lane: &nodev1.LaneName{Source: pickyRef(id), Destination: pickyRef("x-" + id)}, Payloads: true,
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	before := show("a")
	if len(before.GetRows()) != 3 || before.GetApplied() != 0 || before.GetRows()[0].GetLaneSequence() != 1 {
		t.Errorf("lane of a: %v", before)
	}
	// What makes no sense is refused and changes nothing.
	for name, err := range map[string]error{
		"resume a parked lane":  second(change("a", nodev1.ChangeLaneRequest_RESUME, 0)),
		"pause a parked lane":   second(change("a", nodev1.ChangeLaneRequest_PAUSE, 0)),
		"skip the second row":   second(change("a", nodev1.ChangeLaneRequest_SKIP, 2)),
		"a lane that is nobody": second(change("zzz", nodev1.ChangeLaneRequest_REPLAY, 0)),
		"no verb":               second(change("a", nodev1.ChangeLaneRequest_VERB_UNSPECIFIED, 0)),
	} {
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Skip is final and may be repeated.
	for range 2 {
		if l, err := change("b", nodev1.ChangeLaneRequest_SKIP, 1); err != nil || l.GetSkipped() != 1 || l.GetStatus() != recordv1.Lane_PARKED {
			t.Fatalf("skip: %v, %v", l, err)
		}
	}
	p.closed.Store(false)
	for _, id := range []string{"a", "b"} {
		if l, err := change(id, nodev1.ChangeLaneRequest_REPLAY, 0); err != nil || l.GetStatus() != recordv1.Lane_ACTIVE {
			t.Fatalf("replay: %v, %v", l, err)
		}
		eventually(t, func(context.Context) (any, error) {
			if l := show(id).GetLane().GetLane(); l.GetConfirmed() != 3 {
				return nil, fmt.Errorf("lane of %s: %v", id, l)
			}
			return nil, nil
		})
	}
	if a, b := c.state("picky", "x-a"), c.state("picky", "x-b"); a != 3 || b != 2 {
		t.Errorf("x-a is %d, x-b is %d", a, b)
	}
	// A paused lane keeps its rows and says why.
	if l, err := change("a", nodev1.ChangeLaneRequest_PAUSE, 0); err != nil || l.GetStatus() != recordv1.Lane_PAUSED || l.GetReason() != "no"+strings.Repeat("€", 340) {
		t.Fatalf("pause: %v, %v", l, err)
	}
	if _, err := cl.Submit(t.Context(), "picky", "a", "p", &wrapperspb.StringValue{Value: "picky/x-a"}, client.SubmitOptions{}); err != nil {
		t.Fatal(err)
	}
	if rows := outboxOf(t, c, &nodev1.LaneFilter{SourceId: "a", DestinationId: "x-a"}); len(rows) != 1 || rows[0].GetRow().GetLaneSequence() != 4 ||
		rows[0].GetBytes() == 0 || rows[0].GetRow().GetEvent().GetData() != nil || rows[0].GetStatus() != recordv1.Lane_PAUSED {
		t.Errorf("outbox: %v", rows)
	}
	if _, err := change("a", nodev1.ChangeLaneRequest_REPLAY, 0); status.Code(err) != codes.InvalidArgument {
		t.Errorf("replay of a paused lane: %v", err)
	}
	if _, err := change("a", nodev1.ChangeLaneRequest_RESUME, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(context.Context) (any, error) {
		if n := c.state("picky", "x-a"); n != 4 {
			return nil, fmt.Errorf("x-a is %d", n)
		}
		return nil, nil
	})
}

// patiently repeats a call while there is no leader, as the command line does.
func patiently[T any](t *testing.T, call func(context.Context) (T, error)) (res T, err error) {
	t.Helper()
	eventually(t, func(ctx context.Context) (any, error) {
		if res, err = call(ctx); status.Code(err) == codes.Unavailable {
			return nil, err
		}
		return nil, nil
	})
	return res, err
}

func second[T any](_ T, err error) error { return err }

func outboxOf(t *testing.T, c *testCluster, filter *nodev1.LaneFilter) []*nodev1.OutboxRow {
	t.Helper()
	var list []*nodev1.OutboxRow
	admin := c.admin()
	for shard := range uint32(4) {
		rows, err := patiently(t, func(ctx context.Context) (rows []*nodev1.OutboxRow, err error) {
			stream, err := admin.ListOutbox(ctx, &nodev1.ListOutboxRequest{Shard: shard, Filter: filter})
			for err == nil {
				var row *nodev1.OutboxRow
				if row, err = stream.Recv(); err == nil {
					rows = append(rows, row)
				}
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return rows, err
		})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, rows...)
	}
	return list
}
