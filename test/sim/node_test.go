package sim_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"writ/actors"
	"writ/persistence"
	"writ/sharding"
)

// node is one process; a crash replaces all but its number and its disks.
type node struct {
	world  *world
	number int
	disks  [shards]*disk
	starts int
	broken bool // must not serve: the world has failed
	// logTime is the last log time of each store: of its peer's goroutine.
	logTime [shards]int64

	mu     sync.Mutex
	up     bool
	rt     *actors.Runtime
	stores []*persistence.Store
	peers  []*peer
	closed chan struct{} // by a crash: who waits for this process waits in vain
	// flushing is a shard file as it was before the flush that is being synced.
	flushing [shards][]byte
	replaced [shards]bool // since the last look
}

func newNode(w *world, number int) *node {
	n := &node{world: w, number: number}
	for s := range shards {
		n.disks[s] = newDisk()
	}
	return n
}

func (n *node) path(shard int) string {
	return filepath.Join(n.world.dir, fmt.Sprintf("n%d-s%d", n.number, shard))
}

// start opens the files and starts the process.
func (n *node) start() {
	w := n.world
	if n.broken {
		return
	}
	n.starts++
	closed := make(chan struct{})
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
	var peers []*peer
	for s, r := range sharding.Split(shards) {
		store, err := n.open(s, r, closed)
		if err != nil {
			w.fail("n%d, shard %d does not open: %v", n.number, s, err)
			n.broken = true
			n.end(rt, stores, nil)
			return
		}
		stores = append(stores, store)
		n.logTime[s] = store.Meta().GetLogTime()
		peers = append(peers, newPeer(n, uint32(s), n.disks[s], store, closed))
	}
	for s, p := range peers {
		if !p.open() {
			n.broken = true
			n.end(rt, stores, nil)
			return
		}
		if err := rt.Open(uint32(s), stores[s]); err != nil {
			w.t.Fatal(err)
		}
	}
	n.mu.Lock()
	n.rt, n.stores, n.peers, n.up, n.closed = rt, stores, peers, true, closed
	n.mu.Unlock()
	w.note("n%d starts", n.number)
	for _, p := range peers {
		go p.run()
	}
}

// open opens a shard file. A flush takes its time: until the disk has synced it,
// nobody hears of it, and a power cut may undo it.
func (n *node) open(s int, r sharding.Range, closed chan struct{}) (*persistence.Store, error) {
	w := n.world
	dice := w.dice("flush %d %d", n.number, s)
	interval := 150*time.Millisecond + w.span(dice, 100*time.Millisecond)
	if w.roll(dice, 3) == 0 {
		interval *= 8
	}
	if w.settings.flush > 0 {
		interval = w.settings.flush
	}
	cfg := persistence.Config{
		Path: n.path(s), ClusterID: "sim", Shard: uint32(s), Range: r, Epoch: 1, Generation: uint64(n.number + 1),
		GenerationWidth: cmp.Or(w.settings.slice, time.Hour), FlushInterval: interval,
		OnFailure: func(err error) { w.fail("n%d, shard %d: the store has failed: %v", n.number, s, err) },
		Flushing: func() func() {
			before := n.read(s)
			return func() {
				n.mu.Lock()
				n.flushing[s] = before
				n.mu.Unlock()
				select {
				case <-time.After(w.span(dice, 40*time.Millisecond)):
				case <-closed:
				}
				n.mu.Lock()
				n.flushing[s] = nil
				n.mu.Unlock()
			}
		},
	}
	if _, err := os.Stat(cfg.Path); errors.Is(err, os.ErrNotExist) {
		return persistence.Create(cfg)
	}
	return persistence.Open(cfg)
}

func (n *node) read(shard int) []byte {
	content, err := os.ReadFile(n.path(shard))
	if err != nil {
		n.world.fail("read: %v", err)
	}
	return content
}

// replacing takes notice that the shard file is about to be another one.
func (n *node) replacing(shard uint32) {
	n.mu.Lock()
	n.replaced[shard] = true
	n.mu.Unlock()
}

// crash is a power cut: of the log remains what was synced and perhaps a piece
// more, of the shard files what was flushed, or a flush cut in the middle.
func (n *node) crash() {
	w := n.world
	dice := w.dice("crash %d %d", n.number, n.starts)
	n.mu.Lock()
	if !n.up {
		n.mu.Unlock()
		return
	}
	n.up = false
	rt, stores, peers, flushing := n.rt, n.stores, n.peers, n.flushing
	n.replaced = [shards]bool{}
	close(n.closed)
	n.mu.Unlock()
	w.note("n%d crashes", n.number)
	w.count("crashes")
	files := make([][]byte, shards)
	for s, p := range peers {
		<-p.over
		files[s] = n.read(s)
		n.mu.Lock()
		replaced := n.replaced[s]
		n.mu.Unlock()
		if flushing[s] != nil && !replaced {
			files[s] = powerCut(flushing[s], files[s], dice)
			w.count("flushes cut off")
		}
		if n.disks[s].lose(dice) {
			w.count("torn ends of logs")
		}
	}
	n.end(rt, stores, peers)
	for s, content := range files {
		if err := os.WriteFile(n.path(s), content, 0o600); err != nil {
			w.fail("write: %v", err)
		}
	}
}

// end ends what a process consists of.
func (n *node) end(rt *actors.Runtime, stores []*persistence.Store, peers []*peer) {
	for _, p := range peers {
		if p.lease != nil {
			p.lease.end(errEnded)
			<-p.lease.over
		}
	}
	if err := rt.Close(context.Background()); err != nil {
		n.world.fail("n%d: close: %v", n.number, err)
	}
	for _, s := range stores {
		if err := s.Close(); err != nil {
			n.world.fail("n%d: close: %v", n.number, err)
		}
	}
}

// stop ends a process for good, without harm.
func (n *node) stop() {
	n.mu.Lock()
	if !n.up {
		n.mu.Unlock()
		return
	}
	n.up = false
	close(n.closed)
	n.mu.Unlock()
	for _, p := range n.peers {
		<-p.over
	}
	n.end(n.rt, n.stores, n.peers)
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

// peer is a replica of the running process, nil if there is none.
func (n *node) peer(shard uint32) *peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.up {
		return nil
	}
	return n.peers[shard]
}

// harm does what the dice say.
func (w *world) harm(dice *rand.Rand) {
	a, b, s := w.roll(dice, nodes), w.roll(dice, nodes), uint32(w.roll(dice, shards))
	switch w.roll(dice, 10) {
	case 0, 1:
		w.nodes[a].crash()
	case 2: // the lights go out
		if w.roll(dice, 3) == 0 {
			w.count("power cuts of all")
			for _, n := range w.nodes {
				n.crash()
			}
		}
	case 3, 4: // an election for no reason, and perhaps back again
		before := w.hinted(s)
		w.elect(a, s)
		if w.roll(dice, 2) == 0 {
			pause(w.span(dice, 150*time.Millisecond))
			w.elect(before, s)
		}
	case 5:
		w.cutOff(a, b, false)
	case 6:
		for other := range nodes {
			w.cutOff(a, other, true)
		}
	default:
		w.join()
		for _, n := range w.nodes {
			if rt, _ := n.process(); rt == nil && w.roll(dice, 4) > 0 {
				n.start()
			}
		}
	}
}

// appoint has a replica stand for election until it has a lease.
func (w *world) appoint(n int, shard uint32) {
	p := w.nodes[n].peer(shard)
	for leads := false; !leads; {
		p.do(func() { p.stand(true) })
		pause(100 * time.Millisecond)
		answer := make(chan bool, 1)
		p.do(func() { answer <- p.role == leader && p.lease != nil && p.lease.term == p.term })
		leads = <-answer
	}
}

// elect has a replica stand for election.
func (w *world) elect(n int, shard uint32) {
	if p := w.nodes[n].peer(shard); p != nil {
		p.do(func() { p.stand(true) })
	}
}
