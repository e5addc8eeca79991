package gateway_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"

	"writ/actors/entity"
	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

func TestNodeServiceChecks(t *testing.T) {
	host := &counted{Host: echoes(1)}
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": host}, leader: "n1"})
	peers := c.peers["n1"]
	forward := func() *nodev1.ForwardRequest {
		return &nodev1.ForwardRequest{
			ClusterId: clusterID, Shard: accountShard(), Tenant: "default",
			Call: &nodev1.ForwardRequest_Submit{Submit: deposit("k")},
		}
	}
	deliver := func() *nodev1.DeliverRequest {
		return &nodev1.DeliverRequest{ClusterId: clusterID, Shard: accountShard(), Rows: batch().GetRows()}
	}
	tests := map[string]struct {
		forward func(*nodev1.ForwardRequest)
		deliver func(*nodev1.DeliverRequest)
		want    entity.Reason
	}{
		"good":          {func(*nodev1.ForwardRequest) {}, func(*nodev1.DeliverRequest) {}, ""},
		"other cluster": {func(r *nodev1.ForwardRequest) { r.ClusterId = "c-2" }, func(r *nodev1.DeliverRequest) { r.ClusterId = "c-2" }, entity.NotExecuted},
		"no cluster":    {func(r *nodev1.ForwardRequest) { r.ClusterId = "" }, func(r *nodev1.DeliverRequest) { r.ClusterId = "" }, entity.NotExecuted},
		"other shard":   {func(r *nodev1.ForwardRequest) { r.Shard++ }, func(r *nodev1.DeliverRequest) { r.Shard++ }, entity.NotExecuted},
		"no tenant":     {func(r *nodev1.ForwardRequest) { r.Tenant = "" }, func(r *nodev1.DeliverRequest) { r.Rows = nil }, entity.Invalid},
		"no entity":     {func(r *nodev1.ForwardRequest) { r.Call = nil }, func(r *nodev1.DeliverRequest) { r.Rows = []*recordv1.Row{{}} }, entity.Invalid},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before := host.forwards.Load() + host.delivers.Load()
			f, d := forward(), deliver()
			tt.forward(f)
			tt.deliver(d)
			_, err := peers.Forward(ctx(t), "n1", f)
			_, err2 := peers.Deliver(ctx(t), "n1", d)
			if entity.ReasonOf(err) != tt.want || entity.ReasonOf(err2) != tt.want {
				t.Errorf("got %v and %v, want %s", err, err2, tt.want)
			}
			if calls := host.forwards.Load() + host.delivers.Load() - before; tt.want != "" && calls != 0 {
				t.Errorf("%d calls reached the host", calls)
			}
		})
	}
}

func TestControl(t *testing.T) {
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": echoes(1), "n2": echoes(2)}})
	peers := c.peers["n1"]
	promise, err := peers.Promise(ctx(t), "n2", &nodev1.PromiseRequest{From: "n1"})
	must(t, err)
	register, err := peers.Register(ctx(t), "n2", &nodev1.RegisterRequest{Node: "n1"})
	must(t, err)
	replica, err := peers.ReplicaStatus(ctx(t), "n2", &nodev1.ReplicaStatusRequest{ClusterId: clusterID, Audit: "a1"})
	must(t, err)
	if promise.GetNode() != "n1" || register.GetLeader() != "n1" || replica.GetReason() != "a1" {
		t.Errorf("got %v, %v, %v", promise, register, replica)
	}
	_, err = peers.TransferLeadership(ctx(t), "n2", &nodev1.TransferLeadershipRequest{ClusterId: clusterID, To: "n3"})
	if err == nil || err.Error() != "NOT_EXECUTED: n3 has not caught up" {
		t.Errorf("got %v", err)
	}
	// Promise and Register may come before the cluster has an id; the others not.
	_, err = peers.ReplicaStatus(ctx(t), "n2", &nodev1.ReplicaStatusRequest{})
	_, err2 := peers.TransferLeadership(ctx(t), "n2", &nodev1.TransferLeadershipRequest{ClusterId: "c-2"})
	if entity.ReasonOf(err) != entity.NotExecuted || entity.ReasonOf(err2) != entity.NotExecuted {
		t.Errorf("got %v, %v", err, err2)
	}
}

// TestNodeMoves: a node that comes back under another address is called there;
// a call in progress at the old one is not disturbed.
func TestNodeMoves(t *testing.T) {
	entered, finish := make(chan struct{}), make(chan struct{})
	old := echoes(1)
	answer := old.forward
	old.forward = func(c context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		close(entered)
		<-finish
		return answer(c, req)
	}
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": fails(errors.New("not me")), "n2": old}, leader: "n2"})
	moved := start(t, setup{hosts: map[string]gateway.Host{"n2": echoes(2)}, leader: "n2"})
	type result struct {
		version uint64
		err     error
	}
	first := make(chan result, 1)
	go func() {
		resp, err := c.client("n1").Submit(ctx(t), deposit("k"))
		first <- result{resp.GetVersion(), err}
	}()
	<-entered
	c.table.move("n2", moved.table.addresses["n2"])
	resp, err := c.client("n1").Submit(ctx(t), deposit("k2"))
	must(t, err)
	close(finish)
	if r := <-first; r.err != nil || r.version != 1 || resp.GetVersion() != 2 {
		t.Errorf("old %+v, new version %d", r, resp.GetVersion())
	}
}

func TestClosedPool(t *testing.T) {
	table := &fakeTable{addresses: map[string]string{"n1": freeAddress(t)}}
	pool, err := gateway.NewPool(gateway.PoolConfig{Addresses: table, Limits: gateway.DefaultLimits()})
	must(t, err)
	must(t, pool.Close())
	_, err = gateway.NewPeers(pool).Promise(ctx(t), "n1", &nodev1.PromiseRequest{})
	if entity.ReasonOf(err) != entity.NotExecuted {
		t.Errorf("got %v", err)
	}
}

// TestLargestBatch: a message between nodes holds an event of the largest size,
// and one that is too large fails by itself, without taking the link along.
func TestLargestBatch(t *testing.T) {
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": echoes(1), "n2": echoes(2)}, leader: "n2"})
	row := func(size int) *nodev1.DeliverRequest {
		req := batch()
		req.GetRows()[0].Event = &recordv1.Payload{Data: make([]byte, size)}
		return req
	}
	_, err := c.routers["n1"].Deliver(ctx(t), row(c.limits.Command))
	must(t, err)
	_, err = c.routers["n1"].Deliver(ctx(t), row(c.limits.Message))
	if err == nil {
		t.Error("a message over the limit was taken")
	}
	_, err = c.routers["n1"].Deliver(ctx(t), row(10))
	must(t, err)
	if code, _, _, _ := info(gateway.ToStatus(err)); code != codes.OK {
		t.Errorf("got %v", err)
	}
}
