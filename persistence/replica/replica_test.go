package replica

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"writ/actors/entity"
	"writ/internal/format"
)

func TestThreeReplicasApplyTheSame(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.startAll(2)
	for shard := range uint32(2) {
		for i := range 20 {
			c.write(shard, fmt.Sprintf("e%d", i), 0, fmt.Sprintf("v%d", i))
		}
		c.wantEverywhere(shard, "e19", "v19")
		c.wantEqualHashes(shard, "first")
		eventually(t, "an answer under a lease", func() bool {
			_, l := c.lease(shard, 0)
			err := propose(l, commitOf("e3", 0, "again"))
			if l.Context().Err() != nil {
				return false
			}
			if entity.ReasonOf(err) != entity.NotExecuted {
				t.Errorf("a stale version: %v, want %s", err, entity.NotExecuted)
			}
			return true
		})
		c.write(shard, "e3", 1, "again")
		c.wantEqualHashes(shard, "second")
	}
	for _, name := range c.nodes {
		r := c.host(name).Replica(1)
		eventually(t, name+" to be ready", func() bool { ok, _ := r.Ready(); return ok })
		eventually(t, "the status of "+name, func() bool {
			s := r.Status()
			return s.State == Serving && len(s.Voters) == 3 && len(s.Learners) == 0 && s.Leader != "" && s.FileBytes != 0
		})
	}
}

func TestRestartsKeepTheContent(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.startAll(1)
	for round := range 4 {
		c.write(0, "counter", uint64(round), fmt.Sprintf("round %d", round))
		c.write(0, fmt.Sprintf("e%d", round), 0, "x")
		for _, name := range c.nodes {
			if err := c.stop(name); err != nil {
				t.Fatal(err)
			}
		}
		c.startAll(1)
		c.wantEverywhere(0, "counter", fmt.Sprintf("round %d", round))
		c.wantEqualHashes(0, fmt.Sprintf("round %d", round))
		for _, name := range c.nodes {
			rec, err := c.host(name).Replica(0).Store().Entity(refOf("counter"))
			if err != nil || rec.GetVersion() != uint64(round+1) {
				t.Errorf("round %d, %s: version %d, %v", round, name, rec.GetVersion(), err)
			}
		}
	}
}

func TestTakeoverAfterTheLeadersDeathFencesTheOldLease(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.startAll(1)
	c.write(0, "e", 0, "one")
	c.wantEverywhere(0, "e", "one")
	node, old := c.lease(0, 0)
	began := time.Now()
	c.sever(node)
	_, next := c.lease(0, old.Term()+1)
	t.Logf("takeover in %v", time.Since(began))
	if next.Epoch() != old.Epoch() || next.Term() <= old.Term() {
		t.Errorf("the new lease is (%d, %d), the old one was (%d, %d)", next.Epoch(), next.Term(), old.Epoch(), old.Term())
	}
	if next.LogTime() < 0 {
		t.Errorf("log time %d", next.LogTime())
	}
	c.write(0, "e", 1, "two")
	err := propose(old, commitOf("e", 1, "too late"))
	if reason := entity.ReasonOf(err); reason != entity.NotExecuted && reason != entity.OutcomeUnknown {
		t.Errorf("a record under the old lease: %v", err)
	}
	select {
	case <-old.Context().Done():
	case <-time.After(patience):
		t.Error("the old lease did not end")
	}
	c.wantEverywhere(0, "e", "two")
}

func TestOldTermIsRefusedByTheStateMachine(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(1)
	_, l := c.lease(0, 0)
	// A lease that does not know that its term is over, on the node that leads.
	stale := newLease(0, 1, l.Term()-1, 0, func() uint32 { return format.Base }, func(entry []byte) raft.ApplyFuture {
		return c.host("a").Replica(0).raft.Apply(entry, patience)
	})
	err := propose(stale, commitOf("e", 0, "x"))
	if entity.ReasonOf(err) != entity.NotExecuted || !strings.Contains(err.Error(), "term") {
		t.Errorf("a record of an older term: %v", err)
	}
	if stale.Context().Err() == nil {
		t.Error("the refusal did not end the lease")
	}
	stale.batcher.close()
	if err := propose(l, commitOf("e", 0, "x")); err != nil {
		t.Errorf("the current lease: %v", err)
	}
}

func TestLeaseRestartsWhenItsTermIsRefused(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(1)
	_, l := c.lease(0, 0)
	l.end(errSuperseded)
	eventually(t, "another lease", func() bool {
		found := c.host("a").Replica(0).Lease()
		return found != nil && found != l
	})
	_, next := c.lease(0, 0)
	if err := propose(next, commitOf("e", 0, "x")); err != nil {
		t.Error(err)
	}
	if err := propose(l, commitOf("e", 1, "y")); entity.ReasonOf(err) != entity.NotExecuted {
		t.Errorf("the ended lease: %v", err)
	}
}

func TestTransferOfLeadership(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.startAll(1)
	c.write(0, "e", 0, "one")
	c.wantEverywhere(0, "e", "one")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	attempt(t, 5, func() (void string) {
		node, l := c.lease(0, 0)
		to := "c" // raft by itself would choose the first of equals
		if node == "c" {
			to = "b"
		}
		if err := c.host(node).Replica(0).TransferLeadership(ctx, to); err != nil { // it has an election timeout for it
			return err.Error()
		}
		<-l.Context().Done()
		got, next := c.lease(0, l.Term()+1)
		if next.LogTime() < l.logTime {
			t.Errorf("log time went back from %d to %d", l.logTime, next.LogTime())
		}
		if got != to { // an election, or handed to another one
			return fmt.Sprintf("%s leads, want %s", got, to)
		}
		return ""
	})
	eventually(t, "a follower to refuse a transfer", func() bool {
		follower := "a"
		if node, _ := c.lease(0, 0); node == "a" {
			follower = "b"
		}
		return entity.ReasonOf(c.host(follower).Replica(0).TransferLeadership(ctx, "c")) == entity.NotExecuted
	})
}

func TestBarrierComesBehindWhatWasProposedBefore(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.startAll(1)
	_, l := c.lease(0, 0)
	store := c.host("a").Replica(0).Store()
	var order []int
	done := make(chan struct{})
	for i := range 50 {
		l.Propose(commitOf("e", uint64(i), fmt.Sprint(i)), func(err error) {
			if err != nil {
				t.Errorf("record %d: %v", i, err)
			}
			order = append(order, 2*i)
		})
		l.Barrier(func(err error) {
			rec, readErr := store.Entity(refOf("e"))
			if err != nil || readErr != nil || rec.GetVersion() < uint64(i+1) {
				t.Errorf("barrier %d: %v, %v, version %d", i, err, readErr, rec.GetVersion())
			}
			order = append(order, 2*i+1)
			if i == 49 {
				close(done)
			}
		})
	}
	<-done
	for i, got := range order {
		if got != i {
			t.Fatalf("callback %d came at place %d", got, i)
		}
	}
}

func TestClosingWhileOpening(t *testing.T) {
	c := newCluster(t, 1, nil)
	h := c.start("a")
	var opening sync.WaitGroup
	for shard := range uint32(8) {
		opening.Go(func() {
			err := h.Open(shardConfig(shard, 1, c.servers(1)))
			if err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, errEnded) {
				t.Errorf("open shard %d: %v", shard, err)
			}
		})
		opening.Go(func() {
			if r := h.Replica(shard); r != nil {
				r.Ready()
				r.Status()
				r.Store()
				_ = r.TransferLeadership(context.Background(), "b")
			}
		})
	}
	if err := c.stop("a"); err != nil {
		t.Fatal(err)
	}
	opening.Wait()
	if err := h.Open(shardConfig(9, 1, nil)); !errors.Is(err, ErrClosed) {
		t.Errorf("opening on a closed host: %v", err)
	}
}
