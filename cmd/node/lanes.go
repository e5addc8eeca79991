package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// lanesCommand holds the operator's verbs for lanes.
type lanesCommand struct {
	List   lanesListCommand   `cmd:"" default:"withargs" help:"List lanes whose rows wait, with the reason of those that stand."`
	Show   lanesShowCommand   `cmd:"" help:"Show one lane and its first rows."`
	Replay lanesReplayCommand `cmd:"" help:"Start parked lanes again with their first row, in order; event ids stay as they are."`
	Skip   lanesSkipCommand   `cmd:"" help:"Take the event out of the first row of parked or paused lanes, for good."`
	Pause  lanesPauseCommand  `cmd:"" help:"Stop active lanes until they are resumed."`
	Resume lanesResumeCommand `cmd:"" help:"Start paused lanes again."`
}

// laneFilter picks lanes on the command line.
type laneFilter struct {
	Tenant      string `help:"Only lanes of this tenant."`
	Entity      string `placeholder:"KIND/ID" help:"Only lanes from this entity."`
	Kind        string `help:"Only lanes from entities of this kind."`
	Destination string `placeholder:"KIND[/ID]" help:"Only lanes to this entity, or to this kind."`
	Reason      string `placeholder:"TEXT" help:"Only lanes whose reason holds this text."`
}

func (f laneFilter) proto() (*nodev1.LaneFilter, error) {
	out := &nodev1.LaneFilter{Tenant: f.Tenant, SourceKind: f.Kind, Reason: f.Reason}
	if f.Entity != "" {
		kind, id, ok := strings.Cut(f.Entity, "/")
		if !ok || kind == "" || id == "" || (f.Kind != "" && f.Kind != kind) {
			return nil, fmt.Errorf("--entity %q: write KIND/ID", f.Entity)
		}
		out.SourceKind, out.SourceId = kind, id
	}
	out.DestinationKind, out.DestinationId, _ = strings.Cut(f.Destination, "/")
	return out, nil
}

// empty reports whether the filter picks every lane.
func (f laneFilter) empty() bool { return f == laneFilter{} }

// foundLane is a lane that passed a filter.
type foundLane struct {
	shard uint32
	info  *nodev1.LaneInfo
}

// eachLane calls visit for every lane that passes, shard by shard. which says what
// is asked beside the filter.
func eachLane(ctx context.Context, admin nodev1.AdminServiceClient, f laneFilter, which *nodev1.ListLanesRequest, visit func(foundLane) error) error {
	filter, err := f.proto()
	if err != nil {
		return err
	}
	return eachShard(ctx, admin, func(shard uint32) error {
		which.Shard, which.Filter = shard, filter
		stream, err := admin.ListLanes(ctx, which)
		return drain(stream, err, func(l *nodev1.LaneInfo) error { return visit(foundLane{shard, l}) })
	})
}

func eachShard(ctx context.Context, admin nodev1.AdminServiceClient, visit func(shard uint32) error) error {
	status, err := admin.Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return err
	}
	for _, s := range status.GetMeta().GetShards() {
		if err := visit(s.GetShard()); err != nil {
			return fmt.Errorf("shard %d: %w", s.GetShard(), err)
		}
	}
	return nil
}

// drain visits what a stream yields. err is that of its opening.
func drain[M any](stream interface{ Recv() (*M, error) }, err error, visit func(*M) error) error {
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := visit(m); err != nil {
			return err
		}
	}
}

// lanesListCommand lists lanes with rows.
type lanesListCommand struct {
	target     `embed:""`
	laneFilter `embed:""`
	Parked     bool `help:"Only parked and paused lanes."`
	JSON       bool `name:"json" help:"Print one JSON object per line."`
}

// Run implements the subcommand.
func (c *lanesListCommand) Run(ctx context.Context, std streams) error {
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	table := newLaneTable(std.out, c.JSON)
	if err := eachLane(ctx, admin, c.laneFilter, &nodev1.ListLanesRequest{ParkedOnly: c.Parked}, table.add); err != nil {
		return err
	}
	return table.flush()
}

// laneTable prints lanes as a table or as lines of JSON.
type laneTable struct {
	out   io.Writer
	table *tabwriter.Writer
	json  bool
	lanes int
	rows  uint64
}

func newLaneTable(out io.Writer, json bool) *laneTable {
	t := &laneTable{out: out, table: tabwriter.NewWriter(out, 0, 4, 2, ' ', 0), json: json}
	if !json {
		fmt.Fprintln(t.table, "SHARD\tTENANT\tSOURCE\tDESTINATION\tWAITING\tSTATUS\tATTEMPTS\tREASON")
	}
	return t
}

func (t *laneTable) add(l foundLane) error {
	lane := l.info.GetLane()
	t.lanes++
	t.rows += lane.GetNumbered() - lane.GetConfirmed()
	if t.json {
		return printLine(t.out, l.info)
	}
	_, err := fmt.Fprintf(t.table, "%d\t%s\t%s/%s\t%s/%s\t%d\t%s\t%d\t%s\n", l.shard, l.info.GetSource().GetTenant(),
		l.info.GetSource().GetKind(), l.info.GetSource().GetId(), l.info.GetDestination().GetKind(), l.info.GetDestination().GetId(),
		lane.GetNumbered()-lane.GetConfirmed(), lane.GetStatus(), lane.GetAttempts(), lane.GetReason())
	return err
}

func (t *laneTable) flush() error { return t.table.Flush() }

// lanesShowCommand shows one lane.
type lanesShowCommand struct {
	target   `embed:""`
	Tenant   string `default:"default" help:"Tenant of the lane."`
	From     string `arg:"" placeholder:"KIND/ID" help:"Source, KIND/ID."`
	To       string `arg:"" placeholder:"KIND/ID" help:"Destination, KIND/ID."`
	Limit    uint32 `default:"20" help:"At most so many rows."`
	Payloads bool   `help:"Show the events' bytes, as JSON where their type is known."`
	JSON     bool   `name:"json" help:"Print one JSON object."`
}

// Run implements the subcommand.
func (c *lanesShowCommand) Run(ctx context.Context, std streams) error {
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	name := &nodev1.LaneName{}
	if name.Source, err = parseRef(c.Tenant, c.From); err != nil {
		return err
	}
	if name.Destination, err = parseRef(c.Tenant, c.To); err != nil {
		return err
	}
	res, err := admin.ShowLane(ctx, &nodev1.ShowLaneRequest{Lane: name, Limit: c.Limit, Payloads: c.Payloads})
	if err != nil {
		return err
	}
	if c.JSON {
		return printMessage(std.out, res)
	}
	lane := res.GetLane().GetLane()
	fmt.Fprintf(std.out, "%s: %d rows numbered, %d confirmed, %d skipped, %d refused attempts\n", lane.GetStatus(),
		lane.GetNumbered(), lane.GetConfirmed(), lane.GetSkipped(), lane.GetAttempts())
	if lane.GetReason() != "" {
		fmt.Fprintf(std.out, "reason: %s\n", lane.GetReason())
	}
	if res.Applied != nil {
		fmt.Fprintf(std.out, "the destination has applied %d\n", res.GetApplied())
	}
	for _, row := range res.GetRows() {
		fmt.Fprintln(std.out, rowLine(row, uint64(len(row.GetEvent().GetData()))))
		if c.Payloads && row.GetEvent() != nil {
			fmt.Fprintf(std.out, "    %s\n", payloadText(row.GetEvent()))
		}
	}
	return nil
}

func parseRef(tenant, text string) (*recordv1.Ref, error) {
	kind, id, ok := strings.Cut(text, "/")
	if !ok || kind == "" || id == "" {
		return nil, fmt.Errorf("%q: write KIND/ID", text)
	}
	return &recordv1.Ref{Tenant: tenant, Kind: kind, Id: id}, nil
}

// printLine writes a message as one line of JSON.
func printLine(out io.Writer, m proto.Message) error {
	text, err := protojson.Marshal(m)
	if err == nil {
		_, err = fmt.Fprintln(out, string(text))
	}
	return err
}
