package sim_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

const (
	guestKind   = "guest"
	guests      = 3
	hosts       = 2 // clients of guests
	visits      = 5 // commands of each
	guestWindow = 2 * time.Second
)

func guestID(i int) string { return fmt.Sprint("g", i) }

// guestDefinition is of an entity that sets and moves timers, greets others and is deleted,
// and whose keys are forgotten within a world's life. Its state counts what has taken
// effect since it was last deleted.
func guestDefinition() entity.Definer {
	k := entity.NewKind[*wrapperspb.Int64Value](guestKind, entity.Window(guestWindow))
	entity.Handle(k, func(c *entity.Context, s *wrapperspb.Int64Value, cmd *wrapperspb.StringValue) (*wrapperspb.Int64Value, error) {
		verb, what, _ := strings.Cut(cmd.GetValue(), " ")
		var name string
		var after time.Duration
		if _, err := fmt.Sscan(what, &name, &after); err != nil && (verb == "stay" || verb == "move") {
			return nil, err
		}
		switch verb {
		case "stay":
			c.SetTimer(name, entity.Timer{After: after, Command: wrapperspb.String("wake")})
		case "move":
			c.MoveTimer(name, c.Time().Add(after))
		case "cancel":
			c.CancelTimer(what)
		case "greet":
			c.Emit(entity.To(guestKind, what), wrapperspb.Bool(true))
		case "leave":
			c.Delete()
		}
		s.Value++
		return s, nil
	})
	entity.On(k, func(_ *entity.Context, s *wrapperspb.Int64Value, _ *wrapperspb.BoolValue) error {
		s.Value++
		return nil
	})
	return k
}

// visit chooses a command.
func (w *world) visit(dice *rand.Rand) string {
	timer := fmt.Sprint("t", w.roll(dice, 2))
	after := time.Duration(w.roll(dice, 3000)) * time.Millisecond
	switch roll := w.roll(dice, 10); {
	case roll < 5:
		return fmt.Sprint("stay ", timer, " ", after)
	case roll < 6:
		return fmt.Sprint("move ", timer, " ", after)
	case roll < 7:
		return "cancel " + timer
	case roll < 8:
		return "greet " + guestID(w.roll(dice, guests))
	}
	return "leave"
}

// host sends a guest's commands, each with the time at which it was issued, until it
// is answered; and some of them once more later, when the key may be forgotten.
func (w *world) host(h int) {
	dice := w.dice("host %d", h)
	for i := range visits {
		v := visiting{
			key: fmt.Sprintf("h%d-%d", h, i), id: guestID(w.roll(dice, guests)), text: w.visit(dice), issued: time.Now(),
		}
		first := w.admit(dice, v)
		if first == nil || w.roll(dice, 2) == 0 {
			continue
		}
		pause(w.span(dice, guestWindow*3/2))
		w.count("guests' commands sent again")
		second := w.admit(dice, v)
		if second == nil { // forgotten
			if age := time.Since(first.GetAcceptedAt().AsTime()); age < guestWindow && w.whole() {
				w.fail("%s was forgotten %v after it was accepted, its window is %v", v.key, age, guestWindow)
			}
		} else if !second.GetReplayed() || second.GetVersion() != first.GetVersion() || second.GetReply().String() != first.GetReply().String() {
			w.fail("%s was answered %v and then %v", v.key, first, second)
		}
		pause(w.span(dice, 400*time.Millisecond))
	}
}

// visiting is a command to a guest.
type visiting struct {
	key, id, text string
	issued        time.Time
}

// admit sends a command until it is answered; nil if it was refused as EXPIRED, which
// it must not be while its key cannot have been forgotten.
func (w *world) admit(dice *rand.Rand, v visiting) *writv1.SubmitResponse {
	command, err := anypb.New(wrapperspb.String(v.text))
	if err != nil {
		w.fail("%v", err)
	}
	shard := locate(refOf(guestKind, v.id))
	for try := 0; w.whole(); try++ {
		if try == tries {
			w.fail("%s is never answered", v.key)
			break
		}
		name := fmt.Sprintf("%s-%d-%d", v.key, w.history.Now(), try)
		answer, err := w.ask(name, w.guess(shard, w.fresh("to "+name)), shard, 1500*time.Millisecond, &nodev1.ForwardRequest{
			Call: &nodev1.ForwardRequest_Submit{Submit: &writv1.SubmitRequest{
				Entity: &writv1.EntityRef{Kind: guestKind, Id: v.id}, IdempotencyKey: v.key, Command: command, IssuedAt: timestamppb.New(v.issued),
			}},
		})
		if err == nil {
			w.note("host: %s %s version %d", v.key, v.text, answer.GetSubmit().GetVersion())
			return answer.GetSubmit()
		}
		if e, ok := errors.AsType[*entity.Error](err); ok && e.Reason == entity.Expired {
			// A tolerance of a quarter of the window counts for clocks that run ahead.
			if age := time.Since(v.issued); age < guestWindow*3/4 {
				w.fail("%s is EXPIRED %v after it was issued", v.key, age)
			}
			w.note("host: %s is expired", v.key)
			w.count("commands expired")
			return nil
		}
		pause(time.Millisecond + w.span(dice, 60*time.Millisecond))
	}
	return nil
}

// judgeGuests compares every guest's state with what the logs have made of it. No
// timer is left: each was fired, cancelled, replaced, or has gone with its entity.
func (w *world) judgeGuests() {
	for _, l := range w.ledgers {
		l.mu.Lock()
		for of := range l.timers {
			w.fail("timer %s was never fired", of)
		}
		l.mu.Unlock()
	}
	for i := range guests {
		ref := refOf(guestKind, guestID(i))
		l := w.ledgers[locate(ref)]
		l.mu.Lock()
		want := l.counts[guestKind+"/"+ref.ID]
		l.mu.Unlock()
		s := &wrapperspb.Int64Value{}
		w.read(ref.Kind, ref.ID, s)
		if s.GetValue() != want {
			w.fail("guest %s counts %d, the log makes %d", ref.ID, s.GetValue(), want)
		}
	}
}

// timersLeft counts what is still to fire.
func (w *world) timersLeft() (n int) {
	for _, l := range w.ledgers {
		l.mu.Lock()
		n += len(l.timers)
		l.mu.Unlock()
	}
	return n
}
