package chaos

import (
	"testing"
	"time"

	"writ/test/check"
)

func TestProbeMeasuresPauses(t *testing.T) {
	p := &Probe{epoch: time.Now()}
	at := func(call, ret int, v check.Verdict) {
		p.history = append(p.history, Op{Call: time.Duration(call), Return: time.Duration(ret), Answer: Answer{Verdict: v}})
	}
	at(0, 5, Executed)
	at(10, 15, Executed)
	at(20, 60, Unknown)
	at(60, 90, Executed)
	at(90, 95, Executed)
	if got := p.Pause(p.epoch.Add(30)); got != 60 {
		t.Errorf("pause after 30: %d, want 60", got)
	}
	if got := p.Pause(p.epoch); got != 75 {
		t.Errorf("pause: %d, want 75", got)
	}
	if got, ok := p.First(p.epoch.Add(30)); got != 60 || !ok {
		t.Errorf("first answer after 30: %d, %v, want 60", got, ok)
	}
	if _, ok := p.First(p.epoch.Add(96)); ok {
		t.Error("an answer after the last one")
	}
	if ops := p.Between(p.epoch.Add(15), p.epoch.Add(60)); len(ops) != 2 || ops[0].Call != 10 || ops[1].Call != 20 {
		t.Errorf("between 15 and 60: %+v", ops)
	}
	if !p.Past(p.epoch.Add(90)) || p.Past(p.epoch.Add(91)) {
		t.Error("the last answer is that of the call at 90")
	}
	if p.Executed() != 4 || p.Slowest() != 40 {
		t.Errorf("executed %d, slowest %d", p.Executed(), p.Slowest())
	}
	if median, greatest := spread([]time.Duration{3, 1, 2}); median != 2 || greatest != 3 {
		t.Errorf("spread %d, %d", median, greatest)
	}
}
