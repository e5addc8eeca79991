package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"writ/actors"
	"writ/actors/entity"
)

// metrics counts what the runtime does on this node. Labels come from closed
// lists of this program, never from a request.
type metrics struct {
	plain    map[actors.Counter]prometheus.Counter
	labelled map[actors.Counter]*prometheus.CounterVec
	lateness prometheus.Histogram // of timers
}

// counterHelp describes the counters; those with a label name it.
func counterHelp() map[actors.Counter]struct{ help, label string } {
	return map[actors.Counter]struct{ help, label string }{
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

		actors.HandlersHung: {"Handlers that did not come back in time; the log names them.", ""},

		actors.TimersFired:   {"Timers fired, by how late they were.", "late"},
		actors.TimersSkipped: {"Missed times of repeated timers that were skipped, by how late they were found.", "late"},
		actors.TimersFailed:  {"Failures of timers' commands.", ""},
		actors.TimersParked:  {"Timers parked after too many failures.", ""},
	}
}

func newMetrics(registry *prometheus.Registry) *metrics {
	m := &metrics{plain: map[actors.Counter]prometheus.Counter{}, labelled: map[actors.Counter]*prometheus.CounterVec{}}
	for name, about := range counterHelp() {
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
		for _, value := range initially(name) {
			v.WithLabelValues(value)
		}
	}
	m.lateness = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "writ_timer_lateness_seconds", Help: "How late timers were when they fired.",
		Buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600},
	})
	registry.MustRegister(m.lateness)
	registerExternal(registry)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// initially are labels that stand at 0 from the start, so that a first one is seen
// as an increase.
func initially(name actors.Counter) []string {
	if name == actors.Refused {
		return []string{string(entity.NotExecuted), string(entity.Overloaded), string(entity.OutcomeUnknown), string(entity.KeyReused), string(entity.Expired)}
	}
	return nil
}

// Add implements actors.Metrics.
func (m *metrics) Add(counter actors.Counter, label string, n int) {
	if counter == actors.TimerLateness {
		m.lateness.Observe((time.Duration(n) * time.Millisecond).Seconds())
		return
	}
	if c := m.plain[counter]; c != nil {
		c.Add(float64(n))
		return
	}
	if v := m.labelled[counter]; v != nil {
		v.WithLabelValues(label).Add(float64(n))
	}
}

// registerExternal registers what effects outside of Writ will be counted by.
// There are no external sinks yet: the counters stand at 0, so that rules and
// dashboards made today go on to fit.
func registerExternal(registry *prometheus.Registry) {
	registry.MustRegister(
		prometheus.NewCounter(prometheus.CounterOpts{
			Name: "writ_external_call_idempotent_replay_total",
			Help: "Calls of external sinks that were answered from the sink's own memory of the event id. Always 0: this version has no external sinks.",
		}),
		prometheus.NewCounter(prometheus.CounterOpts{
			Name: "writ_external_call_duplicate_total",
			Help: "Calls of external sinks that took effect more than once. Always 0: this version has no external sinks.",
		}),
	)
}
