package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/status"

	nodev1 "writ/proto/writ/node/v1"
)

// crashesCommand holds the operator's verbs for what has ended processes.
type crashesCommand struct {
	List   crashesListCommand   `cmd:"" default:"withargs" help:"List what handlers were working on when processes ended, and which commands and queries are refused because of it."`
	Forget crashesForgetCommand `cmd:"" help:"Let all nodes run again what they refuse because it has ended processes."`
}

// crashesListCommand lists crashes of all nodes.
type crashesListCommand struct {
	target  `embed:""`
	Refused bool `help:"Only commands and queries that are refused."`
	JSON    bool `name:"json" help:"Print one JSON object per node."`
}

// Run implements the subcommand.
func (c *crashesListCommand) Run(ctx context.Context, std streams) error {
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	table := newTable(std.out)
	if !c.JSON {
		fmt.Fprintln(table, "NODE\tTIMES\tELSEWHERE\tLAST\tREFUSED\tWHAT")
	}
	failed := eachNode(ctx, admin, std, func(node string) error {
		res, err := admin.ListCrashes(ctx, &nodev1.ListCrashesRequest{Node: node})
		if err != nil {
			return err
		}
		list := res.GetCrashes()
		res.Crashes = nil
		for _, crash := range list {
			if !c.Refused || crash.GetRefused() {
				res.Crashes = append(res.Crashes, crash)
			}
		}
		if c.JSON {
			return printLine(std.out, res)
		}
		for _, crash := range res.GetCrashes() {
			last := "-"
			if crash.GetLast() > 0 {
				last = time.Unix(0, crash.GetLast()).UTC().Format(time.RFC3339)
			}
			if err := row(table, res.GetNode(), crash.GetTimes(), crash.GetElsewhere(), last, crash.GetRefused(), crash.GetWhat()); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(failed, table.Flush())
}

// crashesForgetCommand has nodes forget.
type crashesForgetCommand struct {
	target `embed:""`
	What   string `arg:"" optional:"" help:"What to forget, exactly as it is listed."`
	All    bool   `help:"Everything."`
	JSON   bool   `name:"json" help:"Print one JSON object per node."`
}

// Run implements the subcommand. Every node must forget: they tell each other what
// they know when they start.
func (c *crashesForgetCommand) Run(ctx context.Context, std streams) error {
	if (c.What == "") == !c.All {
		return usage("say what to forget, as node crashes list shows it, or --all")
	}
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	most := uint32(0)
	err = eachNode(ctx, admin, std, func(node string) error {
		res, err := admin.ForgetCrashes(ctx, &nodev1.ForgetCrashesRequest{Node: node, What: c.What})
		if err != nil {
			return err
		}
		most = max(most, res.GetForgotten())
		if c.JSON {
			return printLine(std.out, res)
		}
		_, err = fmt.Fprintf(std.out, "%s: %d forgotten\n", res.GetNode(), res.GetForgotten())
		return err
	})
	if err == nil && most == 0 && c.What != "" {
		return errors.New("no node knows of it: nothing was changed")
	}
	return err
}

// eachNode visits the nodes of the registry. One that cannot be reached does not
// keep the others; it is named.
func eachNode(ctx context.Context, admin nodev1.AdminServiceClient, std streams, visit func(node string) error) error {
	st, err := admin.Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return err
	}
	if err := knowsShards(st); err != nil { // nor does it know the nodes
		return err
	}
	failed := 0
	for _, name := range slices.Sorted(maps.Keys(st.GetMeta().GetNodes())) {
		if st.GetMeta().GetNodes()[name].GetState() == nodev1.NodeEntry_REMOVED {
			continue
		}
		if err := visit(name); err != nil {
			failed++
			fmt.Fprintf(std.err, "%s: %s\n", name, status.Convert(err).Message())
		}
	}
	if failed > 0 {
		return fmt.Errorf("%s did not answer: repeat it when all do", count(failed, "node"))
	}
	return nil
}
