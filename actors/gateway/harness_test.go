package gateway_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"writ/actors/entity"
	"writ/actors/gateway"
	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
	"writ/sharding"
)

const (
	clusterID = "c-1"
	shards    = 8
	ended     = 30 * time.Second // a test that waits longer than this has failed
)

func registry(tb testing.TB) *entity.Registry {
	tb.Helper()
	account := entity.NewKind[*accountv1.Balance]("account")
	entity.Handle(account, func(_ *entity.Context, s *accountv1.Balance, _ *accountv1.Deposit) (*accountv1.Balance, error) {
		return s, nil
	})
	entity.Handle(account, func(_ *entity.Context, s *accountv1.Balance, _ *accountv1.Transfer) (*accountv1.Balance, error) {
		return s, nil
	})
	entity.Handle(account, func(_ *entity.Context, s *accountv1.Balance, _ *accountv1.Posted) (*accountv1.Balance, error) {
		return s, nil
	}, entity.AtLeastOnce())
	entity.Read(account, func(s *accountv1.Balance, _ *accountv1.Total) (*accountv1.Balance, error) { return s, nil })
	r, err := entity.NewRegistry(account)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// fakeHost answers as its functions say.
type fakeHost struct {
	forward func(ctx context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error)
	deliver func(ctx context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error)
}

func (h *fakeHost) Forward(ctx context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
	return h.forward(ctx, req)
}

func (h *fakeHost) Deliver(ctx context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
	return h.deliver(ctx, req)
}

func fails(err error) *fakeHost {
	return &fakeHost{
		forward: func(context.Context, *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) { return nil, err },
		deliver: func(context.Context, *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) { return nil, err },
	}
}

// echoes answers submits with version and the others with an empty answer.
func echoes(version uint64) *fakeHost {
	return &fakeHost{
		forward: func(_ context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
			switch req.GetCall().(type) {
			case *nodev1.ForwardRequest_Read:
				return &nodev1.ForwardResponse{Answer: &nodev1.ForwardResponse_Read{Read: &writv1.ReadResponse{Version: version}}}, nil
			case *nodev1.ForwardRequest_Submit:
				return submitted(&writv1.SubmitResponse{Version: version}), nil
			}
			return &nodev1.ForwardResponse{Answer: &nodev1.ForwardResponse_Outcome{Outcome: &writv1.OutcomeResponse{
				State: writv1.OutcomeResponse_NEVER_SEEN,
			}}}, nil
		},
		deliver: func(_ context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
			return &nodev1.DeliverResponse{Applied: version}, nil
		},
	}
}

func submitted(r *writv1.SubmitResponse) *nodev1.ForwardResponse {
	return &nodev1.ForwardResponse{Answer: &nodev1.ForwardResponse_Submit{Submit: r}}
}

// fakeTable is one table for all nodes of a test.
type fakeTable struct {
	mu        sync.Mutex
	shards    uint32
	leader    string
	term      uint64
	addresses map[string]string
	replicas  []string
}

func (f *fakeTable) Shards() uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shards
}

func (f *fakeTable) Leader(uint32) (string, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leader, f.term
}

func (f *fakeTable) Address(node string) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, ok := f.addresses[node]
	return a, ok
}

func (f *fakeTable) Replicas(uint32) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.replicas
}

func (f *fakeTable) lead(node string, term uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leader, f.term = node, term
}

func (f *fakeTable) move(node, address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addresses[node] = address
}

func (f *fakeTable) hold(replicas ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas = replicas
}

func (f *fakeTable) form(shards uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shards = shards
}

// fakeControl answers with what identifies the call.
type fakeControl struct{}

func (fakeControl) Promise(_ context.Context, req *nodev1.PromiseRequest) (*nodev1.PromiseResponse, error) {
	return &nodev1.PromiseResponse{Node: req.GetFrom()}, nil
}

func (fakeControl) Register(_ context.Context, req *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error) {
	return &nodev1.RegisterResponse{Leader: req.GetNode()}, nil
}

func (fakeControl) ReplicaStatus(_ context.Context, req *nodev1.ReplicaStatusRequest) (*nodev1.ReplicaStatusResponse, error) {
	return &nodev1.ReplicaStatusResponse{Reason: req.GetAudit()}, nil
}

func (fakeControl) Report(context.Context, *nodev1.ReportRequest) (*nodev1.ReportResponse, error) {
	return &nodev1.ReportResponse{}, nil
}

func (fakeControl) TransferLeadership(_ context.Context, req *nodev1.TransferLeadershipRequest) (*nodev1.TransferLeadershipResponse, error) {
	return nil, entity.Errorf(entity.NotExecuted, "%s has not caught up", req.GetTo())
}

// setup says what a test's nodes are like.
type setup struct {
	hosts       map[string]gateway.Host // by node name
	leader      string
	credentials *gateway.Credentials
	limits      func(*gateway.Limits)
	wait        time.Duration
	grace       time.Duration // of a superseded node
	admin       bool          // register an operators' service
}

type cluster struct {
	table   *fakeTable
	routers map[string]*gateway.Router
	servers map[string]*gateway.Server
	peers   map[string]*gateway.Peers
	conns   map[string]*grpc.ClientConn
	limits  gateway.Limits
}

// start runs the nodes of a cluster on loopback.
func start(t *testing.T, s setup) *cluster {
	t.Helper()
	c := &cluster{
		table:   &fakeTable{shards: shards, leader: s.leader, term: 1, addresses: map[string]string{}},
		routers: map[string]*gateway.Router{},
		servers: map[string]*gateway.Server{},
		peers:   map[string]*gateway.Peers{},
		conns:   map[string]*grpc.ClientConn{},
		limits:  gateway.DefaultLimits(),
	}
	if s.limits != nil {
		s.limits(&c.limits)
	}
	for node := range maps.Keys(s.hosts) {
		c.table.replicas = append(c.table.replicas, node)
	}
	for node, host := range s.hosts {
		c.node(t, node, host, s)
	}
	return c
}

func (c *cluster) node(t *testing.T, node string, host gateway.Host, s setup) {
	t.Helper()
	id := func() string { return clusterID }
	pool, err := gateway.NewPool(gateway.PoolConfig{Addresses: c.table, Limits: c.limits})
	must(t, err)
	c.peers[node] = gateway.NewPeers(pool)
	router, err := gateway.NewRouter(gateway.RouterConfig{
		Node: node, ClusterID: id, Host: host, Table: c.table, Peers: c.peers[node], LeaderWait: max(s.wait, time.Millisecond),
		SupersededGrace: max(s.grace, time.Millisecond),
	})
	must(t, err)
	c.routers[node] = router
	creds := s.credentials
	if creds == nil {
		creds = gateway.OpenCredentials()
	}
	log := slog.New(slog.DiscardHandler)
	clients, err := gateway.NewEntityService(gateway.EntityConfig{
		Registry: registry(t), Forwarder: router, Credentials: creds, Limits: c.limits, Logger: log,
	})
	must(t, err)
	nodes, err := gateway.NewNodeService(gateway.NodeConfig{
		ClusterID: id, Shards: c.table.Shards, Host: host, Control: fakeControl{}, Limits: c.limits, Logger: log,
	})
	must(t, err)
	server, err := gateway.NewServer(gateway.ServerConfig{
		Entity: clients, Node: nodes, Credentials: creds, Limits: c.limits, Logger: log,
	})
	must(t, err)
	c.servers[node] = server
	if s.admin {
		nodev1.RegisterAdminServiceServer(server.Registrar(), nodev1.UnimplementedAdminServiceServer{})
	}
	address := serve(t, server)
	c.table.move(node, address)
	c.conns[node] = dial(t, address)
	t.Cleanup(func() { _ = pool.Close() })
}

// serve runs a server until the test ends and returns its address.
func serve(t *testing.T, server *gateway.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		server.Shutdown(gone)
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String()
}

func dial(t *testing.T, address string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	conn, err := grpc.NewClient("passthrough:///"+address, opts...)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// single runs one node that leads everything.
func single(t *testing.T, host gateway.Host) (*cluster, writv1.EntityServiceClient) {
	t.Helper()
	c := start(t, setup{hosts: map[string]gateway.Host{"n1": host}, leader: "n1"})
	return c, c.client("n1")
}

func (c *cluster) client(node string) writv1.EntityServiceClient {
	return writv1.NewEntityServiceClient(c.conns[node])
}

// freeAddress is an address on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return l.Addr().String()
}

func deposit(key string) *writv1.SubmitRequest {
	return &writv1.SubmitRequest{
		Entity:         &writv1.EntityRef{Kind: "account", Id: "a"},
		IdempotencyKey: key,
		Command:        packed(&accountv1.Deposit{AmountMinor: 5, Currency: "EUR"}),
	}
}

func packed(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(fmt.Sprintf("pack: %v", err))
	}
	return a
}

// accountShard is the shard of the account that deposit names.
func accountShard() uint32 {
	return sharding.Locate(shards, entity.Ref{Tenant: gateway.DefaultTenant, Kind: "account", ID: "a"})
}

func ctx(tb testing.TB) context.Context {
	tb.Helper()
	c, cancel := context.WithTimeout(tb.Context(), ended)
	tb.Cleanup(cancel)
	return c
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
