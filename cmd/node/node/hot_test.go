package node_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"writ/actors/entity"
	"writ/cmd/node/node"
	testingv1 "writ/proto/writ/testing/v1"
	writv1 "writ/proto/writ/v1"
)

const (
	hotHandler = 2 * time.Millisecond // what a command to the hot entity takes
	hotQueue   = 64                   // calls in progress that an entity may have
	coolEvery  = 5 * time.Millisecond // what each of the calm clients waits between commands
	coolMost   = 8                    // calm clients, each with its entity
	hotMost    = 2.0                  // what p99 of others may be, times what it is alone
	hotUsual   = 8.0                  // the same for a usual run, with few samples and a busy machine
	hotHeap    = 64 << 20             // by how much the heap may grow
)

// TestHotEntity gives one entity ten times what it can do, through gRPC on a node
// with a real disk, and reports what commands to other entities of its shard take
// beside it. All of it shares the machine's processors, the clients too, so the same
// number of calls that the node refuses at its door, before any entity is asked, is
// reported as well: what that costs others is the price of the calls themselves.
//
// Others are measured by turns without and with that load. Each pair of turns makes a
// factor, and the median one counts; of the few short turns of a usual run the
// smallest one, for a busy machine may spoil two of three.
func TestHotEntity(t *testing.T) {
	turns, turn, most := 3, 400*time.Millisecond, hotUsual
	if os.Getenv("WRIT_LONG") != "" {
		turns, turn, most = 24, 5*time.Second, hotMost // two minutes of the load
	}
	k := entity.NewKind[*testingv1.Sum]("hot")
	entity.Handle(k, func(_ *entity.Context, s *testingv1.Sum, o *testingv1.Order) (*testingv1.Sum, error) {
		if o.GetGift() {
			<-time.After(hotHandler)
		}
		s.Orders++
		return s, nil
	})
	c := newCluster(t, 1, func(cfg *node.Config) {
		cfg.Shards, cfg.Kinds, cfg.Limits = 1, []entity.Definer{k}, node.DefaultLimits()
		cfg.Limits.Entities.EntityCalls = hotQueue
	})
	h := &hot{t: t, cool: writv1.NewEntityServiceClient(c.dial("n1")), load: writv1.NewEntityServiceClient(c.dial("n1"))}
	h.offered = 10 * h.capacity()
	alone, beside, door := &figures{}, &figures{}, &figures{}
	var factors []float64
	before, grown := heap(), uint64(0)
	for n := range turns {
		was := h.others(fmt.Sprint("alone", n), turn, alone)
		stop, ended := context.WithTimeout(t.Context(), turn)
		done := h.overload(stop, fmt.Sprint("hot", n), "hot", "OVERLOADED", beside)
		is := h.others(fmt.Sprint("beside", n), turn, beside)
		if now := heap(); now > before {
			grown = max(grown, now-before)
		}
		ended()
		<-done // until the queue is empty, too
		factors = append(factors, is.Seconds()/was.Seconds())
		stop, ended = context.WithTimeout(t.Context(), turn/5)
		done = h.overload(stop, fmt.Sprint("door", n), "no such kind", "INVALID", door)
		h.others(fmt.Sprint("door", n), turn/5, door)
		ended()
		<-done
	}
	t.Logf("%.0f commands a second to an entity that can do %.0f", h.offered, h.offered/10)
	for _, f := range []struct {
		what string
		*figures
	}{{"alone", alone}, {"beside the hot entity", beside}, {"beside calls refused at the door", door}} {
		t.Logf("others %-33s p50 %v  p99 %v  (%d commands; %d executed and %d refused beside)", f.what+":",
			f.percentile(50), f.percentile(99), len(f.all), f.executed.Load(), f.refused.Load())
	}
	slices.Sort(factors)
	factor := factors[0]
	if os.Getenv("WRIT_LONG") != "" {
		factor = factors[len(factors)/2]
	}
	t.Logf("p99 of others is %.2f× what it is alone (%.2f), and %.2f× what it is beside calls that no entity sees; the heap grew by %d KiB at most",
		factor, factors, beside.percentile(99).Seconds()/door.percentile(99).Seconds(), grown>>10)
	if sent := beside.executed.Load() + beside.refused.Load(); beside.executed.Load() == 0 || beside.refused.Load() < sent/2 {
		t.Errorf("the entity was not hot: %d of %d commands were executed", beside.executed.Load(), sent)
	}
	if factor > most {
		t.Errorf("others' p99 grew by a factor of %.2f, at most %.1f is promised", factor, most)
	}
	if grown > hotHeap {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	h.again()
}

// heap is what is in use, once what is not has been collected.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// hot is the load of TestHotEntity. Its two sides have connections of their own.
type hot struct {
	t          *testing.T
	cool, load writv1.EntityServiceClient
	offered    float64 // a second
	// turned is a key that was refused.
	turned atomic.Pointer[string]
}

// figures are what commands to others took, and what became of the load beside.
type figures struct {
	all               []time.Duration
	executed, refused atomic.Int64
}

func (f *figures) percentile(n int) time.Duration {
	slices.Sort(f.all)
	return f.all[(len(f.all)-1)*n/100]
}

func submitOrder(ctx context.Context, cl writv1.EntityServiceClient, kind, id, key string, slow bool) answer {
	data, err := proto.Marshal(&testingv1.Order{Gift: slow})
	if err != nil {
		return answerOf(err)
	}
	return submit(ctx, cl, &writv1.SubmitRequest{
		Entity: &writv1.EntityRef{Kind: kind, Id: id}, IdempotencyKey: key,
		Command: &anypb.Any{TypeUrl: "type.googleapis.com/writ.testing.v1.Order", Value: data},
	})
}

// capacity is how many slow commands a second an entity can do: the best of three
// tries, since a disk that hangs for a moment would make the load a lighter one.
func (h *hot) capacity() float64 {
	best := 0.0
	for try := range 3 {
		ctx, cancel := context.WithTimeout(h.t.Context(), 250*time.Millisecond)
		began := time.Now()
		var done atomic.Int64
		var wg sync.WaitGroup
		for client := range 16 {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					if got := submitOrder(h.t.Context(), h.load, "hot", "measured", fmt.Sprint(try, "-", client, "-", n), true); got.code != codes.OK {
						h.t.Errorf("capacity: %v", got)
						return
					}
					done.Add(1)
				}
			})
		}
		wg.Wait()
		cancel()
		best = max(best, float64(done.Load())/time.Since(began).Seconds())
	}
	return best
}

// others measures calm commands and returns their p99.
func (h *hot) others(round string, length time.Duration, f *figures) time.Duration {
	h.t.Helper()
	this := &figures{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for client := range coolMost {
		wg.Go(func() {
			var mine []time.Duration
			for n := 0; time.Now().Before(end); n++ {
				began := time.Now()
				if got := submitOrder(h.t.Context(), h.cool, "hot", fmt.Sprint("cool", client), fmt.Sprint(round, "-", n), false); got.code != codes.OK {
					h.t.Errorf("%s: %v", round, got)
					return
				}
				mine = append(mine, time.Since(began))
				<-time.After(coolEvery)
			}
			mu.Lock()
			defer mu.Unlock()
			this.all = append(this.all, mine...)
		})
	}
	wg.Wait()
	if len(this.all) == 0 {
		h.t.Fatalf("%s: no command was executed", round)
	}
	f.all = append(f.all, this.all...)
	return this.percentile(99)
}

// overload sends one entity what is offered until ctx ends. Whatever is not executed
// must be refused for the given reason, and be told when to come again if that helps.
// Done is closed when all of it is answered.
func (h *hot) overload(ctx context.Context, round, kind, reason string, f *figures) (done <-chan struct{}) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var wg sync.WaitGroup
		defer wg.Wait()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		began := time.Now()
		for n := 0; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for ; float64(n) < h.offered*time.Since(began).Seconds(); n++ {
				key := fmt.Sprint(round, "-", n)
				wg.Go(func() {
					got := submitOrder(h.t.Context(), h.load, kind, "hot", key, true)
					switch {
					case got.code == codes.OK:
						f.executed.Add(1)
					case got.reason == reason && got.retry == (reason == "OVERLOADED"):
						f.refused.Add(1)
						if got.retry {
							h.turned.Store(&key)
						}
					default:
						h.t.Errorf("hot: %v", got)
					}
				})
			}
		}
	}()
	return ended
}

// again sends a command that was refused once more, now that there is room: it is
// executed, and for the first time.
func (h *hot) again() {
	h.t.Helper()
	key := h.turned.Load()
	if key == nil {
		h.t.Fatal("no command was refused")
	}
	got := submitOrder(h.t.Context(), h.load, "hot", "hot", *key, true)
	if got.code != codes.OK || got.replayed {
		h.t.Errorf("a command that was refused, sent again: %v", got)
	}
}
