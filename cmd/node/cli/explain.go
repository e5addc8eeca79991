package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// explainCommand walks from a command over its commit, rows, deliveries and marks
// to the events that came of it, across nodes, and says what it finds.
type explainCommand struct {
	target  `embed:""`
	Tenant  string `default:"default" help:"Tenant of the entity."`
	Entity  string `placeholder:"KIND/ID" help:"The entity to explain; with --key, the entity that the key was used on."`
	Key     string `help:"Idempotency key to explain."`
	Command string `placeholder:"TYPE" help:"Full name of the key's command; without it all commands of the kind are tried."`
	Event   string `placeholder:"KIND/ID#N" help:"Event to explain: its source and its number there, or its epoch and number as lists print them (KIND/ID#EPOCH.N)."`
}

// explainDepth bounds the chain of events that is followed.
const explainDepth = 8

// explainer writes what it learns, a line at a time.
type explainer struct {
	admin nodev1.AdminServiceClient
	out   io.Writer
	now   time.Time
}

// Run implements the subcommand.
func (c *explainCommand) Run(ctx context.Context, std streams) error {
	asked, err := c.subject()
	if err != nil {
		return err
	}
	subject := asked.GetSource()
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	x := &explainer{admin: admin, out: std.out, now: time.Now()}
	seen, err := admin.Inspect(ctx, &nodev1.InspectRequest{Entity: subject, CommandType: c.Command, Key: []byte(c.Key)})
	if err != nil {
		return fmt.Errorf("inspect %s: %w", nameOf(subject), err)
	}
	switch {
	case c.Key != "":
		x.key(ctx, subject, c.Key, seen)
	case c.Event != "":
		x.event(ctx, asked, seen)
	default:
		x.entity(ctx, subject, seen)
	}
	return nil
}

// subject is the entity that is asked about, and the number of the event, with its
// epoch if one is given.
func (c *explainCommand) subject() (asked *recordv1.EventId, err error) {
	name := c.Entity
	asked = &recordv1.EventId{}
	if c.Event != "" {
		if c.Key != "" || c.Entity != "" {
			return nil, usage("give --event alone: it names its source")
		}
		at := strings.LastIndex(c.Event, "#")
		if at < 0 {
			return nil, usage("--event %q: give KIND/ID#N, e.g. account/alice#3", c.Event)
		}
		number := c.Event[at+1:]
		epoch, rest, both := strings.Cut(number, ".") // as lists print an event
		if both {
			number = rest
			if asked.Epoch, err = strconv.ParseUint(epoch, 10, 64); err != nil || asked.GetEpoch() == 0 {
				return nil, usage("--event %q: epochs are numbered from 1, e.g. account/alice#1.3", c.Event)
			}
		}
		if asked.Sequence, err = strconv.ParseUint(number, 10, 64); err != nil || asked.GetSequence() == 0 {
			return nil, usage("--event %q: events of a source are numbered from 1", c.Event)
		}
		name = c.Event[:at]
	}
	what := "--entity"
	switch {
	case c.Event != "":
		what = "the source of --event"
	case c.Entity == "" && c.Key != "":
		return nil, usage("say on which entity the key was used: --entity KIND/ID --key KEY")
	case c.Entity == "":
		return nil, usage("say what to explain: --entity KIND/ID, --entity KIND/ID --key KEY, or --event KIND/ID#N")
	}
	asked.Source, err = parseRef(what, c.Tenant, name)
	return asked, err
}

func nameOf(r *recordv1.Ref) string { return r.GetKind() + "/" + r.GetId() }

// say writes a line.
func (x *explainer) say(depth int, format string, args ...any) {
	fmt.Fprintln(x.out, strings.Repeat("  ", depth)+oneLine(fmt.Sprintf(format, args...)))
}

// ago is a wall clock time in words.
func (x *explainer) ago(unixNano int64) string {
	at := time.Unix(0, unixNano)
	return fmt.Sprintf("%s (%v ago)", at.UTC().Format("2006-01-02T15:04:05.000Z"), x.now.Sub(at).Round(time.Millisecond))
}

// where says who has answered.
func (x *explainer) where(ref *recordv1.Ref, seen *nodev1.InspectResponse) {
	x.say(0, "%s of tenant %s lives in shard %d, led by %s in term %d.", nameOf(ref), ref.GetTenant(), seen.GetShard(), seen.GetLeader(), seen.GetTerm())
}

// key explains a command.
func (x *explainer) key(ctx context.Context, ref *recordv1.Ref, key string, seen *nodev1.InspectResponse) {
	x.where(ref, seen)
	k, outcome := seen.GetKey().GetKey(), seen.GetKey().GetOutcome()
	if k == nil {
		x.say(0, "Nothing is stored under key %q: no command with it has been committed, or it has been forgotten.", key)
		if through := seen.GetExpiredThrough(); through != 0 {
			x.say(0, "Keys accepted up to %s have been forgotten.", x.ago(through))
		} else {
			x.say(0, "No key of this shard has been forgotten yet, so none was committed. It may be in flight: ask \"node outcome\".")
		}
		return
	}
	switch outcome.GetDecision() {
	case recordv1.Outcome_EXECUTED:
		x.say(0, "Key %q: %s was executed once, accepted %s; it made version %d.", key, k.GetCommandType(), x.ago(k.GetAcceptedAt()), outcome.GetVersion())
	case recordv1.Outcome_REJECTED:
		x.say(0, "Key %q: %s was rejected by rule, accepted %s: %s: %s. The state stayed, and every retry gets this answer.",
			key, k.GetCommandType(), x.ago(k.GetAcceptedAt()), outcome.GetReason(), outcome.GetMessage())
	case recordv1.Outcome_CANCELLED:
		x.say(0, "Key %q was cancelled %s: its command will never execute within the key's window.", key, x.ago(k.GetAcceptedAt()))
	case recordv1.Outcome_DECISION_UNSPECIFIED:
		x.say(0, "Key %q holds an outcome that this program does not know.", key)
	}
	x.say(0, "The key is remembered for at least another %v of log time.", time.Duration(max(0, k.GetExpiresAt()-seen.GetLogTime())).Round(time.Second))
	if outcome.GetDecision() != recordv1.Outcome_EXECUTED {
		return
	}
	waiting := x.rows(ctx, 1, ref, seen, func(row *recordv1.Row) bool { return emittedBy(k, outcome, row) })
	if waiting == 0 && outcome.GetRows() == 0 {
		x.say(0, "None of its events is waiting: it emitted none, or their destinations have confirmed them all.")
	}
	x.emitted(ctx, ref, seen, outcome)
	if seen.GetCut() {
		x.say(0, "%s has more outgoing lanes than the %d that were looked at.", nameOf(ref), len(seen.GetOutgoing()))
	}
	if id := traceID(outcome.GetTrace()); id != "" {
		x.say(0, "Its trace is %s: it shows the time and attempt of each delivery.", id)
	} else if outcome.GetRows() > 0 {
		x.say(0, "It was not traced: times and attempts of confirmed deliveries are not kept.")
	}
}

// emittedBy reports whether a command emitted a row. Its outcome names its rows by
// lane. One that names no lanes is matched by the time of acceptance, which two
// commands of an entity share if their clients gave both one time of issue that was
// ahead of the leader's clock.
func emittedBy(k *recordv1.Key, outcome *recordv1.Outcome, row *recordv1.Row) bool {
	if len(outcome.GetEmitted()) == 0 {
		return row.GetAcceptedAt() == k.GetAcceptedAt() && row.GetParent() == nil
	}
	for _, e := range outcome.GetEmitted() {
		if e.GetKind() == row.GetDestination().GetKind() && e.GetId() == row.GetDestination().GetId() {
			return row.GetLaneSequence() >= e.GetLaneSequence() && row.GetLaneSequence()-e.GetLaneSequence() < uint64(e.GetRows())
		}
	}
	return false
}

// emitted tells where a command's events went, and how far what came of them is.
// Their rows may be gone: the outcome names them by lane.
func (x *explainer) emitted(ctx context.Context, ref *recordv1.Ref, seen *nodev1.InspectResponse, outcome *recordv1.Outcome) {
	if outcome.GetRows() == 0 {
		return
	}
	x.say(0, "It emitted %s.", events(uint64(outcome.GetRows())))
	if len(outcome.GetEmitted()) == 0 {
		x.say(1, "They went to more lanes than its outcome names.")
		return
	}
	// Twice: events may move on while the walk goes from entity to entity. Where
	// nobody has emitted anything between the two, they have not.
	quiet := &explainer{admin: x.admin, out: io.Discard, now: x.now}
	before := quiet.walk(ctx, ref, seen, outcome)
	w := x.walk(ctx, ref, seen, outcome)
	switch {
	case w.waiting() > 0:
		x.say(0, "%s downstream and may come of it.", events(w.waiting())+wait(w.waiting()))
	case len(w.missed) > 0:
		x.say(0, "Nothing that was looked at is waiting, but not everything could be looked at: %s.", missedText(w.missed))
	case w.numbered != before.numbered:
		x.say(0, "Nothing waits downstream, but events moved while this was found out: ask again.")
	default:
		x.say(0, "Nothing waits downstream: all that came of it has been applied.")
	}
}

// walk follows a command's events from entity to entity.
func (x *explainer) walk(ctx context.Context, ref *recordv1.Ref, seen *nodev1.InspectResponse, outcome *recordv1.Outcome) *walk {
	w := &walk{seen: map[string]bool{}, lanes: map[[2]string]uint64{}}
	for _, e := range outcome.GetEmitted() {
		to := &recordv1.Ref{Tenant: ref.GetTenant(), Kind: e.GetKind(), Id: e.GetId()}
		there, err := x.admin.Inspect(ctx, &nodev1.InspectRequest{Entity: to, Source: ref})
		if err != nil {
			x.say(1, "%s in its lane to %s: its leader does not answer (%v).", rowsOf(e), nameOf(to), err)
			w.miss("the leader of %s does not answer", nameOf(to))
			continue
		}
		last := e.GetLaneSequence() + uint64(e.GetRows()) - 1
		open := laneTo(seen, to)
		lane := open.GetLane()
		x.say(1, "%s in its lane to %s: %s.", rowsOf(e), nameOf(to), delivered(open, last, there.GetApplied()))
		if open == nil { // not among the lanes that are shown
			w.miss("the lane from %s to %s is not among those that are shown", nameOf(ref), nameOf(to))
		} else if lane.GetConfirmed() < last {
			w.waits(ref, to, last-lane.GetConfirmed())
		}
		x.onward(ctx, 2, to, there, w)
	}
	return w
}

// walk is a walk along lanes, from entity to entity.
type walk struct {
	seen     map[string]bool
	numbered uint64   // events, of all entities seen
	missed   []string // what was not looked at, and why
	// lanes are the events that wait, by source and destination: a walk may come
	// back to a lane that it has counted.
	lanes map[[2]string]uint64
}

// miss notes that something was not looked at.
func (w *walk) miss(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(w.missed, text) {
		w.missed = append(w.missed, text)
	}
}

// missedText names the first things that were not looked at.
func missedText(missed []string) string {
	if more := len(missed) - missedShown; more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(missed[:missedShown], "; "), more)
	}
	return strings.Join(missed, "; ")
}

// waits notes that events wait in a lane.
func (w *walk) waits(from, to *recordv1.Ref, n uint64) {
	lane := [2]string{nameOf(from), nameOf(to)}
	w.lanes[lane] = max(w.lanes[lane], n)
}

// waiting are the events that wait.
func (w *walk) waiting() (n uint64) {
	for _, waits := range w.lanes {
		n += waits
	}
	return n
}

const (
	// entitiesWalked bounds a walk.
	entitiesWalked = 32
	// missedShown is how much of what a walk has missed is named.
	missedShown = 3
)

// onward tells what an entity has emitted, whatever it came of: what is confirmed
// keeps no mark of the event that it came of. Where all is confirmed, all that came
// of one event is as well.
func (x *explainer) onward(ctx context.Context, depth int, at *recordv1.Ref, seen *nodev1.InspectResponse, w *walk) {
	if w.seen[nameOf(at)] {
		return
	}
	w.seen[nameOf(at)] = true
	// Only what it emits counts: the statement has more sources than are ever shown.
	if seen.GetCut() {
		w.miss("%s has more outgoing lanes than the %d that are shown", nameOf(at), len(seen.GetOutgoing()))
	}
	for _, l := range seen.GetOutgoing() {
		to, lane := l.GetDestination(), l.GetLane()
		pending := lane.GetNumbered() - lane.GetConfirmed()
		w.numbered += lane.GetNumbered()
		text := "all confirmed"
		if pending > 0 {
			text = events(pending) + wait(pending)
			w.waits(at, to, pending)
		}
		x.say(depth, "%s has emitted %s to %s: %s.", nameOf(at), events(lane.GetNumbered()), nameOf(to), text)
		if w.seen[nameOf(to)] {
			continue
		}
		switch {
		case depth >= explainDepth:
			w.miss("%s is too far down the chain", nameOf(to))
			continue
		case len(w.seen) >= entitiesWalked:
			w.miss("more than %d entities would have to be asked", entitiesWalked)
			continue
		}
		there, err := x.admin.Inspect(ctx, &nodev1.InspectRequest{Entity: to, Source: at})
		if err != nil {
			x.say(depth+1, "The leader of %s does not answer (%v).", nameOf(to), err)
			w.miss("the leader of %s does not answer", nameOf(to))
			continue
		}
		x.onward(ctx, depth+1, to, there, w)
	}
}

// delivered says how far rows up to the last are.
func delivered(l *nodev1.InspectedLane, last, applied uint64) string {
	lane := l.GetLane()
	switch {
	case l == nil && applied >= last:
		return "applied there, once"
	case lane.GetConfirmed() >= last && lane.GetSkipped() > 0:
		return fmt.Sprintf("confirmed; of this lane an operator has skipped %d", lane.GetSkipped())
	case lane.GetConfirmed() >= last:
		return fmt.Sprintf("applied there, once, and confirmed; it has applied the lane up to row %d", applied)
	case applied >= last && standsSkipped(l):
		return skippedHere(l)
	case applied >= last:
		return "applied there; the confirmation is on its way back"
	}
	return fmt.Sprintf("applied there up to row %d", applied)
}

// standsSkipped reports whether an operator has skipped the first row of a lane that
// still stands: the reason that is stored with it is that of the event, and no longer
// holds.
func standsSkipped(l *nodev1.InspectedLane) bool {
	rows := l.GetRows()
	return l.GetLane().GetStatus() != recordv1.Lane_ACTIVE && len(rows) > 0 && rows[0].GetEvent() == nil
}

// skippedHere says how such a lane goes on.
func skippedHere(l *nodev1.InspectedLane) string {
	return fmt.Sprintf("event %d was skipped by an operator, and the lane stands still until \"node lanes %s %s\"",
		l.GetRows()[0].GetSequence(), goesOn(l.GetLane()), laneFlags(l))
}

// laneFlags are the filters that pick a lane with rows, and no other one: a person
// types what is read here.
func laneFlags(l *nodev1.InspectedLane) string {
	source := l.GetRows()[0].GetSource()
	flags := fmt.Sprintf("--entity %s --destination %s", shellWord(nameOf(source)), shellWord(nameOf(l.GetDestination())))
	if tenant := source.GetTenant(); tenant != gateway.DefaultTenant {
		flags = "--tenant " + shellWord(tenant) + " " + flags
	}
	return flags
}

func laneTo(seen *nodev1.InspectResponse, to *recordv1.Ref) *nodev1.InspectedLane {
	for _, l := range seen.GetOutgoing() {
		if nameOf(l.GetDestination()) == nameOf(to) {
			return l
		}
	}
	return nil // cut off: nothing is known of it
}

func rowsOf(e *recordv1.Emitted) string {
	if e.GetRows() == 1 {
		return fmt.Sprintf("Row %d", e.GetLaneSequence())
	}
	return fmt.Sprintf("Rows %d to %d", e.GetLaneSequence(), e.GetLaneSequence()+uint64(e.GetRows())-1)
}

func events(n uint64) string {
	if n == 1 {
		return "1 event"
	}
	return fmt.Sprintf("%d events", n)
}

func wait(n uint64) string {
	if n == 1 {
		return " waits"
	}
	return " wait"
}

// traceID is the trace of a W3C traceparent, "" if it is none.
func traceID(traceparent string) string {
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 {
		return ""
	}
	return parts[1]
}

// event explains one event.
func (x *explainer) event(ctx context.Context, asked *recordv1.EventId, seen *nodev1.InspectResponse) {
	source, number := asked.GetSource(), asked.GetSequence()
	x.where(source, seen)
	if last := seen.GetEntity().GetSourceSequence(); number > last {
		x.say(0, "Event %d does not exist: %s has emitted %d.", number, nameOf(source), last)
		return
	}
	var other uint64 // epoch of a row with this number that is not the one asked for
	if x.rows(ctx, 0, source, seen, func(row *recordv1.Row) bool {
		if row.GetSequence() != number {
			return false
		}
		if asked.GetEpoch() != 0 && asked.GetEpoch() != row.GetEpoch() {
			other = row.GetEpoch()
			return false
		}
		return true
	}) > 0 {
		return
	}
	if other != 0 {
		x.say(0, "Event %d that waits is of epoch %d, not %d: ask for %s#%d.%d.", number, other, asked.GetEpoch(), nameOf(source), other, number)
		return
	}
	if beyond(seen, number) {
		x.say(0, "Event %d comes after the first %d rows of its lane, or is in a lane that is not shown: it waits for those before it.", number, rowsShown(seen))
		return
	}
	x.say(0, "Event %d is confirmed: its destination has applied it once, or an operator has skipped it. Its row is gone.", number)
	if asked.GetEpoch() != 0 {
		x.say(0, "That it was of epoch %d is not checked: only rows say.", asked.GetEpoch())
	}
}

// beyond reports whether an event may wait in a part of the outbox that was cut off.
func beyond(seen *nodev1.InspectResponse, number uint64) bool {
	if seen.GetCut() {
		return true
	}
	for _, l := range seen.GetOutgoing() {
		rows := l.GetRows()
		if n := len(rows); n > 0 && l.GetLane().GetNumbered()-l.GetLane().GetConfirmed() > uint64(n) && rows[n-1].GetSequence() < number {
			return true
		}
	}
	return false
}

func rowsShown(seen *nodev1.InspectResponse) int {
	most := 0
	for _, l := range seen.GetOutgoing() {
		most = max(most, len(l.GetRows()))
	}
	return most
}

// entity explains where an entity stands.
func (x *explainer) entity(ctx context.Context, ref *recordv1.Ref, seen *nodev1.InspectResponse) {
	x.where(ref, seen)
	e := seen.GetEntity()
	if e == nil {
		x.say(0, "It has never handled anything.")
		return
	}
	x.say(0, "Version %d; %s decided under a key; %s emitted.", e.GetVersion(), count(e.GetDecided(), "command"), events(e.GetSourceSequence()))
	if e.GetDeleted() {
		x.say(0, "It is deleted; version and counters stay.")
	}
	for _, l := range seen.GetIncoming() {
		x.say(0, "From %s it has applied %s.", nameOf(l.GetSource()), events(l.GetApplied()))
	}
	for _, l := range seen.GetOutgoing() {
		lane := l.GetLane()
		x.say(0, "To %s it has emitted %s; confirmed: %d; skipped: %d.", nameOf(l.GetDestination()), events(lane.GetNumbered()), lane.GetConfirmed(), lane.GetSkipped())
		if len(l.GetRows()) > 0 {
			x.say(1, "%s", x.why(l, l.GetRows()[0], x.destination(ctx, l)))
		}
	}
	if seen.GetCutIncoming() {
		x.say(0, "There are more lanes to it than are shown here.")
	}
	if seen.GetCut() {
		x.say(0, "There are more lanes from it than are shown here.")
	}
}

// rows explains the waiting rows that are wanted, and counts them.
func (x *explainer) rows(ctx context.Context, depth int, source *recordv1.Ref, seen *nodev1.InspectResponse, wanted func(*recordv1.Row) bool) int {
	n := 0
	for _, l := range seen.GetOutgoing() {
		var there *destinationView
		for _, row := range l.GetRows() {
			if !wanted(row) {
				continue
			}
			n++
			if there == nil {
				there = x.destination(ctx, l)
			}
			x.say(depth, "Event %d of %s, %s, is row %d of its lane to %s, accepted %s.", row.GetSequence(), nameOf(source),
				or(row.GetEvent().GetType(), "skipped by an operator"), row.GetLaneSequence(), nameOf(l.GetDestination()), x.ago(row.GetAcceptedAt()))
			x.say(depth+1, "%s", x.why(l, row, there))
			if there.seen != nil && depth < explainDepth {
				x.downstream(ctx, depth+1, l.GetDestination(), there.seen, row)
			}
		}
	}
	return n
}

// downstream explains the events that came of a row and still wait.
func (x *explainer) downstream(ctx context.Context, depth int, at *recordv1.Ref, seen *nodev1.InspectResponse, row *recordv1.Row) {
	x.rows(ctx, depth, at, seen, func(next *recordv1.Row) bool {
		parent := next.GetParent()
		return parent != nil && parent.GetSequence() == row.GetSequence() && parent.GetEpoch() == row.GetEpoch() &&
			nameOf(parent.GetSource()) == nameOf(row.GetSource())
	})
}

// destinationView is what the far end of a lane says.
type destinationView struct {
	seen *nodev1.InspectResponse // nil if it does not answer
	err  error
}

func (x *explainer) destination(ctx context.Context, l *nodev1.InspectedLane) *destinationView {
	seen, err := x.admin.Inspect(ctx, &nodev1.InspectRequest{Entity: l.GetDestination(), Source: l.GetRows()[0].GetSource()})
	return &destinationView{seen: seen, err: err}
}

// why says what a row waits for.
func (x *explainer) why(l *nodev1.InspectedLane, row *recordv1.Row, there *destinationView) string {
	lane, to := l.GetLane(), nameOf(l.GetDestination())
	switch {
	case standsSkipped(l):
		return fmt.Sprintf("The lane waits: %s.", skippedHere(l))
	case there.err == nil && row.GetLaneSequence() <= there.seen.GetApplied() && row.GetEvent() == nil:
		return "The lane goes on without it; the confirmation is on its way back."
	case there.err == nil && row.GetLaneSequence() <= there.seen.GetApplied():
		return fmt.Sprintf("%s has applied it; the confirmation is on its way back.", to)
	case lane.GetStatus() == recordv1.Lane_PARKED:
		return fmt.Sprintf("The lane is parked at row %d after %s: %s. It stands still until \"node lanes replay %[4]s\" or \"node lanes skip %[4]s\".",
			lane.GetConfirmed()+1, number(uint64(lane.GetAttempts()), "refused delivery", "refused deliveries"), lane.GetReason(), laneFlags(l))
	case lane.GetStatus() == recordv1.Lane_PAUSED:
		return fmt.Sprintf("An operator has paused the lane: %s.", lane.GetReason())
	case there.err != nil:
		return fmt.Sprintf("The leader of %s does not answer (%v): it is sent again until it does, which costs no attempt.", to, there.err)
	case lane.GetAttempts() > 0:
		return fmt.Sprintf("Row %d was refused (%s): %s. It is tried again; rows behind it wait.", lane.GetConfirmed()+1, count(lane.GetAttempts(), "attempt"), lane.GetReason())
	case row.GetLaneSequence() > there.seen.GetApplied()+1:
		return fmt.Sprintf("%s has applied the lane up to row %d: the rows between come first.", to, there.seen.GetApplied())
	}
	return fmt.Sprintf("It is next at %s and on its way.", to)
}
