package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"writ/actors/entity"
	"writ/internal/fault"
	"writ/internal/mutant"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// lane is the sending side of one lane. Its life:
//
//	pump: queue a job ─► worker takes rows (taken) ─► delivers (sent)
//	  applied   ─► confirm through the log, pump on
//	  gap       ─► rewind to applied + 1; gone there ─► park
//	  refused   ─► confirm what was applied, count the attempt through the log,
//	               pause, send again; too many ─► park
//	  skipped   ─► note it through the log, send again without the event
//	  trouble   ─► pause, send again
//
// A rewind begins a new turn: answers of jobs from earlier turns only tell how far
// the destination is.
type lane struct {
	to    entity.Ref
	state laneState // committed
	acked uint64    // the destination has applied up to here
	next  uint64    // to be sent next

	turn   int
	jobs   int  // queued or in flight, of all turns
	window int  // jobs at once; 1 until the first success
	apart  int  // successes until there may be several at once again
	newest *job // its extent is not known yet
	drain  bool // jobs of an earlier turn must come back first
	epoch  uint64
	alone  bool // the next row is of another epoch: nothing may overtake it

	pause    pause
	timer    *time.Timer
	naps     int // pauses so far
	delay    backoff.ExponentialBackOff
	failures int // since the last success
	// unknown is when the destination's node first did not know the kind or the
	// event of the next row, since the last success. Zero: it did.
	unknown  time.Time
	marking  bool // a confirmation is in flight
	unwell   bool // a lane update has failed: none before the pause is over
	decision *decisionOnRow
}

// pause says why a lane is not sent although rows wait.
type pause int

const (
	pauseNone pause = iota
	// pauseTrouble: the way is not open; ends early when routes change.
	pauseTrouble
	// pauseRefused: the destination refused the row; ends with time only.
	pauseRefused
)

// decisionOnRow is what must be in the log before a refused row is sent again.
type decisionOnRow struct {
	sequence uint64
	kind     nodev1.Refusal_Kind
	reason   string
	park     bool // at once, without counting
	skip     bool // its destination has skipped it
	proposed bool
}

// job is one delivery. Only lane, turn and from are looked at by the relay.
type job struct {
	lane      *lane
	turn      int
	from      uint64
	epoch     uint64 // of the rows in flight; 0: any
	confirmed uint64 // before the job
	rows      int    // at most
	attempt   int    // 1, and one more for each failure and refusal since the lane's last success
}

// taken says how far a job's batch goes, so that the next one can follow.
type taken struct {
	job         *job
	last, epoch uint64
}

// sent is what became of a job.
type sent struct {
	job         *job
	first, last uint64 // what was sent; 0: nothing
	answer      *nodev1.DeliverResponse
	err         error
	skipped     uint64 // row that the destination has skipped and whose event is still here; 0: none
	gone        bool   // the row is not in the outbox
	wait        bool   // the row is of another epoch than those in flight
}

// wake ends a pause, unless it was ended before.
type wake struct {
	lane *lane
	nap  int
}

// marked is the verdict of a lane update.
type marked struct {
	lane   *lane
	update *recordv1.LaneUpdate
	err    error
}

// rewind begins a new turn after what the destination has.
func (l *lane) rewind() {
	l.turn++
	l.next = l.acked + 1
	l.window, l.newest, l.alone = 1, nil, false
	l.drain = l.jobs > 0
}

// recover forgets troubles.
func (l *lane) recover() {
	l.failures, l.unknown = 0, time.Time{}
	l.delay.Reset()
}

func (l *lane) stopTimer() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.naps++
	l.pause = pauseNone
}

// spent reports whether nothing is to be done in the lane, and nothing on its way.
func (l *lane) spent() bool {
	return !l.state.open() && l.acked <= l.state.confirmed && l.jobs == 0 && !l.marking && l.decision == nil && !l.unwell
}

// pump queues the next job of a lane if there may be one.
func (r *relay) pump(l *lane) {
	switch {
	case r.ending || !l.state.open() || l.next > l.state.numbered:
	case l.pause != pauseNone || l.decision != nil || l.drain:
	case l.newest != nil || l.jobs >= l.window || (l.alone && l.jobs > 0):
	default:
		j := &job{lane: l, turn: l.turn, from: l.next, confirmed: l.state.confirmed, rows: batchRows, attempt: 1 + l.failures + int(l.state.attempts)}
		if l.failures > 0 || l.state.attempts > 0 {
			j.rows = 1 // a probe: what is sent in vain should be little
		}
		if l.jobs > 0 {
			j.epoch = l.epoch
		}
		l.jobs++
		l.newest, l.alone = j, false
		to := r.rt.healthy
		if l.failures > 0 {
			to = r.rt.troubled
		}
		work := r.work(l.to)
		to.run(l.to, func() { work(j) })
	}
}

// work makes the part of a job that runs on a sender's goroutine: it touches
// nothing of the relay.
func (r *relay) work(to entity.Ref) func(*job) {
	rt, self, store, ref, deliver := r.rt, r.self, r.shard.store, r.ref, r.deliver
	stopped := r.stopped
	return func(j *job) {
		if stopped() {
			return // the relay waits for no jobs
		}
		rows, err := store.Rows(ref, to, j.from, j.rows, batchBytes)
		switch {
		case err != nil:
			rt.send(self, &sent{job: j, err: fmt.Errorf("read rows: %w", err)})
			return
		case len(rows) == 0 || rows[0].GetLaneSequence() != j.from:
			rt.send(self, &sent{job: j, gone: true})
			return
		case j.epoch != 0 && rows[0].GetEpoch() != j.epoch:
			rt.send(self, &sent{job: j, wait: true})
			return
		}
		rows = oneEpoch(rows)
		first, last := j.from, rows[len(rows)-1].GetLaneSequence()
		rt.send(self, &taken{job: j, last: last, epoch: rows[0].GetEpoch()})
		if err := fault.Point(fault.BeforeSend); err != nil {
			rt.send(self, &sent{job: j, first: first, last: last, err: err})
			return
		}
		spans := rt.sendSpans(j, rows)
		answer, err := deliver(&nodev1.DeliverRequest{Rows: rows})
		if lost := fault.Point(fault.AfterSend); lost != nil {
			answer, err = nil, lost
		}
		if err == nil && answer == nil {
			err = errors.New("no answer")
		}
		endSends(spans, rows, answer, err)
		m := &sent{job: j, first: first, last: last, answer: answer, err: err}
		if n := answer.GetSkipped(); err == nil && n > j.confirmed && n <= last {
			m.skipped, m.err = halfSkipped(store, ref, to, n)
		}
		rt.send(self, m)
	}
}

// halfSkipped is a row that its destination has skipped, if its event is still in
// the outbox: the operator's skip has not reached the lane's own record. 0: it has.
func halfSkipped(store Store, source, destination entity.Ref, sequence uint64) (uint64, error) {
	rows, err := store.Rows(source, destination, sequence, 1, 0)
	switch {
	case err != nil:
		return 0, fmt.Errorf("read a skipped row: %w", err)
	case len(rows) == 0 || rows[0].GetLaneSequence() != sequence || rows[0].GetEvent() == nil:
		return 0, nil
	}
	return sequence, nil
}

// oneEpoch cuts a batch where the epoch changes.
func oneEpoch(rows []*recordv1.Row) []*recordv1.Row {
	for i, row := range rows {
		if row.GetEpoch() != rows[0].GetEpoch() {
			return rows[:i]
		}
	}
	return rows
}

// taken lets the next job follow.
func (r *relay) taken(m *taken) {
	l := m.job.lane
	if l.newest != m.job {
		return
	}
	if l.epoch != 0 && l.epoch != m.epoch && !mutant.Off(mutant.EpochAlone) {
		// Until the destination has applied something of the new epoch it takes any
		// number up to its next one: a batch that overtakes the first would pass, and
		// the first would look applied.
		l.window = 1
	}
	l.newest, l.next, l.epoch = nil, m.last+1, m.epoch
	if mutant.Off(mutant.SendBeforeMark) {
		l.acked = m.last
		r.confirm(l)
	}
	r.pump(l)
}

// sent acts on a job's result.
func (r *relay) sent(m *sent) {
	l := m.job.lane
	l.jobs--
	if l.newest == m.job {
		l.newest = nil
	}
	if m.first > 0 {
		r.rt.cfg.Metrics.Add(RowsSent, "", int(m.last-m.first+1))
	}
	if m.err == nil && m.answer != nil {
		// Not beyond this batch: later rows may reuse numbers of before a restore.
		through := min(m.answer.GetApplied(), m.last)
		if m.answer.GetGap() { // nothing of the batch was taken, whatever the number says
			through = min(through, m.first-1)
		}
		if m.skipped != 0 { // its skip must be in the log before it is confirmed, else nobody has counted it
			through = min(through, m.skipped-1)
		}
		l.acked = max(l.acked, through)
	}
	if l.jobs == 0 && l.drain { // jobs of the turn before may have been applied since
		l.drain = false
		l.next = max(l.next, l.acked+1)
	}
	if r.ending {
		return
	}
	if m.job.turn == l.turn {
		r.result(l, m)
	}
	r.confirm(l)
	r.settle(l)
	r.pump(l)
	r.tidy(l)
}

// result acts on the answer to a job of the current turn.
func (r *relay) result(l *lane, m *sent) {
	switch {
	case m.gone && m.job.from <= l.acked: // confirmed while the job was queued
		l.rewind()
	case m.gone && r.confirmedSince(l, m.job.from):
		l.rewind()
	case m.gone:
		r.decide(l, &decisionOnRow{sequence: m.job.from, park: true, reason: "the row is gone from the outbox"})
	case m.wait:
		l.next, l.alone = m.job.from, true
	case m.err != nil:
		r.trouble(l, m.err)
	case m.skipped > l.acked:
		r.decide(l, &decisionOnRow{sequence: m.skipped, skip: true})
	case m.answer.GetRefusal() != nil && m.answer.GetApplied() < l.acked: // taken since
		l.rewind()
	case m.answer.GetRefusal() != nil:
		r.refused(l, m.answer.GetApplied()+1, m.answer.GetRefusal())
	case m.answer.GetGap():
		r.gap(l, m)
	case m.answer.GetApplied() < m.last:
		r.trouble(l, errors.New("the destination did not apply the batch and does not say why"))
	default:
		r.recover(l)
		if l.apart--; l.apart < 0 {
			l.apart, l.window = 0, min(l.window+1, windowMost)
		}
	}
}

// confirmedSince reports whether the store says of a row, other than the relay, that
// it is confirmed, and takes that over.
func (r *relay) confirmedSince(l *lane, sequence uint64) bool {
	stored, err := r.shard.store.Lane(r.ref, l.to)
	if err != nil || stored.GetConfirmed() < sequence {
		return false
	}
	r.set(l, stateOf(stored))
	l.acked = max(l.acked, stored.GetConfirmed())
	r.tell(&laneMoved{to: l.to, lane: l.state})
	return true
}

// trouble on the way says nothing about the row: it costs time, not an attempt.
func (r *relay) trouble(l *lane, err error) {
	l.failures++
	if l.failures == 1 {
		r.rt.log.Debug("trouble on the way to a destination", r.attr(), errAttr(err))
	}
	l.rewind()
	d := l.delay.NextBackOff()
	if e, ok := errors.AsType[*entity.Error](err); ok {
		d = max(d, min(e.RetryAfter, r.rt.cfg.Retry.Most))
	}
	r.shard.troubles.note(r, l, cut(err.Error(), r.rt.cfg.Limits.Text))
	r.later(l, pauseTrouble, d)
}

// gap goes back to the row that the destination misses.
func (r *relay) gap(l *lane, m *sent) {
	applied := m.answer.GetApplied()
	switch {
	case applied < m.job.confirmed:
		r.decide(l, &decisionOnRow{sequence: applied + 1, park: true, reason: fmt.Sprintf(
			"the destination has applied %d rows only, but %d were confirmed: it has lost what it had", applied, m.job.confirmed)})
	case applied+1 >= m.first:
		r.trouble(l, errors.New("the destination misses rows that were sent to it"))
	case l.failures > 0:
		r.trouble(l, errors.New("the destination misses rows again"))
	default: // overtaken on the way; twice in a row is trouble
		l.failures++
		l.apart = apartAfterGap
		l.rewind()
	}
}

// refused has the attempt counted, or the lane parked.
func (r *relay) refused(l *lane, sequence uint64, refusal *nodev1.Refusal) {
	d := &decisionOnRow{
		sequence: sequence, kind: refusal.GetKind(),
		reason: cut(refusal.GetKind().String()+": "+refusal.GetReason(), r.rt.cfg.Limits.Text),
	}
	switch refusal.GetKind() {
	case nodev1.Refusal_UNKNOWN_KIND:
		if r.awaitUpgrade(l, d.reason) {
			return
		}
		d.park = true
	case nodev1.Refusal_HOP_LIMIT:
		d.park = true
	case nodev1.Refusal_REJECTED, nodev1.Refusal_PANICKED, nodev1.Refusal_TOO_LARGE, nodev1.Refusal_CRASHED,
		nodev1.Refusal_KIND_UNSPECIFIED:
	}
	r.decide(l, d)
}

// awaitUpgrade has a lane wait, as for trouble on the way, whose destination's node
// does not know the kind, the event or a field of it: in a rolling upgrade that node
// may be the older one. false: there is nothing to wait for, or it took too long.
func (r *relay) awaitUpgrade(l *lane, reason string) bool {
	if r.rt.cfg.Registry.Kind(l.to.Kind) == nil {
		return false // unknown at both ends: a mistake
	}
	if l.unknown.IsZero() {
		l.unknown = time.Now()
		r.rt.log.Warn("a destination's node does not know what is sent to it: waiting for its upgrade",
			r.attr(), slog.String("destination", l.to.String()), slog.String("reason", reason))
	}
	if time.Since(l.unknown) >= r.rt.cfg.UpgradePatience {
		return false
	}
	r.trouble(l, errors.New(reason))
	return true
}

// decide holds the lane until a decision is in the log.
func (r *relay) decide(l *lane, d *decisionOnRow) {
	r.shard.troubles.forget(r, l) // the log has the reason
	l.rewind()
	l.decision = d
	if l.marking { // it has to wait for the confirmation
		r.hasten()
	}
}
