package gateway

import (
	"context"
	"testing"
	"time"
)

// A deadline that no clock will see is none: wrapped, it would have passed already.
// gRPC lets a client ask for 11,000 years.
func TestFarDeadline(t *testing.T) {
	for _, years := range []int{1, 300, 11_000} {
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().AddDate(years, 0, 0))
		got := forwardRequest(ctx, "t").GetDeadline()
		cancel()
		if near := years == 1; (got != 0) != near || near && got < time.Now().UnixNano() {
			t.Errorf("in %d years: %d", years, got)
		}
	}
}
