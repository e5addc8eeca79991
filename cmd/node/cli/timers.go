package cli

import (
	"context"
	"fmt"
	"time"

	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// timersCommand looks at timers.
type timersCommand struct {
	List timersListCommand `cmd:"" default:"withargs" help:"List timers: when they are due, what they do, how late they are."`
}

// timersListCommand lists timers.
type timersListCommand struct {
	target `embed:""`
	Tenant string  `help:"Only timers of this tenant; with --entity \"default\" unless given."`
	Entity string  `placeholder:"KIND/ID" help:"Only timers of this entity, parked ones included."`
	Kind   string  `help:"Only timers of entities of this kind."`
	Shard  *uint32 `help:"Only timers of this shard."`
	Late   bool    `help:"Only timers whose time has passed."`
	Parked bool    `help:"Only parked timers: those that have failed too often."`
	Limit  uint32  `default:"1000" help:"Print at most this many timers per shard."`
	JSON   bool    `name:"json" help:"Print one JSON object per line."`
}

func (c *timersListCommand) request() (*nodev1.ListTimersRequest, error) {
	req := &nodev1.ListTimersRequest{Tenant: c.Tenant, Kind: c.Kind, LateOnly: c.Late, ParkedOnly: c.Parked, Limit: c.Limit}
	if c.Entity != "" {
		ref, err := parseEntity(c.Tenant, c.Kind, c.Entity)
		if err != nil {
			return nil, err
		}
		req.Tenant, req.Kind, req.Id = ref.GetTenant(), ref.GetKind(), ref.GetId()
	}
	return req, nil
}

// Run implements the subcommand. Timers of one shard come in the order of their
// time.
func (c *timersListCommand) Run(ctx context.Context, std streams) error {
	req, err := c.request()
	if err != nil {
		return err
	}
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	table := newTable(std.out)
	if !c.JSON {
		fmt.Fprintln(table, "SHARD\tTENANT\tENTITY\tTIMER\tDUE\tLATE\tDOES\tEVERY\tSTATUS\tFAILURES\tREASON")
	}
	found := false
	if err := eachShard(ctx, admin, func(shard uint32) error {
		if c.Shard != nil && *c.Shard != shard {
			return nil
		}
		req.Shard = shard
		stream, err := admin.ListTimers(ctx, req)
		return drain(stream, err, func(t *nodev1.TimerInfo) error {
			found = true
			if c.JSON {
				return printLine(std.out, t)
			}
			return row(table, append([]any{shard, t.GetEntity().GetTenant(), nameOf(t.GetEntity()), t.GetName()}, timerColumns(t)...)...)
		})
	}); err != nil {
		return err
	}
	if !found {
		if err := checkKinds(ctx, admin, req.GetKind()); err != nil {
			return err
		}
	}
	return table.Flush()
}

// timerColumns are the columns after a timer's name.
func timerColumns(t *nodev1.TimerInfo) []any {
	timer := t.GetTimer()
	late, every := "-", "-"
	if t.GetLate() > 0 {
		late = time.Duration(t.GetLate()).Round(time.Millisecond).String()
	}
	if timer.GetEvery() > 0 {
		every = time.Duration(timer.GetEvery()).String()
	}
	return []any{
		time.Unix(0, timer.GetDue()).UTC().Format("2006-01-02T15:04:05.000Z"), late, timerDoes(timer), every,
		timerStatus(timer), timer.GetAttempts(), timer.GetReason(),
	}
}

func timerDoes(timer *recordv1.Timer) string {
	if to := timer.GetDestination(); to != nil {
		return fmt.Sprintf("event %s to %s/%s", timer.GetMessage().GetType(), to.GetKind(), to.GetId())
	}
	return "command " + timer.GetMessage().GetType()
}

func timerStatus(timer *recordv1.Timer) string {
	switch {
	case timer.GetNext() == 0:
		return "PARKED"
	case timer.GetAttempts() > 0:
		return "RETRIED"
	default:
		return "WAITING"
	}
}
