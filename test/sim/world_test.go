package sim_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"writ/actors"
	"writ/actors/account"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	"writ/sharding"
	"writ/test/check"
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
	ledgers  [shards]*ledger
	history  *check.History
	began    time.Time
	slow     bool           // disks
	busy     bool           // processors
	wg       sync.WaitGroup // messages on their way, and what leases do

	mu     sync.Mutex
	chance map[string]*rand.Rand // a stream of choices for each thing that has some
	cut    [nodes][nodes]bool    // from, to
	mute   [shards]bool          // whose replicas do not hear each other
	hint   [shards]int           // who is believed to lead
	calm   bool                  // no more faults
	tally  map[string]int
	trace  uint64
}

// settings are what a world may have otherwise than TestSeeds.
type settings struct {
	kinds  []entity.Definer
	change func(*actors.Config)
	// calm: no faults, and disks and processors that are never slow.
	calm bool
	// flush is the interval of flushes, 0 as the dice say.
	flush time.Duration
	// slice is how long keys go into one generation, 0 an hour.
	slice time.Duration
	// way comes between a relay and the network, on the sending node.
	way func(ctx context.Context, req *nodev1.DeliverRequest, send deliverFunc) (*nodev1.DeliverResponse, error)
}

type deliverFunc func() (*nodev1.DeliverResponse, error)

func faultySettings() settings {
	return settings{
		kinds: append(account.Kinds(), guestDefinition()),
		slice: guestWindow / 4,
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

func newWorld(t *testing.T, seed uint64, dir string, s settings) *world {
	t.Helper()
	w := &world{
		t: t, seed: seed, dir: dir, settings: s, calm: s.calm, chance: map[string]*rand.Rand{}, tally: map[string]int{},
		began: time.Now(), history: check.NewHistory(),
	}
	w.slow = w.lucky(w.dice("disks"), 4)
	w.busy = w.lucky(w.dice("processors"), 4)
	var err error
	if w.registry, err = entity.NewRegistry(s.kinds...); err != nil {
		t.Fatal(err)
	}
	for s := range shards {
		w.ledgers[s] = newLedger()
	}
	for n := range nodes {
		w.nodes = append(w.nodes, newNode(w, n))
	}
	for _, n := range w.nodes {
		n.start()
	}
	return w
}

// fail says what is wrong.
func (w *world) fail(format string, args ...any) {
	what := strings.ReplaceAll(fmt.Sprintf(format, args...), w.dir, "") // another folder is no other history
	w.note("%s", what)
	w.t.Errorf("seed %d at %v: %s", w.seed, time.Since(w.began), what)
}

// note adds an event to the trace of the world. The trace is a sum over the events
// and their times: what happens at one instant has no order.
func (w *world) note(format string, args ...any) {
	at, what := time.Since(w.began), fmt.Sprintf(format, args...)
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %s", at, what) // never fails
	w.mu.Lock()
	w.trace += h.Sum64()
	w.mu.Unlock()
	if os.Getenv("SIM_TRACE") != "" {
		w.t.Logf("%12v %s", at, what)
	}
}

// dice is the stream of choices of one thing. Streams do not share numbers, so
// what one thing does never changes the luck of another.
func (w *world) dice(format string, args ...any) *rand.Rand {
	name := fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.chance[name]
	if r == nil {
		r = w.fresh(name)
		w.chance[name] = r
	}
	return r
}

// fresh is the beginning of a stream.
func (w *world) fresh(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// roll draws from a stream.
func (w *world) roll(r *rand.Rand, n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return r.IntN(n)
}

// span is a time below most: to the nanosecond, so that two things rarely happen at
// one instant, where Go would choose their order.
func (w *world) span(r *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(w.roll(r, int(most)))
}

// lucky is true once in n, unless the world has calmed down.
func (w *world) lucky(r *rand.Rand, n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return r.IntN(n) == 0 && !w.calm
}

func (w *world) count(what string) { w.tell(what, 1) }

func (w *world) tell(what string, n int) {
	w.mu.Lock()
	w.tally[what] += n
	w.mu.Unlock()
}

func report(tally map[string]int) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(tally)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, tally[what]))
	}
	return strings.Join(parts, ", ")
}

// wait is a pause that an end cuts short.
func wait(end <-chan struct{}, d time.Duration) {
	select {
	case <-time.After(d):
	case <-end:
	}
}

func pause(d time.Duration) { <-time.After(d) }

func (w *world) setHint(shard uint32, node int) {
	w.mu.Lock()
	w.hint[shard] = node
	w.mu.Unlock()
}

func (w *world) hinted(shard uint32) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hint[shard]
}

// whole reports whether all nodes can serve.
func (w *world) whole() bool {
	for _, n := range w.nodes {
		if n.broken {
			return false
		}
	}
	return true
}

// guess is where a message for the shard's leader is sent: mostly to the leader.
func (w *world) guess(shard uint32, dice *rand.Rand) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if dice.IntN(10) == 0 && !w.settings.calm {
		return dice.IntN(nodes)
	}
	return w.hint[shard]
}

// reach reports whether messages get from one node to another.
func (w *world) reach(from, to int) bool {
	w.mu.Lock()
	cut := w.cut[from][to]
	w.mu.Unlock()
	rt, _ := w.nodes[to].process()
	return rt != nil && (from == to || !cut)
}

func (w *world) cutOff(a, b int, both bool) {
	if a == b {
		return
	}
	w.note("cut %d to %d, both ways %v", a, b, both)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[a][b] = true
	w.cut[b][a] = w.cut[b][a] || both
	w.tally["links cut"]++
}

// silence keeps the replicas of a shard from hearing each other, so that none can
// lead, or ends that.
func (w *world) silence(shard uint32, mute bool) {
	w.mu.Lock()
	w.mute[shard] = mute
	w.mu.Unlock()
}

func (w *world) silent(shard uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mute[shard]
}

func (w *world) join() {
	w.mu.Lock()
	w.cut = [nodes][nodes]bool{}
	w.mu.Unlock()
}

var errNetwork = errors.New("the network")

// carry runs one call from one node to another: late, lost, twice, or with its
// answer lost. Later calls may overtake it.
func (w *world) carry(ctx context.Context, dice *rand.Rand, from, to int, call func(context.Context) error) error {
	pause(100*time.Microsecond + w.span(dice, 3*time.Millisecond))
	if w.lucky(dice, 20) {
		pause(w.span(dice, 400*time.Millisecond))
	}
	if !w.reach(from, to) || w.lucky(dice, 25) {
		w.count("calls lost")
		<-ctx.Done()
		return errNetwork
	}
	if w.lucky(dice, 10) {
		w.count("calls doubled")
		late := w.span(dice, 600*time.Millisecond)
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
	pause(100*time.Microsecond + w.span(dice, time.Millisecond))
	if w.lucky(dice, 25) || !w.reach(to, from) {
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
	w.ledgers[locate(entity.Ref{Tenant: source.GetTenant(), Kind: source.GetKind(), ID: source.GetId()})].send(w, req.GetRows())
	// A relay that ends while rows are told to it may send them and be followed at
	// once by another that sends them again, or not send them: both have one luck.
	dice := w.fresh(fmt.Sprint(c.from, source.GetKind(), source.GetId(), destination.GetKind(), destination.GetId(),
		req.GetRows()[0].GetLaneSequence(), time.Since(w.began)))
	shard := sharding.Locate(shards, entity.Ref{Tenant: destination.GetTenant(), Kind: destination.GetKind(), ID: destination.GetId()})
	to := w.guess(shard, dice)
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
