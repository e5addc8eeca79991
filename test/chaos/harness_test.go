package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"writ/actors/client"
	accountv1 "writ/proto/writ/account/v1"
	"writ/test/check"
)

// buildDir holds the binaries that the tests have built, if they have.
var buildDir string

var makeBuildDir = sync.OnceValues(func() (dir string, err error) {
	dir, err = os.MkdirTemp("", "writ-chaos-")
	buildDir = dir
	return dir, err
})

// buildNode builds the program once; WRIT_NODE names one that exists.
var buildNode = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("WRIT_NODE"); path != "" {
		return filepath.Abs(path)
	}
	return buildTagged("")
})

// buildNext builds the program of the next version, buildFaults the one with fault
// points, once each.
var (
	buildNext   = sync.OnceValues(func() (string, error) { return buildTagged("next") })
	buildFaults = sync.OnceValues(func() (string, error) { return buildTagged("faults") })
)

// buildTagged builds the program with a build tag.
func buildTagged(tag string) (string, error) {
	dir, err := makeBuildDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "node"+tag)
	cmd := exec.Command("go", "build", "-p", "2", "-tags", tag, "-o", path, "writ/cmd/node")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := standIn(os.Args[1:]); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "lan" {
		lanStandIn()
		return
	}
	code := m.Run()
	if buildDir != "" {
		_ = os.RemoveAll(buildDir)
	}
	os.Exit(code)
}

// long reports whether the full numbers are asked for.
func long() bool { return os.Getenv("CHAOS_LONG") != "" && !testing.Short() }

// onlyLong skips a case whose ground is covered by another one in a usual run.
func onlyLong(t *testing.T) {
	t.Helper()
	if !long() {
		t.Skip("SKIP: runs with CHAOS_LONG=1 only")
	}
}

// pick chooses between the number of a usual run and that of a long one.
func pick[T any](usual, full T) T {
	if long() {
		return full
	}
	return usual
}

// seed is a random number, or CHAOS_SEED; it is printed.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := rand.Uint64()
	if text := os.Getenv("CHAOS_SEED"); text != "" {
		var err error
		if s, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("CHAOS_SEED: %v", err)
		}
	}
	t.Logf("seed: CHAOS_SEED=%d", s)
	return s
}

// within is the test's context, cut after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// folder is a place for data: CHAOS_DIR if that is set, so that it stays.
func folder(t *testing.T) string {
	t.Helper()
	root := os.Getenv("CHAOS_DIR")
	if root == "" {
		return t.TempDir()
	}
	must(t, os.MkdirAll(root, 0o755))
	dir := filepath.Join(root, fmt.Sprintf("%s-%x", strings.ReplaceAll(t.Name(), "/", "_"), rand.Uint32()))
	must(t, os.MkdirAll(dir, 0o755))
	return dir
}

// rig is a cluster and the ways to it.
type rig struct {
	t       *testing.T
	cluster Cluster
	process *Process // nil with another driver
	cli     CLI
	links   *Links
	client  *client.Client
	// side is what was done beside the load.
	side *History
}

// prepare makes a cluster of processes that does not run yet.
func prepare(t *testing.T, config ProcessConfig) *rig {
	t.Helper()
	config = withDefaults(t, config)
	p, err := NewProcess(config)
	must(t, err)
	return rigOf(t, p, p)
}

// withDefaults fills in the program and the folder.
func withDefaults(t *testing.T, config ProcessConfig) ProcessConfig {
	t.Helper()
	binary, err := buildNode()
	must(t, err)
	config.Binary = cmp.Or(config.Binary, binary)
	if config.Dir == "" {
		config.Dir = folder(t)
	}
	return config
}

func rigOf(t *testing.T, cluster Cluster, process *Process) *rig {
	t.Helper()
	binary, err := buildNode()
	must(t, err)
	r := &rig{t: t, cluster: cluster, process: process, cli: CLI{Binary: binary}, side: check.NewHistory()}
	t.Cleanup(r.close)
	r.connect()
	return r
}

// start makes a cluster of processes and waits until it is ready.
func start(t *testing.T, config ProcessConfig) *rig {
	t.Helper()
	r := prepare(t, config)
	r.up(r.cluster.Nodes()...)
	return r
}

// connect makes the ways to all nodes there are now.
func (r *rig) connect() {
	r.t.Helper()
	if r.links != nil {
		_ = r.links.Close()
		_ = r.client.Close()
	}
	var err error
	r.links, err = Dial(r.cluster)
	must(r.t, err)
	r.client, err = client.New(client.Config{Addresses: endpoints(r.cluster, r.cluster.Nodes()...)})
	must(r.t, err)
}

func (r *rig) close() {
	if r.t.Failed() {
		for _, node := range r.cluster.Nodes() {
			r.t.Logf("the last lines of %s:\n%s", node, r.cluster.Logs(node, 40))
		}
	}
	_ = r.links.Close()
	_ = r.client.Close()
	if err := r.cluster.Close(); err != nil {
		r.t.Errorf("end of the cluster: %v", err)
	}
}

// up starts nodes and waits until they are ready.
func (r *rig) up(nodes ...string) {
	r.t.Helper()
	for _, node := range nodes {
		must(r.t, r.cluster.Start(node))
	}
	must(r.t, AwaitReady(within(r.t, time.Minute), r.cluster, nodes...))
}

// wantAlive wants a node to say that it is alive; on a machine that is held up it is
// asked again.
func (r *rig) wantAlive(ctx context.Context, node string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r.check("life", eventually(ctx, node, func(ctx context.Context) error {
		if !Alive(ctx, r.cluster, node) {
			return errors.New("it is not alive")
		}
		return nil
	}))
}

// readiness is what a node says of it, the first answer that comes.
func (r *rig) readiness(ctx context.Context, node string) (ready bool, text string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	must(r.t, eventually(ctx, "an answer of "+node, func(ctx context.Context) error {
		if ready, text = Ready(ctx, r.cluster, node); !ready && !strings.HasPrefix(text, "{") {
			return errors.New(text)
		}
		return nil
	}))
	return ready, text
}

// kill ends nodes with SIGKILL.
func (r *rig) kill(nodes ...string) {
	r.t.Helper()
	for _, node := range nodes {
		must(r.t, r.cluster.Kill(node))
	}
}

// addr is --addr for all nodes.
func (r *rig) addr() string {
	return strings.Join(endpoints(r.cluster, r.cluster.Nodes()...), ",")
}

// smallDisk gives a node that does not run yet a disk of its own, in memory. The
// test is skipped where that is not allowed.
func (r *rig) smallDisk(node string) {
	r.t.Helper()
	if err := r.process.MakeSmall(node, smallDiskSize); err != nil {
		r.t.Skipf("SKIP: %v", err)
	}
}

// ownFaults makes a cluster of processes, before it runs, one whose nodes can be
// made to fail from within, and one of them by its disk. It returns these faults;
// what is not allowed here is left out, by name.
func (r *rig) ownFaults(small string) []Fault {
	r.t.Helper()
	binary, err := buildFaults()
	must(r.t, err)
	for _, node := range r.cluster.Nodes() {
		r.process.SetBinary(node, binary)
	}
	faults := []Fault{FaultClock, FaultSlowDisk}
	if err := r.process.MakeSmall(small, smallDiskSize); err != nil {
		r.t.Logf("SKIP %s: %v", FaultFullDisk, err)
		return faults
	}
	return append(faults, FaultFullDisk)
}

// audit recounts the cluster and fails the test unless everything is right.
func (r *rig) audit() AuditReport {
	r.t.Helper()
	report, err := r.cli.Audit(within(r.t, 2*time.Minute), r.addr())
	must(r.t, err)
	if err := report.Verdict(); err != nil {
		r.t.Errorf("audit: %v", err)
	}
	return report
}

// load makes a workload through all doors: most through the Go client, some
// hedged, some with a lost first answer.
func (r *rig) load(config WorkloadConfig) (*Workload, *Hedge) {
	nodes := r.cluster.Nodes()
	library := &Library{Client: r.client}
	hedge := &Hedge{Links: r.links, Nodes: nodes}
	return NewWorkload(config, []WeightedDoor{
		{library, 80}, {hedge, 10}, {&Hasty{Links: r.links, Nodes: nodes, Then: library}, 10},
	}), hedge
}

// balances reads accounts.
func (r *rig) balances(ctx context.Context, accounts []string) map[string]Balance {
	r.t.Helper()
	var ops []Op
	for _, a := range accounts {
		ops = append(ops, Op{Action: Read, Account: a, Key: a}) // the key carries the name through Resend
	}
	stored := map[string]Balance{}
	for name, a := range Resend(ctx, &Rounds{Links: r.links, Nodes: r.running()}, ops) {
		if a.Verdict != Executed {
			r.t.Fatalf("read %s: %v %s", name, a.Code, a.Text)
		}
		stored[name] = a.Balance
	}
	return stored
}

// statement reads the statement.
func (r *rig) statement(ctx context.Context) *accountv1.Statement {
	r.t.Helper()
	state, err := r.client.Read(ctx, "statement", "all", client.ReadOptions{})
	must(r.t, err)
	s, ok := state.State.(*accountv1.Statement)
	if !ok {
		r.t.Fatalf("the statement is a %T", state.State)
	}
	return s
}

// verify applies all checkers to a load that has ended.
func (r *rig) verify(w *Workload, hedge *Hedge) {
	r.t.Helper()
	ctx := within(r.t, 5*time.Minute)
	must(r.t, AwaitReady(ctx, r.cluster, r.running()...))
	before := slices.Concat(r.side.Ops(), w.History().Ops())
	tally := w.History().Tally()

	again := Resend(ctx, &Rounds{Links: r.links, Nodes: r.running()}, before)
	r.check("replays", check.Replays(before, again))
	w.History().Resolve(again, w.History().Now())
	r.side.Resolve(again, r.side.Now())
	ops := slices.Concat(r.side.Ops(), w.History().Ops())
	r.check("hedged pairs", hedge.Differences())
	r.check("versions", check.Versions(ops))
	var registers, accounts []string
	for i := range w.config.Registers {
		registers = append(registers, w.register(i))
	}
	for i := range w.config.Accounts {
		accounts = append(accounts, w.account(i))
	}
	r.check("linearizability", check.Linearizable(ops, registers, time.Minute))
	r.check("linearizability with transfers", check.LinearizableTransfers(w.History().Ops(), accounts, time.Minute))
	report := r.audit()
	r.check("conservation", check.Conservation(ops, r.balances(ctx, touched(ops)), r.statement(ctx)))
	r.t.Logf("operations %d: executed %d, rejected %d, unknown at first %d; calls beyond the first %d, answers replayed %d; audit: keys %d, effects %d, events applied %d",
		tally.Ops, tally.Executed, tally.Rejected, tally.Unknown, tally.Retries, tally.Replays, report.Keys, report.Effects, report.Applied)
	if tally.Executed == 0 {
		r.t.Error("nothing was executed: the run proves nothing")
	}
}

func (r *rig) check(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Errorf("%s: %v", what, err)
	}
}

func (r *rig) running() []string {
	return slices.DeleteFunc(r.cluster.Nodes(), func(n string) bool { return !r.cluster.Running(n) })
}

// deposit deposits through the Go client and ends the test unless it works.
func (r *rig) deposit(ctx context.Context, account, key string, amount int64) *client.Outcome {
	r.t.Helper()
	out, err := r.client.Submit(ctx, "account", account, key, &accountv1.Deposit{AmountMinor: amount, Currency: currency}, client.SubmitOptions{})
	must(r.t, err)
	return out
}

// deposits makes an account for each name, and returns the shard of each.
func (r *rig) deposits(ctx context.Context, prefix string, n int) map[string]uint32 {
	r.t.Helper()
	var ops []Op
	for i := range n {
		name := fmt.Sprintf("%s%d", prefix, i)
		ops = append(ops, Op{Action: Deposit, Account: name, Key: "open-" + name, Amount: 100})
	}
	answers := Resend(ctx, &Library{Client: r.client}, ops)
	for _, op := range ops {
		op.Answer = answers[op.Key]
		if op.Answer.Verdict != Executed {
			r.t.Fatalf("key %q: %v %s", op.Key, op.Answer.Code, op.Answer.Text)
		}
		r.side.Add(op)
	}
	var home map[string]uint32
	must(r.t, eventually(ctx, "shards of accounts", func(ctx context.Context) (err error) { // a leadership may be on its way
		home, err = r.links.Shards(ctx, r.running()[0], "account")
		return err
	}))
	return home
}

// each does something n times, many at once; the test ends if one fails.
func (r *rig) each(n int, do func(i int) error) {
	r.t.Helper()
	numbers := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for range 64 {
		wg.Go(func() {
			for i := range numbers {
				if err := do(i); err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("number %d: %w", i, err))
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
	if len(errs) > 0 {
		r.t.Fatalf("%d errors, among them: %v", len(errs), errors.Join(errs[:min(5, len(errs))]...))
	}
}

// onePerShard chooses an account for each shard.
func onePerShard(home map[string]uint32) map[uint32]string {
	chosen := map[uint32]string{}
	for account, shard := range home {
		if chosen[shard] == "" || account < chosen[shard] {
			chosen[shard] = account
		}
	}
	return chosen
}

// touched are the accounts of a history.
func touched(ops []Op) []string {
	var names []string
	for _, op := range ops {
		names = append(names, op.Account)
		if op.To != "" {
			names = append(names, op.To)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
