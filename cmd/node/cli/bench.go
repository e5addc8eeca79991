package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/protobuf/proto"

	"writ/actors/client"
	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
)

// benchCommand is a closed loop: each client sends its next command when the last
// one is answered, and no sooner than its share of the rate allows. Every command is
// a deposit, which changes one account and emits one event to the statement.
type benchCommand struct {
	target     `embed:""`
	Clients    int           `default:"64" help:"Clients, each with one command in flight."`
	Entities   int           `default:"1000" help:"Accounts, chosen at random."`
	Payload    int           `default:"256" help:"Bytes of free text in each command, 0 to 4096."`
	Duration   time.Duration `default:"10s" help:"How long to send."`
	Warmup     time.Duration `default:"1s" help:"How long to send before measuring."`
	Rate       float64       `default:"0" help:"Most commands per second over all clients; 0 for no limit."`
	Every      time.Duration `help:"Also report on each interval of this length."`
	Duplicates float64       `default:"0.01" help:"Share of commands that are sent a second time with the same key."`
	JSON       bool          `name:"json" help:"Print one JSON object."`
}

// benchReport is the result of a run.
type benchReport struct {
	Clients     int     `json:"clients"`
	Entities    int     `json:"entities"`
	Payload     int     `json:"payload"`
	Seconds     float64 `json:"seconds"`
	Commands    int64   `json:"commands"`
	AckedPerS   float64 `json:"acked_per_s"`
	AppliedPerS float64 `json:"applied_per_s"`
	DrainS      float64 `json:"drain_s"`
	LatencyMS   struct {
		P50 float64 `json:"p50"`
		P90 float64 `json:"p90"`
		P99 float64 `json:"p99"`
		Max float64 `json:"max"`
	} `json:"latency_ms"`
	// Fdatasync is one sync among syncs, LoneFdatasync one after a pause of
	// lonePause, as a single client's commands make them: what has been idle, disk
	// or processor, answers later. Each is measured before and after the load.
	Fdatasync          fdatasync    `json:"fdatasync"`
	LoneFdatasync      fdatasync    `json:"lone_fdatasync"`
	Retries            int64        `json:"retries"`
	DuplicatesSent     int64        `json:"duplicates_sent"`
	DuplicatesMismatch int64        `json:"duplicates_mismatched"`
	Failed             int64        `json:"failed"`
	Audit              *auditReport `json:"audit"`
	// Intervals are those of --every that were measured whole.
	Intervals []benchInterval `json:"intervals,omitempty"`
}

// benchInterval is a part of a run.
type benchInterval struct {
	EndS      float64 `json:"end_s"` // since measuring began
	AckedPerS float64 `json:"acked_per_s"`
	P50MS     float64 `json:"p50_ms"`
	P99MS     float64 `json:"p99_ms"`
}

// Run implements the subcommand.
func (c *benchCommand) Run(ctx context.Context, std streams) error {
	if err := c.validate(); err != nil {
		return err
	}
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	before, err := probeDisk(ctx, admin)
	if err != nil {
		return err
	}
	load := &benchLoad{config: *c, run: rand.Text()[:8], latency: newLatency(), interval: newLatency()}
	if c.Every > 0 && !c.JSON {
		load.progress = std.out
	}
	report, err := load.measure(ctx, admin)
	if err != nil {
		return err
	}
	after, err := probeDisk(ctx, admin)
	if err != nil {
		return err
	}
	report.Fdatasync = newFdatasync(report.LatencyMS.P50, before.busy, after.busy)
	report.LoneFdatasync = newFdatasync(report.LatencyMS.P50, before.lone, after.lone)
	if report.Audit, err = audit(ctx, admin, 30*time.Second); err != nil {
		return err
	}
	if c.JSON {
		err = printJSON(std.out, report)
	} else {
		err = report.print(std.out)
	}
	if err == nil && (!report.Audit.OK || report.DuplicatesMismatch > 0) {
		return errors.New("the audit did not pass: the figures above do not count")
	}
	return err
}

// fdatasync is what a sync of 4 KiB takes in the median, and how many of them the
// median answer takes.
type fdatasync struct {
	P50MS       float64 `json:"p50_ms"`
	AnswerRatio float64 `json:"answer_ratio"`
}

// newFdatasync takes the mean of two medians, durations of the probe.
func newFdatasync(answerMS float64, before, after time.Duration) fdatasync {
	p50 := float64(before+after) / 2 / float64(time.Millisecond)
	return fdatasync{P50MS: p50, AnswerRatio: answerMS / max(p50, 0.001)}
}

const (
	probeSamples = 200
	lonePause    = time.Millisecond
)

// diskProbe holds medians.
type diskProbe struct{ busy, lone time.Duration }

// probeDisk has the node measure its disk.
func probeDisk(ctx context.Context, admin nodev1.AdminServiceClient) (diskProbe, error) {
	busy, err := admin.DiskProbe(ctx, &nodev1.DiskProbeRequest{Samples: probeSamples})
	if err != nil {
		return diskProbe{}, fmt.Errorf("disk probe: %w", err)
	}
	lone, err := admin.DiskProbe(ctx, &nodev1.DiskProbeRequest{Samples: probeSamples, Pause: int64(lonePause)})
	if err != nil {
		return diskProbe{}, fmt.Errorf("disk probe: %w", err)
	}
	return diskProbe{time.Duration(busy.GetFdatasyncP50()), time.Duration(lone.GetFdatasyncP50())}, nil
}

// rateMost leaves a nanosecond between a client's commands.
const rateMost = 1e9

func (c *benchCommand) validate() error {
	switch {
	case c.Clients < 1 || c.Entities < 1:
		return usage("--clients and --entities must be at least 1")
	case c.Payload < 0 || c.Payload > 4096:
		return usage("--payload must be 0 to 4096 bytes")
	case c.Duplicates < 0 || c.Duplicates > 1:
		return usage("--duplicates is a share between 0 and 1")
	case c.Duration <= 0:
		return usage("--duration must be positive")
	case c.Every < 0:
		return usage("--every must not be negative")
	case !(c.Rate >= 0 && c.Rate <= rateMost): // so neither is what is no number
		return usage("--rate must be 0, for no limit, to %g a second", float64(rateMost))
	}
	return nil
}

func (r *benchReport) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, `%s, %s, %d B: %s in %.1f s
acknowledged  %.0f/s    applied at the consumer  %.0f/s (drained %.1f s after the last answer)
answer        p50 %.2f ms   p90 %.2f ms   p99 %.2f ms   max %.1f ms
fdatasync     p50 %.2f ms one after the other (answer p50 ÷ it = %.2f), %.2f ms one at a time (%.2f)
retries %d, duplicates sent %d (answered differently: %d), failed %d
`, count(r.Clients, "client"), count(r.Entities, "account"), r.Payload, count(r.Commands, "command"), r.Seconds, r.AckedPerS, r.AppliedPerS, r.DrainS,
		r.LatencyMS.P50, r.LatencyMS.P90, r.LatencyMS.P99, r.LatencyMS.Max,
		r.Fdatasync.P50MS, r.Fdatasync.AnswerRatio, r.LoneFdatasync.P50MS, r.LoneFdatasync.AnswerRatio, r.Retries, r.DuplicatesSent, r.DuplicatesMismatch, r.Failed)
	if err != nil {
		return err
	}
	return r.Audit.print(w)
}

// benchLoad is one run of the load.
type benchLoad struct {
	config                        benchCommand
	run                           string
	measuring                     atomic.Bool
	acked                         atomic.Int64
	counted                       atomic.Int64
	retries                       atomic.Int64
	sentTwice, mismatched, failed atomic.Int64

	progress io.Writer // nil: nobody watches

	refuse context.CancelCauseFunc // ends the sending, with the first refusal

	mu        sync.Mutex
	failure   error                   // of the first command that has timed out
	latency   *hdrhistogram.Histogram // microseconds
	interval  *hdrhistogram.Histogram // of the interval that runs
	intervals []benchInterval
}

func newLatency() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 3)
}

// milliseconds is a quantile, 0 to 100, of a histogram of microseconds.
func milliseconds(h *hdrhistogram.Histogram, q float64) float64 {
	return float64(h.ValueAtQuantile(q)) / 1e3
}

// measure sends for the configured time and waits until all events are applied.
func (l *benchLoad) measure(ctx context.Context, admin nodev1.AdminServiceClient) (*benchReport, error) {
	cl, closeClient, err := l.config.client()
	if err != nil {
		return nil, err
	}
	defer closeClient()
	status, err := admin.Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return nil, err
	}

	sending, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	l.refuse = refuse
	sendCtx, stop := context.WithTimeout(sending, l.config.Warmup+l.config.Duration)
	defer stop()
	var wg sync.WaitGroup
	begin := time.Now()
	for range l.config.Clients {
		wg.Go(func() { l.client(ctx, sendCtx, cl) })
	}
	warm := time.NewTimer(l.config.Warmup)
	select {
	case <-warm.C:
	case <-sendCtx.Done():
	}
	l.measuring.Store(true)
	start := time.Now()
	l.watch(sendCtx, start)
	l.measuring.Store(false)
	seconds := time.Since(start).Seconds()
	wg.Wait()
	answered := time.Now()
	if ctx.Err() == nil {
		if err := cmp.Or(context.Cause(sending), l.nothing()); err != nil {
			return nil, err
		}
	}
	if err := awaitQuiet(ctx, admin, status.GetMeta().GetShards(), 2*time.Minute); err != nil {
		return nil, err
	}
	drained := time.Now()

	r := &benchReport{
		Clients: l.config.Clients, Entities: l.config.Entities, Payload: l.config.Payload, Seconds: seconds,
		Commands: l.counted.Load(), Retries: l.retries.Load(), Failed: l.failed.Load(),
		DuplicatesSent: l.sentTwice.Load(), DuplicatesMismatch: l.mismatched.Load(),
	}
	r.AckedPerS = float64(r.Commands) / seconds
	r.AppliedPerS = float64(l.acked.Load()) / drained.Sub(begin).Seconds()
	r.DrainS = drained.Sub(answered).Seconds()
	r.LatencyMS.P50, r.LatencyMS.P90, r.LatencyMS.P99 = milliseconds(l.latency, 50), milliseconds(l.latency, 90), milliseconds(l.latency, 99)
	r.LatencyMS.Max = float64(l.latency.Max()) / 1e3
	r.Intervals = l.intervals
	return r, nil
}

// fails takes down a command without an outcome. What package client does not repeat
// no other command changes either: the run ends, since its clients would go on to be
// refused as fast as they can ask, and its figures would count what was not done.
func (l *benchLoad) fails(ctx context.Context, err error) {
	l.failed.Add(1)
	if ctx.Err() != nil {
		return
	}
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Err == nil {
		l.refuse(fmt.Errorf("a command was refused: %w", inWords(err, "")))
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = cmp.Or(l.failure, err)
}

// nothing is the error of a run that has measured nothing: its figures would be 0.
func (l *benchLoad) nothing() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.counted.Load() > 0:
		return nil
	case l.failure != nil:
		return fmt.Errorf("no command was executed: %w", inWords(l.failure, ""))
	}
	return errors.New("no command was answered while measuring: give a longer --duration or a higher --rate")
}

// watch returns when sending ends, and takes down interval after interval.
func (l *benchLoad) watch(sendCtx context.Context, start time.Time) {
	if l.config.Every <= 0 {
		<-sendCtx.Done()
		return
	}
	tick := time.NewTicker(l.config.Every)
	defer tick.Stop()
	for {
		select {
		case <-sendCtx.Done():
			return
		case <-tick.C:
		}
		l.mu.Lock()
		h := l.interval
		in := benchInterval{
			EndS: time.Since(start).Seconds(), AckedPerS: float64(h.TotalCount()) / l.config.Every.Seconds(),
			P50MS: milliseconds(h, 50), P99MS: milliseconds(h, 99),
		}
		h.Reset()
		l.intervals = append(l.intervals, in)
		l.mu.Unlock()
		if l.progress != nil {
			_, _ = fmt.Fprintf(l.progress, "%6.0f s  %6.0f/s  p50 %.2f ms  p99 %.2f ms\n", in.EndS, in.AckedPerS, in.P50MS, in.P99MS)
		}
	}
}

// record takes down one answer that counts.
func (l *benchLoad) record(took time.Duration) {
	l.counted.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.latency.RecordValue(took.Microseconds())
	if l.config.Every > 0 {
		_ = l.interval.RecordValue(took.Microseconds())
	}
}

// pace returns what a client waits for before each command. Clients begin at
// moments of their own, and one that is behind does not catch up.
func (l *benchLoad) pace() (wait func(context.Context)) {
	if l.config.Rate <= 0 {
		return func(context.Context) {}
	}
	const most = 365 * 24 * time.Hour // longer than any run: a rate may be as small as one likes
	period := time.Duration(min(float64(most), float64(time.Second)*float64(l.config.Clients)/l.config.Rate))
	next := time.Now().Add(mrand.N(period))
	return func(ctx context.Context) {
		due := time.NewTimer(time.Until(next))
		defer due.Stop()
		select {
		case now := <-due.C:
			next = now.Add(period - now.Sub(next)%period)
		case <-ctx.Done():
		}
	}
}

// client is one closed loop. A command that was begun is finished.
func (l *benchLoad) client(ctx, sendCtx context.Context, cl *client.Client) {
	wait := l.pace()
	text := strings.Repeat("x", l.config.Payload)
	for {
		if wait(sendCtx); sendCtx.Err() != nil {
			return
		}
		id := fmt.Sprintf("bench-%s-%d", l.run, mrand.IntN(l.config.Entities))
		command := &accountv1.Deposit{AmountMinor: 1, Currency: "EUR", Reference: text}
		key := client.NewKey()
		start := time.Now()
		out, err := cl.Submit(ctx, "account", id, key, command, client.SubmitOptions{})
		if err != nil {
			l.fails(ctx, err)
			continue
		}
		l.acked.Add(1)
		l.retries.Add(int64(out.Attempts - 1))
		if l.measuring.Load() {
			l.record(time.Since(start))
		}
		if mrand.Float64() < l.config.Duplicates {
			l.sendAgain(ctx, cl, id, key, command, out)
		}
	}
}

// sendAgain repeats a command: the answer must be the first one, flagged.
func (l *benchLoad) sendAgain(ctx context.Context, cl *client.Client, id, key string, command proto.Message, first *client.Outcome) {
	l.sentTwice.Add(1)
	again, err := cl.Submit(ctx, "account", id, key, command, client.SubmitOptions{})
	if err != nil {
		l.fails(ctx, err)
		return
	}
	if !again.Replayed || !proto.Equal(first.Reply, again.Reply) || !first.AcceptedAt.Equal(again.AcceptedAt) || first.Version != again.Version {
		l.mismatched.Add(1)
	}
}
