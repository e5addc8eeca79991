package entity_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"writ/actors/entity"
)

func TestCodesOfRejections(t *testing.T) {
	allowed := map[entity.Code]bool{
		entity.NotFound: true, entity.AlreadyExists: true, entity.PermissionDenied: true,
		entity.FailedPrecondition: true, entity.OutOfRange: true,
	}
	// All of google.rpc.Code and one beyond.
	for code := range entity.Code(18) {
		if code.Valid() != allowed[code] {
			t.Errorf("code %d: valid is %v", code, code.Valid())
		}
	}
}

func TestErrorKeepsItsReasonThroughLayers(t *testing.T) {
	e := entity.Errorf(entity.NotExecuted, "shard %d has no leader", 3).
		With("leader", "n2").With("term", "7").Retry(50 * time.Millisecond)
	wrapped := fmt.Errorf("forward: %w", e)
	if got := entity.ReasonOf(wrapped); got != entity.NotExecuted {
		t.Errorf("reason is %q", got)
	}
	var found *entity.Error
	if !errors.As(wrapped, &found) || found.RetryAfter != 50*time.Millisecond ||
		!maps.Equal(found.Details, map[string]string{"leader": "n2", "term": "7"}) {
		t.Errorf("found %+v", found)
	}
	if got, want := wrapped.Error(), "forward: NOT_EXECUTED: shard 3 has no leader"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOtherErrorsHaveNoReason(t *testing.T) {
	for _, err := range []error{nil, errors.New("x"), &entity.Rejection{Reason: "OVERDRAFT"}} {
		if got := entity.ReasonOf(err); got != "" {
			t.Errorf("%v: reason is %q", err, got)
		}
	}
}
