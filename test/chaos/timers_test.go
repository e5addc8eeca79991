package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/client"
)

const timersEach = 10 // of an alarm

// alarms are the entities of the timers' test.
type alarms struct {
	rig      *rig
	entities int
	first    time.Time // the earliest timer
	span     time.Duration
}

// Timers of many entities fire once each and none early, while three times the
// leader of most shards is killed. How late they were is printed, and published by
// the nodes.
func TestProcessTimers(t *testing.T) {
	random := rand.New(rand.NewPCG(seed(t), 31))
	r := start(t, ProcessConfig{Binary: buildAlarm(t, "")})
	a := &alarms{rig: r, entities: pick(200, 10_000), span: pick(12*time.Second, 75*time.Second)}
	ctx := within(t, 10*time.Minute)
	began := time.Now()
	a.first = began.Add(pick(20*time.Second, time.Minute)) // all are set and listed by then
	a.set(ctx, random)
	t.Logf("%d timers of %d entities set within %v; due from %v on for %v", a.entities*timersEach, a.entities,
		time.Since(began).Round(time.Millisecond), a.first.Sub(began).Round(time.Second), a.span)
	a.listed(ctx)
	for kill := range 3 {
		pause(ctx, time.Until(a.first.Add(a.span*time.Duration(2*kill+1)/6)))
		a.killLeader(ctx)
	}
	pause(ctx, time.Until(a.first.Add(a.span)))
	late := a.fired(ctx)
	r.audit()
	r.lines(ctx, 3, "crashes", "list", "--json") // one a node: what merely ran when they were killed may be listed
	a.fired(ctx)                                 // a second firing would have come by now
	slices.Sort(late)
	at := func(percent int) time.Duration { return late[(len(late)-1)*percent/100] }
	t.Logf("%d timers fired once each; late by p50 %v, p99 %v, at most %v; over after %v", len(late), at(50), at(99), at(100), time.Since(began).Round(time.Millisecond))
	if late[0] < 0 {
		t.Errorf("a timer fired %v early", -late[0])
	}
	if most := at(100); most > time.Minute {
		t.Errorf("a timer was late by %v", most)
	}
	for _, node := range r.running() {
		_, text := get(ctx, r.cluster.Addrs(node).HTTP, "/metrics")
		if !strings.Contains(text, "writ_timer_lateness_seconds_bucket") {
			t.Errorf("%s does not publish how late timers are", node)
		}
	}
}

// buildAlarm builds the node with the kind that has timers, with a build tag.
func buildAlarm(t *testing.T, tag string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "alarm")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", tag, "-o", path, "writ/test/chaos/alarm").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	return path
}

// each does something for every entity, many at once.
func (a *alarms) each(do func(id string) error) {
	a.rig.t.Helper()
	a.rig.each(a.entities, func(i int) error { return do(fmt.Sprint(i)) })
}

// set spreads each entity's timers evenly over the span, from a random time on.
func (a *alarms) set(ctx context.Context, random *rand.Rand) {
	a.rig.t.Helper()
	apart := a.span.Milliseconds() / timersEach
	first := map[string]int64{}
	for i := range a.entities {
		first[fmt.Sprint(i)] = a.first.UnixMilli() + random.Int64N(apart)
	}
	a.each(func(id string) error {
		command := &wrapperspb.StringValue{Value: fmt.Sprintf("set %d %d %d", timersEach, first[id], apart)}
		_, err := a.rig.client.Submit(ctx, "alarm", id, "set", command, client.SubmitOptions{})
		return err
	})
	if late := time.Since(a.first); late > 0 {
		a.rig.t.Logf("the first timers were set %v after their time", late)
	}
}

// listed has the command line list the timers, before the first one is due.
func (a *alarms) listed(ctx context.Context) {
	r := a.rig
	r.t.Helper()
	all := r.lines(ctx, a.entities*timersEach, "timers", "list", "--json", "--limit", fmt.Sprint(a.entities*timersEach))
	if time.Now().After(a.first) {
		r.t.Error("the timers were not listed before the first was due: set them later")
	}
	if !strings.Contains(all[0], `"due":`) || !strings.Contains(all[0], "google.protobuf.StringValue") {
		r.t.Errorf("listed: %s", all[0])
	}
	table := r.lines(ctx, 1+timersEach, "timers", "list", "--entity", "alarm/0")
	if !strings.HasPrefix(table[0], "SHARD") || !strings.Contains(table[1], "alarm/0") || !strings.Contains(table[1], "WAITING") {
		r.t.Errorf("listed:\n%s", strings.Join(table, "\n"))
	}
}

// lines runs a subcommand that prints so many lines.
func (r *rig) lines(ctx context.Context, want int, args ...string) []string {
	r.t.Helper()
	res, err := r.cli.Run(ctx, append(args, "--addr", r.addr())...)
	must(r.t, err)
	lines := strings.Split(strings.TrimSpace(string(res.Stdout)), "\n")
	if res.Code != 0 || len(lines) != want {
		r.t.Fatalf("node %s: exit %d, %d lines, want %d: %s", strings.Join(args, " "), res.Code, len(lines), want, res.Stderr)
	}
	return lines
}

// killLeader kills the node that leads most shards and starts it again.
func (a *alarms) killLeader(ctx context.Context) {
	r := a.rig
	r.t.Helper()
	leaders, err := r.links.Leaders(ctx, r.cluster.Nodes())
	must(r.t, err)
	led := map[string]int{}
	for _, node := range leaders {
		led[node]++
	}
	most := r.cluster.Nodes()[0]
	for node, n := range led {
		if n > led[most] || n == led[most] && node < most {
			most = node
		}
	}
	r.t.Logf("kill %s, leader of %d shards, %v after the first timer was due", most, led[most], time.Since(a.first).Round(time.Millisecond))
	r.kill(most)
	r.up(most)
}

// fired waits until all timers have fired; the result is how late each was.
func (a *alarms) fired(ctx context.Context) (late []time.Duration) {
	a.rig.t.Helper()
	for _, each := range a.firedBy(ctx) {
		late = append(late, each...)
	}
	return late
}

// firedBy is the same by alarm.
func (a *alarms) firedBy(ctx context.Context) map[string][]time.Duration {
	a.rig.t.Helper()
	late := map[string][]time.Duration{}
	var mu sync.Mutex
	a.each(func(id string) error {
		// A setting and one record for each timer.
		state, err := a.rig.client.Read(ctx, "alarm", id, client.ReadOptions{MinVersion: 1 + timersEach})
		if err != nil {
			return err
		}
		timers, ok := state.State.(*structpb.Struct)
		if !ok || len(timers.GetFields()) != timersEach || state.Version != 1+timersEach {
			return fmt.Errorf("at version %d: %v", state.Version, state.State)
		}
		mu.Lock()
		defer mu.Unlock()
		for name, times := range timers.GetFields() {
			if n := len(times.GetListValue().GetValues()); n != 1 {
				return fmt.Errorf("timer %s fired %d times", name, n)
			}
			late[id] = append(late[id], time.Duration(times.GetListValue().GetValues()[0].GetNumberValue())*time.Microsecond)
		}
		return nil
	})
	return late
}
