package node

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"time"

	"writ/actors/account"
	"writ/actors/entity"
	"writ/actors/gateway"
	"writ/internal/fault"
)

// Version is the version of this program.
const Version = "0.1.0"

// Config describes one node. The zero value of an optional field means its
// default.
type Config struct {
	ID  string
	Dir string
	// Addresses to listen on, host:port; an empty host means all interfaces.
	GRPC, HTTP, Gossip, Raft string
	// Advertise is the host by which others reach this node.
	Advertise    string
	InitialNodes []string
	Join         []string
	Zone         string
	Cluster      string
	GossipKey    string
	Tokens       string
	// Shards counts when this cluster forms; later the cluster's own number holds.
	Shards uint32
	// Window is how long idempotency keys are remembered at least, and
	// RetryHorizon for how long clients may retry one key. They are the contract
	// of a cluster that begins; later they must be the contract's. 0: the
	// contract's, whatever it is.
	Window, RetryHorizon time.Duration
	// Kinds are the kinds of entities; the example's if nil.
	Kinds []entity.Definer
	// AuditInterval is the least time between two rounds of the background
	// auditor, which also rests for 50 times as long as a round took.
	AuditInterval time.Duration
	// DeadNodeGrace is how long a node may be away before its replicas are
	// placed elsewhere.
	DeadNodeGrace time.Duration
	// Limits are DefaultLimits if left zero.
	Limits Limits
	// Clock is the wall clock; the machine's if nil.
	Clock func() time.Time
	// FreeMin is the free space of the data disk, bytes, below which the node
	// takes no commands and hands its leaderships over; 256 MiB if 0.
	FreeMin uint64
	// TraceEndpoint is the URL of a collector that takes traces, OTLP over gRPC;
	// "": nothing is traced.
	TraceEndpoint string
	// TraceRatio is the share of commands that are traced, 0 to 1, of those whose
	// caller has not decided.
	TraceRatio float64
	Logger     *slog.Logger
}

const (
	defaultShards = 8
	shardsMax     = 1024
	defaultWindow = 24 * time.Hour
	windowMin     = time.Second
	// A key's end is a time in nanoseconds: one that overflows lies in the past, and
	// the key would be forgotten at once.
	windowMax = 10 * 365 * 24 * time.Hour
	// What a node is away for during a hiccup: with less, everything would move.
	graceMin             = time.Second
	freeMinMax           = 1 << 60
	defaultGrace         = 5 * time.Minute
	defaultAuditInterval = 5 * time.Second
	generationsFor       = 24 // slices of a window that are forgotten one at a time
)

func (c Config) withDefaults() Config {
	if c.Shards == 0 {
		c.Shards = defaultShards
	}
	if c.Kinds == nil {
		c.Kinds = account.Kinds()
	}
	if c.Clock == nil {
		c.Clock = fault.Now
	}
	if c.AuditInterval == 0 {
		c.AuditInterval = defaultAuditInterval
	}
	if c.DeadNodeGrace == 0 {
		c.DeadNodeGrace = defaultGrace
	}
	if c.Limits == (Limits{}) {
		c.Limits = DefaultLimits()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// nodeName is what gossip, Raft ids and tables can carry without quoting.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Validate names everything that is wrong, before anything is touched.
func (c Config) Validate() error {
	var errs []error
	if !nodeName.MatchString(c.ID) {
		errs = append(errs, fmt.Errorf("id %q: a node's name is 1 to 63 letters, digits, '.', '_' or '-', and begins with a letter or digit", c.ID))
	}
	if c.Dir == "" {
		errs = append(errs, errors.New("dir is empty: a node needs a data folder"))
	}
	if c.Cluster == "" {
		errs = append(errs, errors.New("cluster is empty: all nodes of a cluster share one name"))
	}
	for _, a := range []struct{ name, addr string }{{"grpc", c.GRPC}, {"http", c.HTTP}, {"gossip", c.Gossip}, {"raft", c.Raft}} {
		if _, _, err := net.SplitHostPort(a.addr); err != nil {
			errs = append(errs, fmt.Errorf("%s address %q: give host:port or :port", a.name, a.addr))
		}
	}
	if len(c.InitialNodes) == 0 && len(c.Join) == 0 {
		errs = append(errs, errors.New("no initial nodes and nobody to join: name the nodes that form the cluster (--initial-nodes, WRIT_INITIAL_NODES), even if it is this one alone, or the gossip address of a node whose cluster this one joins (--join, WRIT_JOIN)"))
	}
	seen := map[string]bool{}
	for _, name := range c.InitialNodes {
		if !nodeName.MatchString(name) {
			errs = append(errs, fmt.Errorf("initial node %q is not a node's name", name))
		}
		if seen[name] {
			errs = append(errs, fmt.Errorf("initial node %q is listed twice", name))
		}
		seen[name] = true
	}
	for _, addr := range c.Join {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("join address %q: give the gossip address of a node, host:port", addr))
		}
	}
	if c.Shards > shardsMax {
		errs = append(errs, fmt.Errorf("shards is %d: the limit is %d", c.Shards, shardsMax))
	}
	if c.Window != 0 && (c.Window < windowMin || c.Window > windowMax) {
		errs = append(errs, fmt.Errorf("window is %v: the least is %v, the most %v", c.Window, windowMin, windowMax))
	}
	if c.AuditInterval < 0 {
		errs = append(errs, fmt.Errorf("audit interval is %v: it must be positive", c.AuditInterval))
	}
	if c.DeadNodeGrace != 0 && c.DeadNodeGrace < graceMin {
		errs = append(errs, fmt.Errorf("dead grace is %v: the least is %v; with less, every hiccup would move replicas", c.DeadNodeGrace, graceMin))
	}
	if c.FreeMin > freeMinMax {
		errs = append(errs, fmt.Errorf("free min is %d MiB: the most is %d MiB", c.FreeMin>>20, freeMinMax>>20))
	}
	if c.RetryHorizon < 0 || c.RetryHorizon > windowMax || (c.Window != 0 && c.RetryHorizon > c.Window) {
		errs = append(errs, fmt.Errorf("retry horizon is %v, the window %v: a retry must find its key", c.RetryHorizon, c.Window))
	}
	if err := c.Limits.Validate(); err != nil && c.Limits != (Limits{}) {
		errs = append(errs, err)
	}
	if err := c.checkTraces(); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.gossipKey(); err != nil {
		errs = append(errs, err)
	}
	if c.Tokens != "" && c.GossipKey == "" {
		errs = append(errs, errors.New("tokens without a gossip key: give all nodes one (head -c 32 /dev/urandom | base64); they prove themselves to each other with it, and without it whoever reaches the gRPC port could speak as a node, for every tenant"))
	}
	return errors.Join(errs...)
}

// nodeSecret is what nodes show each other, nil without a gossip key.
func (c Config) nodeSecret() (*gateway.NodeSecret, error) {
	key, err := c.gossipKey()
	if err != nil || key == nil {
		return nil, err
	}
	return gateway.NewNodeSecret(key)
}

func (c Config) gossipKey() ([]byte, error) {
	if c.GossipKey == "" {
		return nil, nil
	}
	key, err := base64.StdEncoding.DecodeString(c.GossipKey)
	if err != nil || (len(key) != 16 && len(key) != 24 && len(key) != 32) {
		return nil, errors.New("gossip key: give 16, 24 or 32 random bytes in base64, e.g. from: head -c 32 /dev/urandom | base64")
	}
	return key, nil
}

// generationWidth is the slice of log time whose keys are forgotten together.
func (c Config) generationWidth() time.Duration {
	return max(time.Duration(c.defaultContract().GetWindow())/generationsFor, 100*time.Millisecond)
}
