package chaos

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPlanIsSeeded(t *testing.T) {
	kinds := []Fault{FaultKill, FaultPause, FaultStorm}
	nodes := []string{"n1", "n2", "n3"}
	a, b := Plan(7, nodes, kinds, 30, time.Second), Plan(7, nodes, kinds, 30, time.Second)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("one seed, two plans:\n%s", diff)
	}
	if cmp.Equal(a, Plan(8, nodes, kinds, 30, time.Second)) {
		t.Error("two seeds, one plan")
	}
	seen := map[Fault]int{}
	for _, s := range a {
		seen[s.Fault]++
	}
	if diff := cmp.Diff(map[Fault]int{FaultKill: 10, FaultPause: 10, FaultStorm: 10}, seen); diff != "" {
		t.Errorf("kinds do not come up evenly:\n%s", diff)
	}
}

func TestPlanPairs(t *testing.T) {
	nodes := []string{"n1", "n2", "n3"}
	firsts, seconds := []Fault{FaultSlow, FaultHalf}, []Fault{FaultKill, FaultPause, FaultStorm}
	a := PlanPairs(7, nodes, firsts, seconds, 60, time.Second)
	if diff := cmp.Diff(a, PlanPairs(7, nodes, firsts, seconds, 60, time.Second)); diff != "" {
		t.Errorf("one seed, two plans:\n%s", diff)
	}
	pairs := map[[2]Fault]int{}
	for _, s := range a {
		pairs[[2]Fault{s.Fault, s.Second.Fault}]++
		if s.Second.Node == s.Node {
			t.Errorf("both on one node: %+v, %+v", s, s.Second)
		}
		if s.Second.After >= s.Hold {
			t.Errorf("the second begins %v later, when the first is over: %v", s.Second.After, s.Hold)
		}
	}
	if len(pairs) != 6 {
		t.Errorf("not every fault meets every other one: %v", pairs)
	}
}

// fake is a cluster that writes down what is done to it.
type fake struct {
	mu    sync.Mutex
	log   []string
	down  map[string]bool
	http  string
	wrong map[string]error
}

func (f *fake) do(what, node string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, what+" "+node)
	switch what {
	case "start":
		delete(f.down, node)
	case "kill", "stop":
		f.down[node] = true
	}
	return f.wrong[what]
}

func (f *fake) Start(node string) error  { return f.do("start", node) }
func (f *fake) Kill(node string) error   { return f.do("kill", node) }
func (f *fake) Pause(node string) error  { return f.do("pause", node) }
func (f *fake) Resume(node string) error { return f.do("resume", node) }
func (f *fake) Wipe(node string) error   { return f.do("wipe", node) }
func (f *fake) Close() error             { return nil }
func (f *fake) Nodes() []string          { return []string{"a", "b"} }
func (f *fake) Addrs(string) Addrs       { return Addrs{HTTP: f.http} }
func (f *fake) Logs(string, int) string  { return "" }

func (f *fake) Stop(_ context.Context, node string) (int, time.Duration, error) {
	return 0, 0, f.do("stop", node)
}

func (f *fake) Running(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.down[node]
}

func newFake(t *testing.T) *fake {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	return &fake{down: map[string]bool{}, http: strings.TrimPrefix(server.URL, "http://"), wrong: map[string]error{}}
}

func TestNemesisHealsWhatItHurts(t *testing.T) {
	for fault, want := range map[Fault][]string{
		FaultKill:  {"kill a", "start a"},
		FaultPause: {"pause a", "resume a"},
		FaultAll:   {"kill a", "kill b"},
	} {
		f := newFake(t)
		n := &Nemesis{Cluster: f, Steps: []Step{{Fault: fault, Node: "a", Hold: time.Millisecond}}}
		if err := n.Run(t.Context()); err != nil {
			t.Fatalf("%s: %v", fault, err)
		}
		if diff := cmp.Diff(want, f.log[:2]); diff != "" {
			t.Errorf("%s:\n%s", fault, diff)
		}
		if len(f.down) != 0 {
			t.Errorf("%s leaves nodes down: %v", fault, f.down)
		}
		if n.Faults()[fault] != 1 || n.Report() == "" {
			t.Errorf("%s is not in the report: %v, %q", fault, n.Faults(), n.Report())
		}
	}
}

// The second fault begins before the first is healed, and all is healed in the end.
func TestNemesisOverlaps(t *testing.T) {
	f := newFake(t)
	n := &Nemesis{Cluster: f, Steps: []Step{{
		Fault: FaultPause, Node: "a", Hold: time.Second,
		Second: &Step{Fault: FaultKill, Node: "b", Hold: 2 * time.Second},
	}}}
	must(t, n.Run(t.Context()))
	begun := slices.Clone(f.log[:2])
	slices.Sort(begun) // they begin at once
	if diff := cmp.Diff([]string{"kill b", "pause a", "resume a", "start b"}, append(begun, f.log[2:]...)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[Fault]int{FaultPause: 1, FaultKill: 1}, n.Faults()); diff != "" {
		t.Error(diff)
	}
	for _, want := range []string{"two at once", "killed b", "froze a", "let a go on", "started b", "all ready"} {
		if !strings.Contains(n.Report(), want) {
			t.Errorf("no %q in the report:\n%s", want, n.Report())
		}
	}
	if strings.Count(n.Report(), "all ready") != 1 {
		t.Errorf("readiness was asked for before both were healed:\n%s", n.Report())
	}
}

func TestNemesisReportsTrouble(t *testing.T) {
	f := newFake(t)
	f.wrong["start"] = errors.New("no such file")
	n := &Nemesis{Cluster: f, Steps: []Step{{Fault: FaultKill, Node: "a", Hold: time.Millisecond}}}
	if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v", err)
	}
	n = &Nemesis{Cluster: f, Steps: []Step{{Fault: FaultCut, Node: "a", Hold: time.Millisecond}}}
	if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no network") {
		t.Errorf("error %v", err)
	}
}
