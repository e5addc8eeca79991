package gateway_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	"writ/actors/gateway"
	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// TestReflection asks what grpcurl asks: the services, and the file of a command
// that goes into an Any.
func TestReflection(t *testing.T) {
	c, _ := single(t, echoes(1))
	stream, err := reflectionv1.NewServerReflectionClient(c.conns["n1"]).ServerReflectionInfo(ctx(t))
	must(t, err)
	must(t, stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}))
	resp, err := stream.Recv()
	must(t, err)
	var names []string
	for _, s := range resp.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, want := range []string{"writ.v1.EntityService", "writ.node.v1.NodeService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"} {
		if !slices.Contains(names, want) {
			t.Errorf("%v lack %s", names, want)
		}
	}
	must(t, stream.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "writ.account.v1.Deposit"},
	}))
	resp, err = stream.Recv()
	must(t, err)
	if len(resp.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("the command's file is not found: %v", resp)
	}

	alpha, err := reflectionv1alpha.NewServerReflectionClient(c.conns["n1"]).ServerReflectionInfo(ctx(t))
	must(t, err)
	//nolint:staticcheck // deprecated, and still what older tools ask
	must(t, alpha.Send(&reflectionv1alpha.ServerReflectionRequest{
		MessageRequest: &reflectionv1alpha.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "writ.account.v1.Deposit"},
	}))
	old, err := alpha.Recv()
	must(t, err)
	//nolint:staticcheck // deprecated, and still what older tools ask
	if len(old.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("v1alpha: the command's file is not found: %v", old)
	}
}

func TestHealth(t *testing.T) {
	c, _ := single(t, echoes(1))
	health := grpc_health_v1.NewHealthClient(c.conns["n1"])
	check := func(service string, want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		resp, err := health.Check(ctx(t), &grpc_health_v1.HealthCheckRequest{Service: service})
		must(t, err)
		if resp.GetStatus() != want {
			t.Errorf("%q is %v, want %v", service, resp.GetStatus(), want)
		}
	}
	check("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	check("writ.v1.EntityService", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	c.servers["n1"].SetServing("", true)
	check("", grpc_health_v1.HealthCheckResponse_SERVING)
	check("writ.v1.EntityService", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	c.servers["n1"].SetServing("writ.v1.EntityService", true)
	check("writ.v1.EntityService", grpc_health_v1.HealthCheckResponse_SERVING)
}

// TestPanic: the caller hears at once, and that nobody knows what was done.
func TestPanic(t *testing.T) {
	_, client := single(t, &fakeHost{forward: func(context.Context, *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		panic("boom")
	}})
	for range 2 { // the node lives on
		_, err := client.Submit(ctx(t), deposit("k"))
		if code, reason, _, _ := info(err); code != codes.Unavailable || reason != "OUTCOME_UNKNOWN" {
			t.Errorf("got %v", err)
		}
	}
	stream, err := client.SubmitStream(ctx(t))
	must(t, err)
	req := deposit("k")
	req.Tag = 5
	must(t, stream.Send(req))
	must(t, stream.CloseSend())
	resp, err := stream.Recv()
	must(t, err)
	if resp.GetTag() != 5 || codes.Code(resp.GetRejection().GetCode()) != codes.Unavailable {
		t.Errorf("got %v", resp)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
}

// TestOverload: beyond the bounds the answer is prompt, and the node recovers.
func TestOverload(t *testing.T) {
	entered, finish := make(chan struct{}), make(chan struct{})
	host := echoes(1)
	answer := host.forward
	host.forward = func(c context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		if req.GetSubmit().GetIdempotencyKey() == "slow" {
			entered <- struct{}{}
			<-finish
		}
		return answer(c, req)
	}
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": host}, leader: "n1", limits: func(l *gateway.Limits) { l.InFlight = 1 }})
	client := c.client("n1")
	slow := make(chan error, 1)
	go func() { _, err := client.Submit(ctx(t), deposit("slow")); slow <- err }()
	<-entered
	_, err := client.Submit(ctx(t), deposit("k"))
	if code, reason, _, retry := info(err); code != codes.ResourceExhausted || reason != "OVERLOADED" || retry == 0 {
		t.Errorf("got %v", err)
	}
	// The calls of other nodes have a budget of their own.
	_, err = c.peers["n1"].Deliver(ctx(t), "n1", &nodev1.DeliverRequest{ClusterId: clusterID, Shard: accountShard(), Rows: batch().GetRows()})
	must(t, err)
	close(finish)
	must(t, <-slow)
	_, err = client.Submit(ctx(t), deposit("k"))
	must(t, err)
}

// TestWaitingReads: reads that wait for a version, which may never come, leave room
// for everybody else, at the door and between nodes.
func TestWaitingReads(t *testing.T) {
	entered := make(chan struct{})
	host := echoes(1)
	answer := host.forward
	host.forward = func(c context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		if req.GetRead().GetMinVersion() > 0 {
			entered <- struct{}{}
			<-c.Done()
		}
		return answer(c, req)
	}
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": host}, leader: "n1", limits: func(l *gateway.Limits) { l.InFlight = 8 }})
	client := c.client("n1")
	waiting, cancel := context.WithCancel(ctx(t))
	defer cancel()
	read := &writv1.ReadRequest{Entity: &writv1.EntityRef{Kind: "account", Id: "a"}, MinVersion: 1 << 40}
	ended := make(chan error, 2)
	for range 2 {
		go func() { _, err := client.Read(waiting, read); ended <- err }()
		<-entered
	}
	_, err := client.Read(ctx(t), read)
	if code, reason, _, retry := info(err); code != codes.ResourceExhausted || reason != "OVERLOADED" || retry == 0 {
		t.Errorf("one more: %v", err)
	}
	_, err = client.Submit(ctx(t), deposit("k"))
	must(t, err)
	_, err = client.Read(ctx(t), &writv1.ReadRequest{Entity: read.GetEntity()})
	must(t, err)
	cancel()
	for range 2 {
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("a read that was given up: %v", err)
		}
	}
}

func TestOverloadInBytes(t *testing.T) {
	entered, finish := make(chan struct{}), make(chan struct{})
	host := echoes(1)
	answer := host.forward
	host.forward = func(c context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		entered <- struct{}{}
		<-finish
		return answer(c, req)
	}
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": host}, leader: "n1", limits: func(l *gateway.Limits) {
		l.Command, l.Message, l.InFlightBytes = 64<<10, 128<<10, 128<<10
	}})
	big := func(key string) error {
		req := deposit(key)
		req.Command = packed(&accountv1.Deposit{Currency: strings.Repeat("x", 60<<10)})
		_, err := c.client("n1").Submit(ctx(t), req)
		return err
	}
	results := make(chan error, 3)
	for range 2 {
		go func() { results <- big("k") }()
		<-entered
	}
	err := big("one too many")
	if code, reason, _, _ := info(err); code != codes.ResourceExhausted || reason != "OVERLOADED" {
		t.Errorf("got %v", err)
	}
	close(finish)
	must(t, <-results)
	must(t, <-results)
}

// TestShutdown waits for calls in progress, and breaks them off when told to.
func TestShutdown(t *testing.T) {
	for _, patient := range []bool{true, false} {
		entered, finish := make(chan struct{}), make(chan struct{})
		c, client := single(t, &fakeHost{forward: func(c context.Context, _ *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
			close(entered)
			select {
			case <-finish:
				return submitted(&writv1.SubmitResponse{Version: 1}), nil
			case <-c.Done():
				return nil, c.Err()
			}
		}})
		answered := make(chan error, 1)
		go func() { _, err := client.Submit(ctx(t), deposit("k")); answered <- err }()
		<-entered
		limit, cancel := context.WithCancel(t.Context())
		if patient {
			close(finish)
		} else {
			cancel()
		}
		c.servers["n1"].Shutdown(limit)
		err := <-answered
		cancel()
		code, _, _, _ := info(err)
		if patient && err != nil || !patient && code != codes.Unavailable && code != codes.Canceled {
			t.Errorf("patient %v: got %v", patient, err)
		}
	}
}

// TestConnections: one more than allowed is turned away at once, not kept waiting.
func TestConnections(t *testing.T) {
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": echoes(1)}, leader: "n1", limits: func(l *gateway.Limits) { l.Connections = 1 }})
	address := c.table.addresses["n1"]
	_, err := c.client("n1").Submit(ctx(t), deposit("k"))
	must(t, err)
	extra, err := net.Dial("tcp", address)
	must(t, err)
	defer func() { _ = extra.Close() }()
	if _, err := extra.Read(make([]byte, 1)); err == nil {
		t.Error("the connection was kept")
	}
	// The slot of a closed connection is free again. The server sees the end a
	// moment later; until then it turns the newcomer away and that dials again.
	must(t, c.conns["n1"].Close())
	for {
		conn := dial(t, address)
		_, err := writv1.NewEntityServiceClient(conn).Submit(ctx(t), deposit("k"))
		if err == nil {
			break
		}
		_ = conn.Close() // it would dial again, and take the slot
		if code, _, _, _ := info(err); code != codes.Unavailable {
			t.Fatal(err)
		}
	}
}

func TestConfigs(t *testing.T) {
	if _, err := gateway.NewEntityService(gateway.EntityConfig{}); err == nil {
		t.Error("entity service without parts")
	}
	if _, err := gateway.NewNodeService(gateway.NodeConfig{}); err == nil {
		t.Error("node service without parts")
	}
	if _, err := gateway.NewRouter(gateway.RouterConfig{}); err == nil {
		t.Error("router without parts")
	}
	if _, err := gateway.NewPool(gateway.PoolConfig{}); err == nil {
		t.Error("pool without parts")
	}
	if _, err := gateway.NewServer(gateway.ServerConfig{}); err == nil {
		t.Error("server without parts")
	}
	for name, change := range map[string]func(*gateway.Limits){
		"zero":           func(l *gateway.Limits) { l.Connections = 0 },
		"no room":        func(l *gateway.Limits) { l.Message = l.Command },
		"less than one":  func(l *gateway.Limits) { l.InFlightBytes = 1 },
		"negative":       func(l *gateway.Limits) { l.InFlight = -1 },
		"no stream slot": func(l *gateway.Limits) { l.StreamInFlight = 0 },
	} {
		l := gateway.DefaultLimits()
		change(&l)
		if l.Validate() == nil {
			t.Errorf("%s: limits pass", name)
		}
	}
	must(t, gateway.DefaultLimits().Validate())
}
