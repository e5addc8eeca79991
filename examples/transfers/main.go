// Command transfers writes a sample workload as JSON lines for
// "node submit --file": a deposit to each account, then random transfers
// between them. The same flags give the same lines, keys included, so sending a
// file twice changes nothing the second time.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
)

type workload struct {
	accounts, transfers int
	deposits            bool
	prefix              string
	seed                uint64
}

func main() {
	var w workload
	flag.IntVar(&w.accounts, "accounts", 1000, "number of accounts, at least 2")
	flag.IntVar(&w.transfers, "transfers", 10_000, "number of transfers")
	flag.BoolVar(&w.deposits, "deposits", true, "begin with a deposit of 1,000.00 EUR to each account")
	flag.StringVar(&w.prefix, "prefix", "sample", "beginning of all keys and account names")
	flag.Uint64Var(&w.seed, "seed", 1, "seed of the random choices")
	flag.Parse()
	if w.accounts < 2 || w.transfers < 0 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	out := bufio.NewWriter(os.Stdout)
	for line := range w.lines() {
		_, _ = fmt.Fprintln(out, line) // Flush returns the first error
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "transfers:", err)
		os.Exit(1)
	}
}

func (w workload) lines() iter.Seq[string] {
	account := func(i int) string { return fmt.Sprintf("%s-%05d", w.prefix, i) }
	line := func(id, key, command string) string {
		return fmt.Sprintf(`{"kind":"account","id":%q,"key":%q,"command":{"@type":"type.googleapis.com/writ.account.v1.%s}}`, id, key, command)
	}
	return func(yield func(string) bool) {
		for i := 0; w.deposits && i < w.accounts; i++ {
			key := fmt.Sprintf("%s-deposit-%d", w.prefix, i)
			if !yield(line(account(i), key, `Deposit","amount_minor":100000,"currency":"EUR"`)) {
				return
			}
		}
		random := rand.New(rand.NewPCG(w.seed, 0))
		for i := range w.transfers {
			from := random.IntN(w.accounts)
			to := (from + 1 + random.IntN(w.accounts-1)) % w.accounts
			key := fmt.Sprintf("%s-transfer-%d", w.prefix, i)
			command := fmt.Sprintf(`Transfer","to":%q,"amount_minor":%d,"currency":"EUR"`, account(to), 1+random.IntN(5000))
			if !yield(line(account(from), key, command)) {
				return
			}
		}
	}
}
