package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

// world is a cluster whose Raft groups are modelled: it elects, replicates and
// changes configurations as Raft would, and fails the test where a real cluster
// would lose data or its quorum.
type world struct {
	t      *testing.T
	nodes  map[string]*fakeNode
	groups map[uint32]*fakeGroup
	meta   *fakeGroup
	state  *nodev1.MetaState
	mu     sync.Mutex // the reconciler works on several shards at once
}

type fakeNode struct {
	w          *world
	name       string
	dir        string
	id         *Identity
	up         bool
	reads      uint32                  // newest format
	low        bool                    // its disk is
	deaf       bool                    // its Raft port is out of reach
	replicas   map[uint32]*fakeReplica // open
	kept       map[uint32]*fakeReplica // on disk since the last run, not open yet
	controller *Controller
	reconciler *Reconciler
	registrar  *Registrar
	log        bytes.Buffer // of the reconciler
}

type fakeReplica struct {
	server  Server
	broken  bool
	failed  bool
	hard    int  // how often opening it anew does not help
	opened  int  // how often that was tried
	newer   bool // opening it anew cannot help
	applied uint64
	config  ReplicaConfig
}

type fakeGroup struct {
	voters, learners []Server
	leader           Server
	term, commit     uint64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, nodes: map[string]*fakeNode{}, groups: map[uint32]*fakeGroup{}, meta: &fakeGroup{}, state: &nodev1.MetaState{}}
	t.Cleanup(func() {
		for _, n := range w.nodes {
			n.stop()
		}
	})
	return w
}

// add starts a node with an empty disk.
func (w *world) add(name, zone string, c ControllerConfig) *fakeNode {
	n := &fakeNode{w: w, name: name, dir: filepath.Join(w.t.TempDir(), name), replicas: map[uint32]*fakeReplica{}, kept: map[uint32]*fakeReplica{}}
	w.nodes[name] = n
	n.start(zone, c)
	return n
}

func (n *fakeNode) start(zone string, c ControllerConfig) {
	n.id = openIdentity(n.w.t, n.dir, n.name)
	n.up = true
	c.Node, c.ClusterID, c.Meta, c.Members, c.Directory, c.Reporter = n.name, "c", n, fakeMembers{n}, fakeDirectory{n}, n
	n.controller = NewController(c)
	n.reconciler = NewReconciler(ReconcilerConfig{Node: n.name, Incarnation: n.id.Incarnation(), Placements: n, Replicas: n, Reporter: n, Logger: slog.New(slog.NewTextHandler(&n.log, nil))})
	n.registrar = NewRegistrar(RegistrarConfig{Identity: n.id, Zone: zone, FormatMax: max(n.reads, 1), Meta: n, Members: fakeMembers{n}, Controller: n.controller, Peers: n, Directory: fakeDirectory{n}})
}

func (n *fakeNode) stop() {
	if n.up {
		closeIdentity(n.w.t, n.id)
		n.up = false
		maps.Copy(n.kept, n.replicas)
		clear(n.replicas)
	}
}

// wipe gives the node an empty disk; start it again.
func (n *fakeNode) wipe() {
	n.stop()
	n.dir += "+"
	clear(n.kept)
}

func (n *fakeNode) server(generation uint64) Server {
	return Server{n.name, n.id.Incarnation(), generation}
}

// found begins the meta group with these nodes.
func (w *world) found(names ...string) {
	for _, name := range names {
		n := w.nodes[name]
		if err := n.id.promise("c", "hash"); err != nil {
			w.t.Fatal(err)
		}
		w.meta.voters = append(w.meta.voters, n.server(MetaGeneration))
	}
	w.tick()
}

// tick lets Raft do its part: elections and replication.
func (w *world) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.meta.elect(w.metaLive)
	for shard, g := range w.groups {
		live := func(s Server) bool { return w.shardLive(shard, s) }
		g.elect(live)
		if g.leader == (Server{}) {
			continue
		}
		g.commit += 300
		for _, s := range slices.Concat(g.voters, g.learners) {
			if r := w.replica(shard, s); r != nil && live(s) {
				r.applied = min(g.commit, r.applied+max(1000, g.commit/3))
			}
		}
	}
}

func (w *world) metaLive(s Server) bool {
	n := w.nodes[s.Node]
	return n != nil && n.up && n.id.Incarnation() == s.Incarnation
}

func (w *world) replica(shard uint32, s Server) *fakeReplica {
	n := w.nodes[s.Node]
	if n == nil || n.replicas[shard] == nil || n.replicas[shard].server != s {
		return nil
	}
	return n.replicas[shard]
}

func (w *world) shardLive(shard uint32, s Server) bool {
	r := w.replica(shard, s)
	return r != nil && !r.broken && !r.failed && w.nodes[s.Node].up
}

func (g *fakeGroup) quorum(live func(Server) bool) bool {
	n := 0
	for _, s := range g.voters {
		if live(s) {
			n++
		}
	}
	return len(g.voters) > 0 && n > len(g.voters)/2
}

func (g *fakeGroup) elect(live func(Server) bool) {
	if !g.quorum(live) {
		g.leader = Server{}
		return
	}
	if g.leader != (Server{}) && live(g.leader) && slices.Contains(g.voters, g.leader) {
		return
	}
	i := slices.IndexFunc(g.voters, live)
	g.leader = g.voters[i]
	g.term++
}

// change is a membership change on the leader; it fails where Raft would.
func (g *fakeGroup) change(by string, live func(Server) bool, do func() error) error {
	if g.leader.Node != by || !g.quorum(live) {
		return entity.Errorf(entity.NotExecuted, "%s does not lead", by)
	}
	return do()
}

func (g *fakeGroup) addLearner(s Server) error {
	all := slices.Concat(g.voters, g.learners)
	if slices.Contains(all, s) {
		return nil
	}
	if slices.ContainsFunc(all, func(o Server) bool { return o.Node == s.Node }) {
		return fmt.Errorf("found duplicate address in configuration: %v", s.Node)
	}
	g.learners = append(g.learners, s)
	return nil
}

func (g *fakeGroup) promote(s Server) error {
	if slices.Contains(g.voters, s) {
		return nil
	}
	if !slices.Contains(g.learners, s) {
		return errors.New("it is not a learner")
	}
	g.learners = deleteServer(g.learners, s)
	g.voters = append(g.voters, s)
	return nil
}

func (g *fakeGroup) remove(t *testing.T, what string, s Server, live func(Server) bool) error {
	t.Helper()
	g.voters, g.learners = deleteServer(g.voters, s), deleteServer(g.learners, s)
	if !g.quorum(live) {
		t.Errorf("%s: removing %v costs the quorum", what, s)
	}
	return nil
}

func (g *fakeGroup) transfer(to string, live func(Server) bool) error {
	i := slices.IndexFunc(g.voters, func(x Server) bool { return x.Node == to && live(x) })
	if i < 0 {
		return errors.New("it has no vote")
	}
	g.leader = g.voters[i]
	g.term++
	return nil
}

func deleteServer(list []Server, s Server) []Server {
	return slices.DeleteFunc(slices.Clone(list), func(o Server) bool { return o == s })
}

// fakeDirectory is gossip: it is always right here.
type fakeDirectory struct{ n *fakeNode }

func (d fakeDirectory) Members() []Member {
	var list []Member
	for _, name := range slices.Sorted(maps.Keys(d.n.w.nodes)) {
		o := d.n.w.nodes[name]
		m := Member{Name: name, Alive: o.up}
		if o.id != nil {
			m.Incarnation, m.ClusterID = o.id.Incarnation(), o.id.ClusterID()
		}
		list = append(list, m)
	}
	return list
}

// State implements Meta and Placements.
func (n *fakeNode) State() *nodev1.MetaState {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return n.w.state
}

// Ready implements Placements.
func (n *fakeNode) Ready() (bool, string) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return n.w.meta.leader != (Server{}), ""
}

// IsLeader implements Meta.
func (n *fakeNode) IsLeader() bool { return n.up && n.Leader() == n.name }

// Leader implements Meta.
func (n *fakeNode) Leader() string {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return n.w.meta.leader.Node
}

// Update implements Meta.
func (n *fakeNode) Update(_ context.Context, change func(*nodev1.MetaState) error) error {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return n.w.meta.change(n.name, n.w.metaLive, func() error {
		next := proto.CloneOf(n.w.state)
		if err := change(next); err != nil {
			return err
		}
		next.Version++
		n.w.state = next
		return nil
	})
}

// fakeMembers is the meta group's configuration.
type fakeMembers struct{ n *fakeNode }

func (m fakeMembers) Members() (voters, learners []Server) {
	m.n.w.mu.Lock()
	defer m.n.w.mu.Unlock()
	return slices.Clone(m.n.w.meta.voters), slices.Clone(m.n.w.meta.learners)
}

func (m fakeMembers) AddLearner(_ context.Context, s Server) error {
	m.n.w.mu.Lock()
	defer m.n.w.mu.Unlock()
	g := m.n.w.meta
	return g.change(m.n.name, m.n.w.metaLive, func() error { return g.addLearner(s) })
}

func (m fakeMembers) AddVoter(_ context.Context, s Server) error {
	m.n.w.mu.Lock()
	defer m.n.w.mu.Unlock()
	g := m.n.w.meta
	return g.change(m.n.name, m.n.w.metaLive, func() error { return errors.Join(g.addLearner(s), g.promote(s)) })
}

func (m fakeMembers) Remove(_ context.Context, s Server) error {
	m.n.w.mu.Lock()
	defer m.n.w.mu.Unlock()
	g := m.n.w.meta
	return g.change(m.n.name, m.n.w.metaLive, func() error { return g.remove(m.n.w.t, "meta group", s, m.n.w.metaLive) })
}

func (m fakeMembers) TransferLeadership(_ context.Context, to string) error {
	m.n.w.mu.Lock()
	defer m.n.w.mu.Unlock()
	g := m.n.w.meta
	return g.change(m.n.name, m.n.w.metaLive, func() error { return g.transfer(to, m.n.w.metaLive) })
}

// Promise implements Founders.
func (n *fakeNode) Promise(context.Context, string, *nodev1.PromiseRequest) (*nodev1.PromiseResponse, error) {
	return nil, errLink
}

// Register implements Founders.
func (n *fakeNode) Register(ctx context.Context, node string, req *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error) {
	if to := n.w.nodes[node]; to != nil && to.up {
		return to.controller.Register(ctx, req)
	}
	return nil, errLink
}

// Shards implements Reporter.
func (n *fakeNode) Shards(_ context.Context, node string) ([]*nodev1.ShardStatus, error) {
	if to := n.w.nodes[node]; to != nil && to.up && n.up {
		return to.Statuses(), nil
	}
	return nil, errLink
}

// Report implements NodeReporter.
func (n *fakeNode) Report(ctx context.Context, node string) (*nodev1.ReportResponse, error) {
	list, err := n.Shards(ctx, node)
	if err != nil {
		return nil, err
	}
	report := &nodev1.ReportResponse{Shards: list}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	if to := n.w.nodes[node]; !to.deaf && slices.Contains(slices.Concat(n.w.meta.voters, n.w.meta.learners), to.server(MetaGeneration)) {
		report.MetaLeader, report.MetaVersion = n.w.meta.leader.Node, n.w.state.GetVersion()
	}
	return report, nil
}

// Open implements Replicas.
func (n *fakeNode) Open(c ReplicaConfig) error {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	if n.replicas[c.Shard] != nil {
		return errors.New("this node holds a replica already")
	}
	g := n.w.groups[c.Shard]
	if g == nil {
		if len(c.Bootstrap) == 0 {
			n.w.t.Errorf("%s: the first replica of shard %d has nothing to bootstrap", n.name, c.Shard)
		}
		g = &fakeGroup{voters: slices.Clone(c.Bootstrap)}
		n.w.groups[c.Shard] = g
	}
	s := n.server(c.Generation)
	if len(c.Bootstrap) > 0 && !slices.Contains(g.voters, s) {
		n.w.t.Errorf("%s bootstraps shard %d, whose group is %v", n.name, c.Shard, g.voters)
	}
	n.replicas[c.Shard] = &fakeReplica{server: s, config: c}
	if kept := n.kept[c.Shard]; kept != nil && kept.server == s {
		n.replicas[c.Shard] = kept
		delete(n.kept, c.Shard)
	}
	return nil
}

// Reopen implements Replicas.
func (n *fakeNode) Reopen(c ReplicaConfig) (bool, error) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	r := n.replicas[c.Shard]
	if r.newer {
		return false, nil
	}
	if r.opened++; r.opened > r.hard {
		r.failed = false
	}
	return true, nil
}

// Kept implements Replicas.
func (n *fakeNode) Kept(shard uint32, _ uint64) uint64 {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	if kept := n.kept[shard]; kept != nil {
		return kept.server.Generation
	}
	return 0
}

// Drop implements Replicas.
func (n *fakeNode) Drop(shard uint32) error {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	r, g := n.replicas[shard], n.w.groups[shard]
	if !r.broken && slices.Contains(slices.Concat(g.voters, g.learners), r.server) {
		n.w.t.Errorf("%s drops %v, which is part of shard %d: %v %v", n.name, r.server, shard, g.voters, g.learners)
	}
	delete(n.replicas, shard)
	return nil
}

// Statuses implements Replicas.
func (n *fakeNode) Statuses() []*nodev1.ShardStatus {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	var list []*nodev1.ShardStatus
	for _, shard := range slices.Sorted(maps.Keys(n.replicas)) {
		r, g := n.replicas[shard], n.w.groups[shard]
		s := &nodev1.ShardStatus{Shard: shard, Local: true, ReplicaGeneration: r.server.Generation, State: stateServing}
		if r.broken {
			s.State, s.Reason = stateQuarantined, "damaged"
		} else if r.failed {
			s.State, s.Reason = stateFailed, "its disk was full"
		} else if slices.Contains(slices.Concat(g.voters, g.learners), r.server) {
			s.Leader, s.Term, s.AppliedIndex, s.CommitIndex = g.leader.Node, g.term, r.applied, g.commit
			for _, v := range g.voters {
				s.Voters = append(s.Voters, v.Node)
			}
			for _, l := range g.learners {
				s.Learners = append(s.Learners, l.Node)
			}
		}
		if n.low && !r.broken {
			s.State = StateLowDisk
		}
		list = append(list, s)
	}
	return list
}

// Group implements Replicas.
func (n *fakeNode) Group(shard uint32) Group {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	if n.replicas[shard] == nil {
		return nil
	}
	return fakeShard{n, shard, n.w.groups[shard]}
}

type fakeShard struct {
	n     *fakeNode
	shard uint32
	*fakeGroup
}

func (s fakeShard) live(x Server) bool { return s.n.w.shardLive(s.shard, x) }

func (s fakeShard) Members() (voters, learners []Server) {
	s.n.w.mu.Lock()
	defer s.n.w.mu.Unlock()
	return slices.Clone(s.voters), slices.Clone(s.learners)
}

func (s fakeShard) AddLearner(_ context.Context, x Server) error {
	s.n.w.mu.Lock()
	defer s.n.w.mu.Unlock()
	return s.change(s.n.name, s.live, func() error { return s.addLearner(x) })
}

func (s fakeShard) Promote(_ context.Context, x Server) error {
	s.n.w.mu.Lock()
	defer s.n.w.mu.Unlock()
	return s.change(s.n.name, s.live, func() error {
		if r := s.n.w.replica(s.shard, x); r == nil || r.applied+1000 < s.commit {
			s.n.w.t.Errorf("shard %d: %v gets a vote without the data", s.shard, x)
		}
		return s.promote(x)
	})
}

func (s fakeShard) Remove(_ context.Context, x Server) error {
	s.n.w.mu.Lock()
	defer s.n.w.mu.Unlock()
	return s.change(s.n.name, s.live, func() error { return s.remove(s.n.w.t, fmt.Sprintf("shard %d", s.shard), x, s.live) })
}

func (s fakeShard) TransferLeadership(_ context.Context, to string) error {
	s.n.w.mu.Lock()
	defer s.n.w.mu.Unlock()
	return s.change(s.n.name, s.live, func() error { return s.transfer(to, s.live) })
}
