package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A rolling upgrade in both directions under load: nodes of two versions serve
// together and write nothing new, one goes back, all go forward, and only an
// operator's word lets the new format appear. Then the old version is refused by
// name, with its folder and without.
func TestProcessUpgrade(t *testing.T) {
	t.Parallel()
	next, err := buildNext()
	must(t, err)
	random := rand.New(rand.NewPCG(seed(t), 21))
	r := start(t, ProcessConfig{})
	old := r.process.config.Binary
	nodes := r.cluster.Nodes()
	ctx := within(t, 10*time.Minute)

	// phase does something under load, and then everything is checked.
	phase := func(name string, do func()) {
		t.Helper()
		w, hedge := r.load(WorkloadConfig{Seed: random.Uint64(), Clients: 4, Accounts: 20, Registers: 4, Think: 20 * time.Millisecond, Prefix: name + "-"})
		loading, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { w.Run(loading) })
		do()
		stop()
		wg.Wait()
		r.verify(w, hedge)
		for _, op := range w.History().Ops() {
			r.side.Add(op) // the next check is of everything so far
		}
	}
	roll := func(binary string, nodes ...string) {
		t.Helper()
		for _, node := range nodes {
			stopping, cancel := context.WithTimeout(ctx, 15*time.Second)
			code, took, err := r.cluster.Stop(stopping, node)
			cancel()
			must(t, err)
			if code != 0 {
				t.Errorf("%s: exit code %d after %v", node, code, took)
			}
			r.process.SetBinary(node, binary)
			r.up(node)
		}
	}
	verb := func(verb, words string, code int) error {
		t.Helper()
		res, err := r.cli.Run(within(t, time.Minute), "cluster", verb, "--addr", r.addr())
		must(t, err)
		if text := string(res.Stdout) + string(res.Stderr); res.Code != code || !strings.Contains(text, words) {
			return fmt.Errorf("node cluster %s: exit %d, %s; want exit %d, %q", verb, res.Code, text, code, words)
		}
		return nil
	}
	order := func(words string, code int) {
		t.Helper()
		r.check("order", verb("upgrade", words, code))
	}
	says := func(words string) { // in the end: the node that is asked may be behind the meta group's leader
		t.Helper()
		r.check("status", eventually(within(t, 30*time.Second), words, func(context.Context) error { return verb("status", words, 0) }))
	}

	phase("forward", func() {
		order("nothing to do", 0)
		roll(next, nodes[0])
		order("n2, n3", 1)
		says("active format 1: not all nodes read 2 yet")
		roll(next, nodes[1:]...)
	})
	says("active format 1: all nodes read 2")
	r.wantFormats(ctx, 1)
	phase("back", func() { roll(old, nodes[1]) })
	order("n2", 1)
	r.wantFormats(ctx, 1)
	phase("raised", func() {
		roll(next, nodes[1])
		r.wantFormats(ctx, 1)
		order("is 2 now, it was 1", 0)
		order("nothing to do", 0)
		says("active format 2\n")
	})
	// A deposit in every shard: each has an entry of the new format.
	r.deposits(ctx, "new-", 64)
	r.wantFormats(ctx, 2)
	r.audit()

	refused := func(node string) {
		t.Helper()
		must(t, r.cluster.Start(node))
		code, err := r.process.Exit(within(t, 30*time.Second), node)
		must(t, err)
		if text := r.process.Since(node); code == 0 || !strings.Contains(text, "start a newer version of the program") {
			t.Errorf("%s: exit code %d: %s", node, code, text)
		}
	}
	_, _, err = r.cluster.Stop(within(t, 15*time.Second), nodes[2])
	must(t, err)
	r.process.SetBinary(nodes[2], old)
	refused(nodes[2])

	// A folder that does not know of the rise: the node was away, and is put back to
	// the old version. It serves nothing, ends nothing, and disturbs nobody.
	identity := filepath.Join(r.process.Dir(nodes[2]), "node.json")
	text, err := os.ReadFile(identity)
	must(t, err)
	forgotten := strings.Replace(string(text), `"active_format": 2`, `"active_format": 1`, 1)
	if forgotten == string(text) {
		t.Fatalf("no active format in %s", text)
	}
	must(t, os.WriteFile(identity, []byte(forgotten), 0o600))
	must(t, r.cluster.Start(nodes[2]))
	must(t, eventually(within(t, 30*time.Second), "its reason", func(ctx context.Context) error {
		if ready, text := Ready(ctx, r.cluster, nodes[2]); ready || !strings.Contains(text, "start a newer version of the program") {
			return errors.New(text)
		}
		return nil
	}))
	r.deposits(ctx, "beside-", 64)
	r.wantAlive(ctx, nodes[2])
	_, why := Ready(ctx, r.cluster, nodes[2])
	t.Logf("%s, with the old version on a newer folder, says: %s", nodes[2], why)
	r.kill(nodes[2])

	must(t, r.process.Add("n4"))
	r.process.SetDir("n4", filepath.Join(t.TempDir(), "n4"))
	refused("n4")
	r.process.Remove("n4")
	r.process.SetBinary(nodes[2], next)
	r.up(nodes[2])
	must(t, AwaitReady(ctx, r.cluster, nodes...))
	r.wantFormats(ctx, 2)
	r.audit()
	before := r.contents(ctx)

	// The log and the files of the new format are read again after a crash.
	r.kill(nodes...)
	r.up(nodes...)
	report := r.audit()
	if diff := cmp.Diff(before, r.contents(ctx)); diff != "" {
		t.Errorf("the content has changed:\n%s", diff)
	}
	t.Logf("audit: keys %d, effects %d, applied %d, replicas equal %v", report.Keys, report.Effects, report.Applied, report.ReplicasEqual)
}

// wantFormats wants every replica of every node to have applied entries up to one
// format and none that is newer, and the cluster to say that it is active.
func (r *rig) wantFormats(ctx context.Context, want uint32) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	must(r.t, eventually(ctx, fmt.Sprintf("format %d", want), func(ctx context.Context) error {
		for _, node := range r.running() {
			status, err := r.links.Status(ctx, node)
			if err != nil {
				return err
			}
			if active := max(status.GetMeta().GetActiveFormat(), 1); active != want {
				return fmt.Errorf("%s: active format %d", node, active)
			}
			for _, s := range status.GetShards() {
				switch {
				case s.GetFormat() > want:
					return &finalError{fmt.Errorf("%s: shard %d has entries of format %d", node, s.GetShard(), s.GetFormat())}
				case s.GetLocal() && s.GetFormat() != want:
					return fmt.Errorf("%s: shard %d is of format %d", node, s.GetShard(), s.GetFormat())
				}
			}
		}
		return nil
	}))
}
