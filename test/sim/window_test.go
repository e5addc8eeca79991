package sim_test

import (
	"context"
	"errors"
	"fmt"
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

// TestWindowShorterThanOutage: a consumer has applied a row, its answer is lost, and
// then its shard or the source's has no leader for three times the window, in which
// all keys are forgotten. When the row comes again it is known: what was applied is
// remembered for ever, whatever the window.
func TestWindowShorterThanOutage(t *testing.T) {
	for name, shard := range map[string]uint32{"of the source": near, "of the consumer": far} {
		t.Run(name, func(t *testing.T) {
			dir := memory(t)
			synctest.Test(t, func(t *testing.T) { runForgetting(t, dir, shard) })
		})
	}
}

func runForgetting(t *testing.T, dir string, silent uint32) {
	t.Helper()
	const window, outage, rows = time.Minute, 3 * time.Minute, 5
	count := func(k *entity.Kind[*wrapperspb.Int64Value]) {
		entity.Handle(k, func(_ *entity.Context, s *wrapperspb.Int64Value, _ *wrapperspb.BoolValue) (*wrapperspb.Int64Value, error) {
			s.Value++
			return s, nil
		})
	}
	source := entity.NewKind[*wrapperspb.Int64Value]("source", entity.Window(window))
	count(source)
	to := shardID("consumer", far, "c")
	entity.Handle(source, func(c *entity.Context, s *wrapperspb.Int64Value, _ *emptypb.Empty) (*wrapperspb.Int64Value, error) {
		c.Emit(entity.To("consumer", to), wrapperspb.Bool(true))
		return s, nil
	})
	consumer := entity.NewKind[*wrapperspb.Int64Value]("consumer", entity.Window(window))
	count(consumer)
	entity.On(consumer, func(_ *entity.Context, s *wrapperspb.Int64Value, _ *wrapperspb.BoolValue) error {
		s.Value++
		return nil
	})
	var w *world
	lost := true // guarded by w.mu: answers to the source are
	var sends int
	w = newWorld(t, 1, dir, settings{
		kinds: []entity.Definer{source, consumer}, flush: 10 * time.Second, slice: window / 24, calm: true, change: func(*actors.Config) {},
		way: func(_ context.Context, _ *nodev1.DeliverRequest, send deliverFunc) (*nodev1.DeliverResponse, error) {
			answer, err := send()
			w.mu.Lock()
			defer w.mu.Unlock()
			if err == nil {
				sends++
			}
			if lost {
				return nil, errors.New("the answer is lost")
			}
			return answer, err
		},
	})
	defer w.end()
	w.appoint(0, near)
	w.appoint(1, far)
	from := shardID("source", near, "s")
	submit := func(shard uint32, leader int, kind, id, key string, command proto.Message) {
		t.Helper()
		packed, err := anypb.New(command)
		if err != nil {
			t.Fatal(err)
		}
		rt, _ := w.nodes[leader].process()
		if _, err := rt.Forward(t.Context(), &nodev1.ForwardRequest{Shard: shard, Tenant: "t", Call: &nodev1.ForwardRequest_Submit{
			Submit: &writv1.SubmitRequest{Entity: &writv1.EntityRef{Kind: kind, Id: id}, IdempotencyKey: key, Command: packed},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rows {
		submit(near, 0, "source", from, fmt.Sprint("k", i), &emptypb.Empty{})
	}
	submit(far, 1, "consumer", shardID("consumer", far, "other"), "o", wrapperspb.Bool(true))
	applied := func() int64 {
		rec, err := w.nodes[1].peer(far).store.Entity(refOf("consumer", to))
		v := &wrapperspb.Int64Value{}
		if err == nil {
			err = proto.Unmarshal(rec.GetState().GetData(), v)
		}
		if err != nil {
			t.Fatal(err)
		}
		return v.GetValue()
	}
	for waited := time.Duration(0); applied() == 0; waited += 50 * time.Millisecond { // the others wait behind
		if waited > patience {
			t.Fatal("no row is applied")
		}
		pause(50 * time.Millisecond)
	}
	w.silence(silent, true)
	w.mu.Lock()
	before := sends
	w.mu.Unlock()
	for i := range outage / (10 * time.Second) { // the other shard goes on, so its log time does
		if silent == near {
			submit(far, 1, "consumer", shardID("consumer", far, "other"), fmt.Sprint("o", i), wrapperspb.Bool(true))
		} else {
			submit(near, 0, "source", shardID("source", near, "other"), fmt.Sprint("o", i), wrapperspb.Bool(true))
		}
		pause(10 * time.Second)
	}
	w.mu.Lock()
	lost = false
	w.mu.Unlock()
	w.silence(silent, false)
	w.appoint(map[uint32]int{near: 0, far: 1}[silent], silent)
	if !w.rest() {
		t.Fatal("the rows do not arrive")
	}
	w.mu.Lock()
	again := sends - before
	w.mu.Unlock()
	if again == 0 {
		t.Error("no row was sent again: the run proves nothing")
	}
	pause(2 * window) // and now the keys of the shard that was silent are forgotten as well
	if got := applied(); got != rows {
		t.Errorf("%d rows were applied as %d", rows, got)
	}
	for s := range uint32(shards) {
		audit := w.audit(s)
		if audit.KeysLive != 0 || audit.KeysExpired == 0 {
			t.Errorf("shard %d has %d keys, and has forgotten %d", s, audit.KeysLive, audit.KeysExpired)
		}
	}
}
