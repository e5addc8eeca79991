//go:build !faults

package fault

import (
	"net/http"
	"time"
)

// Point does nothing.
func Point(Name) error { return nil }

// Now is the wall clock.
func Now() time.Time { return time.Now() }

// Handler is nil: this program has no points to arm and no clock to set.
func Handler() http.Handler { return nil }
