package actors

import (
	"math"
	"testing"
	"time"
)

func TestTimesDoNotWrap(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct{ got, want int64 }{
		"now":                   {nanos(now), now.UnixNano()},
		"the year 2500":         {nanos(time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC)), math.MaxInt64},
		"the year 3000":         {nanos(time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)), math.MaxInt64},
		"the year 1500":         {nanos(time.Date(1500, 1, 1, 0, 0, 0, 0, time.UTC)), math.MinInt64},
		"the longest span":      {nanos(now.Add(math.MaxInt64)), math.MaxInt64},
		"the longest span back": {nanos(now.Add(math.MinInt64)), now.UnixNano() + math.MinInt64},
		"the last time":         {nanos(time.Unix(0, math.MaxInt64)), math.MaxInt64},
		"a span":                {later(5, 7), 12},
		"a span back":           {later(5, -7), -2},
		"a span over the end":   {later(5, math.MaxInt64), math.MaxInt64},
		"no span at the end":    {later(math.MaxInt64, 0), math.MaxInt64},
		"a timer's time":        {dueAt(time.Time{}.Add(1)), 1},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", name, c.got, c.want)
		}
	}
}

// TestExpirySlices covers that keys of any window lie in few slices, and that none
// is forgotten early or much too late.
func TestExpirySlices(t *testing.T) {
	for _, window := range []time.Duration{1, time.Second, time.Hour, 24*time.Hour + 1, 10 * 365 * 24 * time.Hour} {
		ends := map[int64]bool{}
		for i := range int64(1000) {
			now := 7 + int64(window)/1000*i
			end := expiry(now, window)
			if kept := end - now; kept < int64(window) || kept > int64(window)+int64(window)/windowSlices {
				t.Errorf("window %v: kept for %v", window, time.Duration(kept))
			}
			ends[end] = true
		}
		if len(ends) > windowSlices+2 {
			t.Errorf("window %v: %d slices", window, len(ends))
		}
	}
	if end := expiry(5, math.MaxInt64); end != math.MaxInt64 {
		t.Errorf("the longest window ends at %d", end)
	}
}
