package cluster

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// AgentConfig is what NewAgent needs.
type AgentConfig struct {
	Registrar  *Registrar
	Controller *Controller
	Reconciler *Reconciler
	// Interval between steps that nothing else has called for. Default 1 s.
	Interval time.Duration
	Logger   *slog.Logger
}

// Agent keeps a node's part in its cluster in order, from the moment that its
// meta replica is open. It runs the registrar, the controller and the
// reconciler, each in a goroutine of its own, so that none waits for another.
type Agent struct {
	config AgentConfig
	pokes  []chan struct{}
}

const (
	agentInterval = time.Second
	// A step that may have more to do comes again this soon.
	agentHaste = 20 * time.Millisecond
)

// NewAgent makes an agent.
func NewAgent(c AgentConfig) *Agent {
	if c.Interval <= 0 {
		c.Interval = agentInterval
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	a := &Agent{config: c}
	for range a.steps() {
		a.pokes = append(a.pokes, make(chan struct{}, 1))
	}
	return a
}

type stepFunc func(context.Context) (more bool, err error)

func (a *Agent) steps() []stepFunc {
	return []stepFunc{a.config.Registrar.Step, a.config.Controller.Step, a.config.Reconciler.Step}
}

// Run works until the context ends, and returns when all steps have.
func (a *Agent) Run(ctx context.Context) {
	var group sync.WaitGroup
	for i, step := range a.steps() {
		group.Go(func() { a.loop(ctx, a.pokes[i], step) })
	}
	group.Wait()
}

// Poke calls for a step now: the meta state, a leader or the members have
// changed. It may be lost or be for nothing. It never blocks.
func (a *Agent) Poke() {
	for _, poke := range a.pokes {
		select {
		case poke <- struct{}{}:
		default:
		}
	}
}

// State says what the node waits for, "" for nothing.
func (a *Agent) State() string {
	var list []string
	for _, s := range []string{a.config.Registrar.State(), a.config.Controller.State(), a.config.Reconciler.State()} {
		if s != "" {
			list = append(list, s)
		}
	}
	return strings.Join(list, "; ")
}

// Refused says why the node is not in the registry, "" if it is.
func (a *Agent) Refused() string { return a.config.Registrar.State() }

func (a *Agent) loop(ctx context.Context, poke <-chan struct{}, step stepFunc) {
	for {
		more, err := step(ctx)
		if err != nil && ctx.Err() == nil {
			a.config.Logger.Debug("cluster step", slog.Any("error", err))
		}
		next := a.config.Interval
		if more {
			next = agentHaste
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-poke:
			timer.Stop()
		case <-timer.C:
		}
	}
}
