package sim_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"writ/actors"
	"writ/actors/account"
	"writ/actors/entity"
	"writ/persistence"
	nodev1 "writ/proto/writ/node/v1"
	"writ/sharding"
)

const (
	nodes  = 3
	shards = 2
)

// world is the cluster under one seed.
type world struct {
	t        *testing.T
	seed     uint64
	dir      string
	registry *entity.Registry
	settings settings
	nodes    []*node
	groups   []*group
	began    time.Time

	mu     sync.Mutex
	chance map[string]*rand.Rand // a stream of choices for each thing that has some
	cut    [nodes][nodes]bool    // from, to
	calm   bool                  // no more faults
	wg     sync.WaitGroup        // messages on their way
	tally  map[string]int
}

// settings are what a world may have otherwise than TestSeeds.
type settings struct {
	kinds  []entity.Definer
	flush  time.Duration
	change func(*actors.Config)
	// way comes between a relay and the network, on the sending node.
	way func(ctx context.Context, req *nodev1.DeliverRequest, send deliverFunc) (*nodev1.DeliverResponse, error)
}

type deliverFunc func() (*nodev1.DeliverResponse, error)

func faultySettings() settings {
	return settings{
		kinds: account.Kinds(), flush: 250 * time.Millisecond,
		change: func(c *actors.Config) {
			c.SendTimeout = time.Second
			c.Retry = actors.Retry{First: 20 * time.Millisecond, Most: time.Second, Steady: true}
			c.Passivation = time.Second
		},
		way: func(_ context.Context, _ *nodev1.DeliverRequest, send deliverFunc) (*nodev1.DeliverResponse, error) {
			return send()
		},
	}
}

// node is one process; a crash replaces all but its number and its files.
type node struct {
	world  *world
	number int

	mu     sync.Mutex
	up     bool
	rt     *actors.Runtime
	stores []*persistence.Store
	closed chan struct{} // by a crash: who waits for this process waits in vain
}

func newWorld(t *testing.T, seed uint64, dir string, s settings) *world {
	t.Helper()
	w := &world{t: t, seed: seed, dir: dir, settings: s, chance: map[string]*rand.Rand{}, tally: map[string]int{}, began: time.Now()}
	var err error
	if w.registry, err = entity.NewRegistry(s.kinds...); err != nil {
		t.Fatal(err)
	}
	for s := range shards {
		w.groups = append(w.groups, newGroup(w, uint32(s)))
	}
	for n := range nodes {
		node := &node{world: w, number: n}
		w.nodes = append(w.nodes, node)
		node.start()
	}
	return w
}

// dice is the stream of choices of one thing. Streams do not share numbers, so
// what one thing does never changes the luck of another.
func (w *world) dice(format string, args ...any) *rand.Rand {
	name := fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.chance[name]
	if r == nil {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name)) // never fails
		r = rand.New(rand.NewPCG(w.seed, h.Sum64()))
		w.chance[name] = r
	}
	return r
}

// roll draws from a stream.
func (w *world) roll(r *rand.Rand, n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return r.IntN(n)
}

// luck is true once in n, unless the world has calmed down.
func (w *world) luck(r *rand.Rand, n int) bool {
	hit := w.roll(r, n) == 0
	w.mu.Lock()
	defer w.mu.Unlock()
	return hit && !w.calm
}

func (w *world) count(what string) {
	w.mu.Lock()
	w.tally[what]++
	w.mu.Unlock()
}

func pause(d time.Duration) { <-time.After(d) }

func (n *node) path(shard int) string {
	return filepath.Join(n.world.dir, fmt.Sprintf("n%d-s%d", n.number, shard))
}

// start opens the files, replays the log behind them, and starts the runtime.
func (n *node) start() {
	w := n.world
	cfg := actors.Config{
		Node: fmt.Sprint("n", n.number), Registry: w.registry, Shards: func() uint32 { return shards }, Courier: &courier{w, n.number},
		Logger: slog.New(slog.DiscardHandler),
	}
	w.settings.change(&cfg)
	rt, err := actors.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	var stores []*persistence.Store
	for i, r := range sharding.Split(shards) {
		cfg := persistence.Config{
			Path: n.path(i), ClusterID: "sim", Shard: uint32(i), Range: r, Epoch: 1, Generation: uint64(n.number + 1),
			GenerationWidth: time.Hour, FlushInterval: w.settings.flush,
			OnFailure: func(err error) { w.t.Errorf("seed %d: store failed: %v", w.seed, err) },
		}
		open := persistence.Open
		if _, err := os.Stat(cfg.Path); errors.Is(err, os.ErrNotExist) {
			open = persistence.Create
		}
		s, err := open(cfg)
		if err != nil {
			w.t.Fatalf("seed %d: n%d shard %d: %v", w.seed, n.number, i, err)
		}
		stores = append(stores, s)
	}
	n.mu.Lock()
	n.rt, n.stores, n.up, n.closed = rt, stores, true, make(chan struct{})
	n.mu.Unlock()
	for i, s := range stores {
		w.groups[i].replay(n.number)
		if err := rt.Open(uint32(i), s); err != nil {
			w.t.Fatal(err)
		}
	}
}

// crash ends the process: its files stay as they were flushed last.
func (n *node) crash() {
	w := n.world
	n.mu.Lock()
	n.up = false
	rt, stores := n.rt, n.stores
	close(n.closed)
	n.mu.Unlock()
	files := make([][]byte, shards)
	for i := range stores {
		w.groups[i].mu.Lock() // nothing is applied meanwhile
		var err error
		if files[i], err = os.ReadFile(n.path(i)); err != nil {
			w.t.Error(err)
		}
		w.groups[i].mu.Unlock()
		w.groups[i].lose(n.number)
	}
	n.end(rt, stores)
	for i, content := range files {
		if err := os.WriteFile(n.path(i), content, 0o600); err != nil {
			w.t.Error(err)
		}
	}
	w.count("crashes")
}

func (n *node) end(rt *actors.Runtime, stores []*persistence.Store) {
	if err := rt.Close(context.Background()); err != nil {
		n.world.t.Error(err)
	}
	for _, s := range stores {
		if err := s.Close(); err != nil {
			n.world.t.Error(err)
		}
	}
}

// process is the running process of a node, nil if there is none.
func (n *node) process() (*actors.Runtime, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.up {
		return nil, nil
	}
	return n.rt, n.closed
}

func (n *node) store(shard uint32) *persistence.Store {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stores[shard]
}

// reach reports whether messages get from one node to another.
func (w *world) reach(from, to int) bool {
	w.mu.Lock()
	cut := w.cut[from][to]
	w.mu.Unlock()
	rt, _ := w.nodes[to].process()
	return rt != nil && (from == to || !cut)
}

// majority reports whether a node hears from and is heard by most.
func (w *world) majority(n int) bool {
	count := 0
	for other := range nodes {
		if w.reach(n, other) && w.reach(other, n) {
			count++
		}
	}
	return count > nodes/2
}

var errNetwork = errors.New("the network")

// carry runs one message from one node to another: late, lost, twice, or with its
// answer lost. Later messages may overtake it.
func (w *world) carry(ctx context.Context, dice *rand.Rand, from, to int, call func(context.Context) error) error {
	pause(time.Duration(100+w.roll(dice, 5000)) * time.Microsecond)
	if w.luck(dice, 20) {
		pause(time.Duration(w.roll(dice, 400)) * time.Millisecond)
	}
	if !w.reach(from, to) || w.luck(dice, 25) {
		w.count("messages lost")
		<-ctx.Done()
		return errNetwork
	}
	if w.luck(dice, 10) {
		w.count("messages doubled")
		late := time.Duration(w.roll(dice, 600)) * time.Millisecond
		w.wg.Go(func() {
			pause(late)
			if w.reach(from, to) {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				_ = call(ctx)
			}
		})
	}
	_, closed := w.nodes[to].process()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.wg.Go(func() {
		select {
		case <-closed:
			cancel()
		case <-ctx.Done():
		}
	})
	err := call(ctx)
	if w.luck(dice, 25) || !w.reach(to, from) {
		w.count("answers lost")
		return errNetwork
	}
	return err
}

// courier carries the events of one node.
type courier struct {
	world *world
	from  int
}

func (c *courier) Deliver(ctx context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
	return c.world.settings.way(ctx, req, func() (*nodev1.DeliverResponse, error) { return c.send(ctx, req) })
}

func (c *courier) send(ctx context.Context, req *nodev1.DeliverRequest) (answer *nodev1.DeliverResponse, err error) {
	w := c.world
	source, destination := req.GetRows()[0].GetSource(), req.GetRows()[0].GetDestination()
	dice := w.dice("lane %d %s %s %d", c.from, source.GetId(), destination.GetId(), req.GetRows()[0].GetLaneSequence())
	shard := sharding.Locate(shards, entity.Ref{Tenant: destination.GetTenant(), Kind: destination.GetKind(), ID: destination.GetId()})
	to := w.groups[shard].guess(dice)
	got := make(chan *nodev1.DeliverResponse, 2)
	err = w.carry(ctx, dice, c.from, to, func(ctx context.Context) error {
		rt, _ := w.nodes[to].process()
		if rt == nil {
			return errNetwork
		}
		res, err := rt.Deliver(ctx, &nodev1.DeliverRequest{Shard: shard, Rows: req.GetRows()})
		if err == nil {
			got <- res
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-got, nil
}
