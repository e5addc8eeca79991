package sim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

const (
	hotCommand = 5 * time.Millisecond // of the hot entity's handler: it can do 200 a second
	hotBurst   = 20                   // commands every 10 ms: ten times as many
	hotEvery   = 10 * time.Millisecond
)

// TestHotEntity: an entity that gets ten times what it can do refuses the rest at
// once with a delay, and others of its shard do not notice. Virtual time leaves the
// price of refusals out: actors.TestHotEntity has it.
func TestHotEntity(t *testing.T) {
	length := 20 * time.Second
	if os.Getenv("WRIT_LONG") != "" {
		length = 2 * time.Minute
	}
	dir := memory(t)
	synctest.Test(t, func(t *testing.T) {
		k := entity.NewKind[*wrapperspb.Int64Value]("busy")
		entity.Handle(k, func(_ *entity.Context, s *wrapperspb.Int64Value, cmd *wrapperspb.BoolValue) (*wrapperspb.Int64Value, error) {
			if cmd.GetValue() {
				pause(hotCommand)
			}
			s.Value++
			return s, nil
		})
		w := newWorld(t, 1, dir, settings{
			kinds: []entity.Definer{k}, flush: 10 * time.Second, calm: true, change: func(*actors.Config) {},
			way: func(context.Context, *nodev1.DeliverRequest, deliverFunc) (*nodev1.DeliverResponse, error) {
				return nil, errors.New("no events here")
			},
		})
		w.appoint(0, near)
		w.appoint(1, far)

		alone := w.others("alone", 10*time.Second)
		var load sync.WaitGroup
		executed, refused := 0, 0 // guarded by w.mu
		load.Go(func() { w.overload(length, &executed, &refused) })
		beside := w.others("beside", length)
		load.Wait()
		w.end()

		p99 := func(all []time.Duration) time.Duration { return all[(len(all)-1)*99/100] }
		sent := int(length/hotEvery) * hotBurst
		t.Logf("%d commands to the hot entity: %d executed, %d refused; p99 of others %v alone, %v beside", sent, executed, refused, p99(alone), p99(beside))
		if p99(beside) > 2*p99(alone) {
			t.Errorf("others' p99 went from %v to %v", p99(alone), p99(beside))
		}
		queue := actors.DefaultLimits().EntityCalls
		if executed+refused != sent || executed < int(length/hotCommand)*9/10 || executed > int(length/hotCommand)+queue {
			t.Errorf("of %d commands %d were executed and %d refused", sent, executed, refused)
		}
	})
}

// give submits a command to an entity of the shard near.
func (w *world) give(id, key string, slow bool) error {
	command, err := anypb.New(&wrapperspb.BoolValue{Value: slow})
	if err != nil {
		panic(err)
	}
	rt, _ := w.nodes[0].process()
	_, err = rt.Forward(context.Background(), &nodev1.ForwardRequest{
		Shard: near, Tenant: "t", Call: &nodev1.ForwardRequest_Submit{Submit: &writv1.SubmitRequest{
			Entity: &writv1.EntityRef{Kind: "busy", Id: id}, IdempotencyKey: key, Command: command,
		}},
	})
	return err
}

// others are the latencies of commands to four other entities, in order.
func (w *world) others(round string, length time.Duration) (all []time.Duration) {
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for client := range 4 {
		id := shardID("busy", near, fmt.Sprint("cool", client))
		wg.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				began := time.Now()
				if err := w.give(id, fmt.Sprint(round, n), false); err != nil {
					w.t.Errorf("%s: %v", id, err)
					return
				}
				w.mu.Lock()
				all = append(all, time.Since(began))
				w.mu.Unlock()
				pause(hotEvery)
			}
		})
	}
	wg.Wait()
	slices.Sort(all)
	return all
}

// overload gives one entity more than it can do.
func (w *world) overload(length time.Duration, executed, refused *int) {
	id := shardID("busy", near, "hot")
	var wg sync.WaitGroup
	for tick := range int(length / hotEvery) {
		for i := range hotBurst {
			wg.Go(func() {
				err := w.give(id, fmt.Sprint(tick, "-", i), true)
				w.mu.Lock()
				defer w.mu.Unlock()
				var e *entity.Error
				switch {
				case err == nil:
					*executed++
				case errors.As(err, &e) && e.Reason == entity.Overloaded && e.RetryAfter > 0:
					*refused++
				default:
					w.t.Errorf("hot: %v", err)
				}
			})
		}
		pause(hotEvery)
	}
	wg.Wait()
}
