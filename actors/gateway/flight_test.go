package gateway_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/actors/entity"
	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// TestFrozenLeader: a node that no longer leads and says nothing is given up. A
// client's call then goes to the successor; what that one refuses, a command without
// a time of issue, and a batch of rows are of unknown outcome. Without a successor the old leader is waited for.
func TestFrozenLeader(t *testing.T) {
	arrived, thaw := make(chan struct{}, 1), make(chan struct{})
	frozen := &fakeHost{
		forward: func(context.Context, *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
			arrived <- struct{}{}
			<-thaw
			return echoes(2).Forward(context.Background(), nil)
		},
		deliver: func(context.Context, *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
			arrived <- struct{}{}
			<-thaw
			return nil, errors.New("late")
		},
	}
	const version = 3
	refusing := fails(entity.Errorf(entity.VersionMismatch, "another version"))
	c := start(t, setup{
		hosts:  map[string]gateway.Host{"n1": fails(errors.New("not me")), "n2": frozen, "n3": echoes(version), "n4": refusing},
		leader: "n2",
	})
	defer close(thaw)
	undated := func() (uint64, error) {
		answer, err := c.client("n1").Submit(ctx(t), deposit("k"))
		return answer.GetVersion(), err
	}
	submit := func() (uint64, error) {
		dated := deposit("k")
		dated.IssuedAt = timestamppb.Now()
		answer, err := c.client("n1").Submit(ctx(t), dated)
		return answer.GetVersion(), err
	}
	read := func() (uint64, error) {
		answer, err := c.client("n1").Read(ctx(t), &writv1.ReadRequest{Entity: deposit("").GetEntity()})
		return answer.GetVersion(), err
	}
	deliver := func() (uint64, error) {
		_, err := c.routers["n1"].Deliver(ctx(t), batch())
		return 0, gateway.ToStatus(err)
	}
	type result struct {
		version uint64
		err     error
	}
	for name, tt := range map[string]struct {
		call      func() (uint64, error)
		successor string
		want      uint64 // 0: of unknown outcome
	}{
		"command":          {submit, "n3", version},
		"read":             {read, "n3", version},
		"command, refused": {submit, "n4", 0},
		"command, undated": {undated, "n3", 0}, // its key may be forgotten by then
		"rows":             {deliver, "n3", 0},
	} {
		t.Run(name, func(t *testing.T) {
			c.table.lead("n2", 1)
			answered := make(chan result, 1)
			go func() {
				v, err := tt.call()
				answered <- result{v, err}
			}()
			<-arrived
			c.table.lead("", 0) // nobody yet: the old one may still answer
			c.routers["n1"].Wake()
			select {
			case got := <-answered:
				t.Fatalf("given up without a successor: %+v", got)
			default:
			}
			c.table.lead(tt.successor, 2)
			c.routers["n1"].Wake()
			got := <-answered
			if tt.want > 0 {
				if got.err != nil || got.version != tt.want {
					t.Errorf("got %+v, want the successor's answer", got)
				}
				return
			}
			if code, reason, _, _ := info(got.err); code != codes.Unavailable || reason != string(entity.OutcomeUnknown) {
				t.Errorf("got %v %s, want an unknown outcome", code, reason)
			}
		})
	}
}
