package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"writ/actors/client"
	"writ/cmd/node/node"
	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
)

// testCluster runs real nodes in this process, each with its own ports and
// folder.
type testCluster struct {
	t     *testing.T
	dir   string
	names []string
	nodes map[string]*node.Node
	join  []string
	conf  func(*node.Config)
}

func newCluster(t *testing.T, size int, conf func(*node.Config)) *testCluster {
	t.Helper()
	c := &testCluster{t: t, dir: t.TempDir(), nodes: map[string]*node.Node{}, conf: conf}
	for i := range size {
		c.names = append(c.names, fmt.Sprintf("n%d", i+1))
	}
	t.Cleanup(c.stop)
	c.start()
	return c
}

func (c *testCluster) config(name string) node.Config {
	cfg := node.Config{
		ID: name, Dir: filepath.Join(c.dir, name), GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Gossip: "127.0.0.1:0", Raft: "127.0.0.1:0",
		InitialNodes: c.names, Join: c.join, Cluster: "test", Shards: 4, Logger: testLogger(c.t, name),
	}
	if c.conf != nil {
		c.conf(&cfg)
	}
	return cfg
}

// start starts all nodes and waits until every shard is served.
func (c *testCluster) start() {
	c.t.Helper()
	c.join = nil
	for _, name := range c.names {
		n, err := node.Start(c.t.Context(), c.config(name))
		if err != nil {
			c.t.Fatalf("start %s: %v", name, err)
		}
		c.nodes[name] = n
		c.join = append(c.join, n.Addresses().Gossip)
	}
	c.awaitReady()
}

// restart starts nodes that were stopped, with the ports that they get now, and
// waits until every shard is served.
func (c *testCluster) restart(names ...string) {
	c.t.Helper()
	c.join = nil
	for _, n := range c.nodes {
		c.join = append(c.join, n.Addresses().Gossip)
	}
	for _, name := range names {
		n, err := node.Start(c.t.Context(), c.config(name))
		if err != nil {
			c.t.Fatalf("start %s: %v", name, err)
		}
		c.nodes[name] = n
	}
	c.awaitReady()
}

func (c *testCluster) awaitReady() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	for name, n := range c.nodes {
		if err := n.AwaitReady(ctx); err != nil {
			c.t.Fatalf("%s is not ready: %v: %+v", name, err, n.Readiness())
		}
	}
}

// settle waits until every shard is led by the node that should, as all nodes see it:
// no leadership moves by itself then.
func (c *testCluster) settle() {
	c.t.Helper()
	for _, name := range c.names {
		eventually(c.t, func(ctx context.Context) (any, error) {
			st, err := c.adminOf(name).Status(ctx, &nodev1.StatusRequest{})
			if err != nil {
				return nil, err
			}
			preferred := map[uint32]string{}
			for _, p := range st.GetMeta().GetShards() {
				preferred[p.GetShard()] = p.GetPreferred()
			}
			for _, s := range st.GetShards() {
				if want := preferred[s.GetShard()]; want == "" || s.GetLeader() != want {
					return nil, fmt.Errorf("%s: shard %d is led by %q, %q should", name, s.GetShard(), s.GetLeader(), want)
				}
			}
			return nil, nil
		})
	}
}

// stop stops all nodes at once, in order.
func (c *testCluster) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for name, n := range c.nodes {
		wg.Go(func() {
			if err := n.Stop(ctx); err != nil {
				c.t.Errorf("stop %s: %v", name, err)
			}
		})
	}
	wg.Wait()
	clear(c.nodes)
}

func (c *testCluster) addresses() []string {
	var list []string
	for _, name := range c.names {
		list = append(list, c.nodes[name].Addresses().GRPC)
	}
	return list
}

func (c *testCluster) client() *client.Client {
	c.t.Helper()
	cl, err := client.New(client.Config{Addresses: c.addresses()})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

func (c *testCluster) admin() nodev1.AdminServiceClient {
	c.t.Helper()
	return c.adminOf(c.names[0])
}

func (c *testCluster) adminOf(name string) nodev1.AdminServiceClient {
	c.t.Helper()
	conn, err := grpc.NewClient(c.nodes[name].Addresses().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	return nodev1.NewAdminServiceClient(conn)
}

// content is a shard's content in numbers and hash.
type content struct {
	Keys, Effects, Numbered, Applied, Entities uint64
	Hash                                       string
}

// audit audits every shard until all rest, and fails the test if anything is wrong.
func (c *testCluster) audit() map[uint32]content {
	c.t.Helper()
	admin, last := c.admin(), map[uint32]content{}
	// What rests in one shard may have made work in another one, which comes back.
	return eventually(c.t, func(context.Context) (map[uint32]content, error) {
		before := last
		last = map[uint32]content{}
		for shard := range uint32(4) {
			last[shard] = c.auditShard(admin, shard)
		}
		if !maps.Equal(before, last) {
			return nil, fmt.Errorf("the content changes: %v, before %v", last, before)
		}
		return last, nil
	})
}

// auditShard audits one shard, once no rows of it are pending.
func (c *testCluster) auditShard(admin nodev1.AdminServiceClient, shard uint32) content {
	c.t.Helper()
	res := eventually(c.t, func(ctx context.Context) (*nodev1.AuditShardResponse, error) {
		res, err := compared(ctx, admin, shard, client.NewKey())
		if err == nil && res.GetRowsPending() > 0 {
			err = fmt.Errorf("%d rows are pending", res.GetRowsPending())
		}
		return res, err
	})
	if len(res.GetFindings()) > 0 || !res.GetReplicasEqual() || res.GetEffects() != res.GetKeysLive()+res.GetKeysExpired() {
		c.t.Errorf("audit of shard %d: %v", shard, res)
	}
	return content{
		Keys: res.GetKeysLive() + res.GetKeysExpired(), Effects: res.GetEffects(), Numbered: res.GetRowsNumbered(),
		Applied: res.GetApplied(), Entities: res.GetEntities(), Hash: fmt.Sprintf("%x", res.GetReplicas()[0].GetHash()),
	}
}

// compared is an audit for which all replicas have answered: one that has not proves
// nothing.
func compared(ctx context.Context, admin nodev1.AdminServiceClient, shard uint32, audit string) (*nodev1.AuditShardResponse, error) {
	res, err := admin.AuditShard(ctx, &nodev1.AuditShardRequest{Shard: shard, Audit: audit})
	for _, r := range res.GetReplicas() {
		if r.GetError() != "" {
			err = errors.Join(err, fmt.Errorf("replica on %s: %s", r.GetNode(), r.GetError()))
		}
	}
	return res, err
}

// eventually tries until it works; the last error fails the test. It is patient: a
// shard's leadership is handed over once in ten seconds at most, and a busy machine
// takes some times as long for everything.
func eventually[T any](t *testing.T, try func(context.Context) (T, error)) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error // of a try that the end has not cut short
	for {
		v, err := try(ctx)
		if err == nil {
			return v
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("gave up: %v", last)
		case <-tick.C:
		}
	}
}

func eur(amount int64) *accountv1.Deposit {
	return &accountv1.Deposit{AmountMinor: amount, Currency: "EUR"}
}

func balance(t *testing.T, cl *client.Client, id string) int64 {
	t.Helper()
	res, err := cl.Read(t.Context(), "account", id, client.ReadOptions{})
	if err != nil {
		t.Fatalf("read %s: %v", id, err)
	}
	b, _ := res.State.(*accountv1.Balance)
	return b.GetAmountMinor()
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Reason
	}
	return ""
}

// testLogger writes to a file that is shown if the test fails.
func testLogger(t *testing.T, name string) *slog.Logger {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), name+"-*.log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			_, _ = f.Seek(0, io.SeekStart)
			text, _ := io.ReadAll(f)
			t.Logf("log of %s:\n%s", name, text[max(0, len(text)-8000):])
		}
		_ = f.Close()
	})
	return slog.New(slog.NewTextHandler(f, nil)).With(slog.String("node", name))
}
