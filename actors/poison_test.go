package actors_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"writ/actors"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

const (
	goodLanes  = 10
	rowsAtOnce = 500
	badRows    = 20
	batchMost  = badRows
	poisonMost = 1.1 // what the good lanes may take beside bad ones, with 100,000 rows
	// poisonUsual is the same for usual runs, which are over in a moment and share the
	// processors with other tests.
	poisonUsual = 1.5
)

// poisoned is a world in which one source has good lanes and bad ones.
type poisoned struct {
	*world
	source entity.Ref
	broken atomic.Bool // kind "refuses" refuses
	far    atomic.Bool // kind "far" cannot be reached
	sends  atomic.Int64
	tries  atomic.Int64 // to reach kind "far" in vain
	vain   atomic.Int64 // rows that these carried

	mu   sync.Mutex
	seen []int64 // by kind "refuses"
}

func newPoisoned(tb testing.TB) *poisoned {
	tb.Helper()
	p := &poisoned{source: ref("a", "1")}
	p.broken.Store(true)
	p.far.Store(true)
	p.world = newWorld(tb, worldConfig{
		shards: 2,
		kinds: []entity.Definer{
			kind("a", hooks{command: func(c *entity.Context, s *num, what string) error {
				if what == "good" {
					for i := range rowsAtOnce {
						c.Emit(entity.To("good", fmt.Sprint(i%goodLanes)), &num{Value: 1})
					}
					return nil
				}
				s.Value++
				for _, to := range []string{"refuses", "far", "missing"} {
					c.Emit(entity.To(to, "1"), &num{Value: s.GetValue()})
				}
				return nil
			}}),
			kind("good", hooks{}), kind("far", hooks{}),
			kind("refuses", hooks{event: func(c *entity.Context, _ *num, n int64) error {
				if p.broken.Load() {
					return c.Reject(entity.NotFound, "BROKEN", "row %d", n)
				}
				p.mu.Lock()
				p.seen = append(p.seen, n)
				p.mu.Unlock()
				return nil
			}}),
		},
		change: func(c *actors.Config) {
			c.Retry = actors.Retry{First: 5 * time.Millisecond, Most: 50 * time.Millisecond}
		},
	})
	p.courier.set(func(req *nodev1.DeliverRequest, deliver deliverFunc) (*nodev1.DeliverResponse, error) {
		kind := req.GetRows()[0].GetDestination().GetKind()
		if kind == "far" && p.far.Load() {
			p.tries.Add(1)
			p.vain.Add(int64(len(req.GetRows())))
			return nil, errors.New("no way there")
		}
		if kind == "good" {
			p.sends.Add(int64(len(req.GetRows())))
		}
		return deliver()
	})
	return p
}

// drain has n good rows delivered, beside bad lanes or not.
func (p *poisoned) drain(n int, bad bool) time.Duration {
	p.t.Helper()
	if bad {
		for i := range badRows {
			p.must(p.source, fmt.Sprint("bad", i), &text{Value: "bad"})
		}
	}
	began := time.Now()
	for i := range n / rowsAtOnce {
		p.must(p.source, fmt.Sprint("good", i), &text{Value: "good"})
	}
	for i := range goodLanes {
		p.drained(p.source, ref("good", fmt.Sprint(i)), uint64(n/goodLanes))
	}
	return time.Since(began)
}

// A lane that is refused, one whose destination nobody can reach and one to a kind
// that nobody has cost the good lanes of the same source no throughput; they are
// parked, or wait, with their reason, and go on in order when the cause is mended.
// Runs come in pairs, without and with the bad lanes, so that what else the machine
// does meets both; the median pair counts.
func TestPoisonCostsOthersNothing(t *testing.T) {
	n, pairs, most := 5_000, 15, poisonUsual
	if os.Getenv("WRIT_LONG") != "" {
		n, pairs, most = 100_000, 7, poisonMost
	}
	newPoisoned(t).drain(n, true) // the first run of all is slower
	var p *poisoned
	var ratios []float64
	for range pairs {
		without := newPoisoned(t).drain(n, false)
		p = newPoisoned(t)
		with := p.drain(n, true)
		ratios = append(ratios, with.Seconds()/without.Seconds())
		t.Logf("%d good rows: %v alone, %v beside three bad lanes; %.2f sends a row", n, without, with, float64(p.sends.Load())/float64(n))
	}
	slices.Sort(ratios)
	t.Logf("ratios %.2f", ratios)
	if ratio := ratios[len(ratios)/2]; ratio > most {
		t.Errorf("bad lanes cost the good ones a factor of %.2f", ratio)
	}
	if sends := p.sends.Load(); sends > int64(n)*3/2 {
		t.Errorf("%d sends of %d rows", sends, n)
	}
	for to, reason := range map[string]string{"refuses": "BROKEN: row 1", "missing": "UNKNOWN_KIND"} {
		p.metrics.until(t, func() bool { return p.lane(p.source, ref(to, "1")).GetStatus() == recordv1.Lane_PARKED })
		if l := p.lane(p.source, ref(to, "1")); !strings.Contains(l.GetReason(), reason) || l.GetConfirmed() != 0 || l.GetNumbered() != badRows {
			t.Errorf("lane to %s: %v", to, l)
		}
	}
	if l := p.lane(p.source, ref("far", "1")); l.GetStatus() != recordv1.Lane_ACTIVE || l.GetAttempts() != 0 {
		t.Errorf("lane to far: %v", l)
	}
	p.broken.Store(false)
	p.far.Store(false)
	p.rt.RoutesChanged()
	replay := &recordv1.LaneUpdate{
		Source: &recordv1.Ref{Tenant: "t", Kind: "a", Id: "1"}, Destination: &recordv1.Ref{Tenant: "t", Kind: "refuses", Id: "1"},
		Change: &recordv1.LaneUpdate_Resume{Resume: true},
	}
	if err := p.rt.UpdateLane(t.Context(), p.shard(p.source), replay); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"refuses", "far"} {
		p.drained(p.source, ref(to, "1"), badRows)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) != badRows || !slices.IsSorted(p.seen) {
		t.Errorf("after the replay: %v", p.seen)
	}
}

// While a consumer is away its rows wait in order and are not sent for nothing,
// and other lanes are as quick as before.
func TestConsumerIsAway(t *testing.T) {
	p := newPoisoned(t)
	for i := range badRows {
		p.must(p.source, fmt.Sprint("bad", i), &text{Value: "bad"})
	}
	p.drain(5_000, false)
	p.metrics.until(t, func() bool { return p.tries.Load() >= 10 })
	p.far.Store(false)
	p.drained(p.source, ref("far", "1"), badRows)
	if value, version := p.read(ref("far", "1")); value != badRows*(badRows+1)/2 || version != badRows {
		t.Errorf("far is %d at version %d", value, version)
	}
	// One row tells as well as many whether the way is open again.
	if tries, vain := p.tries.Load(), p.vain.Load(); vain > tries+batchMost {
		t.Errorf("%d tries carried %d rows in vain", tries, vain)
	}
}
