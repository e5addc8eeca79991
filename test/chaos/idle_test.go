package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"writ/actors/client"
	accountv1 "writ/proto/writ/account/v1"
)

// work is what a cluster has done, by node or shard.
type work struct {
	indexes map[uint32]uint64  // the logs' commit index
	flushes map[string]float64 // transactions of shard files
	cpu     map[string]float64 // seconds
}

// Entities that nobody uses cost nothing, however many there are: no log grows, no
// file is written, and the processors rest. The first command after that is delivered
// at once.
func TestProcessIdleEntities(t *testing.T) {
	entities := pick(5_000, 50_000)
	still := pick(5*time.Second, 20*time.Second)
	r := start(t, ProcessConfig{})
	ctx := within(t, 10*time.Minute)
	empty := r.rest(ctx, still)
	name := func(i int) string { return fmt.Sprintf("idle-%d", i) }
	r.each(entities, func(i int) error {
		_, err := r.client.Submit(ctx, "account", name(i), "open", &accountv1.Deposit{AmountMinor: 100, Currency: currency}, client.SubmitOptions{})
		return err
	})
	r.audit()

	for node, used := range r.rest(ctx, still) {
		t.Logf("%s, idle for %v: %.1f%% of a processor with %d entities, %.1f%% without", node, still, 100*used, entities, 100*empty[node])
		if used > 2*empty[node]+0.05 { // a look at each entity every few seconds would cost more
			t.Errorf("the entities of %s take %.1f%% of a processor for nothing", node, 100*(used-empty[node]))
		}
	}

	var took []time.Duration
	machine, begin := watchMachine(t), time.Now()
	for i := range 20 {
		from, to := name(2*i), name(2*i+1)
		began := time.Now()
		_, err := r.client.Submit(ctx, "account", from, "pay", &accountv1.Transfer{To: to, AmountMinor: 1, Currency: currency}, client.SubmitOptions{})
		must(t, err)
		_, err = r.client.Read(ctx, "account", to, client.ReadOptions{MinVersion: 2})
		must(t, err)
		took = append(took, time.Since(began))
	}
	first := took[0]
	slices.Sort(took)
	median := took[len(took)/2]
	turn, _ := spread(machine.since(begin))
	limit := max(100*time.Millisecond, 4*turn) // one alone may meet another test's flush
	t.Logf("from command to delivered event after that: %v for the first, p50 %v, at most %v for %d; a turn of the machine takes %v", first, median, took[len(took)-1], len(took), millis(turn))
	if median > limit {
		t.Errorf("the median is %v, above %v", median, limit)
	}
	r.audit()
}

// rest waits until the cluster writes nothing for a time, and returns what part of a
// processor each node used meanwhile.
func (r *rig) rest(ctx context.Context, still time.Duration) map[string]float64 {
	r.t.Helper()
	before, since := r.work(ctx), time.Now()
	var after work
	must(r.t, eventually(ctx, "nothing is written", func(ctx context.Context) error {
		pause(ctx, time.Until(since.Add(still))) // looking is work, too
		after = r.work(ctx)
		if maps.Equal(before.indexes, after.indexes) && maps.Equal(before.flushes, after.flushes) {
			return nil
		}
		err := fmt.Errorf("in %v: logs from %v to %v, flushes from %v to %v", still, before.indexes, after.indexes, before.flushes, after.flushes)
		before, since = after, time.Now()
		return err
	}))
	used := map[string]float64{}
	for _, node := range r.running() {
		used[node] = (after.cpu[node] - before.cpu[node]) / time.Since(since).Seconds()
	}
	return used
}

func (r *rig) work(ctx context.Context) work {
	r.t.Helper()
	w := work{map[uint32]uint64{}, map[string]float64{}, map[string]float64{}}
	for _, node := range r.running() {
		status, err := r.links.Status(ctx, node)
		must(r.t, err)
		for _, s := range status.GetShards() {
			w.indexes[s.GetShard()] = max(w.indexes[s.GetShard()], s.GetCommitIndex())
		}
		w.flushes[node] = r.metric(ctx, node, "writ_flush_seconds_count")
		w.cpu[node] = r.metric(ctx, node, "process_cpu_seconds_total")
	}
	return w
}

// metric is a node's metric without labels; the test ends if there is none.
func (r *rig) metric(ctx context.Context, node, name string) float64 {
	r.t.Helper()
	var text string
	must(r.t, eventually(ctx, "metrics of "+node, func(ctx context.Context) error {
		ok := false
		if ok, text = get(ctx, r.cluster.Addrs(node).HTTP, "/metrics"); !ok {
			return errors.New(text)
		}
		return nil
	}))
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			must(r.t, err)
			return n
		}
	}
	r.t.Fatalf("%s publishes no %s", node, name)
	return 0
}
