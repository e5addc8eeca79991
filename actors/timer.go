package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/internal/trace"
	recordv1 "writ/proto/writ/record/v1"
)

const (
	// timerName is the longest name of a timer: a key is made of it.
	timerName = 200
	// timerCommands begin the command types under which timers' commands are
	// decided: no message has such a name, so no client's key can be one of theirs.
	timerCommands = "timer "
	// timersMost bounds the timers of an entity that is deleted.
	timersMost = 100_000
)

// timerKey names one setting of a timer: however often it is tried, its command is
// decided once.
func timerKey(command, name string, set uint64) keyID {
	return keyID{timerCommands + command, fmt.Sprintf("%d/%s", set, name)}
}

// timerChanges is what a decision makes of the entity's timers, by name; nil is
// gone. The order is that of the mutations.
type timerChanges struct {
	names  []string
	byName map[string]*recordv1.Timer
}

func (t *timerChanges) put(name string, timer *recordv1.Timer) {
	if t.byName == nil {
		t.byName = map[string]*recordv1.Timer{}
	}
	if _, known := t.byName[name]; !known {
		t.names = append(t.names, name)
	}
	t.byName[name] = timer
}

// pendingTimer is a timer as a commit in flight leaves it.
type pendingTimer struct {
	timer *recordv1.Timer // nil: gone
	by    uint64          // version that the commit leads to
}

// timer is a timer as the next message finds it, nil if there is none.
func (a *activation) timer(name string) (*recordv1.Timer, error) {
	if p, pending := a.timers[name]; pending {
		return p.timer, nil
	}
	return a.shard.store.Timer(a.ref, name)
}

// composeTimers adds to a commit what a handler did to timers. fired is the timer
// whose message it handled, if any: what the handler says of it counts more.
func (a *activation) composeTimers(commit *recordv1.Commit, d *decision, from origin) error {
	changes := &timerChanges{}
	if d.fired != nil {
		changes.put(d.fired.name, a.rearmed(d.fired.timer, d.now, commit))
	}
	for _, change := range d.timers {
		if change.Name == "" || !validName(change.Name, timerName) {
			return a.handlerFailed("it named a timer %q", cut(change.Name, 64))
		}
		timer, err := a.changed(changes, change, d.now, from)
		if err != nil {
			return err
		}
		if timer == nil && (change.Set != nil || !change.MoveTo.IsZero()) {
			continue // moved, but there is none
		}
		if timer != nil {
			timer.Set, timer.Term = commit.GetBaseVersion()+1, a.lease.Term()
		}
		changes.put(change.Name, timer)
	}
	if len(changes.names) > a.rt.cfg.Limits.Timers {
		return entity.TooMany("changed timers", limitName("Timers"), len(changes.names), a.rt.cfg.Limits.Timers)
	}
	if d.deleted {
		if err := a.cancelAll(changes); err != nil {
			return err
		}
	}
	return a.addTimers(commit, d, changes)
}

// addTimers puts changes of timers into a commit and into its decision.
func (a *activation) addTimers(commit *recordv1.Commit, d *decision, changes *timerChanges) error {
	for _, name := range changes.names {
		m := &recordv1.Mutation{Bucket: recordv1.Bucket_TIMERS, Subkey: []byte(name)}
		if timer := changes.byName[name]; timer == nil {
			m.Delete = true
		} else {
			data, err := proto.MarshalOptions{Deterministic: true}.Marshal(timer)
			if err != nil {
				return a.handlerFailed("its timer: %v", err)
			}
			m.Value = &recordv1.Payload{Type: string(timer.ProtoReflect().Descriptor().FullName()), Schema: 1, Data: data}
		}
		commit.Mutations = append(commit.Mutations, m)
	}
	d.changes = changes
	return nil
}

// changed is a timer after a change; nil if it is cancelled, or moved and not there.
func (a *activation) changed(changes *timerChanges, change entity.TimerChange, now time.Time, from origin) (*recordv1.Timer, error) {
	if change.Set != nil {
		return a.newTimer(change.Set, now, from)
	}
	if change.MoveTo.IsZero() {
		return nil, nil
	}
	timer, known := changes.byName[change.Name]
	if !known {
		var err error
		if timer, err = a.timer(change.Name); err != nil {
			return nil, a.unreadTimer(err)
		}
	}
	if timer == nil {
		return nil, nil
	}
	timer = proto.CloneOf(timer)
	timer.Due, timer.Attempts, timer.Reason = dueAt(change.MoveTo), 0, ""
	timer.Next = timer.GetDue()
	return timer, nil
}

func (a *activation) unreadTimer(err error) error {
	a.rt.log.Error("cannot read a timer", a.attr(), errAttr(err))
	return entity.Errorf(entity.NotExecuted, "a timer could not be read: retry with the same key; the log of node %s says why", a.rt.cfg.Node)
}

// dueAt is a time as timers have it: 0 is none.
func dueAt(at time.Time) int64 { return max(1, nanos(at)) }

// newTimer makes a timer of what a handler has set.
func (a *activation) newTimer(set *entity.Timer, now time.Time, from origin) (*recordv1.Timer, error) {
	message := set.Command
	if set.Event != nil {
		message = set.Event
	}
	switch {
	case (set.Command == nil) == (set.Event == nil) || !message.ProtoReflect().IsValid():
		return nil, a.handlerFailed("it set a timer with no message, or with two")
	case set.Command != nil && a.def.Command(string(message.ProtoReflect().Descriptor().FullName())) == nil:
		return nil, a.handlerFailed("it set a timer for command %s, which the kind does not handle", message.ProtoReflect().Descriptor().FullName())
	case set.Event != nil && (!validName(set.To.Kind, maxKind) || !validName(set.To.ID, a.rt.cfg.Limits.Name)):
		return nil, a.handlerFailed("it set a timer for an event to kind %q, id %q of %d bytes: a kind is a text of 1 to %d bytes, an id of 1 to %d",
			cut(set.To.Kind, maxKind), cut(set.To.ID, 32), len(set.To.ID), maxKind, a.rt.cfg.Limits.Name)
	case set.Every != 0 && set.Every < time.Millisecond:
		return nil, a.handlerFailed("it set a timer for every %v", set.Every)
	}
	payload, err := a.encode(message)
	if err != nil {
		return nil, a.handlerFailed("its timer: %v", err)
	}
	if size, most := len(payload.GetData()), a.rt.cfg.Limits.Event; size > most {
		return nil, tooLarge("timer's message", "Event", size, most)
	}
	at := set.At
	if at.IsZero() {
		at = now.Add(set.After)
	}
	timer := &recordv1.Timer{Due: dueAt(at), Message: payload, Every: int64(set.Every), Trace: from.trace}
	timer.Next = timer.GetDue()
	if set.Event != nil {
		timer.Destination = &recordv1.Ref{Tenant: a.ref.Tenant, Kind: set.To.Kind, Id: set.To.ID}
	}
	switch set.CatchUp {
	case entity.CatchUpOnce:
	case entity.CatchUpSkip:
		timer.CatchUp = recordv1.Timer_SKIP
	case entity.CatchUpAll:
		timer.CatchUp = recordv1.Timer_ALL
	}
	return timer, nil
}

// rearmed is a timer after it has fired: nil, or its next time.
func (a *activation) rearmed(fired *recordv1.Timer, now time.Time, commit *recordv1.Commit) *recordv1.Timer {
	every := fired.GetEvery()
	if every == 0 {
		return nil
	}
	timer := proto.CloneOf(fired)
	timer.Due = later(timer.GetDue(), time.Duration(every))
	if late := now.UnixNano() - timer.GetDue(); late >= 0 && timer.GetCatchUp() != recordv1.Timer_ALL {
		timer.Due = later(timer.GetDue()+late/every*every, time.Duration(every))
	}
	timer.Next, timer.Attempts, timer.Reason = timer.GetDue(), 0, ""
	timer.Set, timer.Term = commit.GetBaseVersion()+1, a.lease.Term()
	return timer
}

// cancelAll cancels every timer that the entity has, those of commits in flight
// included.
func (a *activation) cancelAll(changes *timerChanges) error {
	names, err := a.shard.store.TimerNames(a.ref, timersMost+1)
	if err != nil {
		return a.unreadTimer(err)
	}
	if len(names) > timersMost {
		return entity.TooMany("timers", "timers of an entity that can be deleted", len(names), timersMost)
	}
	for _, name := range names {
		changes.put(name, nil)
	}
	for name := range a.timers {
		changes.put(name, nil)
	}
	for _, name := range changes.names {
		changes.byName[name] = nil
	}
	return nil
}

// proposedTimers lets the next message find the timers as they will be.
func (a *activation) proposedTimers(p *proposal) {
	if p.timers == nil {
		return
	}
	if a.timers == nil {
		a.timers = map[string]pendingTimer{}
	}
	for name, timer := range p.timers.byName {
		a.timers[name] = pendingTimer{timer, p.after.version}
	}
}

// committedTimers tells the gate when the next of them is due.
func (a *activation) committedTimers(p *proposal) {
	if p.timers == nil {
		return
	}
	next := int64(0)
	for name, timer := range p.timers.byName {
		if a.timers[name].by == p.after.version {
			delete(a.timers, name)
		}
		if at := timer.GetNext(); at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	if next != 0 {
		a.tellGate(&timerSet{a.lease, next})
	}
}

// firing is a timer whose time has come.
type firing struct {
	name string
	set  uint64
}

// firedTimer is the timer whose message is in hand.
type firedTimer struct {
	name  string
	timer *recordv1.Timer
	span  trace.Span // nil: not traced
}

// fire does what a timer says, unless it was moved, cancelled or done meanwhile.
func (a *activation) fire(c *call, f *firing) {
	timer, err := a.timer(f.name)
	if err != nil {
		c.refuse(a.unreadTimer(err))
		return
	}
	now := a.rt.cfg.Clock()
	switch {
	case timer.GetSet() != f.set || timer.GetNext() == 0:
		a.settled(func(err error) { c.answer(nil, ownless(err)) })
		return
	case tooEarly(timer, a.lease.Term(), now, a.rt.cfg.TimerSkew):
		c.refuse(entity.Errorf(entity.NotExecuted, "the timer is not due yet"))
		return
	}
	if err := a.admitTimer(); err != nil {
		c.refuse(err)
		return
	}
	fired := &firedTimer{name: f.name, timer: timer}
	late := now.UnixNano() - timer.GetDue()
	switch {
	case timer.GetEvery() > 0 && timer.GetCatchUp() == recordv1.Timer_SKIP && late >= timer.GetEvery():
		d := &decision{state: a.current.state, now: now, fired: fired}
		a.concludeTimer(c, d, a.emptyCommit(), late, TimersSkipped)
	case timer.GetDestination() != nil:
		a.fireEvent(c, fired, now, late)
	default:
		a.fireCommand(c, fired, now, late)
	}
}

// tooEarly reports that a timer must wait. One that was set in another term, maybe
// by another node's clock, waits longer.
func tooEarly(timer *recordv1.Timer, term uint64, now time.Time, skew time.Duration) bool {
	return now.UnixNano() < effective(timer, term, skew)
}

// effective is when a timer may be tried in a term.
func effective(timer *recordv1.Timer, term uint64, skew time.Duration) int64 {
	if timer.GetTerm() == term {
		return timer.GetNext()
	}
	return later(timer.GetNext(), skew)
}

// admitTimer: a timer waits where a command would be refused.
func (a *activation) admitTimer() error {
	if a.out.pending >= a.rt.cfg.Limits.Outbox {
		return a.outboxFull()
	}
	return a.room()
}

// fireEvent writes the row of a delayed event and gives it its numbers.
func (a *activation) fireEvent(c *call, fired *firedTimer, now time.Time, late int64) {
	d := &decision{state: a.current.state, now: now, fired: fired}
	to := fromRef(fired.timer.GetDestination())
	numbered, err := a.numbered(to)
	if err != nil {
		c.refuse(err)
		return
	}
	commit := a.emptyCommit()
	fired.span = a.fireSpan(fired.name, fired.timer)
	commit.Rows = []*recordv1.Row{{
		Source: toRef(a.ref), Epoch: a.lease.Epoch(), Sequence: a.sequence + 1, Destination: toRef(to), LaneSequence: numbered + 1,
		Event: fired.timer.GetMessage(), AcceptedAt: now.UnixNano(), Hops: 1, Trace: traceAfter(fired.span, fired.timer.GetTrace()),
	}}
	a.concludeTimer(c, d, commit, late, TimersFired)
}

// fireCommand runs a timer's command and stores its outcome under the timer's key.
func (a *activation) fireCommand(c *call, fired *firedTimer, now time.Time, late int64) {
	timer := fired.timer
	name := timer.GetMessage().GetType()
	var h *entity.Handler
	if a.def != nil {
		h = a.def.Command(name)
	}
	if h == nil {
		a.unknownTimer(c, fired, now, late, "the kind does not handle command "+name)
		return
	}
	command := h.Type.New().Interface()
	if err := proto.Unmarshal(timer.GetMessage().GetData(), command); err != nil {
		a.failTimer(c, fired, now, "the command's bytes are not a "+name, true)
		return
	}
	if path, found := entity.UnknownField(command); found {
		a.unknownTimer(c, fired, now, late, "command "+name+" has a field that the node does not know: "+cut(path, 256))
		return
	}
	id := timerKey(name, fired.name, timer.GetSet())
	hand := commandInHand(a.ref, id.commandType, id.key)
	if a.rt.cfg.Hands.Count(hand) {
		a.failTimer(c, fired, now, a.crashReason(), false)
		return
	}
	ctx := entity.NewContext(a.ref, entity.Ref{}, now.UTC())
	ctx.SetDue(time.Unix(0, timer.GetDue()).UTC())
	fired.span = a.fireSpan(fired.name, timer)
	d, commit, result, err := a.execute(h, ctx, command, hand, fired, origin{acceptedAt: now.UnixNano(), trace: traceAfter(fired.span, timer.GetTrace()), hops: 1})
	if err != nil {
		endSpan(fired.span, err)
		if _, failed := errors.AsType[*handlerError](err); failed {
			a.breakOff()
		} else if entity.ReasonOf(err) == entity.NotExecuted {
			c.refuse(err)
			return
		}
		a.failTimer(c, fired, now, err.Error(), false)
		return
	}
	result.Trace = traceAfter(fired.span, "")
	commit.Key = &recordv1.Key{
		CommandType: id.commandType, Key: []byte(id.key), AcceptedAt: now.UnixNano(),
		FingerprintAlgorithm: entity.FingerprintAlgorithm, Fingerprint: entity.Fingerprint(command),
		ExpiresAt: a.expiry(),
	}
	commit.Outcome = result
	if size := proto.Size(commit); size > a.rt.cfg.Limits.Record {
		err := tooLarge("record", "Record", size, a.rt.cfg.Limits.Record)
		endSpan(fired.span, err)
		a.failTimer(c, fired, now, err.Error(), false)
		return
	}
	a.concludeTimer(c, d, commit, late, TimersFired)
}

// unknownTimer deals with a timer that this node does not know how to do: set by a
// newer node, in a rolling upgrade. It waits for this node's upgrade, and is parked
// only when it is late by more than that takes.
func (a *activation) unknownTimer(c *call, fired *firedTimer, now time.Time, late int64, reason string) {
	if late < int64(a.rt.cfg.UpgradePatience) {
		c.refuse(entity.Errorf(entity.NotExecuted, "%s", reason))
		return
	}
	a.failTimer(c, fired, now, reason, true)
}

// concludeTimer proposes the commit of a timer that was done. A decision that a
// handler made brings its changes of timers along; any other has its timer set
// anew, or removed.
func (a *activation) concludeTimer(c *call, d *decision, commit *recordv1.Commit, late int64, as Counter) {
	if d.changes == nil {
		if err := a.composeTimers(commit, d, origin{}); err != nil {
			endSpan(d.fired.span, err)
			c.refuse(err)
			return
		}
	}
	p := &proposal{commit: commit, after: snapshot{commit.GetBaseVersion() + 1, d.state}, timers: d.changes}
	if d.fired.span != nil {
		p.then = append(p.then, d.fired.span.End)
	}
	p.then = append(p.then, func(err error) {
		if err == nil {
			a.rt.cfg.Metrics.Add(as, lateness(late), 1)
			a.rt.cfg.Metrics.Add(TimerLateness, "", int(late/int64(time.Millisecond)))
		}
		c.answer(nil, err)
	})
	if key := commit.GetKey(); key != nil {
		a.keep(keyID{key.GetCommandType(), string(key.GetKey())}, p)
	}
	a.advance(p)
}

// lateness classes how late a timer fired: a label.
func lateness(late int64) string {
	for _, class := range []struct {
		most time.Duration
		name string
	}{{100 * time.Millisecond, "100ms"}, {time.Second, "1s"}, {10 * time.Second, "10s"}, {time.Minute, "1m"}} {
		if late <= int64(class.most) {
			return class.name
		}
	}
	return "more"
}

// failTimer counts a failure through the log. The timer is tried again later; after
// too many it is parked, until a handler moves, sets or cancels it.
func (a *activation) failTimer(c *call, fired *firedTimer, now time.Time, reason string, park bool) {
	timer := proto.CloneOf(fired.timer)
	timer.Attempts++
	timer.Reason = cut(reason, a.rt.cfg.Limits.Text)
	most := a.rt.cfg.MaxAttempts
	if strings.HasPrefix(reason, crashed) {
		most = a.rt.cfg.MaxCrashes
	}
	retry := a.rt.cfg.Retry
	pause := retry.First
	for range timer.GetAttempts() {
		pause = min(2*pause, retry.Most)
	}
	timer.Next, timer.Term = now.Add(pause).UnixNano(), a.lease.Term()
	parked := park || int(timer.GetAttempts()) >= most
	if parked {
		timer.Next = 0
	}
	changes := &timerChanges{}
	changes.put(fired.name, timer)
	d := &decision{state: a.current.state}
	commit := a.emptyCommit()
	if err := a.addTimers(commit, d, changes); err != nil {
		c.refuse(err)
		return
	}
	p := &proposal{commit: commit, after: snapshot{commit.GetBaseVersion() + 1, a.current.state}, timers: changes}
	p.then = []func(error){func(err error) {
		if err == nil {
			a.rt.cfg.Metrics.Add(TimersFailed, "", 1)
			if parked {
				a.rt.cfg.Metrics.Add(TimersParked, "", 1)
				a.rt.log.Warn("a timer is parked", a.attr(), slog.String("timer", fired.name), slog.String("reason", timer.GetReason()))
			}
		}
		c.answer(nil, err)
	}}
	a.advance(p)
}
