package cli

import (
	"context"
	"fmt"
	"strings"

	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// laneVerb is what the verbs that change lanes have in common. Without --yes they
// list what they would change.
type laneVerb struct {
	target     `embed:""`
	laneFilter `embed:""`
	All        bool `help:"Change all lanes; needed if no filter is given."`
	Yes        bool `help:"Do it. Without this, the lanes are only listed."`
	JSON       bool `name:"json" help:"Print one JSON object per lane, as it is after the change."`
}

type lanesReplayCommand struct {
	laneVerb `embed:""`
}

type lanesSkipCommand struct {
	laneVerb `embed:""`
	Replay   bool `help:"Replay parked lanes afterwards, resume paused ones."`
}

type lanesPauseCommand struct {
	laneVerb `embed:""`
	Because  string `default:"paused by an operator" help:"Reason that is kept with the lane."`
}

type lanesResumeCommand struct {
	laneVerb `embed:""`
}

// Run implements the subcommand.
func (c *lanesReplayCommand) Run(ctx context.Context, std streams) error {
	return c.change(ctx, std, "replay", recordv1.Lane_PARKED, func(context.Context, foundLane) []*nodev1.ChangeLaneRequest {
		return []*nodev1.ChangeLaneRequest{{Verb: nodev1.ChangeLaneRequest_REPLAY}}
	})
}

// Run implements the subcommand. It skips the row that is the first when the
// lanes are listed, and never another one.
func (c *lanesSkipCommand) Run(ctx context.Context, std streams) error {
	skip := func(_ context.Context, l foundLane) []*nodev1.ChangeLaneRequest {
		list := []*nodev1.ChangeLaneRequest{{Verb: nodev1.ChangeLaneRequest_SKIP, Sequence: l.info.GetLane().GetConfirmed() + 1}}
		if !c.Replay {
			return list
		}
		verb := nodev1.ChangeLaneRequest_REPLAY
		if l.info.GetLane().GetStatus() == recordv1.Lane_PAUSED {
			verb = nodev1.ChangeLaneRequest_RESUME
		}
		return append(list, &nodev1.ChangeLaneRequest{Verb: verb})
	}
	return c.change(ctx, std, "skip the first row of", anyStanding, skip)
}

// Run implements the subcommand.
func (c *lanesPauseCommand) Run(ctx context.Context, std streams) error {
	return c.change(ctx, std, "pause", recordv1.Lane_ACTIVE, func(context.Context, foundLane) []*nodev1.ChangeLaneRequest {
		return []*nodev1.ChangeLaneRequest{{Verb: nodev1.ChangeLaneRequest_PAUSE, Reason: c.Because}}
	})
}

// Run implements the subcommand.
func (c *lanesResumeCommand) Run(ctx context.Context, std streams) error {
	return c.change(ctx, std, "resume", recordv1.Lane_PAUSED, func(context.Context, foundLane) []*nodev1.ChangeLaneRequest {
		return []*nodev1.ChangeLaneRequest{{Verb: nodev1.ChangeLaneRequest_RESUME}}
	})
}

// anyStanding stands for parked and paused lanes.
const anyStanding = recordv1.Lane_Status(-1)

// change lists the lanes with a status that pass the filter and, with --yes,
// carries out what steps says for each. One that fails does not keep the others.
func (c laneVerb) change(ctx context.Context, std streams, what string, from recordv1.Lane_Status,
	steps func(context.Context, foundLane) []*nodev1.ChangeLaneRequest,
) error {
	if c.empty() && !c.All {
		return usage("say which lanes: --entity, --kind, --destination, --reason, --tenant, or --all")
	}
	filter, err := c.proto()
	if err != nil {
		return err
	}
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	var lanes []foundLane
	if err := eachLane(ctx, admin, &nodev1.ListLanesRequest{ParkedOnly: from != recordv1.Lane_ACTIVE, Drained: true, Filter: filter}, func(l foundLane) error {
		if got := l.info.GetLane(); got.GetStatus() == from || from == anyStanding && got.GetNumbered() > got.GetConfirmed() {
			lanes = append(lanes, l)
		}
		return nil
	}); err != nil {
		return err
	}
	if len(lanes) == 0 {
		fmt.Fprintf(std.err, "no %s lane matches\n", statusName(from))
		return nil
	}
	table := newLaneTable(std.out, c.JSON)
	table.shown = lanesShown
	failed := 0
	var before int // lanes whose first row had been skipped before
	var beforeRows uint64
	for _, l := range lanes {
		list := steps(ctx, l)
		table.note = ""
		if !c.Yes || skipsOnly(list) {
			// If it cannot be found out, a skip that is repeated does no harm.
			if table.note, err = skippedFirst(ctx, admin, l); err != nil && !c.Yes {
				return err
			}
		}
		switch {
		case table.note != "" && skipsOnly(list):
			before++
			beforeRows += waitingIn(l)
		case c.Yes:
			if err := changeLane(ctx, admin, &l, list); err != nil {
				if failed++; failed <= lanesShown {
					fmt.Fprintf(std.err, "%s/%s to %s/%s: %v\n", l.info.GetSource().GetKind(), l.info.GetSource().GetId(),
						l.info.GetDestination().GetKind(), l.info.GetDestination().GetId(), err)
				}
				continue
			}
			table.note = skipNote(l, list)
		}
		if err := table.add(l); err != nil {
			return err
		}
	}
	if err := table.flush(); err != nil {
		return err
	}
	if before > 0 {
		fmt.Fprintf(std.err, "the first row of %s is skipped already: replay parked lanes, resume paused ones\n", number(uint64(before), "lane", "lanes"))
	}
	changed := number(uint64(table.lanes-before), "lane", "lanes")
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %s not changed", failed, count(len(lanes), "lane"))
	case before == len(lanes): // nothing is left to do
	case !c.Yes:
		fmt.Fprintf(std.err, "would %s %s with %s waiting; add --yes to do it\n", what, changed, number(table.rows-beforeRows, "row", "rows"))
	default:
		fmt.Fprintf(std.err, "%s: %s done\n", what, changed)
	}
	return nil
}

// statusName is the status of the lanes that a verb is for.
func statusName(from recordv1.Lane_Status) string {
	if from == anyStanding {
		return "parked or paused"
	}
	return strings.ToLower(from.String())
}

// skipNote tells what a lane that looks as before does not: that its first row has
// lost its event. It is "" after any other change.
func skipNote(l foundLane, done []*nodev1.ChangeLaneRequest) string {
	if !skipsOnly(done) {
		return ""
	}
	return skippedNote(l.info.GetLane(), done[0].GetSequence())
}

// skipsOnly reports whether a row is skipped and its lane left to stand.
func skipsOnly(steps []*nodev1.ChangeLaneRequest) bool {
	return len(steps) == 1 && steps[0].GetVerb() == nodev1.ChangeLaneRequest_SKIP
}

// changeLane carries out steps on a lane and keeps what it is afterwards.
func changeLane(ctx context.Context, admin nodev1.AdminServiceClient, l *foundLane, steps []*nodev1.ChangeLaneRequest) error {
	for _, req := range steps {
		req.Lane = &nodev1.LaneName{Source: l.info.GetSource(), Destination: l.info.GetDestination()}
		res, err := admin.ChangeLane(ctx, req)
		if err != nil {
			return err
		}
		l.info = res.GetLane()
	}
	return nil
}
