package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"writ/actors/entity"
	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	writv1 "writ/proto/writ/v1"
)

// counted counts a host's calls.
type counted struct {
	gateway.Host
	forwards, delivers atomic.Int64
}

func (h *counted) Forward(c context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
	h.forwards.Add(1)
	return h.Host.Forward(c, req)
}

func (h *counted) Deliver(c context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
	h.delivers.Add(1)
	return h.Host.Deliver(c, req)
}

func pointsTo(leader string) *entity.Error {
	return entity.Errorf(entity.NotExecuted, "not the leader").With("leader", leader).With("term", "5")
}

func batch() *nodev1.DeliverRequest {
	return &nodev1.DeliverRequest{Rows: []*recordv1.Row{{Destination: &recordv1.Ref{Tenant: "default", Kind: "account", Id: "a"}}}}
}

func TestForwardGoesToTheLeader(t *testing.T) {
	for _, leader := range []string{"n1", "n2"} {
		var got *nodev1.ForwardRequest
		host := echoes(1)
		answer := host.forward
		host.forward = func(c context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
			got = req
			if _, ok := c.Deadline(); !ok {
				t.Error("the deadline is lost")
			}
			return answer(c, req)
		}
		hosts := map[string]gateway.Host{"n1": fails(errors.New("not me")), "n2": fails(errors.New("not me"))}
		hosts[leader] = host
		c := start(t, setup{hosts: hosts, leader: leader})
		_, err := c.client("n1").Submit(ctx(t), deposit("k"))
		must(t, err)
		if got.GetShard() != accountShard() || got.GetClusterId() != clusterID || got.GetTermHint() != 1 || got.GetTenant() != "default" {
			t.Errorf("leader %s got %v", leader, got)
		}
		if got.GetSubmit().GetIdempotencyKey() != "k" {
			t.Errorf("leader %s got %v", leader, got.GetSubmit())
		}
	}
}

// TestRedirectIsFollowedOnce: one redirect, then NOT_EXECUTED with the hint.
func TestRedirectIsFollowedOnce(t *testing.T) {
	n2 := &counted{Host: fails(pointsTo("n3"))}
	n3 := &counted{Host: echoes(3)}
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": fails(pointsTo("n2")), "n2": n2, "n3": n3}, leader: "n2"})
	resp, err := c.client("n1").Submit(ctx(t), deposit("k"))
	must(t, err)
	if resp.GetVersion() != 3 || n2.forwards.Load() != 1 || n3.forwards.Load() != 1 {
		t.Errorf("version %d after %d and %d calls", resp.GetVersion(), n2.forwards.Load(), n3.forwards.Load())
	}
	dresp, err := c.routers["n1"].Deliver(ctx(t), batch())
	must(t, err)
	if dresp.GetApplied() != 3 || n2.delivers.Load() != 1 || n3.delivers.Load() != 1 {
		t.Errorf("applied %d after %d and %d calls", dresp.GetApplied(), n2.delivers.Load(), n3.delivers.Load())
	}

	// The table still holds n1 for the leader: n1 → n2 → stop.
	c.table.lead("n1", 1)
	_, err = c.client("n1").Submit(ctx(t), deposit("k"))
	code, reason, details, retry := info(err)
	if code != codes.Unavailable || reason != "NOT_EXECUTED" || details["leader"] != "n3" || details["term"] != "5" || retry == 0 {
		t.Errorf("got %v %s %v, retry %s", code, reason, details, retry)
	}
	if n2.forwards.Load() != 2 || n3.forwards.Load() != 1 {
		t.Errorf("%d and %d calls", n2.forwards.Load(), n3.forwards.Load())
	}
}

// TestLeaderChangeMidway: a call that meets a leader on its way out is tried
// again at the next one, and waits for it if need be.
func TestLeaderChangeMidway(t *testing.T) {
	var c *cluster
	var news sync.Once
	n2 := &counted{}
	n2.Host = &fakeHost{forward: func(context.Context, *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		// Leadership goes while the call is here; the news comes a little later.
		go news.Do(func() {
			c.table.lead("", 0)
			c.routers["n1"].Wake()
			c.table.lead("n3", 2)
			c.routers["n1"].Wake()
		})
		return nil, entity.Errorf(entity.NotExecuted, "the lease has ended")
	}}
	c = start(t, setup{
		hosts:  map[string]gateway.Host{"n1": fails(entity.Errorf(entity.NotExecuted, "not me")), "n2": n2, "n3": echoes(3)},
		leader: "n2", wait: ended, grace: ended,
	})
	resp, err := c.client("n1").Submit(ctx(t), deposit("k"))
	must(t, err)
	if resp.GetVersion() != 3 || n2.forwards.Load() == 0 {
		t.Errorf("version %d, %d calls of the old leader", resp.GetVersion(), n2.forwards.Load())
	}
}

// TestDeadLeader: nobody listens at the leader's address. Nothing was sent, so
// the call may go to the next leader.
func TestDeadLeader(t *testing.T) {
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": echoes(1), "n2": echoes(2)}, leader: "n2", wait: ended})
	c.table.move("n2", freeAddress(t))
	answered := make(chan error, 1)
	go func() {
		resp, err := c.client("n1").Submit(ctx(t), deposit("k"))
		if err == nil && resp.GetVersion() != 1 {
			err = fmt.Errorf("version %d", resp.GetVersion())
		}
		answered <- err
	}()
	c.table.lead("n1", 2)
	c.routers["n1"].Wake()
	must(t, <-answered)

	// Without a successor the answer is quick, definite, and names the dead one.
	c = start(t, setup{hosts: map[string]gateway.Host{"n1": echoes(1), "n2": echoes(2)}, leader: "n2"})
	c.table.move("n2", freeAddress(t))
	_, err := c.client("n1").Submit(ctx(t), deposit("k"))
	code, reason, details, _ := info(err)
	if code != codes.Unavailable || reason != "NOT_EXECUTED" || details["leader"] != "n2" {
		t.Errorf("got %v %s %v", code, reason, details)
	}
	c.table.lead("n9", 3) // a node without an address
	_, err = c.client("n1").Submit(ctx(t), deposit("k"))
	if _, reason, _, _ := info(err); reason != "NOT_EXECUTED" {
		t.Errorf("got %v", err)
	}
}

// TestLinkLostAfterSending: the leader has the call in hand when its process
// ends. Nobody knows what it did.
func TestLinkLostAfterSending(t *testing.T) {
	entered := make(chan struct{})
	hang := func(c context.Context) error {
		entered <- struct{}{}
		<-c.Done()
		return errors.New("too late to be heard")
	}
	n2 := &counted{Host: &fakeHost{
		forward: func(c context.Context, _ *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
			return nil, hang(c)
		},
		deliver: func(c context.Context, _ *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
			return nil, hang(c)
		},
	}}
	n1 := &counted{Host: echoes(1)}
	calls := map[string]func(c *cluster) error{
		"submit": func(c *cluster) error { _, err := c.client("n1").Submit(ctx(t), deposit("k")); return err },
		"cancel": func(c *cluster) error {
			_, err := c.client("n1").Cancel(ctx(t), &writv1.OutcomeRequest{
				Entity: deposit("").GetEntity(), IdempotencyKey: "k", CommandType: "writ.account.v1.Deposit",
			})
			return err
		},
		"deliver": func(c *cluster) error {
			_, err := c.routers["n1"].Deliver(ctx(t), batch())
			return gateway.ToStatus(err)
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			// The link ends the call and not the grace of a superseded node.
			c := start(t, setup{hosts: map[string]gateway.Host{"n1": n1, "n2": n2}, leader: "n2", wait: ended, grace: ended})
			before := n2.forwards.Load() + n2.delivers.Load()
			answered := make(chan error, 1)
			go func() { answered <- call(c) }()
			<-entered
			c.table.lead("n1", 2) // a successor is known: still the call must not be repeated
			c.routers["n1"].Wake()
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			c.servers["n2"].Shutdown(gone)
			code, reason, _, _ := info(<-answered)
			if code != codes.Unavailable || reason != "OUTCOME_UNKNOWN" {
				t.Errorf("got %v %s", code, reason)
			}
			if calls := n2.forwards.Load() + n2.delivers.Load() - before; calls != 1 || n1.forwards.Load() != 0 || n1.delivers.Load() != 0 {
				t.Errorf("the call was repeated: %d, %d", calls, n1.forwards.Load())
			}
		})
	}
}

// TestNoLeader: the replicas are asked, the local one first; one may know more.
func TestNoLeader(t *testing.T) {
	n1 := &counted{Host: fails(entity.Errorf(entity.NotExecuted, "no leader"))}
	n2 := &counted{Host: fails(pointsTo("n3"))}
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": n1, "n2": n2, "n3": echoes(3)}})
	c.table.hold("n2", "n1")
	resp, err := c.client("n1").Submit(ctx(t), deposit("k"))
	must(t, err)
	if resp.GetVersion() != 3 || n1.forwards.Load() != 1 || n2.forwards.Load() != 1 {
		t.Errorf("version %d after %d and %d calls", resp.GetVersion(), n1.forwards.Load(), n2.forwards.Load())
	}

	for name, change := range map[string]func(){
		"nobody knows":     func() { c.table.hold("n1") },
		"no replica known": func() { c.table.hold() },
		"not formed":       func() { c.table.form(0) },
	} {
		t.Run(name, func(t *testing.T) {
			change()
			_, err := c.client("n1").Submit(ctx(t), deposit("k"))
			code, reason, _, retry := info(err)
			if code != codes.Unavailable || reason != "NOT_EXECUTED" || retry == 0 {
				t.Errorf("got %v", err)
			}
			if name != "not formed" && !strings.Contains(err.Error(), "has no leader just now") {
				t.Errorf("%v does not say that there is no leader", err)
			}
			_, err = c.client("n1").Read(ctx(t), &writv1.ReadRequest{Entity: deposit("").GetEntity(), Consistency: writv1.Consistency_STALE})
			if code, reason, _, _ := info(err); code != codes.Unavailable || reason != "NOT_EXECUTED" {
				t.Errorf("stale read: %v", err)
			}
		})
		c.table.form(shards)
	}
}

// TestFlappingLeaders: a leader change after each try does not keep a call for ever.
func TestFlappingLeaders(t *testing.T) {
	var c *cluster
	n1 := &counted{}
	n1.Host = &fakeHost{forward: func(context.Context, *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		c.table.lead("n1", uint64(n1.forwards.Load())+1)
		c.routers["n1"].Wake()
		return nil, entity.Errorf(entity.NotExecuted, "the lease has ended")
	}}
	c = start(t, setup{hosts: map[string]gateway.Host{"n1": n1}, leader: "n1", wait: ended})
	_, err := c.client("n1").Submit(ctx(t), deposit("k"))
	if _, reason, _, _ := info(err); reason != "NOT_EXECUTED" || n1.forwards.Load() > 12 {
		t.Errorf("%v after %d tries", err, n1.forwards.Load())
	}
}

func TestOnlyNotExecutedIsRepeated(t *testing.T) {
	for _, reason := range []entity.Reason{entity.OutcomeUnknown, entity.Overloaded, entity.HandlerPanic, entity.Invalid, entity.InFlight} {
		n1 := &counted{Host: fails(entity.Errorf(reason, "x").With("leader", "n2"))}
		n2 := &counted{Host: echoes(2)}
		c := start(t, setup{hosts: map[string]gateway.Host{"n1": n1, "n2": n2}, leader: "n1"})
		_, err := c.client("n1").Submit(ctx(t), deposit("k"))
		if _, got, _, _ := info(err); got != string(reason) || n1.forwards.Load() != 1 || n2.forwards.Load() != 0 {
			t.Errorf("%s: %v after %d and %d calls", reason, err, n1.forwards.Load(), n2.forwards.Load())
		}
	}
}

// TestCallerGivesUp: waiting for a leader ends with the caller.
func TestCallerGivesUp(t *testing.T) {
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": fails(entity.Errorf(entity.NotExecuted, "no leader"))}, leader: "n1", wait: time.Hour})
	gone, cancel := context.WithCancel(ctx(t))
	cancel()
	_, err := c.routers["n1"].Forward(gone, &nodev1.ForwardRequest{Tenant: "default", Call: &nodev1.ForwardRequest_Submit{Submit: deposit("k")}})
	if entity.ReasonOf(err) != entity.NotExecuted {
		t.Errorf("got %v", err)
	}
}

func TestStaleReads(t *testing.T) {
	stale := &writv1.ReadRequest{Entity: deposit("").GetEntity(), Consistency: writv1.Consistency_STALE}
	n1, n2, n3 := &counted{Host: echoes(1)}, &counted{Host: echoes(2)}, &counted{Host: echoes(3)}
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": n1, "n2": n2, "n3": n3}, leader: "n2"})
	read := func(want uint64) {
		t.Helper()
		resp, err := c.client("n1").Read(ctx(t), stale)
		must(t, err)
		if resp.GetVersion() != want {
			t.Errorf("node n%d answered, want n%d", resp.GetVersion(), want)
		}
	}
	c.table.hold("n3", "n1", "n2")
	read(1) // the local replica
	c.table.hold("n3", "n2")
	read(2) // no local one: the leader
	c.table.move("n2", freeAddress(t))
	read(3) // the leader is dead: another one
	if n1.forwards.Load()+n2.forwards.Load()+n3.forwards.Load() != 3 {
		t.Error("a read went to more than one replica")
	}
}

func TestStrangeAnswer(t *testing.T) {
	_, client := single(t, &fakeHost{forward: func(context.Context, *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		return &nodev1.ForwardResponse{}, nil
	}})
	_, submit := client.Submit(ctx(t), deposit("k"))
	_, read := client.Read(ctx(t), &writv1.ReadRequest{Entity: deposit("").GetEntity()})
	for _, err := range []error{submit, read} {
		if _, reason, _, _ := info(err); reason != "OUTCOME_UNKNOWN" {
			t.Errorf("got %v", err)
		}
	}
}

// TestLeaderThatIsNotReady: a new leader is named before it may serve. It is
// asked again soon, not when the wait for a leader is over.
func TestLeaderThatIsNotReady(t *testing.T) {
	n2 := &counted{}
	n2.Host = &fakeHost{forward: func(c context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		if n2.forwards.Load() < 3 {
			return nil, entity.Errorf(entity.NotExecuted, "the term is not open yet")
		}
		return echoes(2).Forward(c, req)
	}}
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": fails(errors.New("not me")), "n2": n2}, leader: "n2", wait: ended})
	resp, err := c.client("n1").Submit(ctx(t), deposit("k"))
	must(t, err)
	if resp.GetVersion() != 2 || n2.forwards.Load() != 3 {
		t.Errorf("version %d after %d calls", resp.GetVersion(), n2.forwards.Load())
	}
}

// TestPausesBeginAnew: a call that has asked a dead leader again and again asks its
// successor, which is not ready yet, as soon as one that has not waited.
func TestPausesBeginAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &fakeTable{shards: shards, leader: "n1", term: 1}
		pool, err := gateway.NewPool(gateway.PoolConfig{Addresses: table, Limits: gateway.DefaultLimits()})
		must(t, err)
		defer func() { _ = pool.Close() }()
		var router *gateway.Router
		host := &counted{}
		host.Host = &fakeHost{forward: func(c context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
			switch host.forwards.Load() {
			case 5: // after 10, 20, 40 and 80 ms: the next pause is 160 ms
				time.AfterFunc(100*time.Millisecond, func() {
					table.lead("n1", 2)
					router.Wake()
				})
			case 8:
				return echoes(1).Forward(c, req)
			}
			return nil, entity.Errorf(entity.NotExecuted, "the term is not open yet")
		}}
		router, err = gateway.NewRouter(gateway.RouterConfig{
			Node: "n1", ClusterID: func() string { return clusterID }, Host: host, Table: table, Peers: gateway.NewPeers(pool),
		})
		must(t, err)
		began := time.Now()
		_, err = router.Forward(t.Context(), &nodev1.ForwardRequest{Tenant: "default", Call: &nodev1.ForwardRequest_Submit{Submit: deposit("k")}})
		must(t, err)
		if took := time.Since(began); took != 280*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
	})
}
