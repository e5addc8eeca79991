package persistence_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A flush that fails in the middle leaves neither the content without the index
// nor the index without the content.
func TestAFailedFlushLeavesFileAndIndexTogether(t *testing.T) {
	cfg := config(t)
	cfg.OnFailure = func(error) {}
	s := newShard(t, create(t, cfg))
	s.must(s.command(ref("a"), "before", ref("b")))
	flush(t, s.Store)
	want := s.Dump()
	s.LimitFile()
	for i := range 2000 {
		s.must(s.command(ref(fmt.Sprint("a", i)), fmt.Sprint("k", i), ref("b")))
	}
	if err := s.WaitFlushed(t.Context(), math.MaxUint64); err == nil {
		t.Fatal("the file had room")
	}
	_ = s.Close() // with the failure
	again := open(t, cfg)
	if diff := cmp.Diff(want, again.Dump()); diff != "" {
		t.Errorf("after a flush that failed: %s", diff)
	}
}
