package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"google.golang.org/grpc"

	nodev1 "writ/proto/writ/node/v1"
)

// clusterCommand holds the verbs of operators for nodes and shards.
type clusterCommand struct {
	Status  clusterStatusCommand  `cmd:"" help:"The cluster in one line, then its nodes, then its shards."`
	Nodes   clusterNodesCommand   `cmd:"" help:"The registry: nodes, zones, states."`
	Shards  clusterShardsCommand  `cmd:"" help:"Where the shards are and who leads them."`
	Drain   clusterDrainCommand   `cmd:"" help:"Move leaderships off a node and give it nothing new; it keeps running, with its replicas. A stop does not need it."`
	Remove  clusterRemoveCommand  `cmd:"" help:"Take a node out of the cluster for good."`
	Move    clusterMoveCommand    `cmd:"" help:"Move one shard's replica from one node to another, or its leadership."`
	Upgrade clusterUpgradeCommand `cmd:"" help:"Let the cluster write the newest format that all nodes read; after that no node can go back to the previous version."`
}

// statusFlags are common to the verbs that print.
type statusFlags struct {
	target `embed:""`
	JSON   bool `name:"json" help:"Print one JSON object."`
}

// status is what the first node says that answers, even if that is little: it is
// asked while a cluster forms, too.
func (f statusFlags) status(ctx context.Context) (s *nodev1.StatusResponse, err error) {
	_, closeConn, err := f.connect(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		s, err = nodev1.NewAdminServiceClient(conn).Status(ctx, &nodev1.StatusRequest{})
		return err
	})
	if err != nil {
		return nil, err
	}
	closeConn()
	return s, nil
}

// clusterStatusCommand prints the whole view of one node.
type clusterStatusCommand struct {
	statusFlags `embed:""`
}

// Run implements the subcommand.
func (c *clusterStatusCommand) Run(ctx context.Context, std streams) error {
	s, err := c.status(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printMessage(std.out, s)
	}
	fmt.Fprintf(std.out, "cluster %s, %s, %s, replication %d, meta leader %s (as %s sees it)\n",
		s.GetClusterId(), count(len(s.GetMeta().GetNodes()), "node"), count(len(s.GetMeta().GetShards()), "shard"), s.GetMeta().GetReplication(), or(s.GetMetaLeader(), "unknown"), s.GetNode())
	fmt.Fprintf(std.out, "%s\n\n", formatLine(s))
	if err := printNodes(std.out, s); err != nil {
		return err
	}
	fmt.Fprintln(std.out)
	return printShards(std.out, s)
}

// clusterNodesCommand prints the registry.
type clusterNodesCommand struct {
	statusFlags `embed:""`
}

// Run implements the subcommand.
func (c *clusterNodesCommand) Run(ctx context.Context, std streams) error {
	s, err := c.status(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printMessage(std.out, s.GetMeta())
	}
	return printNodes(std.out, s)
}

// clusterShardsCommand prints the placement.
type clusterShardsCommand struct {
	statusFlags `embed:""`
}

// Run implements the subcommand.
func (c *clusterShardsCommand) Run(ctx context.Context, std streams) error {
	s, err := c.status(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printMessage(std.out, s)
	}
	return printShards(std.out, s)
}

func printNodes(w io.Writer, s *nodev1.StatusResponse) error {
	members := map[string]*nodev1.MemberStatus{}
	for _, m := range s.GetMembers() {
		members[m.GetName()] = m
	}
	replicas, leads := map[string]int{}, map[string]int{}
	for _, p := range s.GetMeta().GetShards() {
		for _, r := range p.GetReplicas() {
			replicas[r.GetNode()]++
		}
	}
	for _, sh := range s.GetShards() {
		leads[sh.GetLeader()]++
	}
	names := make([]string, 0, len(s.GetMeta().GetNodes()))
	for name := range s.GetMeta().GetNodes() {
		names = append(names, name)
	}
	sort.Strings(names)
	table := newTable(w)
	fmt.Fprintln(table, "NODE\tSTATE\tALIVE\tZONE\tREPLICAS\tLEADS\tMETA\tFORMATS\tGRPC\tINCARNATION")
	for _, name := range names {
		n, m := s.GetMeta().GetNodes()[name], members[name]
		if err := row(table, name, strings.ToLower(n.GetState().String()), yesNo(m.GetAlive()),
			or(n.GetZone(), "-"), replicas[name], leads[name], metaRole(s, name), formatRange(n.GetFormatMax()), or(m.GetGrpc(), "-"), n.GetIncarnation()); err != nil {
			return err
		}
	}
	return table.Flush()
}

// metaRole is a node's part in the meta group.
func metaRole(s *nodev1.StatusResponse, node string) string {
	switch {
	case slices.Contains(s.GetMetaVoters(), node):
		return "voter"
	case slices.Contains(s.GetMetaLearners(), node):
		return "learner"
	}
	return "-"
}

func printShards(w io.Writer, s *nodev1.StatusResponse) error {
	local := map[uint32]*nodev1.ShardStatus{}
	for _, sh := range s.GetShards() {
		local[sh.GetShard()] = sh
	}
	table := newTable(w)
	fmt.Fprintln(table, "SHARD\tLEADER\tPREFERRED\tTERM\tREPLICAS\tVOTERS\tLEARNERS\tAPPLIED\tSTATE")
	for _, p := range s.GetMeta().GetShards() {
		placed := make([]string, 0, len(p.GetReplicas()))
		for _, r := range p.GetReplicas() {
			placed = append(placed, r.GetNode())
		}
		sh := local[p.GetShard()]
		state := or(sh.GetState(), "elsewhere")
		if state == "serving" && sh.GetLeader() == "" {
			state = "no leader" // the replica is fine, and serves nobody
		}
		if sh.GetReason() != "" {
			state += ": " + sh.GetReason()
		}
		if err := row(table, p.GetShard(), or(sh.GetLeader(), "-"), or(p.GetPreferred(), "-"), sh.GetTerm(),
			strings.Join(placed, ","), or(strings.Join(sh.GetVoters(), ","), "-"), or(strings.Join(sh.GetLearners(), ","), "-"), sh.GetAppliedIndex(), state); err != nil {
			return err
		}
	}
	return table.Flush()
}

// count is a number with its noun.
func count[N int | int64 | uint32 | uint64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
