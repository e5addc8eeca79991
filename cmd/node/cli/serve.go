package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"time"

	"writ/cmd/node/node"
)

// serveCommand runs one node until it is told to stop.
type serveCommand struct {
	ID           string   `required:"" name:"id" env:"WRIT_ID" help:"Name of this node, the same at every start."`
	Dir          string   `required:"" env:"WRIT_DIR" type:"path" help:"Data folder of this node."`
	GRPC         string   `name:"grpc" default:":7400" env:"WRIT_GRPC" help:"Address for clients and other nodes, gRPC."`
	HTTP         string   `name:"http" default:":7401" env:"WRIT_HTTP" help:"Address for health and metrics, HTTP."`
	Gossip       string   `default:":7402" env:"WRIT_GOSSIP" help:"Address for gossip, TCP and UDP."`
	Raft         string   `default:":7403" env:"WRIT_RAFT" help:"Address for replication, TCP."`
	Advertise    string   `env:"WRIT_ADVERTISE" help:"Host or IP by which other nodes reach this one. Default: the address that it listens on, or its first private one."`
	InitialNodes []string `env:"WRIT_INITIAL_NODES" help:"Names of the nodes that form the cluster, the same list on each of them."`
	Join         []string `env:"WRIT_JOIN" help:"Gossip addresses of other nodes, host:port."`
	Zone         string   `env:"WRIT_ZONE" help:"Zone of this node; replicas are spread over zones."`
	clusterFlags `embed:""`
	FreeMinMB    uint64        `name:"free-min-mb" default:"256" env:"WRIT_FREE_MIN_MB" help:"Free space of the data disk, MiB, below which the node takes no commands and hands its leaderships over."`
	DeadGrace    time.Duration `default:"5m" env:"WRIT_DEAD_GRACE" help:"How long a node may be away before its replicas are placed elsewhere."`
	Limits       string        `env:"WRIT_LIMITS" type:"existingfile" help:"JSON file with limits that differ from the defaults; docs/limits.md lists them."`
	Verbose      bool          `help:"Log more."`
}

// clusterFlags are settings that all nodes share.
type clusterFlags struct {
	Cluster   string        `env:"WRIT_CLUSTER" help:"Name of the cluster, the same on all its nodes; nodes with another one are kept out. Needed by serve; dev takes \"dev\"."`
	GossipKey string        `env:"WRIT_GOSSIP_KEY" help:"Key that encrypts gossip, 16, 24 or 32 bytes in base64."`
	Tokens    string        `env:"WRIT_TOKENS" type:"path" help:"JSON file of bearer tokens, {\"TOKEN\": \"TENANT\"} or, for operators, {\"TOKEN\": {\"tenant\": \"TENANT\", \"admin\": true}}; read at start. Without it every caller is an operator of tenant \"default\"."`
	Shards    uint32        `env:"WRIT_SHARDS" help:"Number of shards; fixed when the cluster forms. Default: 8."`
	Window    time.Duration `env:"WRIT_WINDOW" help:"Least time for which idempotency keys are remembered. Default for a new cluster: 24h. Later it must equal the contract's, or be left out."`
	RetryFor  time.Duration `name:"retry-horizon" env:"WRIT_RETRY_HORIZON" help:"For how long clients may retry one key, at most a window. Default for a new cluster: 1m. Later it must equal the contract's, or be left out."`

	TraceEndpoint string  `env:"WRIT_TRACE_ENDPOINT,OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,OTEL_EXPORTER_OTLP_ENDPOINT" placeholder:"URL" help:"Collector that takes traces, OTLP over gRPC, e.g. http://localhost:4317; without it nothing is traced."`
	TraceRatio    float64 `default:"1" env:"WRIT_TRACE_RATIO" help:"Share of commands that are traced, 0 to 1; a caller that sends a traceparent decides itself."`
}

// drainTimeout bounds an orderly stop; after it the process ends all the same.
const drainTimeout = 8 * time.Second

// Run implements the subcommand.
func (c *serveCommand) Run(ctx context.Context, kinds definers, std streams) error {
	if c.Cluster == "" {
		return usage("--cluster (WRIT_CLUSTER) is missing: give all nodes of one cluster the same name, so that nodes of another one are kept out")
	}
	limits := node.DefaultLimits()
	if c.Limits != "" {
		text, err := os.ReadFile(c.Limits)
		if err != nil {
			return err
		}
		if limits, err = node.ParseLimits(text); err != nil {
			return fmt.Errorf("%s: %w", c.Limits, err)
		}
	}
	level := slog.LevelInfo
	if c.Verbose {
		level = slog.LevelDebug
	}
	log := newLogger(std.err, c.ID, level)
	config := node.Config{
		ID: c.ID, Dir: c.Dir, GRPC: c.GRPC, HTTP: c.HTTP, Gossip: c.Gossip, Raft: c.Raft, Advertise: c.Advertise,
		InitialNodes: c.InitialNodes, Join: c.Join, Zone: c.Zone,
		Cluster: c.Cluster, GossipKey: c.GossipKey, Tokens: c.Tokens, Shards: c.Shards, Window: c.Window, RetryHorizon: c.RetryFor,
		FreeMin: min(c.FreeMinMB, math.MaxUint64>>20) << 20, DeadNodeGrace: c.DeadGrace, Limits: limits,
		Kinds: kinds, TraceEndpoint: c.TraceEndpoint, TraceRatio: c.TraceRatio,
		Logger: log,
	}
	var last time.Time
	for {
		anew, err := c.serve(ctx, config)
		// To end the process would leave it to a supervisor, if there is one.
		if !anew || ctx.Err() != nil || time.Since(last) < anewPause {
			return err
		}
		last = time.Now()
		log.Warn("starting anew in this process", slog.Any("reason", err))
	}
}

// anewPause is the least time between two starts in one process.
const anewPause = time.Minute

// serve runs one node until the context ends or the node fails. With anew it may be
// started again at once, in this process.
func (c *serveCommand) serve(ctx context.Context, config node.Config) (anew bool, err error) {
	n, err := node.Start(ctx, config)
	if err != nil {
		return false, err
	}
	select {
	case <-ctx.Done():
	case err = <-n.Failed():
	}
	stopCtx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	stopErr := n.Stop(stopCtx)
	anew = errors.Is(err, node.ErrMemoryLost) && stopErr == nil
	if errors.Is(stopErr, node.ErrUnfinished) {
		// Nothing is lost, so it is no failure: whoever has sent the signal goes on.
		config.Logger.Warn("the process ends before everything is closed", slog.Any("reason", stopErr))
		stopErr = nil
	}
	return anew, errors.Join(err, stopErr)
}

func newLogger(w io.Writer, id string, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})).With(slog.String("node", id))
}

// loopback turns a listening address into one that can be dialled from here.
func loopback(addr string) string {
	if len(addr) > 0 && addr[0] == ':' {
		return "127.0.0.1" + addr
	}
	return addr
}
