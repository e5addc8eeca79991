package node

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"writ/persistence/replica"
)

// shardCollector reads the local replicas at each scrape. The shard's number is
// the only label: at most 1,024 values.
type shardCollector struct {
	node *Node
}

// shardMetric is one value of a local replica.
type shardMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	// led: only of shards led here, so that the cluster's sum counts each once.
	led  bool
	read func(*shardScrape) (value float64, ok bool)
}

// shardScrape is what the values of one shard are read from.
type shardScrape struct {
	replica *replica.Replica
	status  replica.Status
	audit   *auditView // nil: not recounted yet
	oldest  time.Time  // acceptance time of the oldest row; zero: none
	now     time.Time  // by the wall clock, as the former
	// of the store; nil while there is none
	counters interface {
		GetDecided() uint64
		GetKeysLive() uint64
		GetKeysExpired() uint64
		GetNumbered() uint64
		GetRowsPending() uint64
		GetLanesParked() uint64
	}
	unflushed, total, live int64
}

// shardMetrics are all values of a replica.
func shardMetrics() []shardMetric {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	metric := func(name, help string, kind prometheus.ValueType, led bool, read func(*shardScrape) (float64, bool)) shardMetric {
		return shardMetric{prometheus.NewDesc(name, help, []string{"shard"}, nil), kind, led, read}
	}
	stored := func(read func(*shardScrape) float64) func(*shardScrape) (float64, bool) {
		return func(s *shardScrape) (float64, bool) {
			if s.counters == nil {
				return 0, false
			}
			return read(s), true
		}
	}
	always := func(read func(*shardScrape) float64) func(*shardScrape) (float64, bool) {
		return func(s *shardScrape) (float64, bool) { return read(s), true }
	}
	return []shardMetric{
		metric("writ_shard_leads", "1 if this node holds the shard's lease.", gauge, false, always(func(s *shardScrape) float64 { return truth(s.replica.Lease() != nil) })),
		metric("writ_shard_term", "Raft term of the local replica.", gauge, false, always(func(s *shardScrape) float64 { return float64(s.status.Term) })),
		metric("writ_shard_applied_index", "Raft index applied by the local replica.", gauge, false, always(func(s *shardScrape) float64 { return float64(s.status.AppliedIndex) })),
		metric("writ_shard_file_bytes", "Size of the shard file.", gauge, false, stored(func(s *shardScrape) float64 { return float64(s.total) })),
		metric("writ_shard_file_live_bytes", "Part of the shard file that holds content; the rest are free pages.", gauge, false, stored(func(s *shardScrape) float64 { return float64(s.live) })),
		metric("writ_shard_unflushed_bytes", "Applied, but only in memory and in the log.", gauge, false, stored(func(s *shardScrape) float64 { return float64(s.unflushed) })),
		metric("writ_effects_total", "Commands decided under a key, rejections included, as the store of each shard led here counts them.", counter, true, stored(func(s *shardScrape) float64 { return float64(s.counters.GetDecided()) })),
		metric("writ_idempotency_keys_registered_total", "Idempotency keys registered, live and expired, as the store of each shard led here counts them.", counter, true, stored(func(s *shardScrape) float64 {
			return float64(s.counters.GetKeysLive() + s.counters.GetKeysExpired())
		})),
		metric("writ_idempotency_keys_live", "Idempotency keys that are remembered now, of shards led here.", gauge, true, stored(func(s *shardScrape) float64 { return float64(s.counters.GetKeysLive()) })),
		metric("writ_effect_per_key_ratio", "Effects per key of each shard led here, as the auditor's last recount of the whole store found them; before its first recount, by the store's running totals. 1 where there are none.", gauge, true, stored(ratio)),
		metric("writ_outbox_rows", "Rows that their destination has not confirmed, parked ones included, of shards led here.", gauge, true, stored(func(s *shardScrape) float64 { return float64(s.counters.GetRowsPending()) })),
		metric("writ_outbox_oldest_age_seconds", "Age of the oldest row at the head of a lane that is not parked or paused, since the acceptance of its command; 0 if none waits.", gauge, true, stored(func(s *shardScrape) float64 {
			if s.oldest.IsZero() {
				return 0
			}
			return max(0, s.now.Sub(s.oldest).Seconds())
		})),
		metric("writ_outbox_rows_numbered_total", "Rows ever given a number, of shards led here. Sends per row: writ_rows_sent_total over this.", counter, true, stored(func(s *shardScrape) float64 { return float64(s.counters.GetNumbered()) })),
		metric("writ_lanes_parked", "Parked lanes of shards led here.", gauge, true, stored(func(s *shardScrape) float64 { return float64(s.counters.GetLanesParked()) })),
		metric("writ_audit_finished_timestamp_seconds", "When the auditor's last recount of a shard led here ended, Unix time.", gauge, true, func(s *shardScrape) (float64, bool) {
			if s.audit == nil {
				return 0, false
			}
			return float64(s.audit.finished.UnixMilli()) / 1000, true
		}),
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// ratio is effects per key.
func ratio(s *shardScrape) float64 {
	effects, keys := s.counters.GetDecided(), s.counters.GetKeysLive()+s.counters.GetKeysExpired()
	if s.audit != nil {
		effects, keys = s.audit.effects, s.audit.keys
	}
	switch {
	case keys > 0:
		return float64(effects) / float64(keys)
	case effects == 0:
		return 1
	}
	return float64(effects) // effects without a single key
}

// Describe implements prometheus.Collector.
func (c shardCollector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range shardMetrics() {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c shardCollector) Collect(out chan<- prometheus.Metric) {
	p := c.node.parts()
	if p == nil {
		return
	}
	audits := map[uint32]*auditView{}
	for _, v := range c.node.auditor.views() {
		if !v.finished.IsZero() {
			audits[v.shard] = &v
		}
	}
	oldest := *c.node.watcher.oldest.Load()
	all := shardMetrics()
	for _, r := range p.host.Replicas() {
		s := &shardScrape{replica: r, status: r.Status(), audit: audits[r.Shard()], oldest: oldest[r.Shard()], now: c.node.cfg.Clock()}
		if store := r.Store(); store != nil {
			s.counters, s.unflushed = store.Meta().GetCounters(), store.UnflushedBytes()
			s.total, s.live = store.FileBytes()
		}
		led := r.Lease() != nil
		for _, m := range all {
			if value, ok := m.read(s); ok && (led || !m.led) {
				out <- prometheus.MustNewConstMetric(m.desc, m.kind, value, strconv.FormatUint(uint64(r.Shard()), 10))
			}
		}
	}
}
