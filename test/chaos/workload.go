package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"writ/test/check"
)

// WorkloadConfig describes a load.
type WorkloadConfig struct {
	Seed    uint64
	Clients int
	// Accounts take deposits, withdrawals, reads and transfers between them.
	Accounts int
	// Registers are accounts without transfers: every operation on them is a
	// client's, so their histories can be checked for linearizability.
	Registers int
	// OpsPerClient ends the load; 0: it goes on until the context ends.
	OpsPerClient int
	// Think is the mean pause between two operations of a client.
	Think time.Duration
	// Patience is how long a client goes on with one operation before it
	// records it as unknown; 0 means 20 s.
	Patience time.Duration
	// Prefix makes keys and names of several loads on one cluster differ.
	Prefix string
}

// Workload is a seeded load of many clients.
type Workload struct {
	config  WorkloadConfig
	history *History
	// door chooses the way of one operation.
	door func(random *rand.Rand) Door
}

// NewWorkload prepares a load through the doors; each operation takes one of
// them at random, each as likely as its weight.
func NewWorkload(config WorkloadConfig, doors []WeightedDoor) *Workload {
	if config.Patience == 0 {
		config.Patience = 20 * time.Second
	}
	total := 0
	for _, d := range doors {
		total += d.Weight
	}
	choose := func(random *rand.Rand) Door {
		at := random.IntN(total)
		for _, d := range doors {
			if at -= d.Weight; at < 0 {
				return d.Door
			}
		}
		return doors[0].Door
	}
	return &Workload{config: config, history: check.NewHistory(), door: choose}
}

// WeightedDoor is a door and how often it is taken.
type WeightedDoor struct {
	Door   Door
	Weight int
}

// History is what the clients saw so far.
func (w *Workload) History() *History { return w.history }

// Accounts are the names of all accounts that the load touches.
func (w *Workload) Accounts() []string {
	var names []string
	for i := range w.config.Accounts {
		names = append(names, w.account(i))
	}
	for i := range w.config.Registers {
		names = append(names, w.register(i))
	}
	return names
}

func (w *Workload) account(i int) string  { return fmt.Sprintf("%sacct-%d", w.config.Prefix, i) }
func (w *Workload) register(i int) string { return fmt.Sprintf("%sreg-%d", w.config.Prefix, i) }

// Run runs all clients until ctx ends or they have done their operations. An
// operation that has begun is finished.
func (w *Workload) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for id := range w.config.Clients {
		wg.Go(func() { w.client(ctx, id) })
	}
	wg.Wait()
}

func (w *Workload) client(ctx context.Context, id int) {
	random := rand.New(rand.NewPCG(w.config.Seed, uint64(id)))
	for n := 0; ctx.Err() == nil && (w.config.OpsPerClient == 0 || n < w.config.OpsPerClient); n++ {
		op := w.next(random, id, n)
		door := w.door(random)
		w.do(context.WithoutCancel(ctx), door, op)
		if w.config.Think > 0 {
			pause(ctx, time.Duration(random.Int64N(int64(2*w.config.Think))))
		}
	}
}

func (w *Workload) do(ctx context.Context, door Door, op Op) {
	ctx, cancel := context.WithTimeout(ctx, w.config.Patience)
	defer cancel()
	op.Call = w.history.Now()
	op.Answer = door.Do(ctx, op)
	op.Return = w.history.Now()
	w.history.Add(op)
}

// next chooses a client's n-th operation.
func (w *Workload) next(random *rand.Rand, client, n int) Op {
	op := Op{Client: client, Key: fmt.Sprintf("%sc%d-%d", w.config.Prefix, client, n), Amount: 1 + random.Int64N(100)}
	i := random.IntN(w.config.Accounts + w.config.Registers)
	if i >= w.config.Accounts {
		op.Account = w.register(i - w.config.Accounts)
		switch roll := random.IntN(10); {
		case roll < 4:
			op.Action = Deposit
		case roll < 7:
			op.Action = Withdraw
		default:
			op.Action, op.Key, op.Amount = Read, "", 0
		}
		return op
	}
	op.Account = w.account(i)
	switch roll := random.IntN(10); {
	case roll < 3:
		op.Action = Deposit
	case roll < 4:
		op.Action = Withdraw
	case roll < 5:
		op.Action, op.Key, op.Amount = Read, "", 0
	case w.config.Accounts > 1:
		op.Action = Transfer
		op.To = w.account((i + 1 + random.IntN(w.config.Accounts-1)) % w.config.Accounts)
	default:
		op.Action = Withdraw
	}
	return op
}
