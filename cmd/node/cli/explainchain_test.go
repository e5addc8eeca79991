package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"writ/actors/client"
	"writ/cmd/node/node"
	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// TestExplainWhatIsConfirmed covers that a transfer is explained to its end, over
// the receiver to the statement, when no row of it is left anywhere.
func TestExplainWhatIsConfirmed(t *testing.T) {
	n, err := node.Start(t.Context(), node.Config{
		ID: "n1", Dir: t.TempDir(), GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Gossip: "127.0.0.1:0", Raft: "127.0.0.1:0", Cluster: "test", InitialNodes: []string{"n1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		if err := n.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	at := target{Addr: []string{n.Addresses().GRPC}, wait: newPatience(io.Discard)}
	cl, closeClient, err := at.client()
	if err != nil {
		t.Fatal(err)
	}
	defer closeClient()
	admin, closeAdmin, err := at.admin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAdmin()
	if _, err := cl.Submit(ctx, "account", "alice", "open", &accountv1.Deposit{AmountMinor: 9, Currency: "EUR"}, client.SubmitOptions{}); err != nil {
		t.Fatal(err)
	}
	// More sources than an inspection of the statement shows: its own lanes are all there.
	errs := make(chan error, 100)
	for i := range cap(errs) {
		go func() {
			_, err := cl.Submit(ctx, "account", fmt.Sprint("other", i), "open", &accountv1.Deposit{AmountMinor: 9, Currency: "EUR"}, client.SubmitOptions{})
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cl.Submit(ctx, "account", "alice", "pay", &accountv1.Transfer{To: "bob", AmountMinor: 4, Currency: "EUR"}, client.SubmitOptions{}); err != nil {
		t.Fatal(err)
	}
	explain := func(c explainCommand) string {
		t.Helper()
		c.target, c.Tenant = at, "default"
		var out strings.Builder
		if err := c.Run(ctx, streams{out: &out}); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for _, id := range []string{"alice", "bob", "alice"} { // and what comes back to alice
		for pendingOf(ctx, t, admin, id) > 0 {
			<-tick.C
		}
	}
	statement := &nodev1.InspectRequest{Entity: &recordv1.Ref{Tenant: "default", Kind: "statement", Id: "all"}}
	for seen := new(nodev1.InspectResponse); !seen.GetCutIncoming(); <-tick.C {
		if seen, err = admin.Inspect(ctx, statement); err != nil || seen.GetCut() {
			t.Fatal(err, seen.GetCut())
		}
	}
	text := explain(explainCommand{Entity: "account/alice", Key: "pay"})
	for _, want := range []string{
		"Transfer was executed once", "It emitted 2 events.",
		"Row 1 in its lane to account/bob: applied there, once, and confirmed; it has applied the lane up to row 1.",
		"account/bob has emitted 1 event to account/alice: all confirmed.",
		"account/bob has emitted 1 event to statement/all: all confirmed.",
		"Row 2 in its lane to statement/all: applied there, once, and confirmed; it has applied the lane up to row 2.",
		"account/alice has emitted 2 events to statement/all: all confirmed.",
		"Nothing waits downstream: all that came of it has been applied.",
		"It was not traced",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing says %q in:\n%s", want, text)
		}
	}
	if text := explain(explainCommand{Entity: "account/alice", Key: "open"}); !strings.Contains(text, "It emitted 1 event.") || !strings.Contains(text, "Row 1 in its lane to statement/all") {
		t.Errorf("the first command:\n%s", text)
	}
	t.Log(text)
}

// pendingOf are the events of an account that are not confirmed.
func pendingOf(ctx context.Context, t *testing.T, admin nodev1.AdminServiceClient, id string) (n uint64) {
	t.Helper()
	seen, err := admin.Inspect(ctx, &nodev1.InspectRequest{Entity: ref(id)})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range seen.GetOutgoing() {
		n += l.GetLane().GetNumbered() - l.GetLane().GetConfirmed()
	}
	return n
}

// TestExplainWhatStillWaits covers the other ends of the walk.
func TestExplainWhatStillWaits(t *testing.T) {
	lane := func(to string, numbered, confirmed, skipped uint64) *nodev1.InspectedLane {
		return &nodev1.InspectedLane{Destination: ref(to), Lane: &recordv1.Lane{Numbered: numbered, Confirmed: confirmed, Skipped: skipped}}
	}
	outcome := &recordv1.Outcome{Rows: 3, Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Emitted: []*recordv1.Emitted{
		{Kind: "account", Id: "b", LaneSequence: 4, Rows: 2}, {Kind: "account", Id: "c", LaneSequence: 1, Rows: 1},
	}}
	from := &nodev1.InspectResponse{Outgoing: []*nodev1.InspectedLane{lane("b", 5, 5, 0), lane("c", 1, 1, 1)}}
	by := map[string]*nodev1.InspectResponse{
		"a": from, "b": {Applied: 5, Outgoing: []*nodev1.InspectedLane{lane("a", 2, 2, 0), lane("d", 3, 2, 0)}}, "c": {}, "d": {},
	}
	var out strings.Builder
	x := &explainer{out: &out, admin: inspected{by: by}}
	x.emitted(t.Context(), ref("a"), from, outcome)
	for _, want := range []string{
		"Rows 4 to 5 in its lane to account/b: applied there, once", "account/b has emitted 3 events to account/d: 1 event waits.",
		"Row 1 in its lane to account/c: confirmed; of this lane an operator has skipped 1.", "1 event waits downstream and may come of it.",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing says %q in:\n%s", want, out.String())
		}
	}
	// b has answered a: the walk comes back to the lane that it began with.
	from.Outgoing[0] = lane("b", 5, 4, 0)
	by["b"].GetOutgoing()[1].Lane.Confirmed = 3
	out.Reset()
	x.emitted(t.Context(), ref("a"), from, outcome)
	if !strings.Contains(out.String(), "\n1 event waits downstream") {
		t.Errorf("one event waits:\n%s", out.String())
	}
	// The lane is not among those that are shown.
	shown := from.GetOutgoing()
	from.Outgoing, from.Cut = shown[1:], true
	out.Reset()
	x.emitted(t.Context(), ref("a"), from, outcome)
	if got := out.String(); !strings.Contains(got, "Rows 4 to 5 in its lane to account/b: applied there, once.") || !strings.Contains(got, "\nNothing that was looked at is waiting, but not everything could be looked at: the lane from account/a to account/b is not among those that are shown; account/a has more outgoing lanes than the 1 that are shown.\n") {
		t.Errorf("nothing waits in a lane that is not shown:\n%s", got)
	}
	from.Outgoing, from.Cut = shown, false
	from.Outgoing[0] = lane("b", 5, 5, 0)
	// Many sources of a destination are no reason to doubt: nothing of what it emits is
	// missing. Many destinations are.
	by["b"].CutIncoming = true
	out.Reset()
	x.emitted(t.Context(), ref("a"), from, outcome)
	if got := out.String(); !strings.Contains(got, "\nNothing waits downstream: all that came of it has been applied.\n") {
		t.Errorf("a destination with many sources:\n%s", got)
	}
	by["d"].Cut = true
	out.Reset()
	x.emitted(t.Context(), ref("a"), from, outcome)
	if got := out.String(); !strings.Contains(got, "could be looked at: account/d has more outgoing lanes than the 0 that are shown.\n") {
		t.Errorf("an entity with many destinations:\n%s", got)
	}
	by["d"].Cut = false
	for i := range 40 { // a chain that is longer than a walk
		by["d"].Outgoing = append(by["d"].GetOutgoing(), lane(fmt.Sprint("e", i), 1, 1, 0))
		by[fmt.Sprint("e", i)] = &nodev1.InspectResponse{}
	}
	out.Reset()
	x.emitted(t.Context(), ref("a"), from, outcome)
	if !strings.Contains(out.String(), "not everything could be looked at: more than 32 entities would have to be asked.\n") {
		t.Errorf("a walk that was cut says:\n%s", out.String())
	}
	if id := traceID(outcome.GetTrace()); id != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("trace %q", id)
	}
}
