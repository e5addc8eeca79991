package actors

import (
	"fmt"
	"testing"

	"github.com/asynkron/protoactor-go/actor"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// The first batch of a new epoch must not be overtaken, however many batches the
// lane had in flight before.
func TestFirstBatchOfAnEpochTravelsAlone(t *testing.T) {
	for _, c := range []struct {
		name        string
		known, next uint64
		want        int
	}{
		{"the first batch of all", 0, 1, 4},
		{"the same epoch", 1, 1, 4},
		{"a new epoch", 1, 2, 1},
	} {
		j := &job{}
		l := &lane{epoch: c.known, window: 4, newest: j}
		j.lane = l
		(&relay{ending: true}).taken(&taken{job: j, last: 5, epoch: c.next})
		if l.window != c.want || l.epoch != c.next {
			t.Errorf("%s: window %d, epoch %d, want %d and %d", c.name, l.window, l.epoch, c.want, c.next)
		}
	}
}

// A source may send to ever new destinations: what its activation keeps in mind
// follows the lanes in which rows wait.
func TestLanesKept(t *testing.T) {
	o := &outbox{}
	send := func(to entity.Ref) laneState {
		o.number([]*recordv1.Row{{Destination: toRef(to), LaneSequence: 1}})
		state := o.lanes[to].lane
		state.numbered = 1
		o.update(to, state)
		return state
	}
	const waiting = 2 * lanesKept
	for i := range waiting {
		send(entity.Ref{Tenant: "t", Kind: "waits", ID: fmt.Sprint(i)})
	}
	for i := range 10 * waiting {
		to := entity.Ref{Tenant: "t", Kind: "answers", ID: fmt.Sprint(i)}
		state := send(to)
		state.confirmed = 1
		o.update(to, state)
	}
	if len(o.lanes) != waiting || o.open != waiting {
		t.Errorf("%d lanes, %d open, want %d", len(o.lanes), o.open, waiting)
	}
}

// A relay offers to forget lanes when there are many, and forgets none in which
// something is to be done.
func TestRelayForgetsSpentLanes(t *testing.T) {
	system := actor.NewActorSystem()
	defer system.Shutdown()
	offered := make(chan *released, 4*lanesKept)
	owner := system.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		if m, ok := c.Message().(*laneMoved); ok && m.spent {
			offered <- &released{to: m.to, lane: m.lane}
		}
	}))
	r := &relay{rt: &Runtime{system: system}, shard: &shard{}, owner: owner, lanes: map[entity.Ref]*lane{}}
	to := func(i int) entity.Ref { return entity.Ref{Tenant: "t", Kind: "b", ID: fmt.Sprint(i)} }
	add := func(i int) *lane {
		l := &lane{to: to(i), acked: 1, state: laneState{numbered: 1, confirmed: 1, status: recordv1.Lane_ACTIVE}}
		r.lanes[l.to] = l
		r.tidy(l)
		return l
	}
	for i := range 3 * lanesKept {
		add(i)
		if i >= lanesKept { // the one too many
			r.forget(<-offered)
		}
	}
	if len(offered) > 0 || len(r.lanes) != lanesKept {
		t.Errorf("%d lanes are kept, want %d; %d more were offered", len(r.lanes), lanesKept, len(offered))
	}
	for what, change := range map[string]func(*lane){
		"rows to send":              func(l *lane) { l.state.numbered = 2 },
		"a confirmation to be made": func(l *lane) { l.acked = 2 },
		"a confirmation on its way": func(l *lane) { l.marking = true },
		"a delivery":                func(l *lane) { l.jobs = 1 },
		"a decision":                func(l *lane) { l.decision = &decisionOnRow{} },
		"an update that has failed": func(l *lane) { l.unwell = true },
		"a later confirmation":      func(l *lane) { l.acked, l.state.numbered, l.state.confirmed = 2, 2, 2 },
		"another status":            func(l *lane) { l.state.status = recordv1.Lane_PARKED },
	} {
		l := &lane{to: to(-1), acked: 1, state: laneState{numbered: 1, confirmed: 1, status: recordv1.Lane_ACTIVE}}
		offer := &released{to: l.to, lane: l.state}
		change(l)
		r.lanes[l.to] = l
		if r.forget(offer); r.lanes[l.to] == nil {
			t.Errorf("a lane with %s was forgotten", what)
		}
	}
}

// laneStore is a store that holds one lane.
type laneStore struct {
	Store
	lane *recordv1.Lane
}

func (s laneStore) Lane(entity.Ref, entity.Ref) (*recordv1.Lane, error) { return s.lane, nil }

// An operator resumes a lane while its relay ends: the relay's last word must not put
// the pause back, or the rows would stand still.
func TestLastWordOfARelay(t *testing.T) {
	to := entity.Ref{Tenant: "t", Kind: "b", ID: "1"}
	store := laneStore{lane: &recordv1.Lane{Numbered: 3, Confirmed: 2, Status: recordv1.Lane_ACTIVE}}
	a := &activation{shard: &shard{store: store}}
	a.out.load(map[entity.Ref]*recordv1.Lane{to: {Numbered: 3, Confirmed: 1, Status: recordv1.Lane_ACTIVE}})
	a.out.stops = true
	a.laneMoved(&laneMoved{to: to, lane: laneState{numbered: 3, confirmed: 2, status: recordv1.Lane_PAUSED}})
	if l := a.out.lanes[to].lane; l != stateOf(store.lane) || a.out.open != 1 || a.out.pending != 1 {
		t.Errorf("lane %+v, %d open, %d rows pending; want %+v, 1, 1", l, a.out.open, a.out.pending, stateOf(store.lane))
	}
}

// A relay that knows less than the store takes up what is confirmed, and parks nothing.
func TestRowGoneForItIsConfirmed(t *testing.T) {
	system := actor.NewActorSystem()
	defer system.Shutdown()
	to := entity.Ref{Tenant: "t", Kind: "b", ID: "1"}
	for confirmed, parks := range map[uint64]bool{1: true, 2: false} {
		r := &relay{
			rt: &Runtime{system: system}, lanes: map[entity.Ref]*lane{},
			shard: &shard{store: laneStore{lane: &recordv1.Lane{Numbered: 2, Confirmed: confirmed, Status: recordv1.Lane_ACTIVE}}},
			owner: system.Root.Spawn(actor.PropsFromFunc(func(actor.Context) {})),
		}
		l := r.addLane(to, laneState{numbered: 2, confirmed: 1, status: recordv1.Lane_ACTIVE})
		r.result(l, &sent{job: &job{lane: l, turn: l.turn, from: 2}, gone: true})
		if (l.decision != nil) != parks || l.acked != confirmed {
			t.Errorf("the store has %d confirmed: decision %+v, applied up to %d", confirmed, l.decision, l.acked)
		}
	}
}

// An activation hears of a commit whose rows the store says are confirmed.
func TestRowsConfirmedBeforeTheirVerdict(t *testing.T) {
	a := &activation{}
	a.committedRows(&recordv1.Commit{Rows: []*recordv1.Row{{Destination: toRef(entity.Ref{Tenant: "t", Kind: "b", ID: "1"}), LaneSequence: 1}}})
	if len(a.out.lanes) > 0 || len(a.out.grown) > 0 {
		t.Errorf("lanes %v, grown %v", a.out.lanes, a.out.grown)
	}
}

// A relay parks a lane while an operator's resume, committed before, is on its way to
// it: the lane stays parked.
func TestChangeBehindADecision(t *testing.T) {
	system := actor.NewActorSystem()
	defer system.Shutdown()
	to := entity.Ref{Tenant: "t", Kind: "b", ID: "1"}
	store := laneStore{lane: &recordv1.Lane{Numbered: 3, Confirmed: 1, Status: recordv1.Lane_PARKED}}
	r := &relay{
		rt: &Runtime{system: system}, shard: &shard{store: store}, lanes: map[entity.Ref]*lane{},
		owner: system.Root.Spawn(actor.PropsFromFunc(func(actor.Context) {})),
	}
	l := r.addLane(to, stateOf(store.lane))
	r.change(&laneChanged{to: to, lane: laneState{numbered: 3, confirmed: 1, status: recordv1.Lane_ACTIVE}})
	if l.state.status != recordv1.Lane_PARKED || r.open != 0 {
		t.Errorf("the lane is %v, %d open", l.state.status, r.open)
	}
}

// barrierLease counts barriers.
type barrierLease struct {
	Lease
	barriers int
}

func (l *barrierLease) Barrier(func(error)) { l.barriers++ }

// What waits for a confirmation does not wait for its patience.
func TestRecordsAreHastened(t *testing.T) {
	lease := &barrierLease{}
	r := &relay{lease: lease, shard: &shard{}, cancel: func() {}}
	l := &lane{}
	r.hasten()
	r.decide(l, &decisionOnRow{})
	if lease.barriers > 0 {
		t.Errorf("%d barriers for nothing", lease.barriers)
	}
	r.records, l.marking = 1, true
	r.decide(l, &decisionOnRow{})
	if lease.barriers != 1 {
		t.Errorf("%d barriers for a decision behind a confirmation, want 1", lease.barriers)
	}
}
