package cli

import (
	"context"
	"fmt"
	"time"

	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// outboxCommand looks into outboxes.
type outboxCommand struct {
	List outboxListCommand `cmd:"" default:"withargs" help:"List events that their destinations have not confirmed."`
}

// outboxListCommand lists rows.
type outboxListCommand struct {
	target     `embed:""`
	laneFilter `embed:""`
	Limit      uint32 `default:"1000" help:"Print at most this many rows per shard."`
	JSON       bool   `name:"json" help:"Print one JSON object per line."`
}

// Run implements the subcommand.
func (c *outboxListCommand) Run(ctx context.Context, std streams) error {
	filter, err := c.proto()
	if err != nil {
		return err
	}
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	found := false
	err = eachShard(ctx, admin, func(shard uint32) error {
		stream, err := admin.ListOutbox(ctx, &nodev1.ListOutboxRequest{Shard: shard, Filter: filter, Limit: c.Limit})
		return drain(stream, err, func(r *nodev1.OutboxRow) error {
			found = true
			if c.JSON {
				return printLine(std.out, r)
			}
			_, err := fmt.Fprintf(std.out, "%s  %s\n", rowLine(r.GetRow(), r.GetBytes()), r.GetStatus())
			return err
		})
	})
	if err != nil || found {
		return err
	}
	if err := checkKinds(ctx, admin, filter.GetSourceKind(), filter.GetDestinationKind()); err != nil || c.JSON {
		return err
	}
	text := "no event waits"
	if !c.empty() {
		text += " that passes the filter"
	}
	_, err = fmt.Fprintln(std.out, text)
	return err
}

// rowLine describes a row in one line: its id, where it goes and how old it is.
func rowLine(row *recordv1.Row, bytes uint64) string {
	event := row.GetEvent().GetType()
	if row.GetEvent() == nil {
		event = "(skipped)"
	}
	if bytes > 0 {
		event += fmt.Sprintf(", %d bytes", bytes)
	}
	return fmt.Sprintf("%s/%s#%d.%d  to %s/%s row %d  %s  hop %d  %s ago",
		row.GetSource().GetKind(), row.GetSource().GetId(), row.GetEpoch(), row.GetSequence(),
		row.GetDestination().GetKind(), row.GetDestination().GetId(), row.GetLaneSequence(), event, row.GetHops(),
		time.Since(time.Unix(0, row.GetAcceptedAt())).Round(time.Millisecond))
}
