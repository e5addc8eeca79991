package actors

import (
	"context"
	"time"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// Lease is the right to lead a shard for one term.
type Lease interface {
	// Context ends when the lease ends.
	Context() context.Context
	Epoch() uint64
	Term() uint64
	// LogTime is the shard's log time now, nanoseconds.
	LogTime() int64
	// Propose hands a record to the log and never blocks. done is called exactly
	// once, in the order of the proposals: nil means committed and applied,
	// NOT_EXECUTED definitely not, OUTCOME_UNKNOWN neither.
	Propose(rec *recordv1.Record, done func(error))
	// ProposeWithin is Propose for a record that may wait that long for another
	// record to share its entry.
	ProposeWithin(patience time.Duration, rec *recordv1.Record, done func(error))
	// Barrier calls done in order with proposals; nil means that the lease still
	// held at a moment after the call.
	Barrier(done func(error))
	// Load is how much is waiting or in flight.
	Load() (records, bytes int)
}

// Store is the applied state of one shard. All methods may be called at any
// time from any goroutine. Absent is nil, nil.
type Store interface {
	Entity(ref entity.Ref) (*recordv1.EntityRecord, error)
	Key(ref entity.Ref, commandType string, key []byte) (*recordv1.KeyRecord, error)
	Applied(destination, source entity.Ref) (*recordv1.Applied, error)
	// WaitingLanes are the lanes of a source in which rows wait, by destination.
	WaitingLanes(source entity.Ref) (map[entity.Ref]*recordv1.Lane, error)
	Lane(source, destination entity.Ref) (*recordv1.Lane, error)
	Rows(source, destination entity.Ref, from uint64, maxRows, maxBytes int) ([]*recordv1.Row, error)
	PendingSources(after entity.Ref, limit int) ([]entity.Ref, error)
	Timer(ref entity.Ref, name string) (*recordv1.Timer, error)
	TimerNames(ref entity.Ref, limit int) ([]string, error)
	// DueTimers yields timers to be tried at or before a time, earliest first, after
	// a position. Where fewer than limit are left, next is the time of the first later
	// one, 0 for none.
	DueTimers(behind string, until int64, limit int, yield func(position string, ref entity.Ref, name string, t *recordv1.Timer)) (next int64, err error)
	Expirable(logTime int64) (throughGeneration uint64, ok bool)
	ExpiredThrough() int64
}

// Courier carries rows to the leader of their destination's shard, found from
// rows[0].destination. Any error is trouble on the way: it says nothing about
// the rows and is tried again.
type Courier interface {
	Deliver(ctx context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error)
}

// Freshness says how far a shard's local store is and how long ago it was known
// to be so.
type Freshness func(shard uint32) (logIndex uint64, age time.Duration)

// Metrics takes counts. It is called from many goroutines and must not block.
type Metrics interface {
	// Add raises a counter. The label is an entity.Reason for Refused, a refusal's
	// kind for Attempts and Parks, a class of lateness for TimersFired and
	// TimersSkipped, and empty elsewhere.
	Add(counter Counter, label string, n int)
}

// Counter names what is counted. The values are metric names.
type Counter string

// Counters.
const (
	Executed     Counter = "executed"
	Rejected     Counter = "rejected"
	Replayed     Counter = "replayed"
	Attached     Counter = "attached"
	Refused      Counter = "refused"
	Applied      Counter = "events_applied"
	RowsSent     Counter = "rows_sent"
	Attempts     Counter = "attempts"
	Parks        Counter = "parks"
	Confirms     Counter = "confirms"
	Activations  Counter = "activations"
	Passivations Counter = "passivations"

	HandlersHung Counter = "handlers_hung"

	TimersFired   Counter = "timers_fired"
	TimersSkipped Counter = "timers_skipped"
	TimersFailed  Counter = "timers_failed"
	TimersParked  Counter = "timers_parked"
	TimerLateness Counter = "timer_lateness_milliseconds"
)

type noMetrics struct{}

func (noMetrics) Add(Counter, string, int) {}
