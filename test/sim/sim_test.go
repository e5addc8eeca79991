package sim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"writ/actors/entity"
	"writ/persistence"
	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
	"writ/sharding"
)

const (
	clients  = 4
	commands = 12 // of each client
	accounts = 5
	opening  = 1000
	horizon  = 8 * time.Second // of faults, virtual
)

// TestSeeds runs SIM_SEEDS worlds (default 20), or SIM_COUNT times the one of
// SIM_SEED.
func TestSeeds(t *testing.T) {
	first, count := uint64(1), number("SIM_SEEDS", 20)
	if s := os.Getenv("SIM_SEED"); s != "" {
		first, count = number("SIM_SEED", 1), number("SIM_COUNT", 1)
	}
	total := map[string]int{}
	for i := range count {
		seed := first + i
		if os.Getenv("SIM_SEED") != "" {
			seed = first
		}
		dir := filepath.Join(t.TempDir(), strconv.FormatUint(i, 10))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if !t.Run(fmt.Sprint("seed-", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, seed, dir, faultySettings())
				w.live()
				t.Logf("%v, ended at %v", w.tally, time.Since(w.began))
				for what, n := range w.tally {
					total[what] += n
				}
			})
		}) {
			t.Fatalf("seed %d failed: SIM_SEED=%d go test ./test/sim", seed, seed)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d seeds: %v", count, total)
}

func number(variable string, otherwise uint64) uint64 {
	n, err := strconv.ParseUint(os.Getenv(variable), 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}

// live is the life of a world: load under faults, calm, judgement.
func (w *world) live() {
	for s, g := range w.groups {
		g.elect(s % nodes)
	}
	stop := make(chan struct{})
	var nemesis, load sync.WaitGroup
	nemesis.Go(func() { w.nemesis(stop) })
	nemesis.Go(func() { w.follow(stop) })
	answers := make([]map[string]*writv1.SubmitResponse, clients)
	for c := range clients {
		answers[c] = map[string]*writv1.SubmitResponse{}
		load.Go(func() { w.client(c, answers[c]) })
	}
	load.Wait()
	close(stop)
	nemesis.Wait()
	w.heal()
	w.judge()
	w.end()
}

// end stops all processes and waits for what they have begun.
func (w *world) end() {
	for _, n := range w.nodes {
		for _, g := range w.groups {
			g.lose(n.number)
		}
		n.mu.Lock()
		n.up = false
		close(n.closed)
		n.mu.Unlock()
		n.end(n.rt, n.stores)
	}
	w.wg.Wait()
	pause(time.Minute) // timers of the actor system run out
}

// follow has replicas apply, some sooner than others.
func (w *world) follow(stop <-chan struct{}) {
	dice := w.dice("follow")
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(1+w.roll(dice, 20)) * time.Millisecond):
		}
		g := w.groups[w.roll(dice, shards)]
		g.follow(w.roll(dice, nodes), 1+w.roll(dice, 20))
	}
}

// nemesis does harm until the horizon, and then only keeps shards led.
func (w *world) nemesis(stop <-chan struct{}) {
	dice := w.dice("nemesis")
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(20+w.roll(dice, 300)) * time.Millisecond):
		}
		if time.Since(w.began) > horizon {
			w.heal()
		} else {
			w.harm(dice)
		}
		for _, g := range w.groups {
			g.mu.Lock()
			leader := g.leader
			g.mu.Unlock()
			if leader < 0 || !w.majority(leader) {
				g.elect(w.roll(dice, nodes))
			}
		}
	}
}

func (w *world) harm(dice *rand.Rand) {
	a, b := w.roll(dice, nodes), w.roll(dice, nodes)
	switch w.roll(dice, 6) {
	case 0:
		if rt, _ := w.nodes[a].process(); rt != nil {
			w.nodes[a].crash()
		} else {
			w.nodes[a].start()
		}
	case 1: // an election for no reason, and perhaps back again
		g := w.groups[w.roll(dice, shards)]
		g.elect(a)
		if w.roll(dice, 2) == 0 {
			pause(time.Duration(w.roll(dice, 20)) * time.Millisecond)
			g.elect(b)
		}
	case 2: // one way
		w.cutOff(a, b, true, false)
	case 3:
		for other := range nodes {
			w.cutOff(a, other, true, true)
		}
	default:
		for from := range nodes {
			for to := range nodes {
				w.cutOff(from, to, false, false)
			}
		}
		for _, n := range w.nodes {
			if rt, _ := n.process(); rt == nil && w.roll(dice, 2) == 0 {
				n.start()
			}
		}
	}
}

func (w *world) cutOff(a, b int, cut, both bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a == b {
		return
	}
	w.cut[a][b] = cut
	if both || !cut {
		w.cut[b][a] = cut
	}
	if cut {
		w.tally["links cut"]++
	}
}

func (w *world) heal() {
	w.mu.Lock()
	w.calm = true
	w.cut = [nodes][nodes]bool{}
	w.mu.Unlock()
	for _, n := range w.nodes {
		if rt, _ := n.process(); rt == nil {
			n.start()
		}
	}
	for _, g := range w.groups {
		g.mu.Lock()
		leader := g.leader
		g.mu.Unlock()
		if leader < 0 {
			g.elect(w.roll(w.dice("heal"), nodes))
		}
	}
}

func accountID(i int) string { return fmt.Sprint("a", i) }

// client sends its commands one after the other, each again and again with its
// key until it is answered, now and then twice at once.
func (w *world) client(c int, answers map[string]*writv1.SubmitResponse) {
	dice := w.dice("client %d", c)
	for i := range commands {
		key := fmt.Sprintf("c%d-%d", c, i)
		id := accountID(w.roll(dice, accounts))
		var command proto.Message = &accountv1.Deposit{AmountMinor: int64(1 + w.roll(dice, 50)), Currency: "EUR"}
		if i == 0 && c == 0 {
			command = &accountv1.Deposit{AmountMinor: opening, Currency: "EUR"}
		} else if w.roll(dice, 3) > 0 {
			command = &accountv1.Transfer{To: accountID(w.roll(dice, accounts)), AmountMinor: int64(1 + w.roll(dice, 80)), Currency: "EUR"}
		}
		answers[key] = w.insist(dice, id, key, command)
		if d, ok := command.(*accountv1.Deposit); ok && answers[key].GetRejection() == nil {
			w.mu.Lock()
			w.tally["deposited"] += int(d.GetAmountMinor())
			w.mu.Unlock()
		}
		for n := range nodes { // whoever believes to lead
			w.look(fmt.Sprintf("look %s %d", key, n), id, answers[key].GetVersion())
		}
		again := w.insist(dice, id, key, command)
		if !again.GetReplayed() || !sameOutcome(answers[key], again) {
			w.t.Errorf("seed %d: %s answered %v, then %v", w.seed, key, answers[key], again)
		}
	}
}

func sameOutcome(a, b *writv1.SubmitResponse) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.Replayed, b.Replayed = false, false
	return proto.Equal(a, b)
}

// insist retries a command until it is answered.
func (w *world) insist(dice *rand.Rand, id, key string, command proto.Message) *writv1.SubmitResponse {
	for try := 0; ; try++ {
		if try > 2000 {
			w.t.Fatalf("seed %d: %s is never answered", w.seed, key)
		}
		twice := w.luck(dice, 6)
		got := make(chan *writv1.SubmitResponse, 2)
		var calls sync.WaitGroup
		for n := range 2 {
			if n == 1 && !twice {
				break
			}
			name := fmt.Sprintf("%s-%d-%d", key, try, n)
			calls.Go(func() {
				if answer, err := w.call(name, id, key, command); err == nil {
					got <- answer
				}
			})
		}
		calls.Wait()
		close(got)
		if first := <-got; first != nil {
			if second := <-got; second != nil && !sameOutcome(first, second) {
				w.t.Errorf("seed %d: %s answered %v and %v", w.seed, key, first, second)
			}
			return first
		}
		w.count("retries")
		pause(time.Duration(1+w.roll(dice, 60)) * time.Millisecond)
	}
}

// call sends a command once.
func (w *world) call(name, id, key string, command proto.Message) (*writv1.SubmitResponse, error) {
	packed, err := anypb.New(command)
	if err != nil {
		w.t.Fatal(err)
	}
	answer, err := w.ask(name, id, &nodev1.ForwardRequest{Call: &nodev1.ForwardRequest_Submit{Submit: &writv1.SubmitRequest{
		Entity: &writv1.EntityRef{Kind: "account", Id: id}, IdempotencyKey: key, Command: packed,
	}}})
	return answer.GetSubmit(), err
}

// look reads an account. A read that is answered misses nothing that was answered
// before it began.
func (w *world) look(name, id string, atLeast uint64) {
	answer, err := w.ask(name, id, &nodev1.ForwardRequest{Call: &nodev1.ForwardRequest_Read{Read: &writv1.ReadRequest{
		Entity: &writv1.EntityRef{Kind: "account", Id: id},
	}}})
	if err != nil {
		return
	}
	w.count("reads")
	if got := answer.GetRead().GetVersion(); got < atLeast {
		w.t.Errorf("seed %d: %s is read at version %d, but was at %d before", w.seed, id, got, atLeast)
	}
}

// ask sends a request once, through any node, to a node that may lead.
func (w *world) ask(name, id string, req *nodev1.ForwardRequest) (answer *nodev1.ForwardResponse, err error) {
	dice := w.dice("call %s", name)
	req.Shard, req.Tenant = shardOf(id), "t"
	via, to := w.roll(dice, nodes), w.groups[req.GetShard()].guess(dice)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(20+w.roll(dice, 1500))*time.Millisecond)
	defer cancel()
	got := make(chan *nodev1.ForwardResponse, 2)
	err = w.carry(ctx, dice, via, to, func(ctx context.Context) error {
		rt, _ := w.nodes[to].process()
		if rt == nil {
			return errNetwork
		}
		res, err := rt.Forward(ctx, req)
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

func refOf(id string) entity.Ref { return entity.Ref{Tenant: "t", Kind: "account", ID: id} }

func shardOf(id string) uint32 { return sharding.Locate(shards, refOf(id)) }

// judge waits until all events have arrived and looks at what there is.
func (w *world) judge() {
	patience := 0
	for w.pending() > 0 {
		if patience++; patience > 600 {
			w.t.Fatalf("seed %d: %d rows stay pending", w.seed, w.pending())
		}
		pause(100 * time.Millisecond)
		w.heal()
	}
	decided := uint64(0)
	var numbered, applied uint64
	for s, g := range w.groups {
		first := w.audit(uint32(s), g)
		decided, numbered, applied = decided+first.Effects, numbered+first.Numbered, applied+first.Applied
	}
	if decided != clients*commands || numbered != applied {
		w.t.Errorf("seed %d: %d keys made %d effects; %d rows, %d applied", w.seed, clients*commands, decided, numbered, applied)
	}
	w.judgeMoney()
}

// audit has all replicas of a shard apply everything and compares them.
func (w *world) audit(shard uint32, g *group) (first *persistence.Audit) {
	var hash string
	for _, n := range w.nodes {
		g.follow(n.number, 1<<20)
		audit, err := n.store(shard).Audit(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		for _, finding := range audit.Findings {
			w.t.Errorf("seed %d: n%d, shard %d: %s", w.seed, n.number, shard, finding)
		}
		_, sum := n.store(shard).StateHash()
		if first == nil {
			first, hash = audit, string(sum)
		} else if hash != string(sum) {
			w.t.Errorf("seed %d: replicas of shard %d differ", w.seed, shard)
		}
	}
	return first
}

func (w *world) pending() (rows uint64) {
	for s, g := range w.groups {
		g.mu.Lock()
		leader := g.leader
		g.mu.Unlock()
		if leader < 0 {
			return 1
		}
		rows += w.nodes[leader].store(uint32(s)).Meta().GetCounters().GetRowsPending()
	}
	return rows
}

// judgeMoney: what was deposited is there, and no transfer hangs.
func (w *world) judgeMoney() {
	have := int64(0)
	w.mu.Lock()
	want := int64(w.tally["deposited"])
	w.mu.Unlock()
	for i := range accounts {
		rec, err := w.nodes[0].store(shardOf(accountID(i))).Entity(refOf(accountID(i)))
		if err != nil {
			w.t.Fatal(err)
		}
		b := &accountv1.Balance{}
		if err := proto.Unmarshal(rec.GetState().GetData(), b); err != nil {
			w.t.Fatal(err)
		}
		if b.GetPendingTransfers() != 0 || b.GetInFlightMinor() != 0 {
			w.t.Errorf("seed %d: %s has %d transfers pending", w.seed, accountID(i), b.GetPendingTransfers())
		}
		have += b.GetAmountMinor()
	}
	if want != have {
		w.t.Errorf("seed %d: %d was deposited, %d is there", w.seed, want, have)
	}
}
