package membership

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// fast shortens memberlist's intervals, so that a death is noticed in a second.
func fast(m *memberlist.Config) {
	m.ProbeInterval, m.ProbeTimeout = 100*time.Millisecond, 60*time.Millisecond
	m.SuspicionMult, m.SuspicionMaxTimeoutMult = 2, 2
	m.GossipInterval = 10 * time.Millisecond
	m.GossipToTheDeadTime = time.Second
	m.PushPullInterval = 500 * time.Millisecond
	m.TCPTimeout = time.Second
}

func config(name string, seeds ...string) Config {
	return Config{
		Self:    Member{Name: name, Incarnation: "inc-" + name, GRPC: ":7001", HTTP: "0.0.0.0:8001", Raft: "raft.example:9001", Zone: "z"},
		Cluster: "test", Bind: "127.0.0.1:0", Join: seeds, RejoinInterval: 100 * time.Millisecond, tune: fast,
	}
}

func start(t *testing.T, c Config) *Gossip {
	t.Helper()
	g, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func addr(g *Gossip) string { return g.Self().Gossip }

// await waits on the node's own notices until the condition holds.
func await(t *testing.T, g *Gossip, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for !condition() {
		select {
		case <-g.Changed():
		case <-ctx.Done():
			t.Fatalf("%s sees %+v: %s does not come true", g.name, g.Members(), what)
		}
	}
}

func sees(g *Gossip, names ...string) func() bool {
	return func() bool {
		var alive []string
		for _, m := range g.Members() {
			if m.Alive {
				alive = append(alive, m.Name)
			}
		}
		return slices.Equal(alive, names)
	}
}

func settled(t *testing.T, g *Gossip) {
	t.Helper()
	select {
	case <-g.Settled():
	case err := <-g.Failed():
		t.Fatal(err)
	case <-t.Context().Done():
		t.Fatal("never settled")
	}
}

func TestMembersFindEachOther(t *testing.T) {
	a := start(t, config("a"))
	b := start(t, config("b", addr(a)))
	c := start(t, config("c", addr(b)))
	for _, g := range []*Gossip{a, b, c} {
		await(t, g, "three members", sees(g, "a", "b", "c"))
	}
	want := Member{Name: "c", Incarnation: "inc-c", GRPC: "127.0.0.1:7001", HTTP: "127.0.0.1:8001", Raft: "raft.example:9001", Gossip: addr(c), Zone: "z", Alive: true}
	await(t, a, fmt.Sprintf("%+v", want), func() bool { m, ok := a.Lookup("c"); return ok && m == want })
	if own, ok := c.Lookup("c"); !ok || own != want {
		t.Errorf("c sees itself as %+v", own)
	}
	if _, ok := a.Lookup("d"); ok {
		t.Error("found a member that is not there")
	}
}

func TestKeyAndClusterNameSeparate(t *testing.T) {
	a := config("a")
	a.Key = []byte("0123456789abcdef")
	ga := start(t, a)
	stranger := config("b", addr(ga))
	gb := start(t, stranger)
	other := config("c", addr(ga))
	other.Key, other.Cluster = a.Key, "other"
	gc := start(t, other)
	friend := config("d", addr(ga))
	friend.Key = a.Key
	gd := start(t, friend)
	await(t, gd, "two members", sees(gd, "a", "d"))
	await(t, ga, "two members", sees(ga, "a", "d"))
	settled(t, gb)
	settled(t, gc)
	// Strangers would stay; a friend may be held for dead for a moment.
	await(t, ga, "the friend only", sees(ga, "a", "d"))
	await(t, gb, "nobody", sees(gb, "b"))
	await(t, gc, "nobody", sees(gc, "c"))
}

func TestMembersOfAnotherClusterAreRefused(t *testing.T) {
	one, two := config("a"), config("b")
	one.Self.ClusterID, two.Self.ClusterID = "cluster-1", "cluster-2"
	a := start(t, one)
	two.Join = []string{addr(a)}
	b := start(t, two)
	fresh := start(t, config("c", addr(a), addr(b)))
	await(t, fresh, "members of both", sees(fresh, "a", "b", "c"))
	await(t, a, "the fresh one only", sees(a, "a", "c"))
	await(t, b, "the fresh one only", sees(b, "b", "c"))
	for g, want := range map[*Gossip]map[string][]string{a: {"cluster-2": {"b"}}, b: {"cluster-1": {"a"}}, fresh: {}} {
		await(t, g, fmt.Sprintf("the strangers %v", want), func() bool { return maps.EqualFunc(g.Strangers(), want, slices.Equal) })
	}

	if err := fresh.SetClusterID("cluster-1"); err != nil {
		t.Fatal(err)
	}
	await(t, fresh, "the other cluster gone", sees(fresh, "a", "c"))
	await(t, a, "the new member's cluster", func() bool { m, _ := a.Lookup("c"); return m.ClusterID == "cluster-1" })
	await(t, b, "the fresh one gone", sees(b, "b"))
	if err := b.Leave(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	expired := time.After(30 * time.Second)
	for tick := time.Tick(10 * time.Millisecond); len(a.Strangers()) > 0; { // nothing tells of what is not heard
		select {
		case <-tick:
		case <-expired:
			t.Fatalf("b is gone, and still counts: %v", a.Strangers())
		}
	}
}

func TestPartitionHealsWithoutRestart(t *testing.T) {
	var mu sync.Mutex
	cut := false
	block := func(string) bool { mu.Lock(); defer mu.Unlock(); return cut }
	set := func(v bool) { mu.Lock(); defer mu.Unlock(); cut = v }
	configure := func(name string, seeds ...string) Config {
		c := config(name, seeds...)
		c.block = block
		return c
	}
	a := start(t, configure("a")) // the seed asks nobody at start
	b := start(t, configure("b", addr(a)))
	c := start(t, configure("c", addr(a)))
	all := []*Gossip{a, b, c}
	for _, g := range all {
		await(t, g, "three members", sees(g, "a", "b", "c"))
	}
	set(true)
	for _, g := range all {
		await(t, g, "being alone", sees(g, g.name))
	}
	set(false)
	for _, g := range all {
		await(t, g, "three members again", sees(g, "a", "b", "c"))
	}
}

func TestLeaveIsSeenAtOnce(t *testing.T) {
	a := start(t, config("a"))
	b := start(t, config("b", addr(a)))
	await(t, a, "two members", sees(a, "a", "b"))
	await(t, b, "two members", sees(b, "a", "b"))
	if err := b.Leave(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	await(t, a, "being alone", sees(a, "a"))
	if m, ok := a.Lookup("b"); !ok || m.Alive {
		t.Errorf("got %+v %v", m, ok)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Leave(0); err == nil {
		t.Error("left after closing")
	}
}

func TestBackAtAnotherAddress(t *testing.T) {
	a := start(t, config("a"))
	b := start(t, config("b", addr(a)))
	await(t, a, "two members", sees(a, "a", "b"))
	if err := b.Close(); err != nil { // as if killed
		t.Fatal(err)
	}
	again := config("b", addr(a))
	again.Self.Incarnation = "inc-new"
	b2 := start(t, again)
	settled(t, b2)
	await(t, a, "the new address", func() bool {
		m, _ := a.Lookup("b")
		return m.Alive && m.Gossip == addr(b2) && m.Incarnation == "inc-new"
	})
}

func TestSecondProcessWithOneNameGivesUp(t *testing.T) {
	patient := func(name string, seeds ...string) Config {
		c := config(name, seeds...)
		c.tune = func(m *memberlist.Config) {
			fast(m)
			m.ProbeInterval = 0             // never: a name whose owner is suspected to be dead is to be had
			m.TCPTimeout = 10 * time.Second // who cannot join does not hear of the owner
		}
		return c
	}
	a := start(t, patient("a"))
	b := start(t, patient("b", addr(a)))
	settled(t, b)
	await(t, a, "two members", sees(a, "a", "b"))
	second := start(t, patient("b", addr(a)))
	select {
	case err := <-second.Failed():
		if !strings.Contains(err.Error(), addr(b)) {
			t.Errorf("the error does not name the other: %v", err)
		}
	case <-second.Settled():
		t.Fatal("settled under a name that is taken")
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if m, _ := a.Lookup("b"); m.Gossip != addr(b) || !m.Alive {
		t.Errorf("the first suffered: %+v", m)
	}
	select {
	case err := <-b.Failed():
		t.Errorf("the first gave up: %v", err)
	default:
	}
}

// The process that was there first may hear of the conflict first. While it waits
// for the other one to give up it must go on answering, or the other one takes it
// for the ghost of an earlier run, and both stay.
func TestFirstProcessAnswersWhileItWaits(t *testing.T) {
	first := start(t, config("b"))
	settled(t, first)
	second, err := create(t.Context(), config("b").withDefaults()) // does only what it is told
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.list.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	first.conflicts <- addr(second)   // as from memberlist
	second.answer(<-second.instances) // to the question that follows
	for i := range 3 {                // the first of these may still meet that question
		if _, alive := second.ask(t.Context(), addr(first)); !alive {
			t.Fatalf("question %d: the living first process counts as a ghost", i+1)
		}
	}
}

func TestPortInUse(t *testing.T) {
	a := start(t, config("a"))
	c := config("b")
	c.Bind = addr(a)
	_, err := Start(c)
	if err == nil || !strings.Contains(err.Error(), "in use by another process") || !strings.Contains(err.Error(), c.Bind) {
		t.Errorf("got %v", err)
	}
}

func TestConfigErrorsNameEverything(t *testing.T) {
	_, err := Start(Config{Key: []byte("short"), Bind: "nowhere", Advertise: "x", Join: []string{"y"}, RejoinInterval: -1})
	for _, word := range []string{"name must", "incarnation", "cluster's name", "key must", "nowhere", "advertised", "seed \"y\"", "negative"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q is missing in %v", word, err)
		}
	}
}

func TestMetadataTooLargeIsAnError(t *testing.T) {
	c := config("a")
	c.Self.Zone = strings.Repeat("z", 600)
	if _, err := Start(c); err == nil || !strings.Contains(err.Error(), "512") {
		t.Errorf("got %v", err)
	}
	g := start(t, config("b"))
	if err := g.SetClusterID(strings.Repeat("c", 600)); err == nil {
		t.Error("no error")
	}
	if g.Self().ClusterID != "" {
		t.Error("the refused cluster id was kept")
	}
}

func TestAdvertise(t *testing.T) {
	c := config("a")
	c.Bind, c.Advertise = "0.0.0.0:0", "localhost:0"
	g := start(t, c)
	if host, port, err := splitPort(addr(g)); err != nil || !net.ParseIP(host).IsLoopback() || port == 0 {
		t.Errorf("advertises %s", addr(g))
	}
}

// lines records what is logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestSeedThatCannotBeResolved(t *testing.T) {
	var log lines
	a := start(t, config("a"))
	c := config("b", "no such name:1", addr(a))
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	b := start(t, c)
	settled(t, b)
	await(t, b, "the other seed", sees(b, "a", "b"))
	j := joiner{g: b, seen: map[string]string{}}
	for range 3 {
		j.round(t.Context(), false)
	}
	if n := strings.Count(log.String(), "cannot be resolved"); n != 2 { // one by the node, one by the joiner above
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}

func TestLeaderHintsReachEverybody(t *testing.T) {
	cluster := func(name string, seeds ...string) Config {
		c := config(name, seeds...)
		c.Self.ClusterID = "x"
		return c
	}
	a := start(t, cluster("a"))
	b := start(t, cluster("b", addr(a)))
	await(t, a, "two members", sees(a, "a", "b"))
	a.Announce(LeaderHint{Shard: 3, Term: 5, Node: "a"})
	a.Announce(LeaderHint{Shard: 3, Term: 4, Node: "late"})
	a.Announce(LeaderHint{Shard: 4, Epoch: 1, Term: 1, Node: "b"})
	a.Announce(LeaderHint{Shard: 4, Epoch: 0, Term: 9, Node: "old"})
	knows := func(g *Gossip) func() bool {
		return func() bool {
			three, _ := g.Hint(3)
			four, _ := g.Hint(4)
			return three.Node == "a" && four.Node == "b"
		}
	}
	await(t, b, "the hints", knows(b))
	// One that comes late, and learns its cluster later still.
	c := start(t, config("c", addr(a)))
	await(t, c, "the others", sees(c, "a", "b", "c"))
	if err := c.SetClusterID("x"); err != nil {
		t.Fatal(err)
	}
	await(t, c, "the hints", knows(c))
	if _, ok := c.Hint(5); ok {
		t.Error("a hint from nowhere")
	}
}

// A hint that got lost on its way is told again.
func TestLostHintsComeAgain(t *testing.T) {
	cluster := func(name string, seeds ...string) Config {
		c := config(name, seeds...)
		c.Self.ClusterID = "x"
		c.tune = func(m *memberlist.Config) {
			fast(m)
			m.PushPullInterval = 0 // never
		}
		return c
	}
	a := start(t, cluster("a"))
	b := start(t, cluster("b", addr(a)))
	await(t, a, "two members", sees(a, "a", "b"))
	a.Announce(LeaderHint{Shard: 3, Term: 5, Node: "a"})
	knows := func() bool {
		_, ok := b.Hint(3)
		return ok
	}
	await(t, b, "the hint", knows)
	for a.queue.NumQueued()+b.queue.NumQueued() > 0 { // until it is not news any more
		<-time.After(10 * time.Millisecond)
	}
	b.hints.mu.Lock()
	clear(b.hints.newest)
	b.hints.mu.Unlock()
	await(t, b, "the hint", knows)
}

func TestManyNodes(t *testing.T) {
	first := start(t, config("n00"))
	names := []string{"n00"}
	all := []*Gossip{first}
	for i := 1; i < 8; i++ {
		name := fmt.Sprintf("n%02d", i)
		names = append(names, name)
		all = append(all, start(t, config(name, addr(first))))
	}
	for _, g := range all {
		await(t, g, "all members", sees(g, names...))
	}
}
