package node_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"writ/actors/client"
	"writ/cmd/node/node"
	accountv1 "writ/proto/writ/account/v1"
)

func TestCommandTakesEffectOnce(t *testing.T) {
	c := newCluster(t, 3, nil)
	cl := c.client()
	first, err := cl.Submit(t.Context(), "account", "alice", "k1", eur(500), client.SubmitOptions{})
	if err != nil || first.Replayed && first.Attempts == 1 { // a second attempt may find what the first one has done
		t.Fatalf("first call: %+v, %v", first, err)
	}
	again, err := cl.Submit(t.Context(), "account", "alice", "k1", eur(500), client.SubmitOptions{})
	if err != nil || !again.Replayed || !proto.Equal(first.Reply, again.Reply) || !first.AcceptedAt.Equal(again.AcceptedAt) {
		t.Errorf("second call: %+v, %v; want the first answer %+v, flagged", again, err, first)
	}
	if _, err := cl.Submit(t.Context(), "account", "alice", "k1", eur(501), client.SubmitOptions{}); reasonOf(err) != client.ReasonKeyReused {
		t.Errorf("same key, other amount: %v, want KEY_REUSED", err)
	}

	var executed, replayed atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			out, err := cl.Submit(t.Context(), "account", "bob", "k1", eur(7), client.SubmitOptions{})
			switch {
			case err != nil:
				t.Errorf("parallel call: %v", err)
			case out.Replayed:
				replayed.Add(1)
			default:
				executed.Add(1)
			}
		})
	}
	wg.Wait()
	// None, if the attempt that was executed has lost its answer.
	if executed.Load() > 1 || executed.Load()+replayed.Load() != 50 || balance(t, cl, "bob") != 7 {
		t.Errorf("50 parallel calls with one key: %d executed, %d replayed, balance %d; want 1, 49, 7", executed.Load(), replayed.Load(), balance(t, cl, "bob"))
	}
	_, err = cl.Submit(t.Context(), "account", "bob", "k2", &accountv1.Withdraw{AmountMinor: 8, Currency: "EUR"}, client.SubmitOptions{})
	var rejected *client.RejectedError
	if !errors.As(err, &rejected) || rejected.Reason != "OVERDRAFT" {
		t.Errorf("overdraft: %v, want a rejection OVERDRAFT", err)
	}
	c.audit()
}

// TestRestartsChangeNothing covers the replay of the log at start: state, keys,
// rows and marks are the same after any number of restarts, and so is the hash
// over all of them.
func TestRestartsChangeNothing(t *testing.T) {
	c := newCluster(t, 3, nil)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	cl := c.client()
	const accounts, money = 20, 1000
	var wg sync.WaitGroup
	for i := range accounts {
		wg.Go(func() {
			if _, err := cl.Submit(t.Context(), "account", fmt.Sprint("a", i), "open", eur(money), client.SubmitOptions{}); err != nil {
				t.Errorf("open: %v", err)
			}
		})
	}
	wg.Wait()
	for i := range 200 {
		from, to, amount := rng.IntN(accounts), rng.IntN(accounts), rng.Int64N(400)+1
		wg.Go(func() {
			_, err := cl.Submit(t.Context(), "account", fmt.Sprint("a", from), fmt.Sprint("t", i),
				&accountv1.Transfer{To: fmt.Sprint("a", to), AmountMinor: amount, Currency: "EUR"}, client.SubmitOptions{})
			var rejected *client.RejectedError
			if err != nil && !errors.As(err, &rejected) {
				t.Errorf("transfer: %v", err)
			}
		})
	}
	wg.Wait()
	before := c.audit()
	for round := range 3 {
		c.stop()
		c.start()
		if diff := cmp.Diff(before, c.audit()); diff != "" {
			t.Fatalf("restart %d changed content (-before +after):\n%s", round+1, diff)
		}
	}
	cl = c.client()
	var sum int64
	for i := range accounts {
		sum += balance(t, cl, fmt.Sprint("a", i))
	}
	res, err := cl.Read(t.Context(), "statement", "all", client.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if total := res.State.(*accountv1.Statement).GetByCurrency()["EUR"].GetAmountMinor(); sum != accounts*money || total != sum {
		t.Errorf("sum of balances %d, statement %d, want %d", sum, total, accounts*money)
	}
}

func TestBadStartIsRefusedByName(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	good := func() node.Config {
		return node.Config{
			ID: "n1", Dir: filepath.Join(t.TempDir(), "n1"), GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0",
			Gossip: "127.0.0.1:0", Raft: "127.0.0.1:0", Cluster: "test", InitialNodes: []string{"n1"},
		}
	}
	occupied := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(occupied, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		spoil func(*node.Config)
		want  string
	}{
		"no id":               {func(c *node.Config) { c.ID = "" }, "a node's name is"},
		"id with a slash":     {func(c *node.Config) { c.ID = "a/b" }, "a node's name is"},
		"no cluster name":     {func(c *node.Config) { c.Cluster = "" }, "cluster is empty"},
		"address":             {func(c *node.Config) { c.GRPC = "7400" }, "give host:port"},
		"nobody to form with": {func(c *node.Config) { c.InitialNodes = nil }, "nobody to join"},
		"listed twice":        {func(c *node.Config) { c.InitialNodes = []string{"n1", "n1"} }, "listed twice"},
		"too many shards":     {func(c *node.Config) { c.Shards = 1 << 20 }, "the limit is"},
		"gossip key":          {func(c *node.Config) { c.GossipKey = "short" }, "16, 24 or 32 random bytes"},
		"port in use":         {func(c *node.Config) { c.GRPC = busy.Addr().String() }, "address already in use"},
		"gossip port in use":  {func(c *node.Config) { c.Gossip = busy.Addr().String() }, "in use"},
		"folder is a file":    {func(c *node.Config) { c.Dir = occupied }, occupied},
		"no such tokens": {func(c *node.Config) {
			c.Tokens, c.GossipKey = filepath.Join(t.TempDir(), "none"), "c2l4dGVlbiBieXRlcyEhIQ=="
		}, "no such file"},
		"tokens without key": {func(c *node.Config) { c.Tokens = "tokens.json" }, "give all nodes one"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good()
			tc.spoil(&cfg)
			n, err := node.Start(t.Context(), cfg)
			if err == nil {
				_ = n.Stop(t.Context())
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q does not say %q", err, tc.want)
			}
		})
	}
}
