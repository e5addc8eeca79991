//go:build faults

package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"writ/actors/entity"
	"writ/internal/fault"
	"writ/sharding"
	"writ/test/chaos"
	"writ/test/faults"
)

const (
	transfers = 12
	deposit   = 1000
	amount    = 7
	shards    = 8 // the program's default
)

// town is a cluster whose program has the fault points.
type town struct {
	t     *testing.T
	nodes *chaos.Process
	links *chaos.Links
	cli   chaos.CLI
}

func newTown(t *testing.T, args ...string) *town {
	t.Helper()
	return newTownOf(t, nil, args...)
}

// newTownOf is a town with the given nodes; three by default.
func newTownOf(t *testing.T, names []string, args ...string) *town {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "node")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "faults", "-o", binary, "./cmd/node")
	build.Dir = filepath.Join("..", "..")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, output)
	}
	nodes, err := chaos.NewProcess(chaos.ProcessConfig{Binary: binary, Dir: dir, Nodes: names, Cluster: "faults", Args: args})
	if err != nil {
		t.Fatal(err)
	}
	w := &town{t: t, nodes: nodes, cli: chaos.CLI{Binary: binary}}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range nodes.Nodes() {
				t.Logf("%s:\n%s", n, nodes.Logs(n, 25))
			}
		}
		if err := nodes.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, n := range nodes.Nodes() {
		if err := nodes.Start(n); err != nil {
			t.Fatal(err)
		}
	}
	if w.links, err = chaos.Dial(nodes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.links.Close() })
	w.ready()
	return w
}

// within bounds a step; processes on a busy machine are slow.
func (w *town) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.t.Context(), 90*time.Second)
}

func (w *town) ready() {
	w.t.Helper()
	ctx, cancel := w.within()
	defer cancel()
	if err := chaos.AwaitReady(ctx, w.nodes, w.nodes.Nodes()...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *town) addrs() string {
	var all []string
	for _, n := range w.nodes.Nodes() {
		all = append(all, w.nodes.Addrs(n).GRPC)
	}
	return strings.Join(all, ",")
}

func shardOf(account string) uint32 {
	return sharding.Locate(shards, entity.Ref{Tenant: "default", Kind: "account", ID: account})
}

func (w *town) leader(account string) string {
	w.t.Helper()
	ctx, cancel := w.within()
	defer cancel()
	leaders, err := w.links.Leaders(ctx, w.nodes.Nodes())
	if err != nil {
		w.t.Fatal(err)
	}
	return leaders[shardOf(account)]
}

// awaitYield waits until the others, without those that are away, agree that one of
// them leads an account's shard, and returns it.
func (w *town) awaitYield(victim, account string, away ...string) string {
	w.t.Helper()
	ctx, cancel := w.within()
	defer cancel()
	shard := shardOf(account)
	for {
		leaders := map[string]bool{}
		last := ""
		for _, n := range w.nodes.Nodes() {
			if n == victim || slices.Contains(away, n) {
				continue
			}
			status, err := w.links.StatusOnce(ctx, n)
			if err != nil { // it is held up: not yet
				leaders[""] = true
				continue
			}
			for _, s := range status.GetShards() {
				if s.GetShard() == shard {
					last = s.GetLeader()
					leaders[last] = true
				}
			}
		}
		if len(leaders) == 1 && last != victim && last != "" {
			return last
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			w.t.Fatalf("%s hangs and still leads shard %d", victim, shard)
		}
	}
}

func (w *town) arm(node string, point fault.Name, action fault.Action) {
	w.t.Helper()
	form := url.Values{"point": {string(point)}, "action": {string(action)}}
	res, err := http.PostForm("http://"+w.nodes.Addrs(node).HTTP+"/debug/fault", form)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		w.t.Fatalf("arm %s on %s: %s", point, node, res.Status)
	}
}

// submitted is what `node submit --json` prints.
type submitted struct{ Executed, Replayed, Rejected, Failed int }

func (w *town) submit(lines ...string) submitted {
	w.t.Helper()
	s, err := w.trySubmit(lines...)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *town) trySubmit(lines ...string) (s submitted, err error) {
	file := filepath.Join(w.t.TempDir(), "commands")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return s, err
	}
	ctx, cancel := w.within()
	defer cancel()
	res, err := w.cli.Run(ctx, "submit", "--addr", w.addrs(), "--file", file, "--json", "--timeout", "80s")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(res.Stdout, &s); err != nil {
		return s, fmt.Errorf("submit: %w: %s %s", err, res.Stdout, res.Stderr)
	}
	return s, nil
}

func (w *town) balance(account string) (amount, pending int64) {
	w.t.Helper()
	ctx, cancel := w.within()
	defer cancel()
	res, err := w.cli.Run(ctx, "read", "--addr", w.addrs(), "--kind", "account", "--id", account, "--json")
	if err != nil {
		w.t.Fatal(err)
	}
	var answer struct {
		State struct {
			AmountMinor      json.Number `json:"amount_minor"`
			PendingTransfers json.Number `json:"pending_transfers"`
		} `json:"state"`
	}
	if err := json.Unmarshal(res.Stdout, &answer); err != nil {
		w.t.Fatalf("read: %v: %s %s", err, res.Stdout, res.Stderr)
	}
	amount, _ = answer.State.AmountMinor.Int64()       // absent: 0
	pending, _ = answer.State.PendingTransfers.Int64() // absent: 0
	return amount, pending
}

// acted is how often a point has acted since a node was started.
func (w *town) acted(node string, point fault.Name, action fault.Action) int {
	return strings.Count(w.nodes.Since(node), fmt.Sprintf("fault point %s: %s", point, action))
}

// awaitAction waits until a point has acted once more than before. It returns false if
// the node leads the shard of the account no more and the point has not acted: what
// was to reach it goes to another node.
func (w *town) awaitAction(node, account string, point fault.Name, action fault.Action, before int) bool {
	w.t.Helper()
	ctx, cancel := w.within()
	defer cancel()
	for w.acted(node, point, action) <= before {
		if account != "" && w.followsOf(ctx, node, shardOf(account)) {
			return w.acted(node, point, action) > before
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			w.t.Fatalf("point %s was not reached in %s:\n%s", point, node, w.nodes.Logs(node, 20))
		}
	}
	return true
}

// followsOf says whether a node knows another one as the leader of a shard.
func (w *town) followsOf(ctx context.Context, node string, shard uint32) bool {
	status, err := w.links.StatusOnce(ctx, node)
	if err != nil {
		return false // it is harmed, perhaps
	}
	for _, s := range status.GetShards() {
		if s.GetShard() == shard {
			return s.GetLeader() != "" && s.GetLeader() != node
		}
	}
	return false
}

// awaitExit waits until a node has died.
func (w *town) awaitExit(node string) {
	w.t.Helper()
	ctx, cancel := w.within()
	defer cancel()
	if _, err := w.nodes.Exit(ctx, node); err != nil {
		w.t.Fatalf("%s has not died: %v", node, err)
	}
}

// outlast brings a victim of a point that has acted through: load is what runs
// meanwhile and must end while the victim is harmed. The victim led the account.
func (w *town) outlast(victim, account string, point fault.Name, action fault.Action, outcome faults.Outcome, load <-chan struct{}) {
	w.t.Helper()
	ended := func() {
		w.t.Helper()
		ctx, cancel := w.within()
		defer cancel()
		select {
		case <-load:
		case <-ctx.Done():
			w.t.Fatalf("clients wait for %s", victim)
		}
	}
	again := func() {
		w.t.Helper()
		if err := w.nodes.Start(victim); err != nil {
			w.t.Fatal(err)
		}
		w.ready()
	}
	switch outcome {
	case faults.Dies:
		w.awaitExit(victim)
		ended()
		again()
	case faults.Freezes:
		ended()
		if err := w.nodes.Resume(victim); err != nil {
			w.t.Fatal(err)
		}
		w.ready()
	case faults.Fails:
		w.arm(victim, point, fault.None)
		ended()
		if !strings.Contains(w.nodes.Since(victim), "store has failed") {
			w.t.Errorf("no store of %s has failed", victim)
		}
		if err := w.nodes.Kill(victim); err != nil {
			w.t.Fatal(err)
		}
		again()
	case faults.Yields:
		w.awaitYield(victim, account)
		ended()
		w.arm(victim, point, fault.None)
		w.ready()
		if !w.nodes.Running(victim) || strings.Contains(w.nodes.Since(victim), "store has failed") {
			w.t.Errorf("%s did not go on after it hung at %s", victim, point)
		}
	case faults.GoesOn, faults.Hangs, faults.Refuses:
		w.arm(victim, point, fault.None)
		ended()
		if !w.nodes.Running(victim) || strings.Contains(w.nodes.Since(victim), "store has failed") {
			w.t.Errorf("%s did not go on after %s at %s", victim, action, point)
		}
	}
}

func (w *town) audit() chaos.AuditReport {
	w.t.Helper()
	ctx, cancel := w.within()
	defer cancel()
	report, err := w.cli.Audit(ctx, w.addrs())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := report.Verdict(); err != nil {
		w.t.Error(err)
	}
	return report
}

func command(account, key, body string) string {
	return fmt.Sprintf(`{"kind":"account","id":%q,"key":%q,"command":{"@type":"type.googleapis.com/writ.account.v1.%s,"currency":"EUR"}}`,
		account, key, body)
}

// TestPoints lets every action act at each boundary while transfers run, retries
// every command with its key, and then wants each to have taken effect once:
// balances, the audit of all keys, lanes and replicas, and replays of all commands.
func TestPoints(t *testing.T) {
	newTown(t).attack(faults.Source, faults.Destination, faults.Drained)
}

// attack lets every action act at each boundary of the given victims.
func (w *town) attack(victims ...faults.Victim) {
	t := w.t
	for _, c := range faults.Cases() {
		if !slices.Contains(victims, c.Victim) {
			continue
		}
		for _, action := range fault.Actions() {
			if !t.Run(fmt.Sprintf("%s/%s", c.Point, action), func(t *testing.T) {
				w := *w
				w.t = t
				w.act(c, action)
			}) {
				t.FailNow() // the nodes may still be harmed
			}
		}
	}
}

func (w *town) act(c faults.Case, action fault.Action) {
	t := w.t
	name := fmt.Sprintf("%s-%s", c.Point, action)
	payer, receiver := "payer-"+name, "receiver-"+name
	if got := w.submit(command(payer, "open-"+name, fmt.Sprintf(`Deposit","amountMinor":%d`, deposit))); got.Executed+got.Replayed != 1 {
		t.Fatalf("deposit: %+v", got)
	}
	led := payer
	if c.Victim == faults.Destination {
		led = receiver
	}
	var lines []string
	var first submitted
	var victim string
	for {
		load := w.transfers(name, payer, receiver, len(lines))
		lines = append(lines, load...)
		var done submitted
		var hit bool
		victim, done, hit = w.strike(c, action, led, load)
		first.Executed += done.Executed
		first.Replayed += done.Replayed
		first.Rejected += done.Rejected
		first.Failed += done.Failed
		if hit {
			break
		}
		t.Logf("%s gave its leadership away before it was harmed: again", victim)
	}
	again := w.submit(lines...)
	if first.Failed+first.Rejected+again.Failed+again.Rejected != 0 || first.Executed+first.Replayed != len(lines) || again.Replayed != len(lines) {
		t.Errorf("first %+v, then %+v: want %d executed and then replayed", first, again, len(lines))
	}
	sent := int64(len(lines) * amount)
	report := w.audit()
	paid, pending := w.balance(payer)
	got, _ := w.balance(receiver)
	if paid != deposit-sent || got != sent || pending != 0 {
		t.Errorf("payer holds %d, receiver %d, %d transfers pending: want %d and %d", paid, got, pending, deposit-sent, sent)
	}
	t.Logf("%s: %s %s; %d keys, %d effects, %d events applied, nothing lost or doubled", c.Boundary, victim, c.Outcomes[action], report.Keys, report.Effects, report.Applied)
}

// transfers are commands with keys that were not used before.
func (w *town) transfers(name, payer, receiver string, from int) (lines []string) {
	for n := from; n < from+transfers; n++ {
		lines = append(lines, command(payer, fmt.Sprintf("t-%s-%d", name, n), fmt.Sprintf(`Transfer","to":%q,"amountMinor":%d`, receiver, amount)))
	}
	return lines
}

// strike has the leader of an account's shard harmed while it gets a load, and brings
// it through. It returns whom it harmed and what became of the load; no hit, if the
// leadership went to another node before the load could reach the point.
func (w *town) strike(c faults.Case, action fault.Action, led string, lines []string) (victim string, done submitted, hit bool) {
	t := w.t
	victim = w.leader(led)
	before := w.acted(victim, c.Point, action)
	w.arm(victim, c.Point, action)
	var moved move
	watched := led
	switch c.Victim { //nolint:exhaustive // the others need no order
	case faults.Drained:
		w.drain(victim, false)
		watched = "" // it is to lose the leadership
	case faults.Mover:
		moved = w.move(shardOf(led), victim)
	}
	var err error
	load := make(chan struct{})
	go func() {
		defer close(load)
		done, err = w.trySubmit(lines...)
	}()
	if hit = w.awaitAction(victim, watched, c.Point, action, before); hit {
		w.outlast(victim, led, c.Point, action, c.Outcomes[action], load)
	} else {
		w.arm(victim, c.Point, fault.None)
		<-load
	}
	if err != nil {
		t.Fatal(err)
	}
	switch c.Victim { //nolint:exhaustive // as above
	case faults.Drained:
		w.drain(victim, true)
	case faults.Mover:
		w.awaitMoved(moved)
	}
	return victim, done, hit
}

func (w *town) drain(node string, undo bool) {
	w.t.Helper()
	ctx, cancel := w.within()
	defer cancel()
	args := []string{"cluster", "drain", "--addr", w.addrs(), "--wait", "0s", node}
	if undo {
		args = append(args, "--undo")
	}
	res, err := w.cli.Run(ctx, args...)
	if err != nil || res.Code != 0 {
		w.t.Fatalf("drain: %v: exit %d: %s", err, res.Code, res.Stderr)
	}
}

// TestPointsWhileKeysExpire: deposits go on, and are counted, whatever happens in
// the flush that drops forgotten keys.
func TestPointsWhileKeysExpire(t *testing.T) {
	w := newTown(t, "--window", "2s", "--retry-horizon", "1s")
	deposits := 0
	one := func() {
		w.submit(command("a", fmt.Sprint("k", deposits), `Deposit","amountMinor":1`))
		deposits++
		if amount, _ := w.balance("a"); amount != int64(deposits) {
			t.Fatalf("%d deposits make %d", deposits, amount)
		}
	}
	for _, c := range faults.Cases() {
		if c.Victim != faults.Idle {
			continue
		}
		for _, action := range fault.Actions() {
			t.Run(fmt.Sprintf("%s/%s", c.Point, action), func(t *testing.T) {
				w.t = t
				one()
				victim := w.leader("a")
				before := w.acted(victim, c.Point, action)
				w.arm(victim, c.Point, action)
				for i := 0; w.acted(victim, c.Point, action) <= before; i++ {
					if i == 200 {
						t.Fatal("no key was forgotten")
					}
					one()
				}
				load := make(chan struct{})
				close(load)
				one()
				w.outlast(victim, "a", c.Point, action, c.Outcomes[action], load)
				one()
				w.audit()
			})
		}
	}
}
