package node

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"writ/actors"
)

// metrics counts what the runtime does on this node. Labels come from closed
// lists of this program, never from a request.
type metrics struct {
	plain    map[actors.Counter]prometheus.Counter
	labelled map[actors.Counter]*prometheus.CounterVec
}

// counterHelp describes the counters; those with a label name it.
var counterHelp = map[actors.Counter]struct{ help, label string }{
	actors.Executed:     {"Commands executed under this node's leases.", ""},
	actors.Rejected:     {"Commands rejected by rule, decided once and stored.", ""},
	actors.Replayed:     {"Answers given from a stored outcome.", ""},
	actors.Attached:     {"Calls that joined an execution in flight.", ""},
	actors.Refused:      {"Calls refused without an outcome, by reason.", "reason"},
	actors.Applied:      {"Events applied by consumers on this node.", ""},
	actors.RowsSent:     {"Outbox rows sent, repeats included.", ""},
	actors.Attempts:     {"Deliveries refused by a consumer, by kind of refusal.", "kind"},
	actors.Parks:        {"Lanes parked, by kind of refusal.", "kind"},
	actors.Confirms:     {"Outbox rows confirmed by their destination.", ""},
	actors.Activations:  {"Entities activated.", ""},
	actors.Passivations: {"Entities passivated.", ""},
}

func newMetrics(registry *prometheus.Registry) *metrics {
	m := &metrics{plain: map[actors.Counter]prometheus.Counter{}, labelled: map[actors.Counter]*prometheus.CounterVec{}}
	for name, about := range counterHelp {
		opts := prometheus.CounterOpts{Namespace: "writ", Name: string(name) + "_total", Help: about.help}
		if about.label == "" {
			c := prometheus.NewCounter(opts)
			m.plain[name] = c
			registry.MustRegister(c)
			continue
		}
		v := prometheus.NewCounterVec(opts, []string{about.label})
		m.labelled[name] = v
		registry.MustRegister(v)
	}
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Add implements actors.Metrics.
func (m *metrics) Add(counter actors.Counter, label string, n int) {
	if c := m.plain[counter]; c != nil {
		c.Add(float64(n))
		return
	}
	if v := m.labelled[counter]; v != nil {
		v.WithLabelValues(label).Add(float64(n))
	}
}

// shardCollector reads the local replicas at each scrape.
type shardCollector struct {
	node *Node
}

// Metrics of shards. The shard's number is the only label: at most 1,024 values.
var (
	descLeads     = prometheus.NewDesc("writ_shard_leads", "1 if this node holds the shard's lease.", []string{"shard"}, nil)
	descTerm      = prometheus.NewDesc("writ_shard_term", "Raft term of the local replica.", []string{"shard"}, nil)
	descApplied   = prometheus.NewDesc("writ_shard_applied_index", "Raft index applied by the local replica.", []string{"shard"}, nil)
	descPending   = prometheus.NewDesc("writ_shard_outbox_rows", "Rows in the outbox of the local replica.", []string{"shard"}, nil)
	descParked    = prometheus.NewDesc("writ_shard_lanes_parked", "Parked lanes in the local replica.", []string{"shard"}, nil)
	descEffects   = prometheus.NewDesc("writ_shard_effects", "Commands decided under a key, from the local replica's store.", []string{"shard"}, nil)
	descKeys      = prometheus.NewDesc("writ_shard_keys", "Idempotency keys registered, live and expired, from the local replica's store.", []string{"shard"}, nil)
	descFileBytes = prometheus.NewDesc("writ_shard_file_bytes", "Size of the shard file.", []string{"shard"}, nil)
	descUnflushed = prometheus.NewDesc("writ_shard_unflushed_bytes", "Applied, but only in memory and in the log.", []string{"shard"}, nil)
)

// Describe implements prometheus.Collector.
func (c shardCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLeads, descTerm, descApplied, descPending, descParked, descEffects, descKeys, descFileBytes, descUnflushed} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c shardCollector) Collect(out chan<- prometheus.Metric) {
	p := c.node.parts()
	if p == nil {
		return
	}
	for _, r := range p.host.Replicas() {
		shard := strconv.FormatUint(uint64(r.Shard()), 10)
		gauge := func(d *prometheus.Desc, v float64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, shard)
		}
		st := r.Status()
		leads := 0.0
		if r.Lease() != nil {
			leads = 1
		}
		gauge(descLeads, leads)
		gauge(descTerm, float64(st.Term))
		gauge(descApplied, float64(st.AppliedIndex))
		gauge(descFileBytes, float64(st.FileBytes))
		store := r.Store()
		if store == nil {
			continue
		}
		gauge(descUnflushed, float64(store.UnflushedBytes()))
		counters := store.Meta().GetCounters()
		gauge(descPending, float64(counters.GetRowsPending()))
		gauge(descParked, float64(counters.GetLanesParked()))
		gauge(descEffects, float64(counters.GetDecided()))
		gauge(descKeys, float64(counters.GetKeysLive()+counters.GetKeysExpired()))
	}
}
