package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

const (
	outageAfter = 30 * time.Second
	outageTime  = 10 * time.Minute
	outageLoad  = outageAfter + outageTime + 30*time.Second // of commands
	sideSources = 100                                       // more than a node sends to at once

	near, far = uint32(0), uint32(1) // shards: of sources and good consumers; of the one that is away
)

// outage is a world in which the consumers of one shard are away for ten minutes,
// while rows for them and for others arrive.
type outage struct {
	*world
	away bool // guarded by world.mu, as what follows

	near     []time.Duration // emission to application, lanes to the shard that is well
	beside   []time.Duration // and to others in the shard of those that are away
	sends    int             // rows of the busy lane
	allSends int             // rows to the consumers that are away, of all lanes
	disorder []string
	turns    map[string]int64
	handled  map[string]map[int64]bool
	leaves   bool // the shard of those that are away loses its leader
}

// outageKinds: a source tells one consumer that will be away and a good one what
// time it is; the time within a lane only grows, so it is a number, too.
func (o *outage) kinds(slow time.Duration) []entity.Definer {
	source := entity.NewKind[*wrapperspb.Int64Value]("source")
	entity.Handle(source, func(c *entity.Context, s *wrapperspb.Int64Value, _ *emptypb.Empty) (*wrapperspb.Int64Value, error) {
		now := &wrapperspb.Int64Value{Value: time.Now().UnixNano()}
		c.Emit(entity.To("consumer", shardID("consumer", far, "away-"+place(c.ID()))), now)
		c.Emit(entity.To("consumer", shardID("consumer", near, "good-"+c.ID())), now)
		c.Emit(entity.To("consumer", shardID("consumer", far, "beside-"+c.ID())), now)
		return s, nil
	})
	consumer := entity.NewKind[*wrapperspb.Int64Value]("consumer")
	entity.On(consumer, func(c *entity.Context, s *wrapperspb.Int64Value, at *wrapperspb.Int64Value) error {
		o.mu.Lock()
		away, late := o.away, time.Duration(time.Now().UnixNano()-at.GetValue())
		switch {
		case locate(c.Self()) == near:
			o.near = append(o.near, late)
		case !absent(c.ID()):
			o.beside = append(o.beside, late)
		}
		lane := c.Source().ID + " " + c.ID()
		again := o.handled[lane][at.GetValue()] // a leader that goes may take a handled event along, undecided
		if last := o.turns[lane]; last >= at.GetValue() && (!again || !o.leaves) {
			o.disorder = append(o.disorder, fmt.Sprintf("%s: %d after %d", lane, at.GetValue(), last))
		}
		o.turns[lane] = at.GetValue()
		if o.handled[lane] == nil {
			o.handled[lane] = map[int64]bool{}
		}
		o.handled[lane][at.GetValue()] = true
		o.mu.Unlock()
		if away && absent(c.ID()) {
			pause(slow)
		}
		s.Value++
		return nil
	})
	return []entity.Definer{source, consumer}
}

// place names the consumer that is away: the busy source has one of its own.
func place(source string) string {
	if source == busySource {
		return "busy"
	}
	return "side"
}

func absent(consumer string) bool { return strings.HasPrefix(consumer, "away-") }

var busySource = shardID("source", near, "busy")

// shardID is the first id that begins so and lies in the shard.
func shardID(kind string, shard uint32, begin string) string {
	for i := 0; ; i++ {
		id := fmt.Sprintf("%s-%d", begin, i)
		if locate(entity.Ref{Tenant: "t", Kind: kind, ID: id}) == shard {
			return id
		}
	}
}

// ways are how a consumer can be away.
type way struct {
	begin, end func(o *outage)
	call       func(ctx context.Context) error // nil: as ever
	slow       time.Duration
	shard      bool // all of the shard is away
}

func ways() map[string]way {
	lose := func(o *outage) { o.silence(far, true) }
	lead := func(o *outage) { o.silence(far, false); o.appoint(1, far) }
	nothing := func(*outage) {}
	return map[string]way{
		"its shard has no leader": {shard: true, begin: lose, end: lead},
		"its node says nothing": {shard: true, begin: nothing, end: nothing, call: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}},
		"it is overloaded": {begin: nothing, end: nothing, call: func(context.Context) error {
			return entity.Errorf(entity.Overloaded, "full").Retry(time.Second)
		}},
		"it is slow": {begin: nothing, end: nothing, slow: 5 * time.Second},
	}
}

// ranOutage is what a run has shown.
type ranOutage struct {
	p99, worst      time.Duration // of lanes to the other shard
	beside          time.Duration // p99 of lanes to others in the same shard
	drained         time.Duration // after the outage
	sends, allSends float64       // a row
	rows            int
}

// TestOutage: while a consumer is away for ten minutes its rows wait in order and
// are not sent for nothing, all other lanes are as quick as without it, and when
// it is back the backlog drains at once, in order, each row applied once.
func TestOutage(t *testing.T) {
	calm := runOutage(t, way{begin: func(*outage) {}, end: func(*outage) {}})
	t.Logf("no outage: %+v", calm)
	for name, w := range ways() {
		t.Run(name, func(t *testing.T) {
			got := runOutage(t, w)
			t.Logf("%+v", got)
			if got.p99 > calm.p99*5/4 || got.worst > 2*calm.worst {
				t.Errorf("good lanes: p99 %v, longest %v; without the outage %v, %v", got.p99, got.worst, calm.p99, calm.worst)
			}
			if !w.shard && got.beside > calm.beside*5/4 {
				t.Errorf("lanes to the same shard: p99 %v; without the outage %v", got.beside, calm.beside)
			}
			if got.sends >= 1.5 {
				t.Errorf("%.2f sends a row on the busy lane", got.sends)
			}
			if got.drained > 20*time.Second { // a send that ends by its timeout, a pause at its longest, and a few batches
				t.Errorf("the backlog drained for %v", got.drained)
			}
		})
	}
}

func runOutage(t *testing.T, how way) (got ranOutage) {
	t.Helper()
	dir := memory(t)
	synctest.Test(t, func(t *testing.T) {
		o := &outage{turns: map[string]int64{}, handled: map[string]map[int64]bool{}, leaves: how.shard}
		o.world = newWorld(t, 1, dir, settings{
			kinds: o.kinds(how.slow), flush: 10 * time.Second, calm: true,
			change: func(*actors.Config) {}, // as in production
			way: func(ctx context.Context, req *nodev1.DeliverRequest, send deliverFunc) (*nodev1.DeliverResponse, error) {
				if away := o.note(req, how.shard); away && how.call != nil {
					return nil, how.call(ctx)
				}
				return send()
			},
		})
		o.appoint(0, near)
		o.appoint(1, far)
		got = o.run(how)
		o.end()
	})
	return got
}

// note counts a delivery and reports whether its destination is away.
func (o *outage) note(req *nodev1.DeliverRequest, whole bool) bool {
	to := req.GetRows()[0].GetDestination()
	if !absent(to.GetId()) {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.away && whole && locate(entity.Ref{Tenant: to.GetTenant(), Kind: to.GetKind(), ID: to.GetId()}) == far
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.allSends += len(req.GetRows())
	if req.GetRows()[0].GetSource().GetId() == busySource {
		o.sends += len(req.GetRows())
	}
	return o.away
}

func (o *outage) run(how way) ranOutage {
	sources := []string{busySource}
	for i := range sideSources {
		sources = append(sources, shardID("source", near, fmt.Sprintf("side%d", i)))
	}
	rows := make([]int, len(sources))
	var load sync.WaitGroup
	load.Go(func() { rows[0] = o.emit(sources[0], 0, 200*time.Millisecond) })
	for i, source := range sources[1:] { // all at once
		load.Go(func() { rows[i+1] = o.emit(source, outageAfter+time.Millisecond, 30*time.Second) })
	}
	pause(outageAfter)
	o.set(true)
	how.begin(o)
	for range outageTime / time.Minute { // leaders elsewhere come and go
		pause(time.Minute)
		for _, n := range o.nodes {
			rt, _ := n.process()
			rt.RoutesChanged()
		}
	}
	back := time.Now()
	o.set(false)
	how.end(o)
	drained := time.Duration(0)
	for o.backlog(sources) > 1 { // what is emitted now is on its way
		if time.Since(back) > patience {
			o.fail("the lanes do not drain")
			break
		}
		pause(20 * time.Millisecond)
	}
	drained = time.Since(back)
	load.Wait()
	o.rest()
	return o.judgeOutage(sources, rows, drained)
}

func (o *outage) set(away bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away = away
}

// emit has a source emit at a pace until the load ends; it returns how often.
func (o *outage) emit(source string, first, pace time.Duration) (n int) {
	command, err := anypb.New(&emptypb.Empty{})
	if err != nil {
		panic(err)
	}
	pause(first)
	for time.Since(o.began) < outageLoad {
		rt, _ := o.nodes[0].process()
		_, err := rt.Forward(context.Background(), &nodev1.ForwardRequest{
			Shard: near, Tenant: "t", Call: &nodev1.ForwardRequest_Submit{Submit: &writv1.SubmitRequest{
				Entity: &writv1.EntityRef{Kind: "source", Id: source}, IdempotencyKey: fmt.Sprint(n), Command: command,
			}},
		})
		if err != nil {
			o.t.Errorf("%s: %v", source, err)
			return n
		}
		n++
		pause(pace)
	}
	return n
}

// backlog is the longest of all lanes to the consumers that were away.
func (o *outage) backlog(sources []string) (most uint64) {
	for _, id := range sources {
		lanes, err := o.nodes[0].peer(near).store.WaitingLanes(entity.Ref{Tenant: "t", Kind: "source", ID: id})
		if err != nil {
			o.fail("lanes of %s: %v", id, err)
		}
		for to, lane := range lanes {
			if absent(to.ID) {
				most = max(most, lane.GetNumbered()-lane.GetConfirmed())
			}
		}
	}
	return most
}

func (o *outage) judgeOutage(sources []string, rows []int, drained time.Duration) ranOutage {
	all := 0
	for i, n := range rows {
		all += n
		o.wantApplied(shardID("consumer", near, "good-"+sources[i]), n)
		o.wantApplied(shardID("consumer", far, "beside-"+sources[i]), n)
	}
	o.wantApplied(shardID("consumer", far, "away-busy"), rows[0])
	o.wantApplied(shardID("consumer", far, "away-side"), all-rows[0])
	for s := range uint32(shards) {
		o.audit(s)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, what := range o.disorder {
		o.t.Errorf("out of order: %s", what)
	}
	slices.Sort(o.near)
	slices.Sort(o.beside)
	return ranOutage{
		p99: o.near[len(o.near)*99/100], worst: o.near[len(o.near)-1], beside: o.beside[len(o.beside)*99/100], drained: drained,
		sends: float64(o.sends) / float64(rows[0]), allSends: float64(o.allSends) / float64(all), rows: all,
	}
}

// wantApplied: a consumer's version is the number of its records, one for each row.
func (o *outage) wantApplied(id string, n int) {
	ref := entity.Ref{Tenant: "t", Kind: "consumer", ID: id}
	s := locate(ref)
	rec, err := o.nodes[s].peer(s).store.Entity(ref)
	if err != nil {
		o.fail("read %v: %v", ref, err)
		return
	}
	v := &wrapperspb.Int64Value{}
	if err := proto.Unmarshal(rec.GetState().GetData(), v); err != nil {
		o.fail("read %v: %v", ref, err)
		return
	}
	if int(v.GetValue()) != n || int(rec.GetVersion()) != n {
		o.t.Errorf("%v has applied %d rows in %d records, want %d", ref, v.GetValue(), rec.GetVersion(), n)
	}
}
