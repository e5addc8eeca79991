package actors_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors"
	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// pause lets a handler take its time.
func pause(d time.Duration) { <-time.After(d) }

// coolEvery is how long a calm client waits between its commands. Without that four
// of them keep two processors busy, and a p99 tells how Go shares these out: then any
// goroutine that something wakes, even one that calls nothing, triples it.
const coolEvery = 2 * time.Millisecond

// calm are the latencies of commands to four other entities until stop is closed.
func calm(w *world, round string, stop <-chan struct{}) (all []time.Duration) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for client := range 4 {
		wg.Go(func() {
			var mine []time.Duration
			for n := 0; !closed(stop); n++ {
				began := time.Now()
				w.must(ref("hot", fmt.Sprint("cool", client)), fmt.Sprint(round, "-", client, "-", n), &num{Value: 1})
				mine = append(mine, time.Since(began))
				pause(coolEvery)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	wg.Wait()
	return all
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// after is closed when a time has passed.
func after(d time.Duration) <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(d, func() { close(c) })
	return c
}

func percentile(all []time.Duration, n int) time.Duration {
	slices.Sort(all)
	return all[(len(all)-1)*n/100]
}

// capacity is how many commands a second an entity of kind hot can do now, while
// others of the machine want to do something as well.
func capacity(w *world) float64 {
	stop := after(500 * time.Millisecond)
	began := time.Now()
	var done atomic.Int64
	var wg sync.WaitGroup
	for client := range 16 {
		wg.Go(func() {
			for n := 0; !closed(stop); n++ {
				w.must(ref("hot", "measured"), fmt.Sprint(client, "-", n), &text{Value: "x"})
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(began).Seconds()
}

// hotLoad sends one entity more than it can do.
type hotLoad struct {
	w                                            *world
	offered                                      float64 // a second
	sent, executed, refused, outstanding, atOnce atomic.Int64
}

// run sends until stop is closed, and waits for the answers.
func (l *hotLoad) run(round string, stop <-chan struct{}) {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for n := 0; ; {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for ; float64(n) < l.offered*time.Since(began).Seconds(); n++ {
			key := fmt.Sprint(round, "-", n)
			wg.Go(func() { l.send(key) })
		}
	}
}

func (l *hotLoad) send(key string) {
	l.sent.Add(1)
	l.atOnce.Store(max(l.atOnce.Load(), l.outstanding.Add(1)))
	defer l.outstanding.Add(-1)
	_, err := l.w.submit(submitted{ref: ref("hot", "hot"), key: key, command: &text{Value: "x"}})
	var e *entity.Error
	switch {
	case err == nil:
		l.executed.Add(1)
	case errors.As(err, &e) && e.Reason == entity.Overloaded && e.RetryAfter > 0:
		l.refused.Add(1)
	default:
		l.w.t.Errorf("hot: %v", err)
	}
}

// One entity gets ten times what it can do. It refuses the rest at once with a
// delay, its queue is bounded, memory stays flat, calls whose caller has left are
// not begun, and others go on. Others are measured by turns without and with that
// load, so that what grows meanwhile counts in both. The median pair of turns counts
// in the long run, else the best of the few, and only if others wait for long: one
// pause of the machine spoils a turn.
func TestHotEntity(t *testing.T) {
	const command = 2 * time.Millisecond
	turns, turn, most := 3, 400*time.Millisecond, 8.0 // few samples, and maybe a busy machine
	long := os.Getenv("WRIT_LONG") != ""
	if long {
		turns, turn, most = 120, time.Second, 2.0 // two minutes of the load
	}
	var ran atomic.Int64
	limits := actors.DefaultLimits()
	limits.EntityCalls = 256
	w := newWorld(t, worldConfig{
		shards: 1, generation: time.Hour,
		kinds: []entity.Definer{kind("hot", hooks{command: func(*entity.Context, *num, string) error {
			ran.Add(1)
			pause(command)
			return nil
		}})},
		change: func(c *actors.Config) { c.Limits = limits },
	})
	load := &hotLoad{w: w, offered: 10 * capacity(w)}
	ran.Store(0)
	before := heap()
	var during uint64
	var alone, beside []time.Duration
	var factors []float64
	for n := range turns {
		was := calm(w, fmt.Sprint("alone", n), after(turn))
		stop, ended := after(turn), make(chan struct{})
		go func() {
			defer close(ended)
			load.run(fmt.Sprint("h", n), stop)
		}()
		is := calm(w, fmt.Sprint("beside", n), stop)
		during = max(during, heap())
		<-ended
		factors = append(factors, percentile(is, 99).Seconds()/percentile(was, 99).Seconds())
		alone, beside = append(alone, was...), append(beside, is...)
	}
	slices.Sort(factors)
	factor := factors[0]
	if long {
		factor = factors[len(factors)/2]
	} else if percentile(beside, 99) < 50*command {
		most = math.Inf(1) // far less than the queue: nobody has waited behind the hot entity
	}
	sent, executed, refused := load.sent.Load(), load.executed.Load(), load.refused.Load()
	t.Logf("%.0f a second to an entity that can do %.0f: %d sent, %d executed, %d refused, at most %d outstanding; others p50 %v alone, %v beside; p99 %v alone, %v beside (factor %.2f); heap %d KiB, then %d KiB",
		load.offered, load.offered/10, sent, executed, refused, load.atOnce.Load(),
		percentile(alone, 50), percentile(beside, 50), percentile(alone, 99), percentile(beside, 99), factor, before>>10, during>>10)
	if refused == 0 || executed != ran.Load() || sent != executed+refused {
		t.Errorf("%d sent, %d ran, %d executed, %d refused", sent, ran.Load(), executed, refused)
	}
	if during > before+64<<20 {
		t.Errorf("memory grew from %d to %d bytes", before, during)
	}
	if factor > most {
		t.Errorf("others' p99 grew by a factor of %.2f, at most %.1f is promised: %.2f", factor, most, factors)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// fill stores n entities that have nothing to do.
func (w *world) fill(kind string, n int) {
	w.t.Helper()
	lease := w.leases[0]
	state, err := proto.Marshal(&num{Value: 1})
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < n; {
		var records []*recordv1.Record
		for ; i < n && len(records) < 1000; i++ {
			records = append(records, &recordv1.Record{Epoch: 1, Term: lease.term, Body: &recordv1.Record_Commit{Commit: &recordv1.Commit{
				Entity: &recordv1.Ref{Tenant: "t", Kind: kind, Id: fmt.Sprint(i)},
				Mutations: []*recordv1.Mutation{{Bucket: recordv1.Bucket_STATE, Value: &recordv1.Payload{
					Type: "google.protobuf.Int64Value", Schema: 1, Data: state,
				}}},
			}}})
		}
		for _, err := range w.logs[0].apply(lease.term, lease.LogTime(), records...) {
			if err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

func (l *log) last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index
}

// A takeover wakes nobody who has nothing to do, so it costs the same with a
// hundred entities and with fifty thousand; and idle entities write nothing.
func TestTakeoverOfIdleEntities(t *testing.T) {
	took := func(n int) time.Duration {
		w := newWorld(t, worldConfig{change: func(c *actors.Config) { c.Passivation = 80 * time.Millisecond }}) // a tick is 10 ms
		w.fill("counter", n)
		best := time.Hour
		for round := range 5 {
			before := w.metrics.get("activations")
			began := time.Now()
			w.lead(0)
			if value, _ := w.read(ref("counter", "7")); value != 1 {
				t.Errorf("value %d", value)
			}
			best = min(best, time.Since(began))
			if woken := w.metrics.get("activations") - before; woken != 1 {
				t.Errorf("round %d: %d activations", round, woken)
			}
		}
		// Some twenty ticks of the gate, until the entity has been passivated twice.
		last := w.logs[0].last()
		w.metrics.until(t, func() bool { return w.metrics.get("passivations") >= 1 })
		pause(200 * time.Millisecond)
		if now := w.logs[0].last(); now != last {
			t.Errorf("%d entries were written by nobody", now-last)
		}
		return best
	}
	few, many := took(100), took(50_000)
	t.Logf("takeover and first read: %v with 100 idle entities, %v with 50,000", few, many)
	if many > 2*few+250*time.Millisecond { // to wake fifty thousand takes seconds
		t.Errorf("takeover took %v with 100 idle entities, %v with 50,000", few, many)
	}
}
