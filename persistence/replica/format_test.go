package replica

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"writ/internal/format"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// Entries are written in the active format, and what is new only once it is
// active.
func TestEntriesAreOfTheActiveFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		notes := func(e *recordv1.Entry) (n int) {
			for _, r := range e.GetRecords() {
				if r.GetNote() != nil {
					n++
				}
			}
			return n
		}
		for _, active := range []uint32{format.Base, format.Base + 1} {
			b.active.Store(active)
			b.propose("1", "2")
			b.lease.Barrier(b.note("barrier"))
			synctest.Wait()
			entries := []*recordv1.Entry{}
			for len(b.proposed) > 0 {
				f := <-b.proposed
				entries = append(entries, f.entry)
				f.succeed()
				synctest.Wait()
			}
			b.want(t, "1", "2", "barrier")
			for _, e := range entries {
				wanted := 0
				if active >= format.Note && format.Max >= format.Note {
					wanted = 1
				}
				if e.GetFormat() != active || notes(e) != wanted {
					t.Errorf("active format %d: entry of format %d with %d notes", active, e.GetFormat(), notes(e))
				}
			}
		}
	})
}

// An entry that is newer than the program stops the replica that meets it, by
// name, also after a restart; the other shards go on, and nothing is thrown away.
func TestANewerEntryStopsItsReplicaOnly(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(2)
	c.write(0, "a", 0, "v")
	c.write(1, "a", 0, "v")
	c.lease(0, 0)
	entry, err := encodeEntry(format.Max+1, 0, &recordv1.Record{Body: &recordv1.Record_Checkpoint{Checkpoint: &recordv1.Checkpoint{}}})
	if err != nil {
		t.Fatal(err)
	}
	name := c.nodes[0]
	c.host(name).Replica(0).raft.Apply(entry, 0)
	stopped := func() bool {
		st := c.host(name).Replica(0).Status()
		return st.State == Failed && strings.Contains(st.Reason, "start a newer version")
	}
	eventually(t, "the end of the replica", stopped)
	c.write(1, "a", 1, "w")
	for range 2 {
		_ = c.stop(name) // says that the one replica has failed
		c.start(name)
		c.openAll(0)
		c.openAll(1)
		eventually(t, "the end of the replica after a restart", stopped)
		before := c.host(name).Replica(0)
		if err := c.host(name).Reopen(shardConfig(0, 1, nil)); err != nil || c.host(name).Replica(0) != before {
			t.Errorf("it was opened anew for nothing: %v", err)
		}
		c.wantEverywhere(1, "a", "w")
	}
}

// A meta replica that meets what is newer than its program stops by name.
func TestANewerMetaStateStopsTheMetaReplica(t *testing.T) {
	for name, command := range map[string]*nodev1.MetaCommand{
		"command": {Format: format.Max + 1},
		"state":   {BaseVersion: 1, Format: format.Base, Next: &nodev1.MetaState{Version: 2, ActiveFormat: format.Max + 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, nil)
			metas := startMeta(t, c)
			put(t, metas, "a", "z")
			leader := metaLeader(t, metas)
			encoded, err := proto.Marshal(command)
			if err != nil {
				t.Fatal(err)
			}
			leader.raft.Apply(encoded, 0)
			eventually(t, "the end of the meta replica", func() bool {
				ok, reason := leader.Ready()
				return !ok && strings.Contains(reason, "start a newer version")
			})
			if got := ActiveFormat(leader.State()); got != format.Base {
				t.Errorf("active format %d", got)
			}
		})
	}
}

// The commands of the meta group are of the active format of what they are based
// on.
func TestMetaCommandsAreOfTheActiveFormat(t *testing.T) {
	c := newCluster(t, 1, nil)
	metas := startMeta(t, c)
	put(t, metas, "a", "z")
	leader := metaLeader(t, metas)
	if err := leader.Update(t.Context(), func(s *nodev1.MetaState) error { s.ActiveFormat = format.Max; return nil }); err != nil {
		t.Fatal(err)
	}
	put(t, metas, "a", "y")
	var got []uint32
	first, last := leader.log.bounds()
	for i := first; i <= last; i++ {
		if e := entryAt(t, leader.group, i); len(e) > 0 {
			command := &nodev1.MetaCommand{}
			if err := proto.Unmarshal(e, command); err != nil {
				t.Fatal(err)
			}
			got = append(got, command.GetFormat())
		}
	}
	want := []uint32{format.Base, format.Base, format.Max}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("formats %v, want %v", got, want)
	}
	if c.host(c.nodes[0]).ActiveFormat() != format.Max {
		t.Error("the host does not follow the active format")
	}
}

// entryAt is the data of a command in the log, nil if the entry is another.
func entryAt(t *testing.T, g *group, index uint64) []byte {
	t.Helper()
	var l raft.Log
	if err := g.log.GetLog(index, &l); err != nil {
		t.Fatal(err)
	}
	if l.Type != raft.LogCommand {
		return nil
	}
	return l.Data
}
