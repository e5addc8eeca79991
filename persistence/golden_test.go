package persistence_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

var update = flag.Bool("update", false, "write the files under testdata anew")

// goldenLog has something in every bucket and a generation forgotten.
func goldenLog(t *testing.T, s *shard) {
	t.Helper()
	for i := range 6 {
		s.logTime += int64(30 * time.Second)
		r, c := s.commit(ref(fmt.Sprint("account ", i%3)))
		s.key(c, fmt.Sprint("key ", i))
		s.emit(c, ref("statement"))
		s.emit(c, ref("statement"))
		s.mark(c, ref("payer"))
		c.Mutations = append(c.Mutations, &recordv1.Mutation{Bucket: recordv1.Bucket_TIMERS, Subkey: []byte("at noon"), Value: payload("ring")})
		s.must(r)
	}
	s.must(s.confirm(ref("account 0"), ref("statement"), 2),
		s.update(ref("account 1"), ref("statement"), &recordv1.LaneUpdate_Park{Park: &recordv1.Park{LaneSequence: 1, Reason: "poison"}}),
		s.update(ref("account 1"), ref("statement"), &recordv1.LaneUpdate_Skip{Skip: 1}),
		s.update(ref("account 2"), ref("statement"), &recordv1.LaneUpdate_Pause{Pause: &recordv1.Pause{Reason: "wait"}}))
	gone, c := s.commit(ref("gone"))
	c.Tombstone = true
	s.must(gone)
	s.logTime = int64(11 * time.Minute)
	s.must(s.expire(11))
	s.SetConfiguration(5, []byte("voters"))
}

// Files of every released format are read for ever. With -update the current
// code writes the file anew: that is right only before the format is released.
func TestFormat1IsReadForEver(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the file was written by a little-endian machine")
	}
	cfg := config(t)
	file, words := filepath.Join("testdata", "format1.shard"), filepath.Join("testdata", "format1.txt")
	if *update {
		s := newShard(t, create(t, cfg))
		goldenLog(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		copyFile(t, cfg.Path, file)
		if err := os.WriteFile(words, []byte(open(t, cfg).Dump()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Path = filepath.Join(t.TempDir(), "shard")
	copyFile(t, file, cfg.Path)
	want, err := os.ReadFile(words)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	if diff := cmp.Diff(string(want), s.Dump()); diff != "" {
		t.Error(diff)
	}
	audit(t, s)
	if k, err := s.Key(ref("account 2"), "test.Do", []byte("key 5")); k.GetKey().GetAcceptedAt() == 0 || err != nil {
		t.Errorf("key %v %v", k, err)
	}
	if k, err := s.Key(ref("account 0"), "test.Do", []byte("key 0")); k != nil || err != nil {
		t.Errorf("forgotten key %v %v", k, err)
	}

	// The same log gives the same content today.
	again := newShard(t, create(t, config(t)))
	goldenLog(t, again)
	if diff := cmp.Diff(string(want), again.Dump()); diff != "" {
		t.Errorf("the log has another content than when the file was written: %s", diff)
	}
	if _, err := persistence.Verify(cfg.Path, cfg); err != nil {
		t.Error(err)
	}
}
