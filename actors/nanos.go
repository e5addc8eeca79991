package actors

import (
	"math"
	"time"
)

// Times are kept as nanoseconds since 1970, which end in April 2262. A time beyond
// that stands at the end: one that wrapped would lie in the past, and what was
// meant for never would happen now.

// nanos is a wall clock time in Unix nanoseconds.
func nanos(at time.Time) int64 {
	switch {
	case at.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case at.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return at.UnixNano()
}

// later is a time, not negative, and a span after it.
func later(at int64, span time.Duration) int64 {
	if sum := at + int64(span); span < 0 || sum >= at {
		return sum
	}
	return math.MaxInt64
}
