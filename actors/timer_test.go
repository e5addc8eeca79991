package actors_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"writ/actors"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	writv1 "writ/proto/writ/v1"
)

// clockwork is a kind whose commands set timers, and what its timers did.
type clockwork struct {
	mu    sync.Mutex
	fired map[string][]time.Time // by entity and name: when they were due
	early []string
	bad   atomic.Bool // "fire" panics
	// "block" says that it has begun, and waits.
	begun, proceed chan struct{}
}

func (k *clockwork) kind() *entity.Kind[*num] {
	k.fired = map[string][]time.Time{}
	k.begun, k.proceed = make(chan struct{}, 1), make(chan struct{})
	return kind("clock", hooks{command: func(c *entity.Context, s *num, what string) error {
		word := strings.Fields(what)
		var d time.Duration
		if len(word) > 2 {
			d, _ = time.ParseDuration(word[2])
		}
		command := &text{Value: "fire " + strings.Join(word[1:min(2, len(word))], "")}
		switch word[0] {
		case "set":
			c.SetTimer(word[1], entity.Timer{After: d, Command: command})
		case "many":
			n := 10
			if len(word) > 3 {
				n, _ = strconv.Atoi(word[3])
			}
			for i := range n {
				c.SetTimer(fmt.Sprint(word[1], i), entity.Timer{After: d, Command: &text{Value: fmt.Sprint("fire ", word[1], i)}})
			}
		case "every":
			c.SetTimer(word[1], entity.Timer{
				After: d, Every: d, Command: command,
				CatchUp: map[string]entity.CatchUp{"once": entity.CatchUpOnce, "skip": entity.CatchUpSkip, "all": entity.CatchUpAll}[word[3]],
			})
		case "event":
			c.SetTimer(word[1], entity.Timer{After: d, Event: &num{Value: 7}, To: entity.To("counter", "x")})
		case "move":
			c.MoveTimer(word[1], c.Time().Add(d))
		case "cancel":
			c.CancelTimer(word[1])
		case "block":
			k.begun <- struct{}{}
			<-k.proceed
		case "nonsense":
			c.SetTimer("n", entity.Timer{Command: &recordv1.Ref{}})
		case "reject":
			c.SetTimer("r", entity.Timer{Command: command})
			return c.Reject(entity.NotFound, "NO", "no")
		case "delete":
			c.SetTimer("gone", entity.Timer{Command: command})
			c.Delete()
		case "fire":
			if k.bad.Load() {
				panic("as told")
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			at := c.ID() + " " + word[1]
			k.fired[at] = append(k.fired[at], c.Due())
			if now := time.Now(); now.Before(c.Due()) {
				k.early = append(k.early, fmt.Sprint(at, " by ", c.Due().Sub(now)))
			}
			s.Value++
		}
		return nil
	}})
}

func (k *clockwork) times(at string) []time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.fired[at])
}

func (k *clockwork) check(t *testing.T) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.early) > 0 {
		t.Errorf("early: %v", k.early)
	}
}

func newClockworld(t *testing.T, change func(*actors.Config)) (*clockwork, *world) {
	t.Helper()
	k := &clockwork{}
	return k, newWorld(t, worldConfig{
		shards: 2, kinds: []entity.Definer{k.kind(), kind("counter", hooks{})},
		change: func(c *actors.Config) {
			c.TimerSkew = -1
			if change != nil {
				change(c)
			}
		},
	})
}

func TestTimer(t *testing.T) {
	k, w := newClockworld(t, nil)
	a := ref("clock", "a")
	set := w.must(a, "1", &text{Value: "set t 30ms"})
	w.must(a, "2", &text{Value: "event e 10ms"})
	w.must(a, "3", &text{Value: "set never 1h"})
	w.must(a, "4", &text{Value: "cancel never"})
	w.must(a, "5", &text{Value: "set sooner 1h"})
	w.must(a, "6", &text{Value: "move sooner 1ms"})
	w.must(a, "7", &text{Value: "move missing 1ms"})
	w.metrics.until(t, func() bool { return w.metrics.get("timers_fired") == 3 })
	w.drained(a, ref("counter", "x"), 1)
	if value, _ := w.read(a); value != 2 {
		t.Errorf("%d timers fired", value)
	}
	if value, _ := w.read(ref("counter", "x")); value != 7 {
		t.Errorf("the delayed event made %d", value)
	}
	k.check(t)
	// Its outcome stands under a key that no client's can be, whatever its content.
	key, command := fmt.Sprintf("%d/t", set.GetVersion()), "google.protobuf.StringValue"
	stored, err := w.stores[w.shard(a)].Key(a, "timer "+command, []byte(key))
	if err != nil || stored.GetOutcome().GetDecision() != recordv1.Outcome_EXECUTED {
		t.Errorf("outcome: %v, %v", stored, err)
	}
	for _, own := range []string{key, "timer " + key, "writ.timer/" + key} {
		if answer, err := w.submit(submitted{ref: a, key: own, command: &text{Value: "nothing"}}); err != nil || answer.GetReplayed() {
			t.Errorf("a client's key %q: %v, %v", own, answer, err)
		}
	}
	_, err = w.rt.Forward(t.Context(), &nodev1.ForwardRequest{Shard: w.shard(a), Tenant: "t", Call: &nodev1.ForwardRequest_Cancel{
		Cancel: &writv1.OutcomeRequest{Entity: &writv1.EntityRef{Kind: "clock", Id: "a"}, IdempotencyKey: key, CommandType: "timer " + command},
	}})
	wantReason(t, err, entity.Invalid)
	// Nothing of a rejected command and of a handler that set nonsense is left.
	if answer, err := w.submit(submitted{ref: a, key: "8", command: &text{Value: "reject"}}); err != nil || answer.GetRejection() == nil {
		t.Error(answer, err)
	}
	_, err = w.submit(submitted{ref: a, key: "9", command: &text{Value: "nonsense"}})
	wantReason(t, err, entity.HandlerPanic)
	if names, err := w.stores[w.shard(a)].TimerNames(a, 10); err != nil || len(names) > 0 {
		t.Errorf("timers left: %v, %v", names, err)
	}
}

// What a command finds are the timers as the commands before it leave them, in
// flight or not.
func TestTimerInFlight(t *testing.T) {
	k, w := newClockworld(t, nil)
	a := ref("clock", "a")
	lease := w.leases[w.shard(a)]
	lease.hold()
	var answers []<-chan result
	for i, what := range []string{"set t 1h", "move t 1ms", "set u 1h", "cancel u", "move u 1ms"} {
		answers = append(answers, w.later(submitted{ref: a, key: fmt.Sprint(i), command: &text{Value: what}}))
		w.held(int(w.shard(a)), i+1)
	}
	lease.release()
	for _, answer := range answers {
		if r := <-answer; r.err != nil {
			t.Error(r.err)
		}
	}
	w.metrics.until(t, func() bool { return w.metrics.get("timers_fired") == 1 })
	if len(k.times("a t")) != 1 || len(k.times("a u")) != 0 {
		t.Errorf("fired: %v", k.fired)
	}
}

// A timer whose command panics is tried again and then parked, and costs the
// entity nothing; a handler can revive it.
func TestTimerFails(t *testing.T) {
	k, w := newClockworld(t, nil)
	k.bad.Store(true)
	a := ref("clock", "a")
	w.must(a, "1", &text{Value: "set t 1ms"})
	w.metrics.until(t, func() bool { return w.metrics.get("timers_parked") == 1 })
	timer, err := w.stores[w.shard(a)].Timer(a, "t")
	if err != nil || timer.GetAttempts() != 8 || timer.GetNext() != 0 || !strings.Contains(timer.GetReason(), "as told") {
		t.Errorf("timer %v, %v", timer, err)
	}
	k.bad.Store(false)
	w.must(a, "2", &text{Value: "move t 1ms"})
	w.metrics.until(t, func() bool { return w.metrics.get("timers_fired") == 1 })
	if value, _ := w.read(a); value != 1 {
		t.Errorf("value is %d", value)
	}
}

// The timers of an entity whose handler does not come back leave the other timers of
// the shard alone, and fire when it does.
func TestHungTimersLeaveTheOthers(t *testing.T) {
	const many = 400                                                                           // more than fire at once
	k, w := newClockworld(t, func(c *actors.Config) { c.Passivation = 80 * time.Millisecond }) // a quick tick
	a := ref("clock", "a")
	b := ref("clock", "b")
	for i := 0; w.shard(b) != w.shard(a); i++ {
		b = ref("clock", fmt.Sprint("b", i))
	}
	w.must(a, "1", &text{Value: fmt.Sprint("many t 500ms ", many)})
	blocked := w.later(submitted{ref: a, key: "2", command: &text{Value: "block"}})
	<-k.begun
	w.must(b, "1", &text{Value: "set u 600ms"})
	w.metrics.until(t, func() bool { return len(k.times(b.ID+" u")) == 1 })
	w.must(b, "2", &text{Value: "set v 1ms"})
	w.metrics.until(t, func() bool { return len(k.times(b.ID+" v")) == 1 })
	w.metrics.until(t, func() bool { return w.metrics.get("timers_fired") >= 2 })
	close(k.proceed)
	if r := <-blocked; r.err != nil {
		t.Error(r.err)
	}
	w.metrics.until(t, func() bool { return w.metrics.get("timers_fired") == many+2 })
	for i := range many {
		if n := len(k.times(fmt.Sprint("a t", i))); n != 1 {
			t.Errorf("timer %d has fired %d times", i, n)
		}
	}
	k.check(t)
}

// A timer that is moved while it fires is found by a pass that must leave it alone;
// it is not forgotten for that.
func TestTimerMovedWhileItFires(t *testing.T) {
	k := &clockwork{}
	w := newWorld(t, worldConfig{kinds: []entity.Definer{k.kind()}})
	a, b := ref("clock", "a"), ref("clock", "b")
	lease := w.leases[0]
	holdFrom := func(version uint64) {
		lease.holdOnly(func(rec *recordv1.Record) bool {
			return rec.GetCommit().GetEntity().GetId() == "a" && rec.GetCommit().GetBaseVersion() >= version
		})
	}
	holdFrom(0)
	w.later(submitted{ref: a, key: "set", command: &text{Value: "set x 1ns"}})
	w.held(0, 1)
	moved := w.later(submitted{ref: a, key: "move", command: &text{Value: "move x 1ns"}})
	w.held(0, 2)
	blocked := w.later(submitted{ref: a, key: "block", command: &text{Value: "block"}})
	<-k.begun
	// The store has x as it was set, and the pass that fires y fires x as well; but
	// the entity is busy.
	holdFrom(1)
	w.must(b, "y", &text{Value: "set y 1ns"})
	w.metrics.until(t, func() bool { return w.metrics.get("timers_fired") == 1 })
	close(k.proceed)
	w.held(0, 2)
	// The store has x as it was moved. What was fired waits for the last command.
	holdFrom(2)
	if r := <-moved; r.err != nil {
		t.Fatal(r.err)
	}
	w.must(b, "z", &text{Value: "set z 1ns"})
	w.metrics.until(t, func() bool { return w.metrics.get("timers_fired") == 2 })
	lease.release()
	if r := <-blocked; r.err != nil {
		t.Fatal(r.err)
	}
	w.metrics.until(t, func() bool { return w.metrics.get("timers_fired") == 3 })
	if n := len(k.times("a x")); n != 1 {
		t.Errorf("x has fired %d times", n)
	}
	k.check(t)
}

func TestRepeatedTimers(t *testing.T) {
	const every = 20 * time.Millisecond
	k, w := newClockworld(t, nil)
	a := ref("clock", "a")
	for _, policy := range []string{"once", "skip", "all"} {
		w.must(a, policy, &text{Value: fmt.Sprintf("every %s %v %s", policy, every, policy)})
	}
	enough := func(n int) func() bool {
		return func() bool {
			return len(k.times("a once")) >= n && len(k.times("a skip")) >= n && len(k.times("a all")) >= n
		}
	}
	w.metrics.until(t, enough(3))
	w.leases[w.shard(a)].end(nil)
	time.AfterFunc(6*every, func() { w.lead(int(w.shard(a))) }) // an outage
	before := len(k.times("a all"))
	w.metrics.until(t, enough(before+12))
	for _, policy := range []string{"once", "skip", "all"} {
		// A handler whose record was lost with its lease has run twice.
		times := slices.Compact(k.times("a " + policy))
		gaps := 0
		for i := 1; i < len(times); i++ {
			switch d := times[i].Sub(times[i-1]); {
			case d < every || d%every != 0:
				t.Errorf("%s: %v after the time before", policy, d)
			case d > every:
				gaps++
			}
		}
		if (gaps == 0) != (policy == "all") {
			t.Errorf("%s: %d gaps in %d times", policy, gaps, len(times))
		}
	}
	if w.metrics.get("timers_skipped") == 0 {
		t.Error("nothing was skipped")
	}
	for _, name := range []string{"once", "skip", "all"} {
		w.must(a, "stop "+name, &text{Value: "cancel " + name})
	}
	k.check(t)
}

// Every timer fires once and none early, whatever leaders come and go.
func TestTimersAcrossLeaders(t *testing.T) {
	entities := 200
	if os.Getenv("WRIT_LONG") != "" {
		entities = 10_000
	}
	k, w := newClockworld(t, func(c *actors.Config) { c.Passivation = 50 * time.Millisecond })
	var wg sync.WaitGroup
	slots := make(chan struct{}, 64)
	for i := range entities {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			d := time.Duration(20+i*7%200) * time.Millisecond
			w.retried(submitted{ref: ref("clock", fmt.Sprint(i)), key: "k", command: &text{Value: fmt.Sprintf("many t %v", d)}})
		})
		if i%(entities/3) == entities/3-1 {
			for shard := range w.stores {
				w.leases[shard].end(nil)
				w.lead(shard)
			}
		}
	}
	wg.Wait()
	total := entities * 10
	newLeaders := func() {
		for shard := range w.stores {
			w.leases[shard].end(nil)
			w.lead(shard)
		}
	}
	for third := range 3 { // more leaders come while timers fire
		for target := third * total / 3; target < (third+1)*total/3; target += 1000 {
			w.metrics.until(t, func() bool { return k.count() >= target })
		}
		newLeaders()
	}
	for i := range entities {
		w.metrics.until(t, func() bool {
			value, _ := w.stored(ref("clock", fmt.Sprint(i)))
			return value >= 10
		})
	}
	newLeaders() // a second firing would come now
	for i := range entities {
		a := ref("clock", fmt.Sprint(i))
		if value, _ := w.read(a); value != 10 {
			t.Errorf("entity %d: %d timers fired", i, value)
		}
	}
	k.check(t)
	t.Logf("%d timers, lateness: %v", total, w.metrics.withPrefix("timers_fired "))
}

// retried submits until there is an answer.
func (w *world) retried(s submitted) {
	for w.t.Context().Err() == nil {
		_, err := w.submit(s)
		if err == nil {
			return
		}
		if reason := entity.ReasonOf(err); reason != entity.NotExecuted && reason != entity.OutcomeUnknown {
			w.t.Error(err)
			return
		}
	}
}

// count is the number of timers that have had an effect at least once.
func (k *clockwork) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.fired)
}

func (m *metrics) withPrefix(prefix string) map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]int{}
	for name, n := range m.counts {
		if strings.HasPrefix(name, prefix) {
			out[name] = n
		}
	}
	return out
}

// In another term than its own a timer waits for as long as clocks may differ.
func TestTimerSkew(t *testing.T) {
	const skew = 60 * time.Millisecond
	k, w := newClockworld(t, func(c *actors.Config) { c.TimerSkew = skew })
	a := ref("clock", "a")
	for i := 0; ; i++ {
		began := time.Now()
		w.must(a, fmt.Sprint(i), &text{Value: fmt.Sprintf("set t%d 300ms", i)})
		w.lead(int(w.shard(a)))
		w.read(a) // the term has begun
		if time.Since(began) >= 300*time.Millisecond {
			continue // it may have fired in its own term
		}
		name := fmt.Sprint("a t", i)
		w.metrics.until(t, func() bool { return len(k.times(name)) == 1 })
		if late := time.Since(k.times(name)[0]); late < skew {
			t.Errorf("fired %v after its time", late)
		}
		return
	}
}

// A timer that could not be tried while the leader's clock was far ahead is tried
// soon after the clock was set back, not when it gets there again.
func TestTimerTriedAgainAfterTheClockWasSetBack(t *testing.T) {
	var offset atomic.Int64
	offset.Store(int64(-time.Hour))
	limits := actors.DefaultLimits()
	limits.Proposals = 1
	due := time.Now().Add(-time.Minute)
	clock := kind("clock", hooks{command: func(c *entity.Context, s *num, what string) error {
		if what == "set" {
			c.SetTimer("t", entity.Timer{At: due, Command: &text{Value: "fire"}})
		}
		return nil
	}})
	w := newWorld(t, worldConfig{kinds: []entity.Definer{clock}, change: func(c *actors.Config) {
		c.Clock = func() time.Time { return time.Now().Round(0).Add(time.Duration(offset.Load())) }
		c.Limits, c.Passivation = limits, 80*time.Millisecond // a quick tick
	}})
	w.must(ref("clock", "a"), "1", &text{Value: "set"})
	w.leases[0].hold()
	crowd := w.later(submitted{ref: ref("clock", "b"), key: "1", command: &text{}})
	w.held(0, 1)
	offset.Store(int64(time.Hour))
	w.metrics.until(t, func() bool { return w.metrics.get("refused") > 0 })
	offset.Store(0)
	w.leases[0].release()
	if r := <-crowd; r.err != nil {
		t.Error(r.err)
	}
	w.metrics.until(t, func() bool { return w.metrics.get("timers_fired") == 1 })
}

// countingStore counts looks at the index of times.
type countingStore struct {
	actors.Store
	looks *atomic.Int64
}

func (s countingStore) DueTimers(behind string, until int64, limit int, yield func(string, entity.Ref, string, *recordv1.Timer)) (int64, error) {
	s.looks.Add(1)
	return s.Store.DueTimers(behind, until, limit, yield)
}

// A leader asks for timers once, and then only when one is due.
func TestTimersAreNotPolled(t *testing.T) {
	var looks atomic.Int64
	k := &clockwork{}
	w := newWorld(t, worldConfig{
		kinds:  []entity.Definer{k.kind()},
		change: func(c *actors.Config) { c.Passivation = 80 * time.Millisecond }, // a tick is 10 ms
		wrap:   func(s actors.Store) actors.Store { return countingStore{s, &looks} },
	})
	w.must(ref("clock", "a"), "1", &text{Value: "set far 1h"})
	w.must(ref("clock", "a"), "2", &text{Value: "set near 1ms"})
	w.metrics.until(t, func() bool { return w.metrics.get("timers_fired") == 1 && w.metrics.get("passivations") == 1 })
	if n := looks.Load(); n > 3 {
		t.Errorf("%d looks", n)
	}
}

// A timer for a time that nobody will see does not fire now, and keeps no other
// timer from firing.
func TestFarTimers(t *testing.T) {
	for name, far := range map[string]entity.Timer{
		"the year 2500":    {At: time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC)},
		"the year 3000":    {At: time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"for ever":         {After: math.MaxInt64},
		"once in an age":   {After: time.Millisecond, Every: math.MaxInt64},
		"skipped, in ages": {After: time.Millisecond, Every: math.MaxInt64 - 1, CatchUp: entity.CatchUpSkip},
		"each, in ages":    {After: time.Millisecond, Every: math.MaxInt64 - 1, CatchUp: entity.CatchUpAll},
	} {
		t.Run(name, func(t *testing.T) {
			const near, once = 20, 1000 // near fires so often; once: what far adds each time
			w := newWorld(t, worldConfig{kinds: []entity.Definer{kind("clock", hooks{command: func(c *entity.Context, s *num, what string) error {
				switch what {
				case "far":
					s.Value += once
				case "near":
					if s.Value++; s.GetValue()%once < near {
						c.SetTimer("near", entity.Timer{After: time.Millisecond, Command: &text{Value: "near"}})
					}
				case "set":
					far.Command = &text{Value: "far"}
					c.SetTimer("far", far)
					c.SetTimer("near", entity.Timer{After: 10 * time.Millisecond, Command: &text{Value: "near"}})
				}
				return nil
			}})}, change: func(c *actors.Config) { c.TimerSkew = time.Millisecond }})
			e := ref("clock", "a")
			w.must(e, "1", &text{Value: "set"})
			w.leases[0].end(nil)
			w.lead(0) // another term: the skew counts as well
			want := int64(near)
			if far.Every != 0 {
				want += once
			}
			var value int64
			w.metrics.until(t, func() bool {
				value, _ = w.stored(e)
				return value%once == near && value >= want
			})
			if value != want {
				t.Errorf("the value is %d, want %d", value, want)
			}
		})
	}
}

// TestTimerInRollingUpgrade covers that a timer that was set by a newer node, with a
// field that this one does not know, is not done without it: it waits, and is parked
// when it has waited for too long.
func TestTimerInRollingUpgrade(t *testing.T) {
	for name, patience := range map[string]time.Duration{"waits": time.Hour, "parked": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			var fired atomic.Int64
			w := newWorld(t, worldConfig{kinds: []entity.Definer{kind("clock", hooks{command: func(c *entity.Context, _ *num, what string) error {
				if what == "fire" {
					fired.Add(1)
					return nil
				}
				newer := &text{Value: "fire"}
				newer.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
				c.SetTimer("t", entity.Timer{At: c.Time().Add(-time.Minute), Command: newer})
				return nil
			}})}, change: func(c *actors.Config) { c.UpgradePatience, c.TimerSkew = patience, -1 }})
			e := ref("clock", "a")
			w.must(e, "1", &text{Value: "set"})
			w.metrics.until(t, func() bool {
				return w.metrics.get("refused NOT_EXECUTED") > 0 || w.metrics.get("timers_parked") > 0
			})
			timer, err := w.stores[0].Timer(e, "t")
			if err != nil {
				t.Fatal(err)
			}
			parked := timer.GetNext() == 0
			if parked != (name == "parked") || parked && !strings.Contains(timer.GetReason(), "does not know: 99") || fired.Load() != 0 {
				t.Errorf("timer %v, fired %d times", timer, fired.Load())
			}
		})
	}
}
