package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Containers start in any order, and one is cut off from the network during the first
// start: while it is, no cluster forms without it, and the others say who is missing;
// then there is one.
func TestComposeFormation(t *testing.T) {
	if err := WireTools(); err != nil {
		t.Skipf("SKIP: %v", err)
	}
	for _, order := range [][]string{{"n1", "n2", "n3"}, {"n3", "n1", "n2"}} {
		t.Run(strings.Join(order, "-"), func(t *testing.T) {
			r, c := prepareCompose(t, ComposeConfig{})
			ctx := within(t, 3*time.Minute)
			cut := order[0]
			must(t, c.Start(cut))
			must(t, c.Isolate(cut))
			for _, node := range order[1:] {
				must(t, c.Start(node))
			}
			must(t, eventually(ctx, "a word on who is missing", func(ctx context.Context) error {
				for _, node := range order[1:] {
					switch ready, text := Ready(ctx, c, node); {
					case ready:
						return &finalError{fmt.Errorf("%s is ready without %s: %s", node, cut, text)}
					case !strings.Contains(text, cut):
						return fmt.Errorf("%s does not say that %s is missing: %s", node, cut, text)
					}
				}
				return nil
			}))
			begin := time.Now()
			must(t, c.Mend())
			must(t, AwaitReady(ctx, c, order...))
			t.Logf("%s cut off during the first start: ready %v after it was heard", cut, millis(time.Since(begin)))
			r.oneCluster(ctx)
			r.deposits(ctx, "form-", 20)
			r.awaitSettled(ctx, c.Nodes())
			r.audit()
		})
	}
}

// beside runs a load of containers while something is done to them, and all checkers
// behind it.
func (r *rig) beside(do func(ctx context.Context)) {
	r.t.Helper()
	ctx := within(r.t, 5*time.Minute)
	w, hedge := r.load(WorkloadConfig{Seed: seed(r.t), Clients: 4, Accounts: 40, Registers: 6, Think: 50 * time.Millisecond})
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(loading) })
	defer func() { stop(); wg.Wait() }()
	do(ctx)
	stop()
	wg.Wait()
	r.verify(w, hedge)
}

// A container is drained, stopped and started again, and taken back.
func TestComposeDrain(t *testing.T) {
	r, c := startCompose(t, ComposeConfig{})
	r.beside(func(ctx context.Context) {
		var order struct {
			State   string
			Done    bool
			Seconds float64
		}
		r.verb(&order, "drain", "n2", "--wait", "1m")
		if order.State != "draining" || !order.Done {
			t.Errorf("drain says %+v", order)
		}
		leaders, err := r.links.Leaders(ctx, c.Nodes())
		must(t, err)
		for shard, leader := range leaders {
			if leader == "n2" {
				t.Errorf("shard %d is still led by the drained node", shard)
			}
		}
		code, took, err := c.Stop(ctx, "n2")
		must(t, err)
		t.Logf("drained in %.1f s; exit code %d after %v, with Docker's own time", order.Seconds, code, millis(took))
		if code != 0 {
			t.Errorf("exit code %d", code)
		}
		r.up("n2")
		r.verb(&order, "drain", "n2", "--undo")
		r.awaitPreferred(within(t, time.Minute))
	})
}

// A shard's file in a volume is damaged while its container is down.
func TestComposeDamage(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIP: only root may write to a volume")
	}
	r, c := startCompose(t, ComposeConfig{})
	r.beside(func(ctx context.Context) {
		for i, d := range damages()[:3] {
			node := c.Nodes()[i]
			_, _, err := c.Stop(ctx, node)
			must(t, err)
			dir, err := c.Volume(node)
			must(t, err)
			files := shardFiles(t, dir)
			if len(files) < 2 {
				t.Fatalf("found %d shard files in the volume of %s", len(files), node)
			}
			file := files[i%len(files)]
			must(t, d.do(file, files[(i+1)%len(files)]))
			must(t, c.Start(node))
			begin := time.Now()
			must(t, AwaitReady(within(t, 90*time.Second), c, c.Nodes()...))
			r.awaitSettled(within(t, time.Minute), c.Nodes())
			t.Logf("%s, %s of %s: all ready after %v", node, d.name, filepath.Base(file), millis(time.Since(begin)))
			// It is replaced before Docker has published the ports of a slow start, so
			// its readiness is looked at by the case on processes.
			if text := c.Logs(node, 5000); !strings.Contains(text, "replica quarantined") {
				t.Errorf("%s says nothing of a quarantined replica:\n%s", node, text)
			}
			if _, restarts, err := c.Health(node); err != nil || restarts > 0 {
				t.Errorf("%s was restarted %d times by Docker: %v", node, restarts, err)
			}
		}
	})
}

// The health of a container that has lost its majority: not ready, and of each shard
// why, but alive, so that nobody restarts it; healthy again when the others are back.
func TestComposeHealth(t *testing.T) {
	r, c := startCompose(t, ComposeConfig{})
	ctx := within(t, 4*time.Minute)
	r.deposits(ctx, "health-", 20)
	says := func(want string) {
		t.Helper()
		must(t, eventually(within(t, time.Minute), "Docker's check says "+want, func(context.Context) error {
			health, restarts, err := c.Health("n1")
			switch {
			case err != nil:
				return err
			case restarts > 0:
				return &finalError{fmt.Errorf("n1 was restarted %d times", restarts)}
			case health != want:
				return errors.New(health)
			}
			return nil
		}))
	}
	says("healthy")
	for _, path := range []string{"/healthz", "/startupz", "/readyz"} {
		if ok, text := get(ctx, c.Addrs("n1").HTTP, path); !ok {
			t.Errorf("%s: %s", path, text)
		}
	}
	rest := others(c, "n1")
	cut := time.Now()
	for _, node := range rest {
		must(t, c.Pause(node))
	}
	soon, cancel := context.WithDeadline(ctx, cut.Add(10*time.Second))
	defer cancel()
	must(t, eventually(soon, "not ready, with a reason of each shard", func(ctx context.Context) error {
		why, err := ReadinessOf(ctx, c, "n1")
		if err == nil && (why.Ready || len(why.Shards) < 8) {
			err = fmt.Errorf("%+v", why)
		}
		return err
	}))
	for path, want := range map[string]bool{"/healthz": true, "/startupz": true, "/readyz": false} {
		if ok, text := get(ctx, c.Addrs("n1").HTTP, path); ok != want {
			t.Errorf("%s without a majority: %s", path, text)
		}
	}
	r.wantHealth(ctx, "n1", map[string]bool{"": true, "liveness": true, "startup": true, "readiness": false, "shard/0": false})
	says("unhealthy")
	for _, node := range rest {
		must(t, c.Resume(node))
	}
	must(t, AwaitReady(within(t, time.Minute), c, c.Nodes()...))
	says("healthy")
	if again := r.deposit(ctx, "health-1", "open-health-1", 100); !again.Replayed {
		t.Error("a key was forgotten")
	}
	r.audit()
}

// Containers of the next version replace those of this one, one after the other and
// under load; then an operator lets the new format appear.
func TestComposeUpgrade(t *testing.T) {
	r, c := startCompose(t, ComposeConfig{})
	binary, err := buildNext()
	must(t, err)
	must(t, c.BuildNext(within(t, 2*time.Minute), binary))
	r.beside(func(ctx context.Context) {
		for i, node := range c.Nodes() {
			code, _, err := c.Stop(ctx, node)
			must(t, err)
			if code != 0 {
				t.Errorf("%s: exit code %d", node, code)
			}
			must(t, c.UseNext(node))
			r.up(node)
			res, err := r.cli.Run(within(t, 20*time.Second), "cluster", "upgrade", "--addr", r.addr())
			must(t, err)
			last := i == len(c.Nodes())-1
			if text := string(res.Stdout) + string(res.Stderr); (res.Code == 0) != last || (last && !strings.Contains(text, "is 2 now, it was 1")) {
				t.Errorf("upgrade with %d nodes of the next version: exit %d: %s", i+1, res.Code, text)
			}
		}
		r.deposits(ctx, "new-", 64) // an entry of the new format in each shard
		r.wantFormats(ctx, 2)
	})
	if !slices.Equal(c.Nodes(), r.running()) {
		t.Errorf("running are %v", r.running())
	}
}
