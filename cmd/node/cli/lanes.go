package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// lanesCommand holds the operator's verbs for lanes.
type lanesCommand struct {
	List   lanesListCommand   `cmd:"" default:"withargs" help:"List lanes with waiting rows, and why those that stand still do so."`
	Show   lanesShowCommand   `cmd:"" help:"Show one lane and its first rows."`
	Replay lanesReplayCommand `cmd:"" help:"Start parked lanes again with their first row, in order; event ids stay as they are."`
	Skip   lanesSkipCommand   `cmd:"" help:"Drop the first event of parked or paused lanes, for good."`
	Pause  lanesPauseCommand  `cmd:"" help:"Stop active lanes until they are resumed. A lane that a source opens later, with its first event to the destination, is not stopped."`
	Resume lanesResumeCommand `cmd:"" help:"Start paused lanes again."`
}

// laneFilter picks lanes on the command line.
type laneFilter struct {
	Tenant      filterText `placeholder:"TENANT" help:"Only lanes of this tenant; with --entity \"default\" unless given."`
	Entity      filterText `placeholder:"KIND/ID" help:"Only lanes from this entity."`
	Kind        filterText `placeholder:"KIND" help:"Only lanes from entities of this kind."`
	Destination filterText `placeholder:"KIND[/ID]" help:"Only lanes to this entity, or to this kind."`
	Reason      filterText `placeholder:"TEXT" help:"Only lanes whose reason contains this text."`
}

// filterText is the value of a filter; "" if the filter is not given.
type filterText string

// UnmarshalText implements encoding.TextUnmarshaler, for filters that are given. An
// empty one is a script's variable that is not set, and would pick everything.
func (f *filterText) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("it is empty: give a value, or leave the filter out")
	}
	*f = filterText(text)
	return nil
}

func (f laneFilter) proto() (*nodev1.LaneFilter, error) {
	out := &nodev1.LaneFilter{Tenant: string(f.Tenant), SourceKind: string(f.Kind), Reason: string(f.Reason)}
	if f.Entity != "" {
		ref, err := parseEntity(out.GetTenant(), out.GetSourceKind(), string(f.Entity))
		if err != nil {
			return nil, err
		}
		out.Tenant, out.SourceKind, out.SourceId = ref.GetTenant(), ref.GetKind(), ref.GetId()
	}
	kind, id, one := strings.Cut(string(f.Destination), "/")
	if one && (kind == "" || id == "") {
		return nil, usage("--destination %q: give KIND/ID or KIND, e.g. statement/all or statement", f.Destination)
	}
	out.DestinationKind, out.DestinationId = kind, id
	return out, nil
}

// empty reports whether the filter picks every lane.
func (f laneFilter) empty() bool { return f == laneFilter{} }

// parseEntity reads --entity of a list, beside which --tenant and --kind may be
// given. An id may be in use in every tenant: without one, one of them is meant.
func parseEntity(tenant, kind, text string) (*recordv1.Ref, error) {
	ref, err := parseRef("--entity", or(tenant, gateway.DefaultTenant), text)
	if err == nil && kind != "" && kind != ref.GetKind() {
		return nil, usage("--entity %q is not of --kind %q: give one of them", text, kind)
	}
	return ref, err
}

// checkKinds refuses kinds that the node does not define; "" is none. It is for
// filters that pick nothing: what belongs to a kind that a program lacks may well
// exist, and wait.
func checkKinds(ctx context.Context, admin nodev1.AdminServiceClient, kinds ...string) error {
	status, err := admin.Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		if known := status.GetKinds(); kind != "" && len(known) > 0 && !slices.Contains(known, kind) {
			return fmt.Errorf("nothing passes the filter, and kind %q is not registered; registered: %s", kind, strings.Join(known, ", "))
		}
	}
	return nil
}

// foundLane is a lane that passed a filter.
type foundLane struct {
	shard uint32
	info  *nodev1.LaneInfo
}

// eachLane calls visit for every lane that passes the filter of which, shard by
// shard.
func eachLane(ctx context.Context, admin nodev1.AdminServiceClient, which *nodev1.ListLanesRequest, visit func(foundLane) error) error {
	found := false
	err := eachShard(ctx, admin, func(shard uint32) error {
		which.Shard = shard
		stream, err := admin.ListLanes(ctx, which)
		return drain(stream, err, func(l *nodev1.LaneInfo) error {
			found = true
			return visit(foundLane{shard, l})
		})
	})
	if err != nil || found {
		return err
	}
	return checkKinds(ctx, admin, which.GetFilter().GetSourceKind(), which.GetFilter().GetDestinationKind())
}

func eachShard(ctx context.Context, admin nodev1.AdminServiceClient, visit func(shard uint32) error) error {
	status, err := admin.Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return err
	}
	if err := knowsShards(status); err != nil {
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
	filter, err := c.proto()
	if err != nil {
		return err
	}
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	table := newLaneTable(std.out, c.JSON)
	if err := eachLane(ctx, admin, &nodev1.ListLanesRequest{ParkedOnly: c.Parked, Filter: filter}, func(l foundLane) (err error) {
		if table.note, err = skippedFirst(ctx, admin, l); err != nil {
			return err
		}
		return table.add(l)
	}); err != nil {
		return err
	}
	return table.flush()
}

// skippedFirst is a note on a lane that stands at a row which has lost its event:
// its reason is that of the event, and no longer holds.
func skippedFirst(ctx context.Context, admin nodev1.AdminServiceClient, l foundLane) (string, error) {
	lane := l.info.GetLane()
	if lane.GetStatus() == recordv1.Lane_ACTIVE || lane.GetSkipped() == 0 {
		return "", nil
	}
	name := &nodev1.LaneName{Source: l.info.GetSource(), Destination: l.info.GetDestination()}
	res, err := admin.ShowLane(ctx, &nodev1.ShowLaneRequest{Lane: name, Limit: 1})
	if err != nil {
		return "", err
	}
	for _, row := range res.GetRows() {
		if row.GetEvent() == nil {
			return skippedNote(lane, row.GetLaneSequence()), nil
		}
	}
	return "", nil
}

func skippedNote(lane *recordv1.Lane, row uint64) string {
	return fmt.Sprintf("row %d skipped, %s to go on", row, goesOn(lane))
}

// goesOn is the verb that lets a standing lane go on.
func goesOn(lane *recordv1.Lane) string {
	if lane.GetStatus() == recordv1.Lane_PAUSED {
		return "resume"
	}
	return "replay"
}

// laneTable prints lanes as a table or as lines of JSON.
type laneTable struct {
	out   io.Writer
	table *tabwriter.Writer
	json  bool
	lanes int
	rows  uint64
	// shown bounds the lines of the table, 0 does not; note stands in place of the
	// reason.
	shown int
	note  string
}

// lanesShown is how many lanes a verb lists that changes all of them: the count
// below the table is what a person looks for.
const lanesShown = 20

func newLaneTable(out io.Writer, json bool) *laneTable {
	t := &laneTable{out: out, table: newTable(out), json: json}
	if !json {
		fmt.Fprintln(t.table, "SHARD\tTENANT\tSOURCE\tDESTINATION\tWAITING\tSTATUS\tATTEMPTS\tREASON")
	}
	return t
}

// waitingIn is the number of a lane's rows that are not confirmed.
func waitingIn(l foundLane) uint64 {
	return l.info.GetLane().GetNumbered() - l.info.GetLane().GetConfirmed()
}

func (t *laneTable) add(l foundLane) error {
	lane := l.info.GetLane()
	t.lanes++
	t.rows += waitingIn(l)
	if t.json {
		return printLine(t.out, l.info)
	}
	if t.shown > 0 && t.lanes > t.shown {
		return nil
	}
	return row(t.table, l.shard, l.info.GetSource().GetTenant(), nameOf(l.info.GetSource()), nameOf(l.info.GetDestination()),
		waitingIn(l), lane.GetStatus(), lane.GetAttempts(), or(t.note, or(l.info.GetTrouble(), lane.GetReason())))
}

func (t *laneTable) flush() error {
	if more := t.lanes - t.shown; t.shown > 0 && more > 0 && !t.json {
		fmt.Fprintf(t.table, "and %d more: see node lanes list\n", more)
	}
	return t.table.Flush()
}

// lanesShowCommand shows one lane.
type lanesShowCommand struct {
	target   `embed:""`
	Tenant   string `default:"default" help:"Tenant of the lane."`
	From     string `arg:"" optional:"" placeholder:"KIND/ID" help:"Source, KIND/ID."`
	To       string `arg:"" optional:"" placeholder:"KIND/ID" help:"Destination, KIND/ID."`
	Limit    uint32 `default:"20" help:"Show at most this many rows."`
	Payloads bool   `help:"Show the events' bytes, as JSON where their type is known."`
	JSON     bool   `name:"json" help:"Print one JSON object."`
}

// Run implements the subcommand.
func (c *lanesShowCommand) Run(ctx context.Context, std streams) error {
	name, err := c.lane()
	if err != nil {
		return err
	}
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	res, err := admin.ShowLane(ctx, &nodev1.ShowLaneRequest{Lane: name, Limit: c.Limit, Payloads: c.Payloads})
	if err != nil {
		return err
	}
	if c.JSON {
		return printMessage(std.out, res)
	}
	lane := res.GetLane().GetLane()
	fmt.Fprintf(std.out, "%s: %s numbered, %d confirmed, %d skipped, %s\n", lane.GetStatus(),
		count(lane.GetNumbered(), "row"), lane.GetConfirmed(), lane.GetSkipped(), count(lane.GetAttempts(), "refused attempt"))
	if lane.GetReason() != "" {
		fmt.Fprintf(std.out, "reason: %s\n", lane.GetReason())
	}
	if trouble := res.GetLane().GetTrouble(); trouble != "" {
		fmt.Fprintf(std.out, "waits: %s\n", trouble)
	}
	if res.Applied != nil {
		fmt.Fprintf(std.out, "the destination has applied %d\n", res.GetApplied())
	}
	types := c.types(ctx)
	defer types.Close()
	for _, row := range res.GetRows() {
		fmt.Fprintln(std.out, rowLine(row, uint64(len(row.GetEvent().GetData()))))
		if c.Payloads && row.GetEvent() != nil {
			fmt.Fprintf(std.out, "    %s\n", types.payload(row.GetEvent()))
		}
	}
	return nil
}

// lane is the lane that is named.
func (c *lanesShowCommand) lane() (name *nodev1.LaneName, err error) {
	name = &nodev1.LaneName{}
	if name.Source, err = parseRef("the source", c.Tenant, c.From); err != nil {
		return nil, err
	}
	if c.To == "" {
		return nil, usage("name the destination, too: node lanes show %s KIND/ID, e.g. %s statement/all", c.From, c.From)
	}
	name.Destination, err = parseRef("the destination", c.Tenant, c.To)
	return name, err
}

// parseRef reads the name of an entity. what says where it stands: a flag, or the
// place of an argument.
func parseRef(what, tenant, text string) (*recordv1.Ref, error) {
	kind, id, ok := strings.Cut(text, "/")
	if !ok || kind == "" || id == "" {
		return nil, usage("%s %q: give KIND/ID, e.g. account/alice", what, text)
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
