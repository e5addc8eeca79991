package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"google.golang.org/protobuf/encoding/protojson"

	nodev1 "writ/proto/writ/node/v1"
)

// lanesCommand holds the operator's verbs for lanes.
type lanesCommand struct {
	List lanesListCommand `cmd:"" default:"withargs" help:"List lanes whose rows wait, with the reason of parked ones."`
}

// lanesListCommand lists lanes with rows.
type lanesListCommand struct {
	target `embed:""`
	Parked bool `help:"Only parked and paused lanes."`
	JSON   bool `name:"json" help:"Print one JSON object per line."`
}

// Run implements the subcommand.
func (c *lanesListCommand) Run(ctx context.Context, std streams) error {
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	status, err := admin.Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(std.out, 0, 4, 2, ' ', 0)
	if !c.JSON {
		fmt.Fprintln(table, "SHARD\tTENANT\tSOURCE\tDESTINATION\tWAITING\tSTATUS\tATTEMPTS\tREASON")
	}
	for _, s := range status.GetMeta().GetShards() {
		stream, err := admin.ListLanes(ctx, &nodev1.ListLanesRequest{Shard: s.GetShard(), ParkedOnly: c.Parked})
		if err != nil {
			return err
		}
		for {
			l, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("lanes of shard %d: %w", s.GetShard(), err)
			}
			if err := c.print(std.out, table, s.GetShard(), l); err != nil {
				return err
			}
		}
	}
	return table.Flush()
}

func (c *lanesListCommand) print(out, table io.Writer, shard uint32, l *nodev1.LaneInfo) error {
	if c.JSON {
		text, err := protojson.Marshal(l)
		if err == nil {
			_, err = fmt.Fprintln(out, string(text))
		}
		return err
	}
	lane := l.GetLane()
	_, err := fmt.Fprintf(table, "%d\t%s\t%s/%s\t%s/%s\t%d\t%s\t%d\t%s\n", shard, l.GetSource().GetTenant(),
		l.GetSource().GetKind(), l.GetSource().GetId(), l.GetDestination().GetKind(), l.GetDestination().GetId(),
		lane.GetNumbered()-lane.GetConfirmed(), lane.GetStatus(), lane.GetAttempts(), lane.GetReason())
	return err
}
