package node

import (
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

		actors.TimersFired:   {"Timers done, by how late they were.", "late"},
		actors.TimersSkipped: {"Missed times of repeated timers that were skipped, by how late they were found.", "late"},
		actors.TimersFailed:  {"Failures of timers' commands.", ""},
		actors.TimersParked:  {"Timers parked after too many failures.", ""},
		actors.TimerLateness: {"How late timers were, all together, milliseconds.", ""},
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
