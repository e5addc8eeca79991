package node

import (
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/actors/account"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// sound is what a node sees when all is well.
func sound() observation {
	return observation{
		contract: &nodev1.Contract{Window: int64(time.Hour), RetryHorizon: int64(time.Minute)},
		windows:  map[string]time.Duration{"account": time.Hour},
		shards: []observedShard{
			{shard: 0, leader: "n1", leads: true, live: 3, voters: 3},
			{shard: 1, leader: "n2"},
		},
		replicate: 3,
	}
}

// TestEveryPreconditionCanBreak covers that each precondition is met when all is
// well, and not met, with a reason, when what it speaks of is broken; and that the
// others do not move.
func TestEveryPreconditionCanBreak(t *testing.T) {
	finding := func(kind kindOfFinding) func(*observation) {
		return func(o *observation) {
			o.audits = []auditView{{shard: 3, findings: map[kindOfFinding][]string{kind: {"something is wrong"}}}}
		}
	}
	broken := map[string][]func(*observation){
		"effects_match_keys":    {finding(foundRecount)},
		"replicas_equal":        {finding(foundReplicas)},
		"lanes_agree":           {finding(foundPhantom), finding(foundLost)},
		"window_agreed":         {func(o *observation) { o.drift = errors.New("another window") }},
		"window_covers_retries": {func(o *observation) { o.windows["account"] = time.Second }},
		"leaders_known":         {func(o *observation) { o.shards[1].leader = "" }, func(o *observation) { o.shards = nil }},
		"meta_group":            {func(o *observation) { o.meta = "no leader" }},
		"replicas_complete":     {func(o *observation) { o.shards[0].live = 2 }, func(o *observation) { o.shards[1].dead = []string{"n3"} }},
		"storage_sound":         {func(o *observation) { o.shards[1].trouble = "quarantined: truncated" }},
		"disk_space":            {func(o *observation) { o.disk = "full" }},
	}
	for _, pre := range preconditions() {
		if reason := pre.unmet(sound()); reason != "" {
			t.Errorf("%s is not met though all is well: %s", pre.name, reason)
		}
		if len(broken[pre.name]) == 0 {
			t.Errorf("no test breaks %s", pre.name)
		}
	}
	for name, ways := range broken {
		for i, spoil := range ways {
			o := sound()
			spoil(&o)
			for _, pre := range preconditions() {
				if reason := pre.unmet(o); (reason != "") != (pre.name == name) {
					t.Errorf("%s broken (%d): %s says %q", name, i, pre.name, reason)
				}
			}
		}
	}
}

// TestEveryPreconditionAlerts covers that the tests of the alert rules, which promtool
// runs, break each precondition.
func TestEveryPreconditionAlerts(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/prometheus/rules_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, pre := range preconditions() {
		if !strings.Contains(string(text), "exp_labels: {severity: page, precondition: "+pre.name+"}") {
			t.Errorf("no alert of %s is tested", pre.name)
		}
	}
}

func TestReasonsAreBounded(t *testing.T) {
	o := sound()
	o.shards = nil
	for i := range uint32(100) {
		o.shards = append(o.shards, observedShard{shard: i})
	}
	if reason := leadersKnown(o); !strings.HasSuffix(reason, "and 95 more") {
		t.Errorf("reason %q", reason)
	}
}

// TestMergedViews covers that what one node sees broken is broken, since the first
// that saw it, and what all see met is met since the last.
func TestMergedViews(t *testing.T) {
	at := func(second int64) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: second} }
	view := func(node string, second int64, reason string) *writv1.Guarantee {
		pre := &writv1.Precondition{Name: "disk_space", Met: reason == "", Since: at(second)}
		if reason != "" {
			pre.Reasons = []string{node + ": " + reason}
		}
		return &writv1.Guarantee{Nodes: []string{node}, Preconditions: []*writv1.Precondition{pre}}
	}
	for name, tt := range map[string]struct {
		views   []*writv1.Guarantee
		held    bool
		since   int64
		reasons int
	}{
		"all met":      {[]*writv1.Guarantee{view("a", 10, ""), view("b", 30, ""), view("c", 20, "")}, true, 30, 0},
		"one broken":   {[]*writv1.Guarantee{view("a", 10, ""), view("b", 30, "full"), view("c", 40, "")}, false, 30, 1},
		"two broken":   {[]*writv1.Guarantee{view("a", 50, "full"), view("b", 30, "full"), view("c", 60, "")}, false, 30, 2},
		"first broken": {[]*writv1.Guarantee{view("a", 5, "full"), view("b", 30, "")}, false, 5, 1},
	} {
		g := merge(tt.views, nil, nil, time.Unix(99, 0))
		c := g.GetClauses()[3]
		if g.GetHeld() != tt.held || c.GetHeld() != tt.held || c.GetSince().GetSeconds() != tt.since || len(g.GetPreconditions()[0].GetReasons()) != tt.reasons {
			t.Errorf("%s: %v", name, g)
		}
	}
}

// TestSilentNodesAreNotVouchedFor covers that nothing of which a node has the only
// evidence counts as met while that node does not answer, and that what all know does.
func TestSilentNodesAreNotVouchedFor(t *testing.T) {
	const now = 99
	view := func(node, broken string) *writv1.Guarantee {
		g := &writv1.Guarantee{Nodes: []string{node}}
		for _, pre := range preconditions() {
			g.Preconditions = append(g.Preconditions, &writv1.Precondition{Name: pre.name, Met: pre.name != broken, Since: &timestamppb.Timestamp{Seconds: 10}})
		}
		return g
	}
	broken := "disk_space"
	views := func() []*writv1.Guarantee { return []*writv1.Guarantee{view("n1", broken), view("n2", "")} }
	known := []string{"window_covers_retries", "leaders_known", "meta_group"}
	down := map[string]bool{}
	merged := func() *writv1.Guarantee {
		return merge(views(), []string{"n3", "n4"}, func(node string) bool { return down[node] }, time.Unix(now, 0))
	}
	g := merged()
	if g.GetHeld() {
		t.Error("it is held though two nodes do not answer")
	}
	for _, pre := range g.GetPreconditions() {
		all, since := slices.Contains(known, pre.GetName()), int64(now)
		if all || pre.GetName() == "disk_space" { // not met before, on n1
			since = 10
		}
		if told := strings.Join(pre.GetReasons(), ", ") == "n3: no answer, n4: no answer"; pre.GetMet() != all || told == all || pre.GetSince().GetSeconds() != since {
			t.Errorf("%v", pre)
		}
	}
	for _, c := range g.GetClauses() {
		if c.GetHeld() || strings.Count(strings.Join(c.GetEvidence(), "\n"), "n3: no answer") != 1 {
			t.Errorf("clause %v", c)
		}
	}
	down["n3"], down["n4"] = true, true
	for _, c := range merged().GetClauses() {
		if degraded := c.GetName() == string(clauseDegradation); c.GetHeld() == degraded {
			t.Errorf("with both down: clause %v", c)
		}
	}
	for _, broken = range []string{"leaders_known", "meta_group"} { // the one who asks may be cut off
		for _, c := range merged().GetClauses() {
			if c.GetHeld() {
				t.Errorf("%s is not met, and both are down: clause %v", broken, c)
			}
		}
	}
}

func TestContractIsChecked(t *testing.T) {
	for name, tt := range map[string]struct {
		given Config
		drift string
	}{
		"nothing given":   {Config{}, ""},
		"the same":        {Config{Window: time.Hour, RetryHorizon: time.Minute}, ""},
		"another window":  {Config{Window: 2 * time.Hour}, "--window 2h0m0s"},
		"another horizon": {Config{RetryHorizon: time.Second}, "--retry-horizon 1s"},
	} {
		err := tt.given.drift(sound().contract)
		if (err == nil) != (tt.drift == "") || (err != nil && !strings.Contains(err.Error(), tt.drift)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	registry, err := entity.NewRegistry(account.Kinds()...)
	if err != nil {
		t.Fatal(err)
	}
	good := &nodev1.Contract{Window: int64(time.Hour), RetryHorizon: int64(time.Minute), WindowByKind: map[string]int64{"account": int64(2 * time.Hour)}}
	for name, tt := range map[string]struct {
		change func(*nodev1.Contract)
		want   string // "": good
	}{
		"good":                    {func(*nodev1.Contract) {}, ""},
		"the longest window":      {func(c *nodev1.Contract) { c.Window = int64(windowMax) }, ""},
		"a longer window":         {func(c *nodev1.Contract) { c.Window = math.MaxInt64 }, "the most is 87600h"},
		"negative window":         {func(c *nodev1.Contract) { c.Window = -1 }, "the least is 1s"},
		"negative horizon":        {func(c *nodev1.Contract) { c.RetryHorizon = -5 }, "must not be negative"},
		"horizon over all":        {func(c *nodev1.Contract) { c.RetryHorizon = math.MaxInt64 }, "late retry"},
		"negative window, a kind": {func(c *nodev1.Contract) { c.WindowByKind["account"] = -int64(time.Hour) }, "window of kind account is -1h"},
		"longer window of a kind": {func(c *nodev1.Contract) { c.WindowByKind["account"] = math.MaxInt64 }, "window of kind account"},
	} {
		c := proto.CloneOf(good)
		tt.change(c)
		err := checkAmended(c, registry)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A cluster that began before there was a retry horizon has the default.
	if d := retryHorizon(&nodev1.Contract{Window: int64(10 * time.Second)}); d != 10*time.Second {
		t.Errorf("retry horizon %v of a short window", d)
	}
}
