package gateway_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"

	"writ/actors/entity"
	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
)

// TestFrozenLeader: a node that no longer leads and says nothing is given up; the
// outcome is unknown. Without a successor it is waited for.
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
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": fails(errors.New("not me")), "n2": frozen, "n3": echoes(3)}, leader: "n2"})
	defer close(thaw)
	for name, call := range map[string]func() error{
		"forward": func() error { _, err := c.client("n1").Submit(ctx(t), deposit("k")); return err },
		"deliver": func() error { _, err := c.routers["n1"].Deliver(ctx(t), batch()); return gateway.ToStatus(err) },
	} {
		c.table.lead("n2", 1)
		answered := make(chan error, 1)
		go func() { answered <- call() }()
		<-arrived
		c.table.lead("", 0) // nobody yet: the old one may still answer
		c.routers["n1"].Wake()
		select {
		case err := <-answered:
			t.Fatalf("%s: given up without a successor: %v", name, err)
		default:
		}
		c.table.lead("n3", 2)
		c.routers["n1"].Wake()
		code, reason, _, _ := info(<-answered)
		if code != codes.Unavailable || reason != string(entity.OutcomeUnknown) {
			t.Errorf("%s: got %v %s", name, code, reason)
		}
	}
}
