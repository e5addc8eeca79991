package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"writ/actors/entity"
	"writ/actors/gateway"
	"writ/internal/format"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
	"writ/sharding/cluster"
	"writ/sharding/membership"
)

// Node is one running node. Its methods may be called from any goroutine.
type Node struct {
	cfg      Config
	log      *slog.Logger
	registry *entity.Registry
	metrics  *metrics
	meter    *meter
	auditor  *auditor
	watcher  *watcher

	identity  *cluster.Identity
	formation *cluster.Formation
	gossip    *membership.Gossip
	table     *table
	pool      *gateway.Pool
	peers     *gateway.Peers
	router    *gateway.Router
	server    *gateway.Server
	http      *http.Server
	listeners listeners
	disk      *diskGuard
	hands     *hands
	tracing   *tracing // nil: off

	inner    atomic.Pointer[parts] // nil until the cluster is formed
	placed   atomic.Pointer[placement]
	draining atomic.Bool
	agreed   atomic.Bool // this node's settings are the contract's
	failed   chan error
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	stopOnce sync.Once
	stopped  chan struct{} // closed when stopErr is valid
	stopErr  error
	step     atomic.Value // string: what the stop is doing
}

// listeners are bound before anything else: a port in use is known at once.
type listeners struct{ grpc, http, raft net.Listener }

// Start binds the ports, opens the data folder and starts the node. It returns
// before the cluster is formed; see AwaitReady. The context is not used: nothing
// here waits, and the node ends with Stop.
func Start(_ context.Context, cfg Config) (*Node, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	registry, err := entity.NewRegistry(cfg.Kinds...)
	if err != nil {
		return nil, fmt.Errorf("kinds: %w", err)
	}
	n := &Node{cfg: cfg, log: cfg.Logger, registry: registry, failed: make(chan error, 1)}
	if err := n.open(); err != nil {
		return nil, errors.Join(err, n.close(context.Background()))
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	n.wg.Go(func() { n.check(n.server.Serve(n.listeners.grpc)) })
	n.wg.Go(func() { n.check(serveHTTP(n.http, n.listeners.http)) })
	n.wg.Go(func() { n.watchGossip(ctx) })
	n.wg.Go(func() { n.check(n.form(ctx)) })
	n.wg.Go(func() { n.keepServing(ctx) })
	n.wg.Go(func() { n.watcher.run(ctx) })
	n.wg.Go(func() { n.auditor.run(ctx) })
	n.wg.Go(func() { n.disk.run(ctx) })
	n.wg.Go(func() { n.check(n.watchFolder(ctx)) })
	return n, nil
}

// open opens everything that does not need a cluster.
func (n *Node) open() (err error) {
	if n.identity, err = cluster.OpenIdentity(n.cfg.Dir, n.cfg.ID); err != nil {
		return err
	}
	if err := n.identity.UseClusterName(n.cfg.Cluster); err != nil {
		return err
	}
	n.tidyQuarantine()
	if n.hands, err = openHands(n.cfg.Dir, n.cfg.Clock, n.log); err != nil {
		return err
	}
	if n.tracing, err = openTracing(n.cfg); err != nil {
		return err
	}
	n.disk = newDiskGuard(n.cfg.Dir, n.cfg.FreeMin, n.log, n.leaveLeading)
	if err := n.checkNewCluster(); err != nil {
		return err
	}
	if err := n.bind(); err != nil {
		return err
	}
	credentials := gateway.OpenCredentials()
	if n.cfg.Tokens != "" {
		if credentials, err = gateway.LoadCredentials(n.cfg.Tokens); err != nil {
			return err
		}
	}
	if err := n.openGossip(); err != nil {
		return err
	}
	n.table = newTable(n.cfg.ID, n.gossip, n.placement)
	if err := n.openGateway(credentials); err != nil {
		return err
	}
	n.formation, err = cluster.NewFormation(cluster.FormationConfig{
		Identity: n.identity, Zone: n.cfg.Zone, FormatMax: format.Max, InitialNodes: n.cfg.InitialNodes,
		Directory: directory{n.gossip}, Peers: n.peers, Configured: n.configured, Logger: n.log,
	})
	return err
}

func (n *Node) bind() (err error) {
	for _, l := range []struct {
		name, addr string
		to         *net.Listener
	}{{"grpc", n.cfg.GRPC, &n.listeners.grpc}, {"http", n.cfg.HTTP, &n.listeners.http}, {"raft", n.cfg.Raft, &n.listeners.raft}} {
		if *l.to, err = net.Listen("tcp", l.addr); err != nil {
			return fmt.Errorf("%s address %s: %w; is another node running here?", l.name, l.addr, err)
		}
	}
	return nil
}

func (n *Node) openGossip() error {
	key, err := n.cfg.gossipKey()
	if err != nil {
		return err
	}
	advertise := ""
	if n.cfg.Advertise != "" {
		_, port, err := net.SplitHostPort(n.cfg.Gossip)
		if err != nil {
			return err
		}
		advertise = net.JoinHostPort(n.cfg.Advertise, port)
	}
	// A node that has only promised itself belongs to no cluster yet: it must be
	// heard by whoever can tell it why its cluster does not form.
	clusterID := ""
	if n.identity.Member() {
		clusterID = n.identity.ClusterID()
	}
	n.gossip, err = membership.Start(membership.Config{
		Self: membership.Member{
			Name: n.cfg.ID, Incarnation: n.identity.Incarnation(), ClusterID: clusterID, Zone: n.cfg.Zone,
			GRPC: n.advertised(n.listeners.grpc), HTTP: n.advertised(n.listeners.http), Raft: n.advertised(n.listeners.raft),
		},
		Cluster: n.cfg.Cluster, Key: key, Bind: n.cfg.Gossip, Advertise: advertise, Join: n.cfg.Join, Logger: n.log,
	})
	return err
}

// advertised is where others reach a listener; an unspecified host means the
// address that the node uses for gossip.
func (n *Node) advertised(l net.Listener) string {
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return l.Addr().String()
	}
	if n.cfg.Advertise != "" {
		host = n.cfg.Advertise
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = ""
	}
	return net.JoinHostPort(host, port)
}

func (n *Node) openGateway(credentials *gateway.Credentials) (err error) {
	limits := n.cfg.Limits.Gateway
	secret, err := n.cfg.nodeSecret()
	if err != nil {
		return err
	}
	if n.pool, err = gateway.NewPool(gateway.PoolConfig{Addresses: n.table, Secret: secret, Limits: limits}); err != nil {
		return err
	}
	n.peers = gateway.NewPeers(n.pool)
	local := localHost{n}
	if n.router, err = gateway.NewRouter(gateway.RouterConfig{
		Node: n.cfg.ID, ClusterID: n.clusterID, Host: local, Table: n.table, Peers: n.peers,
	}); err != nil {
		return err
	}
	entities, err := gateway.NewEntityService(gateway.EntityConfig{
		Registry: n.registry, Forwarder: n.router, Credentials: credentials, Limits: limits, Names: n.cfg.Limits.names(), Tracer: n.tracing.port(), Logger: n.log,
	})
	if err != nil {
		return err
	}
	nodes, err := gateway.NewNodeService(gateway.NodeConfig{
		ClusterID: n.clusterID, Shards: n.table.Shards, Host: local, Control: control{n}, Limits: limits, Logger: n.log,
	})
	if err != nil {
		return err
	}
	if n.server, err = gateway.NewServer(gateway.ServerConfig{
		Entity: entities, Node: nodes, Credentials: credentials, Secret: secret, Limits: limits, Logger: n.log,
	}); err != nil {
		return err
	}
	nodev1.RegisterAdminServiceServer(n.server.Registrar(), &admin{node: n})
	registry := prometheus.NewRegistry()
	n.metrics, n.meter = newMetrics(registry), newMeter(registry)
	n.auditor, n.watcher = newAuditor(n, registry), newWatcher(n)
	writv1.RegisterGuaranteeServiceServer(n.server.Registrar(), &guaranteeService{node: n, credentials: credentials})
	registry.MustRegister(shardCollector{n}, guaranteeCollector{n}, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "writ_crashes_in_hand", Help: "Commands, queries and events that handlers were working on when a process of this node ended, in the last 24 h before its last start, and that were not done since.",
	}, func() float64 { return float64(n.hands.known()) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "writ_quarantined_folders", Help: "Folders of damaged data that were set aside in this node's data folder.",
	}, func() float64 {
		folders, _ := n.identity.Quarantine() // none can be counted on a disk that cannot be read
		return float64(len(folders))
	}))
	n.http = newHTTPServer(n.Readiness, func() bool { return n.parts() != nil }, registry)
	return nil
}

// check ends the node if a part of it has ended with an error.
func (n *Node) check(err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	select {
	case n.failed <- err:
	default: // one reason is enough
	}
}

// Failed yields an error when the node cannot go on. Stop it then.
func (n *Node) Failed() <-chan error { return n.failed }

// parts are nil until the cluster is formed.
func (n *Node) parts() *parts { return n.inner.Load() }

func (n *Node) clusterID() string { return n.identity.ClusterID() }

// configured reports whether a formed cluster has reached this node.
func (n *Node) configured() bool {
	p := n.parts()
	if p == nil {
		return false
	}
	voters, learners := p.meta.Members()
	return len(voters)+len(learners) > 0
}

// Addresses are where a node listens.
type Addresses struct{ GRPC, HTTP, Gossip, Raft string }

// Addresses tells where the node listens, with the ports that it was given for
// port 0.
func (n *Node) Addresses() Addresses {
	return Addresses{
		GRPC: n.listeners.grpc.Addr().String(), HTTP: n.listeners.http.Addr().String(),
		Gossip: n.gossip.Self().Gossip, Raft: n.listeners.raft.Addr().String(),
	}
}
