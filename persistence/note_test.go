//go:build next

package persistence_test

import (
	"testing"

	"writ/internal/format"
	recordv1 "writ/proto/writ/record/v1"
)

// What the next format brings is read in that format only, and the file then says
// so; a note has no effect beside that.
func TestNote(t *testing.T) {
	s := newShard(t, create(t, config(t)))
	s.must(s.command(ref("a"), "k"))
	before := s.Meta()
	if before.GetFormat() != format.Base {
		t.Fatalf("the file begins in format %d", before.GetFormat())
	}
	note := &recordv1.Record{Epoch: 1, Term: 1, Body: &recordv1.Record_Note{Note: &recordv1.Note{Text: "x"}}}
	results, err := s.Apply(before.GetIndex()+1, 1, mustMarshal(t, &recordv1.Entry{Format: format.Note, LogTime: before.GetLogTime() + 1, Records: []*recordv1.Record{note}}))
	if err != nil || len(results) != 1 || results[0] != nil {
		t.Fatalf("got %v, %v", results, err)
	}
	after := s.Meta()
	if after.GetFormat() != format.Note || after.GetLogTime() != before.GetLogTime() || after.GetCounters().GetChanges() != before.GetCounters().GetChanges() {
		t.Errorf("before %v, after %v", before, after)
	}
	s.must(s.command(ref("a"), "k2")) // an entry of the older format behind it
	if got := s.Meta().GetFormat(); got != format.Note {
		t.Errorf("the file's format has fallen to %d", got)
	}
}
