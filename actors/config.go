package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/cenkalti/backoff/v5"

	"writ/actors/entity"
	"writ/internal/trace"
)

// Config is what a runtime needs to know. Registry and Courier have no default.
type Config struct {
	// Node is this node's name, for messages.
	Node string
	// Registry holds the kinds of this node.
	Registry *entity.Registry
	// Shards is the cluster's number of shards, 0 while it is not known; nil: never.
	// A call for an entity of another shard is refused, and sends to one shard do
	// not wait for those to another.
	Shards func() uint32
	// Limits are DefaultLimits if left zero.
	Limits Limits
	// Window says how long a kind's idempotency keys are remembered, in log time.
	// Where it is nil or 0 the kind's own window counts, and then 24 h.
	Window func(kind string) time.Duration
	// Skew is how far a client's clock may run ahead when its command first arrives
	// after a mark of Cancel was forgotten: a command issued up to this long after
	// the latest forgotten acceptance is refused as EXPIRED. At most a quarter of the
	// shortest window counts. Default 1 min.
	Skew time.Duration
	// Clock is the wall clock by which commands are accepted and timers fire. Nil:
	// time.Now. Clocks of nodes and of clients may differ, and be set.
	Clock func() time.Time
	// Courier carries events.
	Courier Courier
	// Sends is the number of concurrent deliveries from this node to one shard; a
	// quarter of them may go to one entity. Healthy lanes and lanes in trouble are
	// counted separately. Default 64.
	Sends int
	// SendTimeout ends one delivery. Default 10 s.
	SendTimeout time.Duration
	// Retry is the time between tries of a lane. Default 20 ms to 5 s.
	Retry Retry
	// MaxAttempts is the number of refused deliveries after which a lane is
	// parked. Default 8.
	MaxAttempts int
	// UpgradePatience is how long a lane waits, under one leader of the source, if the
	// destination's node does not know the event, and a timer if its node does not
	// know the command, before it is parked. Default 1 h.
	UpgradePatience time.Duration
	// MaxCrashes is the number of times that a row, a timer, a command or a query may
	// end the process before its lane or the timer is parked, or the command or query
	// refused.
	// Default 3.
	MaxCrashes int
	// TimerSkew is how much longer a timer waits in another term than the one in
	// which it was set: the clocks of two nodes may differ by this much. Default
	// 100 ms; negative: none.
	TimerSkew time.Duration
	// Patience is how long a handler may run before the log names it, and how long
	// Drop waits for one. Default 10 s.
	Patience time.Duration
	// Passivation is how long an entity stays in memory unused. Default 5 min.
	Passivation time.Duration
	// Admit is asked before every client call for a shard; its error, an
	// *entity.Error, is the answer. Nil admits all.
	Admit func(shard uint32) error
	// Freshness is told by STALE reads. Nil: zero values.
	Freshness Freshness
	// Hands may be nil: then nothing is known of what has ended the process.
	Hands Hands
	// Metrics may be nil.
	Metrics Metrics
	// Tracer may be nil: then nothing is traced.
	Tracer trace.Tracer
	// Logger may be nil.
	Logger *slog.Logger
}

// Retry is an exponential delay with jitter. Steady leaves the jitter out, for
// simulations that must repeat.
type Retry struct {
	First, Most time.Duration
	Steady      bool
}

func (r Retry) jitter() float64 {
	if r.Steady {
		return 0
	}
	return backoff.DefaultRandomizationFactor
}

const defaultWindow = 24 * time.Hour

// withDefaults fills what was left open.
func (c Config) withDefaults() Config {
	if c.Limits == (Limits{}) {
		c.Limits = DefaultLimits()
	}
	if c.Shards == nil {
		c.Shards = func() uint32 { return 0 }
	}
	set(&c.Skew, time.Minute)
	if c.Clock == nil {
		c.Clock = time.Now
	}
	set(&c.Sends, 64)
	set(&c.SendTimeout, 10*time.Second)
	set(&c.Retry, Retry{First: 20 * time.Millisecond, Most: 5 * time.Second})
	set(&c.MaxAttempts, 8)
	set(&c.MaxCrashes, DefaultMaxCrashes)
	set(&c.UpgradePatience, time.Hour)
	set(&c.TimerSkew, 100*time.Millisecond)
	c.TimerSkew = max(0, c.TimerSkew)
	set(&c.Patience, 10*time.Second)
	set(&c.Passivation, 5*time.Minute)
	if c.Hands == nil {
		c.Hands = noHands{}
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate names everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.Registry == nil {
		errs = append(errs, errors.New("registry is missing"))
	}
	if c.Courier == nil {
		errs = append(errs, errors.New("courier is missing"))
	}
	if c.Skew < 0 || c.SendTimeout < 0 || c.Passivation < 0 || c.Patience < 0 {
		errs = append(errs, errors.New("skew, send timeout, patience and passivation must not be negative"))
	}
	if c.Sends < 1 || c.MaxAttempts < 1 || c.MaxCrashes < 1 {
		errs = append(errs, errors.New("sends, max attempts and max crashes must be at least 1"))
	}
	if c.Retry.First <= 0 || c.Retry.Most < c.Retry.First {
		errs = append(errs, fmt.Errorf("retry must go from a positive delay upwards, is %v to %v", c.Retry.First, c.Retry.Most))
	}
	return errors.Join(append(errs, c.Limits.Validate())...)
}

// window is how long keys of a kind are remembered.
func (c Config) window(def *entity.Definition) time.Duration {
	if c.Window != nil {
		if d := c.Window(def.Name()); d > 0 {
			return d
		}
	}
	if d := def.Window(); d > 0 {
		return d
	}
	return defaultWindow
}

// skew is the tolerance for clients' clocks in what is compared with what was
// forgotten.
func (c Config) skew() time.Duration { return c.bounded(c.Skew) }

// ahead is how far issued_at may lie ahead of the leader's clock. The clock that is
// wrong may be the leader's, so it is as much as does no harm.
func (c Config) ahead() time.Duration { return c.bounded(math.MaxInt64) }

// bounded keeps a tolerance well below the shortest window: else a command issued
// just now could look older than what is forgotten.
func (c Config) bounded(d time.Duration) time.Duration {
	for def := range c.Registry.All() {
		d = min(d, c.window(def)/4)
	}
	return d
}

// tick is the pace of the gates' housekeeping.
func (c Config) tick() time.Duration {
	return max(10*time.Millisecond, min(c.Passivation/8, time.Second))
}
