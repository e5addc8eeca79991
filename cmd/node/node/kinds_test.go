package node_test

import (
	"errors"
	"strings"
	"time"

	"writ/actors/account"
	"writ/actors/entity"
	"writ/cmd/node/node"
	testingv1 "writ/proto/writ/testing/v1"
)

// shortWindow is the window of kind "brief".
const shortWindow = 3 * time.Second

// acting lets a test hold a handler of kind "actor" that was told to wait.
type acting struct {
	began  chan string // the command's text
	finish chan struct{}
}

func newActing() *acting {
	return &acting{began: make(chan string, 16), finish: make(chan struct{})}
}

// conf gives a node the test kinds.
func (a *acting) conf(cfg *node.Config) { cfg.Kinds, cfg.RetryHorizon = a.kinds(), shortWindow }

// kinds are the example's and those of tests:
//
//   - order adds up orders, and is told things
//   - brief is the same with a window of its own
//   - actor does what its commands say
func (a *acting) kinds() []entity.Definer {
	actor := entity.NewKind[*testingv1.Sum]("actor")
	entity.Handle(actor, a.act)
	entity.Handle(actor, order)
	entity.Handle(actor, func(_ *entity.Context, s *testingv1.Sum, _ *testingv1.Touch) (*testingv1.Sum, error) {
		s.Orders++
		return s, nil
	}, entity.AtLeastOnce())
	entity.On(actor, func(c *entity.Context, s *testingv1.Sum, m *testingv1.Told) error {
		if m.GetText() == "no" {
			return c.Reject(entity.FailedPrecondition, "NO", "not this one")
		}
		s.Orders++
		return nil
	})
	return append(account.Kinds(), orderKind("order"), orderKind("brief", entity.Window(shortWindow)), actor)
}

func orderKind(name string, options ...entity.KindOption) entity.Definer {
	k := entity.NewKind[*testingv1.Sum](name, options...)
	entity.Handle(k, order)
	return k
}

func order(_ *entity.Context, s *testingv1.Sum, o *testingv1.Order) (*testingv1.Sum, error) {
	s.AmountMinor += o.GetAmountMinor()
	s.Orders++
	return s, nil
}

func (a *acting) act(c *entity.Context, s *testingv1.Sum, cmd *testingv1.Act) (*testingv1.Sum, error) {
	text := strings.Repeat("x", int(cmd.GetBytes()))
	switch cmd.GetWhat() {
	case "reject":
		return nil, c.Reject(entity.Code(cmd.GetCode()), cmd.GetReason(), "%s%s", cmd.GetText(), text)
	case "panic":
		panic("as told")
	case "error":
		return nil, errors.New("as told")
	case "wait":
		a.began <- cmd.GetText()
		<-a.finish
	case "emit":
		c.Emit(entity.To(cmd.GetToKind(), cmd.GetToId()), &testingv1.Told{Text: cmd.GetText() + text})
	case "flood":
		for range cmd.GetBytes() {
			c.Emit(entity.To(cmd.GetToKind(), cmd.GetToId()), &testingv1.Told{Text: cmd.GetText()})
		}
	}
	s.Orders++
	return s, nil
}
