package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/client"
	"writ/test/check"
)

// talk is a load of tellers that number what they tell to listeners.
type talk struct {
	rig                *rig
	tellers, listeners int

	mu   sync.Mutex
	sent []told // every command, answered or not
}

// told is one command: a teller tells some listeners its next number.
type told struct {
	teller, key string
	command     *wrapperspb.StringValue
}

// What each consumer has applied of each source, in the order in which it did, is
// exactly what the source has told it: no gap, nothing twice, nothing out of order;
// while nodes are killed and frozen, commands are retried and sent twice, and now and
// then a consumer refuses a row for a while.
func TestProcessOrder(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 17))
	r := start(t, ProcessConfig{Binary: buildAlarm(t, "")})
	ctx := within(t, pick(3*time.Minute, 30*time.Minute))
	k := &talk{rig: r, tellers: 6, listeners: 5}
	loading, stop := context.WithCancel(ctx)
	var load sync.WaitGroup
	for i := range 8 {
		dice := rand.New(rand.NewPCG(random.Uint64(), uint64(i)))
		load.Go(func() { k.talk(loading, dice, i) })
	}
	n := &Nemesis{Cluster: r.cluster, Steps: Plan(random.Uint64(), r.cluster.Nodes(),
		[]Fault{FaultKill, FaultPause, FaultAll}, pick(3, 15), pick(time.Second, 4*time.Second))}
	err := n.Run(ctx)
	stop()
	load.Wait()
	t.Logf("what was done: %v\n%s", n.Faults(), n.Report())
	r.check("faults", err)
	k.again(ctx)
	report := r.audit() // waits until nothing is on its way
	k.judge(ctx, report)
}

// talk has tellers tell, one command after the other, until ctx ends. Some commands
// are sent twice at once; one that is not answered is left to the end.
func (k *talk) talk(ctx context.Context, random *rand.Rand, number int) {
	for n := 0; ctx.Err() == nil; n++ {
		words := []string{"tell"}
		for range 1 + random.IntN(4) { // the same one may come up again
			words = append(words, fmt.Sprint("l", random.IntN(k.listeners)))
		}
		c := told{fmt.Sprint("t", random.IntN(k.tellers)), fmt.Sprintf("%d-%d", number, n), wrapperspb.String(strings.Join(words, " "))}
		k.mu.Lock()
		k.sent = append(k.sent, c)
		k.mu.Unlock()
		var calls sync.WaitGroup
		for range 1 + random.IntN(10)/9 {
			calls.Go(func() { _ = k.tell(context.WithoutCancel(ctx), c, 2*time.Second) })
		}
		calls.Wait()
		pause(ctx, time.Duration(random.IntN(20))*time.Millisecond)
	}
}

func (k *talk) tell(ctx context.Context, c told, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := k.rig.client.Submit(ctx, "teller", c.teller, c.key, c.command, client.SubmitOptions{})
	return err
}

// again sends every command once more: now each has taken effect.
func (k *talk) again(ctx context.Context) {
	k.rig.t.Helper()
	queue := make(chan told)
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for c := range queue {
				if err := k.tell(ctx, c, 30*time.Second); err != nil {
					k.rig.t.Errorf("key %s of %s: %v", c.key, c.teller, err)
				}
			}
		})
	}
	for _, c := range k.sent {
		queue <- c
	}
	close(queue)
	workers.Wait()
}

// judge compares what clients have ordered, what tellers have numbered, and what
// listeners have kept.
func (k *talk) judge(ctx context.Context, report AuditReport) {
	k.rig.t.Helper()
	ordered, numbered, heard := map[check.Lane]int64{}, map[check.Lane]int64{}, map[check.Lane]check.Heard{}
	var rows int64
	for _, c := range k.sent {
		for _, listener := range strings.Fields(c.command.GetValue())[1:] {
			ordered[check.Lane{Source: c.teller, Destination: listener}]++
			rows++
		}
	}
	for i := range k.tellers {
		id := fmt.Sprint("t", i)
		for listener, last := range k.state(ctx, "teller", id) {
			numbered[check.Lane{Source: id, Destination: listener}] = int64(last.GetNumberValue())
		}
	}
	for i := range k.listeners {
		id := fmt.Sprint("l", i)
		for teller, runs := range k.state(ctx, "listener", id) {
			heard[check.Lane{Source: teller, Destination: id}] = check.Heard(runs.GetStringValue())
		}
	}
	for lane, n := range ordered {
		if numbered[lane] != n {
			k.rig.t.Errorf("%s was ordered to tell %s %d numbers, it has told %d", lane.Source, lane.Destination, n, numbered[lane])
		}
	}
	k.rig.check("order", check.Order(numbered, heard))
	k.rig.t.Logf("%d commands, %d numbers in %d lanes, heard in order and once each; audit: keys %d, effects %d, events applied %d",
		len(k.sent), rows, len(ordered), report.Keys, report.Effects, report.Applied)
	if rows < 100 || report.Applied != uint64(rows) {
		k.rig.t.Errorf("%d numbers were told, %d events applied", rows, report.Applied)
	}
}

func (k *talk) state(ctx context.Context, kind, id string) map[string]*structpb.Value {
	k.rig.t.Helper()
	read, err := k.rig.client.Read(ctx, kind, id, client.ReadOptions{})
	must(k.rig.t, err)
	s, ok := read.State.(*structpb.Struct)
	if !ok {
		k.rig.t.Fatalf("%s %s holds a %T", kind, id, read.State)
	}
	return s.GetFields()
}
