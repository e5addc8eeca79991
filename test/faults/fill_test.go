//go:build faults

package faults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"writ/internal/fault"
	"writ/test/faults"
)

const (
	hoard = "hoard" // the account whose shard has a long log
	// A log is trimmed once it has 2,048 entries more; then a node without them gets
	// the shard file.
	longLog = 2_200
)

// TestPointsWhileAFileTravels takes a shard's log beyond what is kept of it, so that a
// follower that was away gets the leader's file, and harms the leader while it copies
// the file, and the follower while pieces of it come in, before it is swapped in and
// after. Behind each the node is filled, every deposit is there once, and
// all replicas are equal.
func TestPointsWhileAFileTravels(t *testing.T) {
	h := &hoarding{town: newTown(t)}
	leader := h.grow()
	t.Run(fmt.Sprintf("%s/%s", fault.Snapshot, fault.Crash), func(t *testing.T) {
		h.t = t
		h.copying(leader)
	})
	for _, c := range faults.Cases() {
		actions := fault.Actions()
		switch {
		case c.Point == fault.Restore, c.Point == fault.Restored:
			actions = []fault.Action{fault.Crash} // a process of its own has the others: TestPointsAroundSnapshots
		case c.Victim != faults.Filled:
			continue
		}
		for _, action := range actions {
			if !t.Run(fmt.Sprintf("%s/%s", c.Point, action), func(t *testing.T) {
				h.t = t
				h.filling(c, action)
			}) {
				t.FailNow() // the node may still be harmed
			}
		}
	}
}

// hoarding is a town with an account of many deposits, and who was away meanwhile.
type hoarding struct {
	*town
	away     string
	deposits []string
}

// grow kills a follower of the account's shard and makes the log long.
func (h *hoarding) grow() (leader string) {
	h.t.Helper()
	h.deposit(1)
	leader = h.leader(hoard)
	for _, n := range h.nodes.Nodes() {
		if n != leader {
			h.away = n
		}
	}
	if err := h.nodes.Kill(h.away); err != nil {
		h.t.Fatal(err)
	}
	for h.index(leader) < longLog {
		h.deposit(300)
	}
	return leader
}

// deposit deposits so many times more.
func (h *hoarding) deposit(n int) {
	h.t.Helper()
	from := len(h.deposits)
	for range n {
		h.deposits = append(h.deposits, command(hoard, fmt.Sprint("d", len(h.deposits)), `Deposit","amountMinor":1`))
	}
	if got := h.submit(h.deposits[from:]...); got.Executed+got.Replayed != n {
		h.t.Fatalf("%d deposits: %+v", n, got)
	}
}

// index is how far the log of the account's shard is committed.
func (h *hoarding) index(node string) uint64 {
	h.t.Helper()
	ctx, cancel := h.within()
	defer cancel()
	status, err := h.links.Status(ctx, node)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, s := range status.GetShards() {
		if s.GetShard() == shardOf(hoard) {
			return s.GetCommitIndex()
		}
	}
	h.t.Fatalf("%s says nothing of shard %d", node, shardOf(hoard))
	return 0
}

// copying has the leader die while it copies its file: it does so for whoever is away
// as soon as its log begins behind what that one lacks.
func (h *hoarding) copying(leader string) {
	h.arm(leader, fault.Snapshot, fault.Crash)
	for !h.awaitAction(leader, hoard, fault.Snapshot, fault.Crash, 0) {
		h.arm(leader, fault.Snapshot, fault.None)
		leader = h.awaitYield(leader, hoard, h.away)
		h.arm(leader, fault.Snapshot, fault.Crash)
	}
	h.awaitExit(leader)
	for _, n := range []string{leader, h.away} {
		if err := h.nodes.Start(n); err != nil {
			h.t.Fatal(err)
		}
	}
	h.whole()
}

// filling has the node that was away lose its disk, and harms it while it is filled.
func (h *hoarding) filling(c faults.Case, action fault.Action) {
	n, began, wiped := h.away, time.Now(), 1
	behind := h.wipe(n, c.Point, action)
	// A leader whose log has to grow first before it cuts it takes a while.
	ctx, cancel := context.WithTimeout(h.t.Context(), 5*time.Minute)
	defer cancel()
	for h.acted(n, c.Point, action) == 0 {
		if h.applied(ctx, n) >= behind {
			// The leader has not cut its log yet and sent that. More entries have it do so.
			h.deposit(100)
			behind = h.wipe(n, c.Point, action)
			wiped++
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			h.t.Fatalf("point %s was not reached in %s:\n%s", c.Point, n, h.nodes.Logs(n, 20))
		}
	}
	h.t.Logf("%s reached %s after %v, wiped %d times", n, c.Point, time.Since(began).Round(time.Millisecond), wiped)
	h.deposit(10) // the others go on meanwhile
	h.outlast(n, hoard, c.Point, action, c.Outcomes[action], done())
	h.whole()
}

// wipe starts a node anew, with an empty disk and an armed fault point. It returns what
// the node has to have applied of the account's shard to be as far as the others.
func (h *hoarding) wipe(node string, point fault.Name, action fault.Action) (behind uint64) {
	h.t.Helper()
	behind = h.index(node)
	for _, err := range []error{h.nodes.Kill(node), h.nodes.Wipe(node)} {
		if err != nil {
			h.t.Fatal(err)
		}
	}
	h.nodes.SetEnv(node, fault.Variable+"="+string(point)+"="+string(action))
	defer h.nodes.SetEnv(node)
	if err := h.nodes.Start(node); err != nil {
		h.t.Fatal(err)
	}
	return behind
}

// applied is how far a node's replica of the account's shard is, 0 while it has none or
// does not answer.
func (h *hoarding) applied(ctx context.Context, node string) uint64 {
	status, err := h.links.StatusOnce(ctx, node)
	if err != nil {
		return 0
	}
	for _, s := range status.GetShards() {
		if s.GetShard() == shardOf(hoard) && s.GetLocal() {
			return s.GetAppliedIndex()
		}
	}
	return 0
}

// done is a load that has ended.
func done() <-chan struct{} {
	over := make(chan struct{})
	close(over)
	return over
}

// whole wants all nodes to be ready, every deposit to be there once, and replayed, and
// all replicas to be equal.
func (h *hoarding) whole() {
	h.t.Helper()
	began := time.Now()
	h.ready()
	for h.replicas() < 3 { // a node that has just been filled may still be a learner
		select {
		case <-time.After(50 * time.Millisecond):
		case <-h.t.Context().Done():
			return
		}
		if time.Since(began) > 90*time.Second {
			h.t.Fatalf("shard %d has %d voters", shardOf(hoard), h.replicas())
		}
	}
	last := h.deposits[max(0, len(h.deposits)-50):]
	if got := h.submit(last...); got.Replayed != len(last) {
		h.t.Errorf("of %d deposits that were sent again: %+v", len(last), got)
	}
	if amount, _ := h.balance(hoard); amount != int64(len(h.deposits)) {
		h.t.Errorf("%d deposits make %d", len(h.deposits), amount)
	}
	report := h.audit()
	if report.Effects != uint64(len(h.deposits)) || len(report.Unreachable) > 0 {
		h.t.Errorf("%d deposits, %d effects; not compared: %v", len(h.deposits), report.Effects, report.Unreachable)
	}
	h.t.Logf("whole after %v: %d keys, %d effects, replicas equal", time.Since(began).Round(time.Millisecond), report.Keys, report.Effects)
}

// replicas counts the voters of the account's shard, as its leader sees them.
func (h *hoarding) replicas() int {
	h.t.Helper()
	ctx, cancel := h.within()
	defer cancel()
	for _, n := range h.nodes.Nodes() {
		status, err := h.links.Status(ctx, n)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, s := range status.GetShards() {
			if s.GetShard() == shardOf(hoard) && s.GetLeader() == n {
				return len(s.GetVoters())
			}
		}
	}
	return 0
}
