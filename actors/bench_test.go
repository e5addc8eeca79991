package actors_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"writ/actors"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	writv1 "writ/proto/writ/v1"
)

// empty is a store without content, instant a lease that commits at once: what
// remains is the way through front door, gate and activation.
type (
	empty   struct{ actors.Store }
	instant struct{ *lease }
)

func (empty) Entity(entity.Ref) (*recordv1.EntityRecord, error) { return nil, nil }

func (empty) Key(entity.Ref, string, []byte) (*recordv1.KeyRecord, error) { return nil, nil }

func (empty) WaitingLanes(entity.Ref) (map[entity.Ref]*recordv1.Lane, error) { return nil, nil }

func (empty) PendingSources(entity.Ref, int) ([]entity.Ref, error) { return nil, nil }

func (empty) Applied(entity.Ref, entity.Ref) (*recordv1.Applied, error) { return nil, nil }

func (empty) DueTimers(string, int64, int, func(string, entity.Ref, string, *recordv1.Timer)) (int64, error) {
	return 0, nil
}

func (empty) Expirable(int64) (uint64, bool)                                        { return 0, false }
func (empty) ExpiredThrough() int64                                                 { return 0 }
func (instant) Propose(_ *recordv1.Record, done func(error))                        { done(nil) }
func (instant) ProposeWithin(_ time.Duration, _ *recordv1.Record, done func(error)) { done(nil) }
func (instant) Barrier(done func(error))                                            { done(nil) }
func (instant) Load() (int, int)                                                    { return 0, 0 }

func benchRuntime(b *testing.B) *actors.Runtime {
	b.Helper()
	registry, err := entity.NewRegistry(kind("counter", hooks{}))
	if err != nil {
		b.Fatal(err)
	}
	rt, err := actors.New(actors.Config{Node: "n1", Registry: registry, Courier: &courier{}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := rt.Close(b.Context()); err != nil && b.Context().Err() == nil {
			b.Error(err)
		}
	})
	return rt
}

func benchRequest(b *testing.B, id, key string) *nodev1.ForwardRequest {
	b.Helper()
	return &nodev1.ForwardRequest{Tenant: "t", Call: &nodev1.ForwardRequest_Submit{Submit: &writv1.SubmitRequest{
		Entity: &writv1.EntityRef{Kind: "counter", Id: id}, IdempotencyKey: key, Command: pack(b, &num{Value: 1}),
	}}}
}

func BenchmarkCommand(b *testing.B) {
	for _, bench := range []struct{ clients, entities int }{{1, 1}, {64, 1}, {64, 1000}, {256, 10000}} {
		b.Run(fmt.Sprintf("clients=%d/entities=%d", bench.clients, bench.entities), func(b *testing.B) {
			rt := benchRuntime(b)
			if err := rt.Open(0, empty{}); err != nil {
				b.Fatal(err)
			}
			w := newWorld(b, worldConfig{})
			rt.Lead(0, instant{w.leases[0]})
			var n atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range bench.clients {
				wg.Go(func() {
					for {
						i := n.Add(1)
						if i > int64(b.N) {
							return
						}
						req := benchRequest(b, fmt.Sprint(i%int64(bench.entities)), fmt.Sprint(i))
						if _, err := rt.Forward(b.Context(), req); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}

// The same with the real store below, and events through the relay.
func BenchmarkWithStore(b *testing.B) {
	for _, bench := range []struct {
		name    string
		command string
	}{{"command", ""}, {"event", "b/1"}} {
		b.Run(bench.name, func(b *testing.B) {
			w := newWorld(b, worldConfig{kinds: []entity.Definer{emitter("a"), kind("b", hooks{})}})
			const clients = 256
			var n atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for c := range clients {
				wg.Go(func() {
					for {
						i := n.Add(1)
						if i > int64(b.N) {
							return
						}
						w.must(ref("a", fmt.Sprint(c)), fmt.Sprint(i), &text{Value: bench.command})
					}
				})
			}
			wg.Wait()
			if bench.command != "" {
				for c := range clients {
					a := ref("a", fmt.Sprint(c))
					w.metrics.until(b, func() bool { l := w.lane(a, ref("b", "1")); return l.GetConfirmed() == l.GetNumbered() })
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}

// BenchmarkRefused is the price of a command that an entity has no room for.
func BenchmarkRefused(b *testing.B) {
	full, release := make(chan struct{}), make(chan struct{})
	limits := actors.DefaultLimits()
	limits.EntityCalls = 1
	w := newWorld(b, worldConfig{
		kinds: []entity.Definer{kind("counter", hooks{command: func(*entity.Context, *num, string) error {
			close(full)
			<-release
			return nil
		}})},
		change: func(c *actors.Config) { c.Limits, c.Metrics = limits, nil },
	})
	first := w.later(submitted{ref: ref("counter", "1"), key: "first", command: &text{}})
	<-full
	req := benchRequest(b, "1", "next")
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := w.rt.Forward(b.Context(), req); entity.ReasonOf(err) != entity.Overloaded {
				b.Errorf("a full entity answers %v", err)
			}
		}
	})
	b.StopTimer()
	close(release)
	if r := <-first; r.err != nil {
		b.Error(r.err)
	}
}
