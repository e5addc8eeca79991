package cluster

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

// town is a set of nodes with a network between them: just enough of a program to
// form a cluster.
type town struct {
	t     *testing.T
	nodes map[string]*citizen
	cut   map[[2]string]bool
	// begun: clusters whose meta group has begun, with the incarnations it knows.
	begun map[string]map[string]string
}

type citizen struct {
	town       *town
	name, dir  string
	list       []string
	id         *Identity
	formation  *Formation
	up         bool
	gossip     string // cluster id in gossip
	configured bool   // the meta group has reached its replica
	err        error  // what Run would have returned
	log        bytes.Buffer
}

func newTown(t *testing.T) *town {
	t.Helper()
	return &town{t: t, nodes: map[string]*citizen{}, cut: map[[2]string]bool{}, begun: map[string]map[string]string{}}
}

func (w *town) add(name string, list ...string) *citizen {
	c := &citizen{town: w, name: name, dir: filepath.Join(w.t.TempDir(), name), list: list}
	w.nodes[name] = c
	return c
}

func (c *citizen) start() {
	if c.up {
		return
	}
	c.id = openIdentity(c.town.t, c.dir, c.name)
	c.err = nil
	f, err := NewFormation(FormationConfig{
		Identity: c.id, InitialNodes: c.list, Directory: c, Peers: c,
		Configured: func() bool { return c.configured },
		Logger:     slog.New(slog.NewTextHandler(&c.log, nil)),
	})
	if err != nil {
		c.err = err
		closeIdentity(c.town.t, c.id)
		return
	}
	c.formation, c.up = f, true
	c.gossip = "" // set again when the formation is over
}

func (c *citizen) stop() {
	if c.up {
		closeIdentity(c.town.t, c.id)
		c.up, c.gossip = false, ""
	}
}

func (c *citizen) wipe() {
	c.stop()
	c.dir += "+"
	c.configured = false
}

// step is one attempt; what it leads to is what cmd/node would do next.
func (c *citizen) step() {
	if !c.up || c.err != nil {
		return
	}
	formed, done, err := c.formation.step(c.town.t.Context())
	c.err = err
	if err != nil || !done {
		return
	}
	c.gossip = formed.ClusterID
	if formed.Bootstrap != nil && !c.configured {
		c.town.begin(c, formed)
	}
}

func (w *town) begin(c *citizen, formed Formed) {
	// Whatever is still on a disk must not belong to another cluster that has begun.
	for _, other := range w.nodes {
		id := diskOf(w.t, other)
		if w.begun[id.ClusterID] != nil && id.ClusterID != formed.ClusterID && slices.Contains(c.list, other.name) {
			w.t.Errorf("%s founds cluster %s, but %s belongs to %s", c.name, formed.ClusterID, other.name, id.ClusterID)
		}
	}
	known := map[string]string{}
	for _, s := range formed.Bootstrap {
		known[s.Node] = s.Incarnation
	}
	w.begun[formed.ClusterID] = known
	c.configured = true
}

func diskOf(t *testing.T, c *citizen) identityRecord {
	t.Helper()
	r, err := readIdentity(filepath.Join(c.dir, identityFile))
	if err != nil {
		return identityRecord{}
	}
	return r
}

// reach is the meta group's first message to a promised node.
func (w *town) reach(c *citizen) {
	if !c.up || c.id.ClusterID() == "" || w.begun[c.id.ClusterID()][c.name] != c.id.Incarnation() {
		return
	}
	c.configured = true
}

// settle is the node's notice that it has been reached.
func (w *town) settle(c *citizen) {
	if c.up && c.configured {
		if err := c.id.join(c.id.ClusterID()); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *town) linked(a, b string) bool {
	return !w.cut[[2]string{a, b}] && !w.cut[[2]string{b, a}] && w.nodes[a].up && w.nodes[b] != nil && w.nodes[b].up
}

// Members implements Directory.
func (c *citizen) Members() []Member {
	var list []Member
	for _, n := range c.town.nodes {
		if c.town.linked(c.name, n.name) {
			list = append(list, Member{Name: n.name, Incarnation: n.id.Incarnation(), ClusterID: n.gossip, Alive: true})
		}
	}
	slices.SortFunc(list, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return list
}

var errLink = entity.Errorf(entity.NotExecuted, "link down")

// Promise implements Founders.
func (c *citizen) Promise(ctx context.Context, node string, req *nodev1.PromiseRequest) (*nodev1.PromiseResponse, error) {
	if !c.town.linked(c.name, node) {
		return nil, errLink
	}
	return c.town.nodes[node].formation.Promise(ctx, req)
}

// Register implements Founders: the registry of a cluster that has begun.
func (c *citizen) Register(_ context.Context, node string, req *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error) {
	if !c.town.linked(c.name, node) {
		return nil, errLink
	}
	to := c.town.nodes[node]
	known := c.town.begun[to.id.ClusterID()]
	if !to.configured || known == nil {
		return nil, entity.Errorf(entity.NotExecuted, "the cluster is still being formed")
	}
	known[req.GetNode()] = req.GetIncarnation()
	return &nodev1.RegisterResponse{ClusterId: to.id.ClusterID(), Registered: true}, nil
}

func (w *town) run(rounds int, names ...string) {
	for range rounds {
		for _, name := range names {
			w.nodes[name].step()
			w.reach(w.nodes[name])
			w.settle(w.nodes[name])
		}
	}
}

func (w *town) expectOne(names ...string) {
	w.t.Helper()
	ids := map[string][]string{}
	for _, name := range names {
		ids[diskOf(w.t, w.nodes[name]).ClusterID] = append(ids[diskOf(w.t, w.nodes[name]).ClusterID], name)
	}
	if len(ids) != 1 || len(w.begun) != 1 || ids[""] != nil {
		w.t.Errorf("clusters on disk %v, begun %v", ids, w.begun)
	}
}

var three = []string{"n1", "n2", "n3"}

func threeNodes(t *testing.T) *town {
	t.Helper()
	w := newTown(t)
	for _, name := range three {
		w.add(name, three...)
	}
	t.Cleanup(func() {
		for _, c := range w.nodes {
			c.stop()
		}
	})
	return w
}
