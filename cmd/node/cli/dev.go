package cli

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
)

// devCommand runs a whole cluster in one process.
type devCommand struct {
	Dir          string `default:"data/dev" type:"path" help:"Data folder; each node has a folder in it."`
	Nodes        int    `default:"3" help:"Number of nodes: 1, 3 or 5."`
	BasePort     int    `default:"7400" help:"Ports of the first node: this one for gRPC, the next three for HTTP, gossip and Raft; each further node's are 10 higher."`
	ReadyFile    string `type:"path" help:"JSON file with the nodes' addresses, written when all shards serve."`
	clusterFlags `embed:""`
	Verbose      bool `help:"Log everything; without it only errors, and warnings once the cluster has settled."`
}

// readyFile is what --ready-file holds.
type readyFile struct {
	Nodes []readyNode `json:"nodes"`
}

type readyNode struct {
	ID     string `json:"id"`
	GRPC   string `json:"grpc"`
	HTTP   string `json:"http"`
	Gossip string `json:"gossip"`
	Raft   string `json:"raft"`
	PID    int    `json:"pid"`
}

// Run implements the subcommand.
func (c *devCommand) Run(ctx context.Context, kinds definers, std streams) (err error) {
	if c.Nodes != 1 && c.Nodes != 3 && c.Nodes != 5 {
		return usage("--nodes is %d: give 1, 3 or 5, so that a majority is clear", c.Nodes)
	}
	if c.BasePort < 1 || c.BasePort+10*c.Nodes > 65535 {
		return usage("--base-port is %d: the ports up to %d must be valid", c.BasePort, c.BasePort+10*c.Nodes)
	}
	if err := c.checkFolder(); err != nil {
		return err
	}
	if c.Cluster == "" {
		c.Cluster = "dev"
	}
	if c.ReadyFile != "" {
		// An old file would tell a script that this cluster is ready.
		if err := os.Remove(c.ReadyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("ready file: %w", err)
		}
	}
	fmt.Fprintf(std.err, "starting %s with data in %s\n", count(c.Nodes, "node"), c.Dir)
	level := new(slog.LevelVar)
	level.Set(slog.LevelError) // a cluster that forms warns of much that passes
	if c.Verbose {
		level.Set(slog.LevelDebug)
	}
	ready, nodes, err := c.start(ctx, kinds, std.err, level)
	defer func() { err = errors.Join(err, stopAll(nodes)) }()
	if err != nil {
		return err
	}
	if err := c.awaitUse(ctx, nodes, ready, std); err != nil {
		if ctx.Err() != nil {
			return nil // interrupted: to stop early is no failure
		}
		return err
	}
	if err := c.announce(std.out, ready, kinds); err != nil {
		return err
	}
	level.Set(min(level.Level(), slog.LevelWarn))
	failed := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() { failed <- <-n.Failed() }()
	}
	select {
	case <-ctx.Done():
		if !c.Verbose {
			level.Set(slog.LevelError) // nodes that stop miss each other
		}
		return nil
	case err := <-failed:
		return err
	}
}

// awaitUse waits until all shards serve, says so in the ready file, and waits until
// the cluster has settled.
func (c *devCommand) awaitUse(ctx context.Context, nodes []*node.Node, ready readyFile, std streams) error {
	if err := awaitReady(ctx, nodes, std.err); err != nil {
		return err
	}
	if err := c.writeReadyFile(ready); err != nil {
		return err
	}
	return c.settle(ctx, std, ready)
}

// nodesMost is the largest number of nodes that dev runs.
const nodesMost = 5

// checkFolder refuses a folder with the data of more nodes than are to run: without
// a majority of them nothing would ever serve.
func (c *devCommand) checkFolder() error {
	var names []string
	held := 0
	for i := range nodesMost {
		names = append(names, fmt.Sprintf("n%d", i+1))
		if _, err := os.Stat(filepath.Join(c.Dir, names[i], "node.json")); err == nil { // the node's identity
			held = i + 1
		}
	}
	if held <= c.Nodes {
		return nil
	}
	held += 1 - held%2 // the folder of the last one may be lost
	return usage("this folder holds a cluster of %s (%s): give --nodes %d, or another --dir", count(held, "node"), strings.Join(names[:held], ", "), held)
}

// Timing of what is said while nodes are not ready: a cluster that forms takes a
// second or two.
const (
	devNoticeAfter = 5 * time.Second
	devNoticeEvery = time.Second
)

// awaitReady waits until all nodes are ready. If that takes long it says why, and
// again whenever there is another reason: they may wait for a person.
func awaitReady(ctx context.Context, nodes []*node.Node, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	ready := make(chan error, len(nodes))
	for _, n := range nodes {
		wg.Go(func() { ready <- n.AwaitReady(ctx) })
	}
	next := time.NewTimer(devNoticeAfter)
	defer next.Stop()
	said := ""
	for waiting := len(nodes); waiting > 0; {
		select {
		case err := <-ready:
			if err != nil {
				return err
			}
			waiting--
		case <-next.C:
			next.Reset(devNoticeEvery)
			var text strings.Builder
			for _, n := range nodes {
				text.WriteString(unready(n.Readiness()))
			}
			if text.String() != said {
				said = text.String()
				fmt.Fprint(out, said)
			}
		}
	}
	return nil
}

// unready says what a node waits for, a line for each reason. Of shards it tells one:
// mostly all wait for the same.
func unready(r node.Readiness) string {
	var text strings.Builder
	for _, part := range slices.Sorted(maps.Keys(r.Reasons)) {
		fmt.Fprintf(&text, "%s is not ready: %s: %s\n", r.Node, part, r.Reasons[part])
	}
	if len(r.Shards) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(r.Shards)))
		fmt.Fprintf(&text, "%s is not ready: %s, of these shard %d: %s\n", r.Node, count(len(r.Shards), "shard"), first, r.Shards[first])
	}
	return text.String()
}

// start starts all nodes at once: none of them can form the cluster alone.
func (c *devCommand) start(ctx context.Context, kinds definers, logs io.Writer, level slog.Leveler) (readyFile, []*node.Node, error) {
	if c.Tokens != "" && c.GossipKey == "" { // all nodes are here: none needs to be told
		c.GossipKey = base64.StdEncoding.EncodeToString([]byte(rand.Text())[:16])
	}
	var (
		ready   readyFile
		configs []node.Config
		names   []string
		join    []string
	)
	for i := range c.Nodes {
		at := func(offset int) string { return fmt.Sprintf("127.0.0.1:%d", c.BasePort+10*i+offset) }
		id := fmt.Sprintf("n%d", i+1)
		names, join = append(names, id), append(join, at(2))
		ready.Nodes = append(ready.Nodes, readyNode{ID: id, GRPC: at(0), HTTP: at(1), Gossip: at(2), Raft: at(3), PID: os.Getpid()})
		configs = append(configs, node.Config{
			ID: id, Dir: filepath.Join(c.Dir, id), GRPC: at(0), HTTP: at(1), Gossip: at(2), Raft: at(3),
			Cluster: c.Cluster, GossipKey: c.GossipKey, Tokens: c.Tokens, Shards: c.Shards, Window: c.Window, RetryHorizon: c.RetryFor,
			Kinds: kinds, TraceEndpoint: c.TraceEndpoint, TraceRatio: c.TraceRatio,
			Logger: c.logger(logs, id, level),
		})
	}
	var nodes []*node.Node
	for _, config := range configs {
		config.InitialNodes, config.Join = names, join
		n, err := node.Start(ctx, config)
		if err != nil {
			if strings.Contains(err.Error(), "in use") && !strings.Contains(err.Error(), "data folder") {
				err = fmt.Errorf("%w (--base-port chooses other ports)", err)
			}
			return ready, nodes, err
		}
		nodes = append(nodes, n)
	}
	return ready, nodes, nil
}

func (c *devCommand) writeReadyFile(ready readyFile) error {
	if c.ReadyFile == "" {
		return nil
	}
	text, err := json.MarshalIndent(ready, "", "  ")
	if err != nil {
		return err
	}
	// Renamed into place: who waits for the file never reads half of it.
	temp := c.ReadyFile + ".tmp"
	if err := os.WriteFile(temp, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	if err := os.Rename(temp, c.ReadyFile); err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	return nil
}

func (c *devCommand) logger(logs io.Writer, id string, level slog.Leveler) *slog.Logger {
	log := newLogger(logs, id, level)
	if c.Verbose {
		return log
	}
	return slog.New(withoutRaft{log.Handler()})
}

// withoutRaft leaves out Raft's own warnings: on a machine that is busy with other
// work there are many of them, and what they come to, a shard without a leader for
// example, is a warning of Writ.
type withoutRaft struct{ slog.Handler }

// Handle implements slog.Handler.
func (h withoutRaft) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelError && strings.HasPrefix(r.Message, "raft: ") {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h withoutRaft) WithAttrs(attrs []slog.Attr) slog.Handler {
	return withoutRaft{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h withoutRaft) WithGroup(name string) slog.Handler {
	return withoutRaft{h.Handler.WithGroup(name)}
}

// settleFor bounds the wait for the leaderships to be where they belong.
const settleFor = 10 * time.Second

// settle waits until every shard is led by the node that is to lead it: the
// cluster serves before, but moves leaderships under the first commands. Where
// operators need a token it does not ask.
func (c *devCommand) settle(ctx context.Context, std streams, ready readyFile) error {
	if c.Tokens != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleFor)
	defer cancel()
	t := &target{Addr: []string{ready.Nodes[0].GRPC}, wait: newPatience(std.err)}
	admin, closeConn, err := t.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := admin.Status(ctx, &nodev1.StatusRequest{})
		if err == nil && settled(s) {
			fmt.Fprint(std.err, c.ignored(len(s.GetMeta().GetShards())))
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// ignored says that --shards was given in vain, for a cluster that has been formed
// with another number; "" if it was not.
func (c *devCommand) ignored(shards int) string {
	if c.Shards == 0 || int(c.Shards) == shards {
		return ""
	}
	return fmt.Sprintf("the cluster has %s, fixed when it formed; --shards %d is ignored\n", count(shards, "shard"), c.Shards)
}

func settled(s *nodev1.StatusResponse) bool {
	leader := map[uint32]string{}
	for _, sh := range s.GetShards() {
		leader[sh.GetShard()] = sh.GetLeader()
	}
	for _, p := range s.GetMeta().GetShards() {
		if p.GetPreferred() != "" && leader[p.GetShard()] != p.GetPreferred() {
			return false
		}
	}
	return true
}

func (c *devCommand) announce(out io.Writer, ready readyFile, kinds definers) error {
	var addrs []string
	for _, n := range ready.Nodes {
		addrs = append(addrs, n.GRPC)
	}
	all, first := strings.Join(addrs, ","), ready.Nodes[0]
	// As it was called: the program need not be on the path.
	program := os.Args[0]
	tokens := ""
	if c.Tokens != "" {
		tokens = `
  export WRIT_TOKEN=...   # one from the table; grpcurl wants -H "authorization: Bearer $WRIT_TOKEN"
`
	}
	serve := "serves"
	if len(ready.Nodes) > 1 {
		serve = "serve"
	}
	var guide strings.Builder
	fmt.Fprintf(&guide, "%s %s all shards. In another terminal:\n%s\n", count(len(ready.Nodes), "node"), serve, tokens)
	if kinds.handle("account", "writ.account.v1.Deposit") {
		fmt.Fprintf(&guide, `  %s submit --addr %s --kind account --id alice --key order-1 --command writ.account.v1.Deposit --json '{"amount_minor":500,"currency":"EUR"}'
  %s read   --addr %s --kind account --id alice
  %s audit  --addr %s

  grpcurl -plaintext -d '{"entity":{"kind":"account","id":"alice"},"idempotency_key":"order-1","command":{"@type":"type.googleapis.com/writ.account.v1.Deposit","amount_minor":500,"currency":"EUR"}}' %s writ.v1.EntityService/Submit
`, program, all, program, all, program, all, first.GRPC)
	} else {
		fmt.Fprintf(&guide, "  %s cluster status --addr %s\n  %s audit --addr %s\n\nThe kinds, and the commands that \"submit\" can send to them:\n\n", program, all, program, all)
		for _, k := range kinds {
			def := k.Definition()
			fmt.Fprintf(&guide, "  %s: %s\n", def.Name(), or(strings.Join(def.Commands(), ", "), "none"))
		}
	}
	fmt.Fprintf(&guide, `
  curl http://%s/readyz

Ctrl-C ends the cluster; the data stays in %s.
`, first.HTTP, c.Dir)
	_, err := io.WriteString(out, guide.String())
	return err
}

// handle reports whether there is a kind that handles a command.
func (d definers) handle(kind, command string) bool {
	return slices.ContainsFunc(d, func(k entity.Definer) bool {
		def := k.Definition()
		return def.Name() == kind && def.Command(command) != nil
	})
}

func stopAll(nodes []*node.Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout+time.Duration(len(nodes))*time.Second)
	defer cancel()
	var errs []error
	for _, n := range nodes {
		if err := n.Stop(ctx); !errors.Is(err, node.ErrUnfinished) { // see serve
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
