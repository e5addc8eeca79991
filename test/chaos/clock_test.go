package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// Clocks step, disks are slow or full, one after the other, under load; all checkers
// at the end. TestProcessNemesis has these among the others in a long run.
func TestProcessNemesisOfClocksAndDisks(t *testing.T) {
	random := rand.New(rand.NewPCG(seed(t), 15))
	r := prepare(t, ProcessConfig{Args: []string{"--free-min-mb", lowDiskMB}})
	kinds := r.ownFaults("n2")
	r.up(r.cluster.Nodes()...)
	r.hurt(WorkloadConfig{Seed: random.Uint64(), Clients: 8, Accounts: 60, Registers: 8, Think: 20 * time.Millisecond},
		Plan(random.Uint64(), r.cluster.Nodes(), kinds, 2*len(kinds), 4*time.Second))
}

// The clock of a leader is set hours ahead and hours back, while commands come in
// and timers wait. No command is refused for it, or waits; log time goes its way; each
// timer fires once, and none early but those of the leader whose clock is ahead, by
// no more than that (docs/decisions/0008).
func TestProcessClockSteps(t *testing.T) {
	random := rand.New(rand.NewPCG(seed(t), 48))
	r := start(t, ProcessConfig{Binary: buildAlarm(t, "faults")})
	ctx := within(t, 4*time.Minute)
	w, hedge := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 4, Accounts: 40, Registers: 4, Think: 20 * time.Millisecond})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	defer func() { stop(); wg.Wait() }()

	a := &alarms{rig: r, entities: 120, span: 20 * time.Second, first: time.Now().Add(8 * time.Second)}
	a.set(ctx, random)
	before := a.inspect(ctx)
	led := map[string]int{}
	wrong := r.cluster.Nodes()[0]
	for _, seen := range before {
		if led[seen.GetLeader()]++; led[seen.GetLeader()] > led[wrong] {
			wrong = seen.GetLeader()
		}
	}
	began := time.Now()
	ahead := 2*time.Hour + time.Duration(random.Int64N(int64(2*time.Hour)))
	for _, offset := range []time.Duration{10 * time.Second, -ahead, ahead, -clockStep(random), 0} {
		must(t, SetClock(r.cluster, wrong, offset))
		t.Logf("the clock of %s, which leads %d of %d alarms, is off by %v", wrong, led[wrong], a.entities, offset)
		prompt, cancel := context.WithTimeout(ctx, 30*time.Second)
		r.deposits(prompt, fmt.Sprintf("clock%v-", offset), 64) // of all shards
		cancel()
		pause(ctx, 2*time.Second)
	}
	late := a.firedBy(ctx)
	after := a.inspect(ctx)
	elapsed := time.Since(began)
	early, earliest := 0, time.Duration(0)
	for id, each := range late {
		was, is := before[id], after[id]
		if grown := time.Duration(is.GetLogTime() - was.GetLogTime()); grown < 0 || grown > elapsed+10*time.Second {
			t.Errorf("the log time of shard %d went on by %v within %v", is.GetShard(), grown, elapsed)
		}
		for _, by := range each {
			if by >= 0 {
				continue
			}
			early, earliest = early+1, min(earliest, by)
			if was.GetTerm() == is.GetTerm() && is.GetLeader() != wrong {
				t.Errorf("a timer of alarm %s, in a shard that %s leads, fired %v early", id, is.GetLeader(), -by)
			}
		}
	}
	t.Logf("%d of %d timers fired early, by at most %v", early, a.entities*timersEach, -earliest)
	if -earliest > ahead {
		t.Errorf("a timer fired %v early, the clock was ahead by %v", -earliest, ahead)
	}
	if early == 0 {
		t.Error("no timer fired early: the clock was not ahead, and the run proves nothing")
	}
	stop()
	wg.Wait()
	for _, op := range w.History().Ops() {
		if op.Answer.Verdict == Refused {
			t.Errorf("%s %s was refused: %s %s", op.Action, op.Key, op.Answer.Reason, op.Answer.Text)
		}
	}
	a.fired(ctx) // a second firing would have come by now
	r.verify(w, hedge)
}

// inspect asks for all alarms, at a node for one after the other.
func (a *alarms) inspect(ctx context.Context) map[string]*nodev1.InspectResponse {
	a.rig.t.Helper()
	var mu sync.Mutex
	seen := map[string]*nodev1.InspectResponse{}
	nodes := a.rig.cluster.Nodes()
	a.each(func(id string) error {
		one, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		return eventually(one, "inspect", func(ctx context.Context) error {
			res, err := a.rig.links.Admin(nodes[len(id)%len(nodes)]).Inspect(ctx, &nodev1.InspectRequest{Entity: &recordv1.Ref{Tenant: "default", Kind: "alarm", Id: id}})
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				seen[id] = res
			}
			return err
		})
	})
	return seen
}

// The released program has no fault points, no clock to set and no safeguards to
// switch off; the program with fault points has what is looked for.
func TestReleaseHasNoFaultPoints(t *testing.T) {
	release, err := buildNode()
	must(t, err)
	faults, err := buildFaults()
	must(t, err)
	released, err := os.ReadFile(release)
	must(t, err)
	armed, err := os.ReadFile(faults)
	must(t, err)
	for _, text := range []string{
		"before-propose", "consumer-after-commit", "lease-loss", "injected fault", "fault point", "/debug/fault", "/debug/clock", "WRIT_FAULT", "WRIT_CLOCK",
	} {
		if strings.Contains(string(released), text) {
			t.Errorf("the released program has %q in it", text)
		}
		if !strings.Contains(string(armed), text) {
			t.Errorf("the program with fault points has no %q: it is looked for in vain", text)
		}
	}
	if strings.Contains(string(released), "WRIT_MUTANT") {
		t.Error("the released program has safeguards that can be switched off")
	}
	for binary, want := range map[string]int{release: http.StatusNotFound, faults: http.StatusOK} {
		r := prepare(t, ProcessConfig{Binary: binary, Nodes: []string{"n1"}})
		r.up("n1")
		for _, path := range []string{"/debug/fault?point=before-propose&action=none", "/debug/clock?offset=0s"} {
			res, err := http.Post("http://"+r.cluster.Addrs("n1").HTTP+path, "", nil)
			must(t, err)
			_ = res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("POST %s: %s, want %d", path, res.Status, want)
			}
		}
	}
}
