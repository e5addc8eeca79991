package membership

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/memberlist"
)

// instance is one process, in the question who has a name and in its answer.
// Gossip alone cannot tell a second process under the same name from the ghost
// of this node's last run at another address, so it is asked at that address.
type instance struct {
	kind    byte
	name    string
	id      string // drawn by every process
	started int64  // Unix nanoseconds
	reply   string // where to answer
}

const (
	askAttempts = 5
	askInterval = 200 * time.Millisecond
	// A process that has just started gives up at once when it finds its name
	// taken. One that was there before waits this long for that to happen.
	yieldGrace = 3 * time.Second
)

func (m instance) encode() []byte {
	b := appendText([]byte{m.kind}, m.name)
	b = appendText(b, m.id)
	b = binary.AppendUvarint(b, uint64(m.started))
	return appendText(b, m.reply)
}

func decodeInstance(b []byte) (instance, error) {
	r := reader{b: b[1:]}
	m := instance{kind: b[0], name: r.text(), id: r.text(), started: int64(r.number()), reply: r.text()}
	if r.bad || m.id == "" {
		return instance{}, errMalformed
	}
	return m, nil
}

func (g *Gossip) instance(kind byte) instance {
	return instance{kind: kind, name: g.name, id: g.id, started: g.started, reply: g.address.String()}
}

// watchName answers questions for this node's name and settles conflicts over
// it. It is the only reader of instance messages.
func (g *Gossip) watchName(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-g.instances:
			g.answer(m)
		case addr := <-g.conflicts:
			g.settleConflict(ctx, addr)
		case done := <-g.settle:
			select {
			case addr := <-g.conflicts:
				g.settleConflict(ctx, addr)
			default:
			}
			close(done)
		}
	}
}

// uncontested waits until every conflict heard of so far is settled, and
// reports whether this node keeps its name.
func (g *Gossip) uncontested(ctx context.Context) bool {
	done := make(chan struct{})
	select {
	case <-ctx.Done():
		return false
	case g.settle <- done:
	}
	select {
	case <-ctx.Done():
		return false
	case <-done:
		return !g.beaten.Load()
	}
}

func (g *Gossip) answer(m instance) {
	if m.kind != messageAsk || m.name != g.name || m.id == g.id {
		return
	}
	g.send(m.reply, g.instance(messageAnswer))
}

// send is best effort: what is lost is asked again.
func (g *Gossip) send(addr string, m instance) {
	if err := g.list.SendToAddress(memberlist.Address{Addr: addr, Name: g.name}, m.encode()); err != nil {
		g.logger.Debug("gossip: instance message not sent", slog.String("to", addr), slog.Any("error", err))
	}
}

// settleConflict: somebody else is said to have this node's name, at addr.
func (g *Gossip) settleConflict(ctx context.Context, addr string) {
	established := g.established.Load()
	other, alive := g.ask(ctx, addr)
	if alive && established {
		if !g.answerFor(ctx, yieldGrace) {
			return
		}
		other, alive = g.ask(ctx, addr)
	}
	if !alive {
		return // the ghost of an earlier run: the others will notice
	}
	if established && (g.started < other.started || (g.started == other.started && g.id < other.id)) {
		g.logger.Error("gossip: another process uses this node's name", slog.String("address", addr))
		return
	}
	g.beaten.Store(true)
	select {
	case g.failed <- fmt.Errorf("node %q is running already, at %s: two processes must not have one name, nor a copy of one data folder", g.name, addr):
	default:
	}
}

// ask finds out whether another process with this node's name lives at addr.
func (g *Gossip) ask(ctx context.Context, addr string) (instance, bool) {
	ticker := time.NewTicker(askInterval)
	defer ticker.Stop()
	for range askAttempts {
		g.send(addr, g.instance(messageAsk))
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return instance{}, false
			case m := <-g.instances:
				if m.kind == messageAnswer && m.name == g.name && m.id != g.id {
					return m, true
				}
				g.answer(m)
			case <-ticker.C:
				waiting = false
			}
		}
	}
	return instance{}, false
}

// answerFor answers questions for a while, false if the context ended first. Who
// is not answered takes this process for the ghost of an earlier run, and stays.
func (g *Gossip) answerFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case m := <-g.instances:
			g.answer(m)
		case <-timer.C:
			return true
		}
	}
}
