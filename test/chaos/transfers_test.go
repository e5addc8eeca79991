package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// summary is what `node submit --file --json` prints.
type summary struct {
	Executed, Replayed, Rejected, Failed, Retries int
	Seconds                                       float64
}

// writeCommands writes a JSON-lines file of n commands.
func writeCommands(t *testing.T, path string, n int, line func(i int) (account, key, command string)) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	w := bufio.NewWriter(f)
	for i := range n {
		account, key, command := line(i)
		_, err := fmt.Fprintf(w, `{"kind":"account","id":%q,"key":%q,"command":%s}`+"\n", account, key, command)
		must(t, err)
	}
	must(t, w.Flush())
	must(t, f.Close())
}

func writeDeposits(t *testing.T, path string, accounts int, amount int64) {
	t.Helper()
	writeCommands(t, path, accounts, func(i int) (string, string, string) {
		return fmt.Sprintf("a%d", i), fmt.Sprintf("deposit-%d", i),
			fmt.Sprintf(`{"@type":"type.googleapis.com/writ.account.v1.Deposit","amount_minor":%d,"currency":%q}`, amount, currency)
	})
}

func writeTransfers(t *testing.T, path string, random *rand.Rand, accounts, n int, prefix string) {
	t.Helper()
	writeCommands(t, path, n, func(i int) (string, string, string) {
		from := random.IntN(accounts)
		to := (from + 1 + random.IntN(accounts-1)) % accounts
		return fmt.Sprintf("a%d", from), fmt.Sprintf("%s-%d", prefix, i),
			fmt.Sprintf(`{"@type":"type.googleapis.com/writ.account.v1.Transfer","to":"a%d","amount_minor":%d,"currency":%q}`, to, 1+random.Int64N(200), currency)
	})
}

// submit runs `node submit --file`.
func (r *rig) submit(path string) (summary, error) {
	res, err := r.cli.Run(within(r.t, 10*time.Minute), "submit", "--addr", r.addr(), "--file", path, "--clients", "32", "--json")
	if err != nil {
		return summary{}, err
	}
	var s summary
	if err := json.Unmarshal(res.Stdout, &s); err != nil {
		return s, fmt.Errorf("submit: exit %d, %q: %s", res.Code, res.Stdout, res.Stderr)
	}
	if res.Code != 0 || s.Failed != 0 {
		return s, fmt.Errorf("submit: exit %d, %+v: %s", res.Code, s, res.Stderr)
	}
	return s, nil
}

// transfersUnderKills sends files of transfers while each node in turn is
// killed and restarted, and checks that every line took effect once and that no
// money appeared or vanished.
func transfersUnderKills(r *rig) {
	r.t.Helper()
	accounts, transfers := pick(1000, 1000), pick(2000, 10000)
	const opening = 500
	dir := folder(r.t)
	random := rand.New(rand.NewPCG(seed(r.t), 1))
	ctx := within(r.t, 10*time.Minute)

	files := []string{filepath.Join(dir, "deposits.jsonl")}
	writeDeposits(r.t, files[0], accounts, opening)
	sum, err := r.submit(files[0])
	must(r.t, err)
	if sum.Executed+sum.Replayed != accounts {
		r.t.Fatalf("%d deposits: %+v", accounts, sum)
	}

	nodes := r.cluster.Nodes()
	decided := 0
	for i, node := range nodes {
		n := transfers / len(nodes)
		if i == 0 {
			n += transfers % len(nodes)
		}
		path := filepath.Join(dir, fmt.Sprintf("transfers-%d.jsonl", i))
		files = append(files, path)
		writeTransfers(r.t, path, random, accounts, n, fmt.Sprintf("t%d", i))
		done := make(chan error, 1)
		go func() {
			var err error
			sum, err = r.submit(path)
			done <- err
		}()
		pause(ctx, time.Duration(100+random.IntN(200))*time.Millisecond)
		r.kill(node)
		pause(ctx, time.Duration(random.IntN(1000))*time.Millisecond)
		r.up(node)
		must(r.t, <-done)
		r.t.Logf("killed and restarted %s during %d transfers: %+v", node, n, sum)
		decided += sum.Executed + sum.Replayed + sum.Rejected
	}
	if decided != transfers {
		r.t.Errorf("%d of %d transfers were decided", decided, transfers)
	}

	must(r.t, AwaitReady(ctx, r.cluster, nodes...))
	report := r.audit()
	if want := uint64(accounts + transfers); report.Keys != want {
		r.t.Errorf("%d keys are stored, %d commands were sent", report.Keys, want)
	}
	r.conserved(accounts, int64(accounts)*opening)
	r.replayed(files, accounts+transfers)
}

// conserved checks that the accounts and the statement hold the opening money.
func (r *rig) conserved(accounts int, want int64) {
	r.t.Helper()
	ctx := within(r.t, time.Minute)
	var names []string
	for i := range accounts {
		names = append(names, fmt.Sprintf("a%d", i))
	}
	var sum int64
	for name, b := range r.balances(ctx, names) {
		if sum += b.Amount; b.Pending != 0 || b.InFlight != 0 || b.Amount < 0 {
			r.t.Errorf("%s: %+v", name, b)
		}
	}
	total := r.statement(ctx).GetByCurrency()[currency].GetAmountMinor()
	if sum != want || total != want {
		r.t.Errorf("deposited %d, the accounts hold %d, the statement says %d", want, sum, total)
	}
}

// replayed sends all files again: nothing may be executed.
func (r *rig) replayed(files []string, lines int) {
	r.t.Helper()
	total := 0
	for _, path := range files {
		sum, err := r.submit(path)
		must(r.t, err)
		if sum.Executed != 0 {
			r.t.Errorf("%s sent again: %d commands were executed a second time", filepath.Base(path), sum.Executed)
		}
		total += sum.Replayed + sum.Rejected
	}
	if total != lines {
		r.t.Errorf("%d lines, %d replays", lines, total)
	}
}

// Every node in turn is killed under a file of transfers.
func TestProcessTransfersUnderKills(t *testing.T) {
	transfersUnderKills(start(t, ProcessConfig{}))
}
