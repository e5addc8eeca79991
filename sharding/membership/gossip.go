package membership

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"writ/internal/fault"
)

// Gossip is this node's part in the gossip. It is safe for concurrent use.
type Gossip struct {
	name    string
	id      string // of this process
	started int64  // Unix nanoseconds
	address netip.AddrPort
	config  Config
	logger  *slog.Logger

	list  *memberlist.Memberlist
	queue *memberlist.TransmitLimitedQueue
	table *table
	hints *hints
	entry atomic.Pointer[[]byte] // what NodeMeta tells

	changed   chan struct{}      // one slot
	poke      chan struct{}      // one slot: the rejoin loop has something to do
	conflicts chan string        // one slot: who else has this node's name
	instances chan instance      // few slots
	settle    chan chan struct{} // asks for all conflicts to be settled
	failed    chan error         // one slot
	settled   chan struct{}      // closed once

	contested   atomic.Bool // a conflict over the name was heard of
	established atomic.Bool // the name is this process's
	beaten      atomic.Bool // the name is another process's

	cancel context.CancelFunc
	stop   context.CancelFunc // of the rejoin loop alone
	wait   sync.WaitGroup

	mu     sync.Mutex // guards closed; held while leaving and closing
	closed bool
}

// Start opens the gossip port and begins to look for the others. It does not
// wait for them.
func Start(c Config) (*Gossip, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g, err := create(ctx, c)
	if err != nil {
		cancel()
		return nil, err
	}
	g.cancel = cancel
	rejoin, stop := context.WithCancel(ctx)
	g.stop = stop
	g.wait.Go(func() { g.watchName(ctx) })
	g.wait.Go(func() { g.rejoin(rejoin) })
	g.wait.Go(func() { g.repeat(rejoin) })
	return g, nil
}

func create(ctx context.Context, c Config) (*Gossip, error) {
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	g := &Gossip{
		name: c.Self.Name, id: hex.EncodeToString(id), started: fault.Now().UnixNano(), config: c, logger: c.Logger,
		hints:   &hints{},
		changed: make(chan struct{}, 1), poke: make(chan struct{}, 1), conflicts: make(chan string, 1),
		instances: make(chan instance, 8), settle: make(chan chan struct{}), failed: make(chan error, 1), settled: make(chan struct{}),
	}
	logger := log.New(&logWriter{logger: c.Logger}, "", 0)
	t, err := listen(ctx, c, logger)
	if err != nil {
		return nil, err
	}
	if g.address, err = advertised(ctx, c, t.GetAutoBindPort()); err == nil {
		self := c.Self
		self.Gossip = g.address.String()
		host := g.address.Addr().String()
		self.GRPC, self.HTTP, self.Raft = atHost(self.GRPC, host), atHost(self.HTTP, host), atHost(self.Raft, host)
		g.table = newTable(self, strangerLife*c.RejoinInterval)
		g.queue = &memberlist.TransmitLimitedQueue{RetransmitMult: 3, NumNodes: g.size}
		err = g.describe(self)
	}
	if err == nil {
		g.list, err = memberlist.Create(g.settings(t, logger))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("gossip: %w", err), t.Shutdown())
	}
	return g, nil
}

// settings of memberlist. Its LAN profile detects a dead member in 5 to 6 s;
// what must be faster is Raft's business.
func (g *Gossip) settings(t *transport, logger *log.Logger) *memberlist.Config {
	d := delegate{g}
	m := memberlist.DefaultLANConfig()
	m.Name = g.name
	m.Transport = t
	m.AdvertiseAddr, m.AdvertisePort = g.address.Addr().String(), int(g.address.Port())
	m.BindAddr, m.BindPort = m.AdvertiseAddr, m.AdvertisePort
	m.Label = g.config.Cluster
	m.SecretKey = g.config.Key
	m.Logger = logger
	m.Delegate, m.Events, m.Alive, m.Merge, m.Conflict = d, d, d, d, d
	// A node that is back at another address takes its name over as soon as its
	// last run is known to be dead.
	m.DeadNodeReclaimTime = time.Millisecond
	m.TCPTimeout = 5 * time.Second
	m.UDPBufferSize = 1400
	g.config.tune(m)
	return m
}

// describe sets what the others are told about this node.
func (g *Gossip) describe(self Member) error {
	b, err := encodeEntry(self, g.id, g.started)
	if err != nil {
		return err
	}
	g.entry.Store(&b)
	return nil
}

// Self is this node as it describes itself, with its gossip address.
func (g *Gossip) Self() Member { return g.table.own() }

// Members lists the members of this cluster, and those that belong to none yet,
// by name, this node and the dead ones included.
func (g *Gossip) Members() []Member { return g.table.list() }

// Strangers lists, by cluster id, the living members of other clusters that call
// themselves by this cluster's name. Whoever goes by the name alone may reach
// either cluster.
func (g *Gossip) Strangers() map[string][]string { return g.table.strangers() }

// Lookup finds a member by name, dead or alive.
func (g *Gossip) Lookup(name string) (Member, bool) { return g.table.lookup(name) }

// Changed has one slot: a value means that members or hints have changed since
// the last one was taken. It is for one reader.
func (g *Gossip) Changed() <-chan struct{} { return g.changed }

// Settled is closed when the first round of joining is over and this process is
// known to be the only one under its name. The others may all be out of reach.
func (g *Gossip) Settled() <-chan struct{} { return g.settled }

// Failed yields one error when another process turns out to have this node's
// name and to have had it first: this process must end.
func (g *Gossip) Failed() <-chan error { return g.failed }

// SetClusterID says to which cluster this node belongs from now on. Members of
// another one disappear.
func (g *Gossip) SetClusterID(id string) error {
	self := g.table.own()
	if self.ClusterID == id {
		return nil
	}
	self.ClusterID = id
	if err := g.describe(self); err != nil {
		return err
	}
	g.table.setOwn(self)
	g.signal()
	signal(g.poke)
	return nil
}

// Announce spreads a leader hint. Hints that are not newer than what is known,
// that make no sense or that come before the cluster id are dropped.
func (g *Gossip) Announce(h LeaderHint) {
	if g.table.own().ClusterID != "" && g.hints.merge(h) {
		g.spread(h)
		g.signal()
	}
}

// repeatEvery is how often a node repeats what it leads.
const repeatEvery = 2 * time.Second

// repeat announces every few seconds which shards this node leads. Each node that
// hears a new hint passes it on in only a few datagrams, some of them to dead nodes.
// A node that gets none of them would otherwise learn of the leader only at its next
// full sync, half a minute later or more.
func (g *Gossip) repeat(ctx context.Context) {
	tick := time.NewTicker(repeatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, h := range g.hints.all() {
			if h.Node == g.name {
				g.spread(h)
			}
		}
	}
}

// Hint is the newest hint about a shard.
func (g *Gossip) Hint(shard uint32) (LeaderHint, bool) { return g.hints.get(shard) }

func (g *Gossip) spread(h LeaderHint) {
	message := append([]byte{messageHint}, encodeHints(g.table.own().ClusterID, h)...)
	g.queue.QueueBroadcast(&hintBroadcast{shard: h.Shard, message: message})
}

func (g *Gossip) size() int { return g.table.size() }

func (g *Gossip) signal() { signal(g.changed) }

func signal(slot chan struct{}) {
	select {
	case slot <- struct{}{}:
	default:
	}
}

// Leave tells the others that this node leaves on purpose, and waits until one of
// them has heard it. Call Close afterwards.
func (g *Gossip) Leave(timeout time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errors.New("gossip is closed")
	}
	g.stop()
	if err := g.list.Leave(timeout); err != nil {
		return fmt.Errorf("leave gossip: %w", err)
	}
	return nil
}

// Close ends gossip without telling the others, and waits for its goroutines. To
// the others this node has died.
func (g *Gossip) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	g.cancel()
	err := g.list.Shutdown()
	g.wait.Wait()
	return err
}
