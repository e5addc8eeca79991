package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWhatFailsAtAChangeIsDoneAgain covers that a format that could not be noted,
// on a full disk for example, is noted without another change of the meta state.
func TestWhatFailsAtAChangeIsDoneAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		changes := make(chan struct{})
		done, bad := 0, 2
		go atChanges(ctx, func() <-chan struct{} { return changes }, func() error {
			if done++; done <= bad {
				return errors.New("no space left on device")
			}
			return nil
		})
		for _, step := range []struct {
			change bool
			pass   time.Duration
			want   int
		}{
			{pass: time.Hour}, // nothing has changed yet
			{change: true, want: 1},
			{pass: againAfter + 1, want: 2},
			{pass: againAfter, want: 3},
			{pass: time.Hour, want: 3}, // it did not fail
			{change: true, want: 4},
		} {
			if step.change {
				changes <- struct{}{}
			}
			<-time.After(step.pass)
			synctest.Wait()
			if done != step.want {
				t.Fatalf("done %d times after %+v", done, step)
			}
		}
	})
}
