package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"writ/actors/client"
	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
)

// written is what a cluster has put into its logs, by shard, and how many rows it has
// sent.
type written struct {
	commits map[uint32]uint64
	terms   map[uint32]uint64
	sent    string
}

func (c *testCluster) written(ctx context.Context) (written, error) {
	w := written{commits: map[uint32]uint64{}, terms: map[uint32]uint64{}}
	for _, name := range c.names {
		res, err := c.adminOf(name).Status(ctx, &nodev1.StatusRequest{})
		if err != nil {
			return w, err
		}
		for _, s := range res.GetShards() {
			w.commits[s.GetShard()] = max(w.commits[s.GetShard()], s.GetCommitIndex())
			w.terms[s.GetShard()] = max(w.terms[s.GetShard()], s.GetTerm())
		}
		text := c.metrics(ctx, name)
		if text == "" {
			return w, fmt.Errorf("%s shows no metrics", name)
		}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "writ_rows_sent_total") {
				w.sent += name + " " + line
			}
		}
	}
	return w, nil
}

// A replay is a read: a thousand of them, through all nodes, send no row and write no
// log entry. The events of the command were sent, confirmed and dropped long ago.
func TestReplaysWriteNothing(t *testing.T) {
	const replays = 1000
	c := newCluster(t, 3, nil)
	c.settle()
	cl := c.client()
	if _, err := cl.Submit(t.Context(), "account", "payer", "open", eur(100), client.SubmitOptions{}); err != nil {
		t.Fatal(err)
	}
	pay := &accountv1.Transfer{To: "receiver", AmountMinor: 30, Currency: "EUR"}
	first, err := cl.Submit(t.Context(), "account", "payer", "pay", pay, client.SubmitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.audit() // until nothing is pending
	// A change of leadership and the background audit write, whoever asks: then all of it
	// is done again. A replay that writes does so each time.
	eventually(t, func(ctx context.Context) (any, error) {
		before, err := c.written(ctx)
		if err != nil {
			return nil, err
		}
		for i := range replays {
			again, err := cl.Submit(ctx, "account", "payer", "pay", pay, client.SubmitOptions{})
			if err != nil {
				return nil, err
			}
			if !again.Replayed || again.Version != first.Version || !again.AcceptedAt.Equal(first.AcceptedAt) {
				t.Fatalf("replay %d: %+v, first %+v", i, again, first)
			}
		}
		after, err := c.written(ctx)
		switch {
		case err != nil:
			return nil, err
		case !maps.Equal(before.terms, after.terms):
			return nil, errors.New("leaders have changed meanwhile")
		case before.sent != after.sent:
			t.Fatalf("rows were sent: before\n%safter\n%s", before.sent, after.sent)
		case !maps.Equal(before.commits, after.commits):
			return nil, fmt.Errorf("the logs have grown from %v to %v", before.commits, after.commits)
		case !strings.Contains(after.sent, "writ_rows_sent_total"):
			return nil, fmt.Errorf("no node tells what it has sent: %q", after.sent)
		}
		return nil, nil
	})
}
