package node

import (
	"github.com/prometheus/client_golang/prometheus"
)

// guaranteeCollector tells at each scrape what this node knows of the guarantee,
// and of itself.
type guaranteeCollector struct {
	node *Node
}

// guaranteeDescs are the descriptions of its metrics. Labels are kinds of the
// program and words of closed lists.
type guaranteeDescs struct {
	ttl, horizon, precondition, oldestPending, findings, leaderless, metaLeads, diskFree, diskTotal, build *prometheus.Desc
}

func descsOfGuarantee() guaranteeDescs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return guaranteeDescs{
		ttl:           desc("writ_idempotency_configured_ttl_seconds", "How long keys of a kind are remembered at least, by the contract.", "kind"),
		horizon:       desc("writ_idempotency_retry_horizon_seconds", "For how long clients may retry one key, by the contract."),
		precondition:  desc("writ_guarantee_precondition_met", "1 if a precondition of the guarantee is met, as this node sees it; see node contract show.", "precondition"),
		oldestPending: desc("writ_idempotency_oldest_pending_age_seconds", "Age of the key that has been in flight for longest: decided, and its record not yet committed. 0 if none is."),
		findings:      desc("writ_audit_findings", "Contradictions that the background auditor knows of in shards led here, by finding.", "finding"),
		leaderless:    desc("writ_shards_without_leader", "Shards that have no leader, as this node sees it."),
		metaLeads:     desc("writ_meta_leads", "1 if this node leads the meta group."),
		diskFree:      desc("writ_disk_free_bytes", "Free space of the data disk."),
		diskTotal:     desc("writ_disk_total_bytes", "Size of the data disk."),
		build:         desc("writ_build_info", "1; the version of the program is the label.", "version"),
	}
}

func (d guaranteeDescs) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.ttl, d.horizon, d.precondition, d.oldestPending, d.findings, d.leaderless, d.metaLeads, d.diskFree, d.diskTotal, d.build}
}

// Describe implements prometheus.Collector.
func (c guaranteeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range descsOfGuarantee().all() {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c guaranteeCollector) Collect(out chan<- prometheus.Metric) {
	n, d := c.node, descsOfGuarantee()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	gauge(d.build, 1, Version)
	gauge(d.oldestPending, n.meter.oldestPending().Seconds())
	if free, total, err := diskSpace(n.cfg.Dir); err == nil {
		gauge(d.diskFree, float64(free))
		gauge(d.diskTotal, float64(total))
	}
	for _, pre := range n.watcher.view().GetPreconditions() {
		gauge(d.precondition, truth(pre.GetMet()), pre.GetName())
	}
	found := map[kindOfFinding]int{}
	for _, v := range n.auditor.views() {
		for kind, texts := range v.findings {
			found[kind] += len(texts)
		}
	}
	for _, kind := range kindsOfFinding() {
		gauge(d.findings, float64(found[kind]), string(kind))
	}
	p := n.parts()
	if p == nil {
		return
	}
	gauge(d.metaLeads, truth(p.meta.IsLeader()))
	leaderless := 0
	for shard := range n.table.Shards() {
		if leader, _ := n.table.Leader(shard); leader == "" {
			leaderless++
		}
	}
	gauge(d.leaderless, float64(leaderless))
	if contract := p.meta.State().GetContract(); contract != nil {
		gauge(d.horizon, retryHorizon(contract).Seconds())
		for kind, window := range windows(contract, n.registry) {
			gauge(d.ttl, window.Seconds(), kind)
		}
	}
}
