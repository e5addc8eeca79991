package node

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"writ/actors/entity"
	"writ/persistence"
	"writ/persistence/replica"
	recordv1 "writ/proto/writ/record/v1"
)

// meter measures records on their way through the log, and flushes.
type meter struct {
	commit  prometheus.Histogram
	pending prometheus.Histogram
	flush   prometheus.Histogram
	refused *prometheus.CounterVec
	marks   prometheus.Counter

	mu     sync.Mutex
	leases map[uint32]*meteredLease // the last one of each shard
}

func newMeter(registry *prometheus.Registry) *meter {
	// 0.5 ms, one synced write on a good disk, to 16 s.
	buckets := prometheus.ExponentialBuckets(0.0005, 2, 16)
	m := &meter{
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "writ_commit_seconds", Help: "From the proposal of a record to its verdict: committed and applied here, refused, or unknown. Confirmations that wait for others to share their entry are left out.", Buckets: buckets,
		}),
		pending: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "writ_idempotency_pending_age_seconds", Help: "How long an idempotency key was in flight: decided, but its record not yet committed.",
			Buckets: append(buckets, 30, 60, 120, 300),
		}),
		flush: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "writ_flush_seconds", Help: "One flush of a shard into its file, synced.", Buckets: buckets,
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "writ_records_refused_total", Help: "Records that the state machine refused whole, by the check that they failed; nothing of them took effect.",
		}, []string{"check"}),
		marks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "writ_marks_refused_total", Help: "Confirmations, counted attempts and other marks of lanes that the state machine refused.",
		}),
		leases: map[uint32]*meteredLease{},
	}
	for _, check := range []string{"term", "version", "key", "lane", "applied"} {
		m.refused.WithLabelValues(check) // 0 from the start
	}
	registry.MustRegister(m.commit, m.pending, m.flush, m.refused, m.marks)
	return m
}

// flushing times one flush.
func (m *meter) flushing() (ended func()) {
	began := time.Now()
	return func() { m.flush.Observe(time.Since(began).Seconds()) }
}

// oldestPending is the age of the key that has been in flight for longest; 0 if
// none is.
func (m *meter) oldestPending() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	var oldest time.Duration
	for _, l := range m.leases {
		if since, ok := l.oldest(); ok {
			oldest = max(oldest, time.Since(since))
		}
	}
	return oldest
}

// lease wraps a lease so that its proposals are measured.
func (m *meter) lease(l *replica.Lease, shard uint32) *meteredLease {
	metered := &meteredLease{Lease: l, meter: m}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leases[shard] = metered
	return metered
}

// meteredLease is a lease whose proposals are measured.
type meteredLease struct {
	*replica.Lease
	meter *meter

	mu sync.Mutex
	// pending are the times at which keys went into flight, in order: verdicts
	// come in the order of proposals.
	pending []time.Time
}

// Propose implements actors.Lease.
func (l *meteredLease) Propose(rec *recordv1.Record, done func(error)) {
	l.Lease.Propose(rec, l.measured(rec, done, false))
}

// ProposeWithin implements actors.Lease. The patience of a handled event counts as
// latency. That of a lane's mark is so long that it would say nothing of the log.
func (l *meteredLease) ProposeWithin(patience time.Duration, rec *recordv1.Record, done func(error)) {
	l.Lease.ProposeWithin(patience, rec, l.measured(rec, done, true))
}

// measured returns what takes note of a proposal's verdict.
func (l *meteredLease) measured(rec *recordv1.Record, done func(error), patient bool) func(error) {
	began, keyed := time.Now(), rec.GetCommit().GetKey() != nil
	_, mark := rec.GetBody().(*recordv1.Record_Lane)
	if keyed {
		l.enter(began)
	}
	return func(err error) {
		took := time.Since(began).Seconds()
		if !patient || !mark {
			l.meter.commit.Observe(took)
		}
		if keyed {
			l.leave()
			l.meter.pending.Observe(took)
		}
		l.meter.countRefused(err, mark)
		done(err)
	}
}

func (l *meteredLease) enter(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(l.pending, at)
}

func (l *meteredLease) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending = l.pending[1:]; len(l.pending) == 0 {
		l.pending = nil
	}
}

func (l *meteredLease) oldest() (since time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return time.Time{}, false
	}
	return l.pending[0], true
}

// countRefused counts a verdict if it is a refusal by the state machine. The
// checks are words of package persistence: a closed list.
func (m *meter) countRefused(err error, mark bool) {
	var e *entity.Error
	if err == nil || !errors.As(err, &e) {
		return
	}
	check := persistence.Refused(e)
	if check == "" {
		return
	}
	m.refused.WithLabelValues(check).Inc()
	if mark {
		m.marks.Inc()
	}
}
