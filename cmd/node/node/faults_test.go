//go:build faults

package node_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"google.golang.org/grpc/codes"

	"writ/actors/client"
	"writ/internal/fault"
	accountv1 "writ/proto/writ/account/v1"
	testingv1 "writ/proto/writ/testing/v1"
	writv1 "writ/proto/writ/v1"
)

// arm arms a fault point of this process, over the HTTP port of one of its nodes.
func (c *testCluster) arm(point fault.Name, action fault.Action) {
	c.t.Helper()
	form := url.Values{"point": {string(point)}, "action": {string(action)}}
	res, err := http.PostForm("http://"+c.nodes["n1"].Addresses().HTTP+"/debug/fault", form)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		c.t.Fatalf("arm %s: %s", point, res.Status)
	}
}

// TestFaultLostConfirmationIsOneTrace covers that a row whose confirmation is lost
// is sent again in the trace of its command, and confirmed without effect there.
func TestFaultLostConfirmationIsOneTrace(t *testing.T) {
	col := newCollector(t)
	c := newCluster(t, 3, col.conf)
	c.settle()
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	c.undisturbed(col, func(r *trial) {
		payer := accountApart(r.name("payer"))
		receiver := accountApart(r.name("receiver"), payer)
		c.openAccount(payer) // nothing is on its way when the point is armed
		c.arm(fault.AfterSend, fault.Error)
		req := command(t, "account", payer, "k", &accountv1.Transfer{To: receiver, AmountMinor: 7, Currency: "EUR"})
		if _, ok := r.submit(cl, req, codes.OK); !ok {
			return
		}
		again := r.await("writ.apply", map[string]string{"applied_before": "true"})
		row := map[string]string{"source.id": again.attrs["source.id"], "sequence": again.attrs["sequence"]}
		row["attempt"] = "1"
		lost := r.await("writ.send", row)
		row["attempt"] = "2"
		repeated := r.await("writ.send", row)
		if !lost.failed || repeated.failed || lost.attrs["destination.id"] != again.attrs["entity.id"] || repeated.attrs["destination.id"] != again.attrs["entity.id"] {
			r.errorf("lost %v\nrepeated %v\nagain %v", lost, repeated, again)
		}
		if lost.parent != repeated.parent || again.parent != lost.parent {
			r.errorf("sends and handlings follow different steps:\n%v\n%v\n%v", lost, repeated, again)
		}
		c.audit()
		if got := balance(t, c.client(), receiver); got != 7 {
			t.Errorf("balance %d of the receiver, want 7", got)
		}
	})
}

// TestFaultOutcomeUnknown covers the row of the outcome table about a verdict that
// is lost: the command was executed, its caller is told that nobody knows, and the
// same key gives the stored answer.
func TestFaultOutcomeUnknown(t *testing.T) {
	acts := newActing()
	c := newCluster(t, 1, acts.conf)
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	order := func(key string) *writv1.SubmitRequest {
		return command(t, "order", "a", key, &testingv1.Order{AmountMinor: 5, Currency: "EUR"})
	}
	if got := send(t, cl, order("before")); got.code != codes.OK {
		t.Fatal(got)
	}
	// Entries of other shards may take the fault; nothing else proposes for long.
	var key string
	eventually(t, func(ctx context.Context) (answer, error) {
		c.arm(fault.AfterCommit, fault.Error)
		key = client.NewKey()
		got := submit(ctx, cl, order(key))
		if got.code == codes.OK || got.reason == "NOT_EXECUTED" {
			return got, errors.New("another entry took the fault")
		}
		if got.code != codes.Unavailable || got.reason != "OUTCOME_UNKNOWN" || !got.retry || got.replayed {
			t.Errorf("a lost verdict: %v", got)
		}
		return got, nil
	})
	c.arm(fault.AfterCommit, fault.None)
	if got := send(t, cl, order(key)); got.code != codes.OK || !got.replayed {
		t.Errorf("the same key again: %v, want the stored answer", got)
	}
	out, err := cl.Outcome(t.Context(), &writv1.OutcomeRequest{Entity: &writv1.EntityRef{Kind: "order", Id: "a"}, IdempotencyKey: key, CommandType: "writ.testing.v1.Order"})
	if err != nil || out.GetState() != writv1.OutcomeResponse_EXECUTED {
		t.Errorf("outcome %v, %v; want EXECUTED", out, err)
	}
	c.audit()
}
