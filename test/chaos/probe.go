package chaos

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Probe sends deposits to one account, one after the other at a steady pace,
// and remembers when each was sent and answered: the pause of a shard as its
// clients see it.
type Probe struct {
	Account string
	Door    Door
	// Every is the time between two commands; Patience is how long one may take.
	Every, Patience time.Duration
	// Prefix makes keys of several probes differ.
	Prefix string

	mu      sync.Mutex
	history []Op
	epoch   time.Time
}

// Run sends until ctx ends.
func (p *Probe) Run(ctx context.Context) {
	p.mu.Lock()
	p.epoch = time.Now()
	p.mu.Unlock()
	tick := time.NewTicker(p.Every)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		op := Op{Action: Deposit, Account: p.Account, Amount: 1, Key: fmt.Sprintf("%s-%s-%d", p.Prefix, p.Account, n)}
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Patience)
		op.Call = time.Since(p.epoch)
		op.Answer = p.Door.Do(one, op)
		op.Return = time.Since(p.epoch)
		cancel()
		p.mu.Lock()
		p.history = append(p.history, op)
		p.mu.Unlock()
	}
}

// Ops is what was sent so far.
func (p *Probe) Ops() []Op {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.history)
}

// Executed counts the commands that took effect.
func (p *Probe) Executed() int {
	n := 0
	for _, op := range p.Ops() {
		if op.Answer.Verdict == Executed {
			n++
		}
	}
	return n
}

// Pause is the longest time without an answer around or after the moment: from
// one answer, or the moment itself, to the next.
func (p *Probe) Pause(from time.Time) time.Duration {
	since := p.At(from)
	last, longest := since, time.Duration(0)
	for _, op := range p.Ops() {
		if op.Answer.Verdict != Executed || op.Return < since {
			continue
		}
		longest = max(longest, op.Return-last)
		last = op.Return
	}
	return longest
}

// First is how long after the moment the first command was answered that was
// still on its way then or sent later; ok is false if none was.
func (p *Probe) First(from time.Time) (took time.Duration, ok bool) {
	since := p.At(from)
	for _, op := range p.Ops() {
		if op.Answer.Verdict == Executed && op.Return >= since {
			return op.Return - since, true
		}
	}
	return 0, false
}

// At is a moment as operations have it.
func (p *Probe) At(t time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return t.Sub(p.epoch)
}

// Between are the calls that were on their way at the first moment, or begun from
// then on and before the second.
func (p *Probe) Between(from, to time.Time) []Op {
	first, last := p.At(from), p.At(to)
	var ops []Op
	for _, op := range p.Ops() {
		if op.Return >= first && op.Call < last {
			ops = append(ops, op)
		}
	}
	return ops
}

// Past reports whether a call that began at the moment or later has its answer:
// then all earlier ones have theirs.
func (p *Probe) Past(at time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.history) > 0 && p.history[len(p.history)-1].Call >= at.Sub(p.epoch)
}

// Slowest is the longest that one command took.
func (p *Probe) Slowest() time.Duration {
	var slowest time.Duration
	for _, op := range p.Ops() {
		slowest = max(slowest, op.Return-op.Call)
	}
	return slowest
}

// spread sorts durations and returns the median and the greatest.
func spread(all []time.Duration) (median, greatest time.Duration) {
	if len(all) == 0 {
		return 0, 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2], all[len(all)-1]
}
