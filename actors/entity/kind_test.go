package entity_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/entity"
)

type (
	state   = wrapperspb.Int64Value
	command = wrapperspb.UInt32Value
	event   = wrapperspb.Int32Value
	query   = emptypb.Empty
)

func add(_ *entity.Context, s *state, cmd *command) (*state, error) {
	s.Value += int64(cmd.GetValue())
	return s, nil
}

func added(_ *entity.Context, s *state, e *event) error {
	s.Value += int64(e.GetValue())
	return nil
}

func peek(s *state, _ *query) (*state, error) { return s, nil }

func counter(name string, options ...entity.KindOption) *entity.Kind[*state] {
	k := entity.NewKind[*state](name, options...)
	entity.Handle(k, add)
	entity.On(k, added)
	entity.Read(k, peek)
	return k
}

func TestRegistryRefuses(t *testing.T) {
	only := func(k *entity.Kind[*state]) []entity.Definer { return []entity.Definer{k} }
	tests := []struct {
		name  string
		kinds []entity.Definer
		want  []string // parts of the error
	}{
		{"no name", only(counter("")), []string{`kind ""`, "1 to 64 letters"}},
		{"long name", only(counter(strings.Repeat("k", 65))), []string{"1 to 64 letters"}},
		{"name with a dollar", only(counter("a$b")), []string{`kind "a$b"`, "1 to 64 letters"}},
		{"name with a slash", only(counter("a/b")), []string{"1 to 64 letters"}},
		{"name with an umlaut", only(counter("zähler")), []string{"1 to 64 letters"}},
		{"nothing handled", only(entity.NewKind[*state]("counter")), []string{"neither commands nor events"}},
		{"only queries", func() []entity.Definer {
			k := entity.NewKind[*state]("counter")
			entity.Read(k, peek)
			return only(k)
		}(), []string{"neither commands nor events"}},
		{"negative window", only(counter("counter", entity.Window(-1))), []string{"window is negative"}},
		{"schema zero", only(counter("counter", entity.Schema(0))), []string{"schema versions start at 1"}},
		{"command twice", func() []entity.Definer {
			k := counter("counter")
			entity.Handle(k, add)
			return only(k)
		}(), []string{"command google.protobuf.UInt32Value is defined twice"}},
		{"event twice", func() []entity.Definer {
			k := counter("counter")
			entity.On(k, added)
			return only(k)
		}(), []string{"event google.protobuf.Int32Value is defined twice"}},
		{"query twice", func() []entity.Definer {
			k := counter("counter")
			entity.Read(k, peek)
			return only(k)
		}(), []string{"query google.protobuf.Empty is defined twice"}},
		{"kind twice", []entity.Definer{counter("counter"), counter("counter")}, []string{`kind "counter" is registered twice`}},
		{"state is an interface", func() []entity.Definer {
			k := entity.NewKind[proto.Message]("counter")
			entity.On(k, func(*entity.Context, proto.Message, *event) error { return nil })
			return []entity.Definer{k}
		}(), []string{"state must be a generated protobuf message"}},
		{"command is an interface", func() []entity.Definer {
			k := counter("counter")
			entity.Handle(k, func(_ *entity.Context, s *state, _ proto.Message) (*state, error) { return s, nil })
			return only(k)
		}(), []string{"a command's type must be a generated message"}},
		{"handlers are nil", func() []entity.Definer {
			k := entity.NewKind[*state]("counter")
			entity.Handle[*state, *command, *state](k, nil)
			entity.On[*state, *event](k, nil)
			entity.Read[*state, *query, *state](k, nil)
			return only(k)
		}(), []string{
			"handler of command google.protobuf.UInt32Value is nil", "handler of event google.protobuf.Int32Value is nil",
			"handler of query google.protobuf.Empty is nil",
		}},
		{"options are nil", func() []entity.Definer {
			k := entity.NewKind[*state]("counter", nil)
			entity.Handle(k, add, nil)
			return only(k)
		}(), []string{"an option is nil", "an option of command google.protobuf.UInt32Value is nil"}},
		{"no kind", []entity.Definer{nil}, []string{"kind 1 of 1 is nil"}},
		{"no kind behind a pointer", []entity.Definer{counter("counter"), (*entity.Kind[*state])(nil)}, []string{"kind 2 of 2 is nil"}},
		{"a kind that nobody made", []entity.Definer{&entity.Kind[*state]{}}, []string{"kind 1 of 1 is nil"}},
		{"dynamic messages", func() []entity.Definer {
			k := entity.NewKind[*dynamicpb.Message]("counter")
			entity.Handle(k, func(_ *entity.Context, s, _ *dynamicpb.Message) (*dynamicpb.Message, error) { return s, nil })
			entity.Handle(k, func(_ *entity.Context, s *dynamicpb.Message, _ *command) (*dynamicpb.Message, error) { return s, nil })
			return []entity.Definer{k}
		}(), []string{
			"state must be a generated protobuf message", "a command's type must be a generated message",
			"the reply to command google.protobuf.UInt32Value must be a generated message",
		}},
		{"everything at once", []entity.Definer{
			entity.NewKind[*state]("a b", entity.Schema(0)),
			counter("counter", entity.Window(-time.Hour)),
		}, []string{`kind "a b"`, "1 to 64 letters", "neither commands", "schema versions", `kind "counter"`, "window is negative"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			registry, err := entity.NewRegistry(tt.kinds...)
			if err == nil || registry != nil {
				t.Fatalf("got %v, %v, want an error alone", registry, err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

// A handler that comes after the check would be unchecked, and in nobody's sight.
func TestNothingIsDefinedAfterRegistration(t *testing.T) {
	k := counter("counter")
	if _, err := entity.NewRegistry(k); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if text := fmt.Sprint(recover()); !strings.Contains(text, "before NewRegistry") || !strings.Contains(text, "google.protobuf.Int64Value") {
			t.Errorf("panicked with %q", text)
		}
	}()
	entity.On(k, func(*entity.Context, *state, *state) error { return nil })
	t.Error("a handler was defined after the registration")
}

// What a handler replies may be left to it.
func TestReplyOfAnyType(t *testing.T) {
	k := entity.NewKind[*state]("counter")
	entity.Handle(k, func(_ *entity.Context, s *state, _ *command) (proto.Message, error) { return s, nil })
	if _, err := entity.NewRegistry(k); err != nil {
		t.Error(err)
	}
}

func TestRegistryAccepts(t *testing.T) {
	for _, name := range []string{"c", "Counter-1_x.y", strings.Repeat("k", 64)} {
		if _, err := entity.NewRegistry(counter(name)); err != nil {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

func TestRegistryFinds(t *testing.T) {
	registry, err := entity.NewRegistry(counter("a"), counter("b", entity.Window(time.Hour), entity.Schema(3)))
	if err != nil {
		t.Fatal(err)
	}
	names := registry.Kinds()
	slices.Sort(names)
	if !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("kinds are %q", names)
	}
	if registry.Kind("c") != nil {
		t.Error("found a kind that nobody registered")
	}
	a, b := registry.Kind("a"), registry.Kind("b")
	if a.Name() != "a" || a.Schema() != 1 || a.Window() != 0 {
		t.Errorf("defaults are name %q, schema %d, window %v", a.Name(), a.Schema(), a.Window())
	}
	if b.Schema() != 3 || b.Window() != time.Hour {
		t.Errorf("options gave schema %d, window %v", b.Schema(), b.Window())
	}
	// Commands, events and queries are separate: a message of one is not found
	// among the others.
	const c, e, q = "google.protobuf.UInt32Value", "google.protobuf.Int32Value", "google.protobuf.Empty"
	if a.Command(c) == nil || a.Event(e) == nil || a.Query(q) == nil {
		t.Error("a handler is missing")
	}
	if got := a.Commands(); !slices.Equal(got, []string{c}) {
		t.Errorf("commands are %q", got)
	}
	if a.Command(e) != nil || a.Command(q) != nil || a.Event(c) != nil || a.Query(c) != nil {
		t.Error("a handler was found under the wrong heading")
	}
}

func TestHandlersCall(t *testing.T) {
	k := counter("counter")
	entity.Handle(k, func(c *entity.Context, s *state, d *durationpb.Duration) (*state, error) {
		if d.GetSeconds() < 0 {
			return nil, c.Reject(entity.OutOfRange, "BACK", "no way back")
		}
		return s, nil
	}, entity.AtLeastOnce())
	d := k.Definition()
	c := entity.NewContext(entity.Ref{}, entity.Ref{}, time.Time{})

	s := d.NewState().(*state)
	reply, err := d.Command("google.protobuf.UInt32Value").Call(c, s, &command{Value: 2})
	if err != nil || s.GetValue() != 2 || reply.(*state).GetValue() != 2 {
		t.Errorf("command: state %v, reply %v, error %v", s, reply, err)
	}
	reply, err = d.Event("google.protobuf.Int32Value").Call(c, s, &event{Value: 3})
	if err != nil || s.GetValue() != 5 || reply != nil {
		t.Errorf("event: state %v, reply %v, error %v", s, reply, err)
	}
	reply, err = d.Query("google.protobuf.Empty").Call(nil, s, &query{})
	if err != nil || reply.(*state).GetValue() != 5 {
		t.Errorf("query: reply %v, error %v", reply, err)
	}

	back := d.Command("google.protobuf.Duration")
	if !back.AtLeastOnce || d.Command("google.protobuf.UInt32Value").AtLeastOnce {
		t.Error("AtLeastOnce is not kept per command")
	}
	reply, err = back.Call(c, s, &durationpb.Duration{Seconds: -1})
	var rejection *entity.Rejection
	if !errors.As(err, &rejection) || reply != nil {
		t.Errorf("rejection: reply %v, error %v", reply, err)
	}
}

func TestNewStatesAreSeparate(t *testing.T) {
	d := counter("counter").Definition()
	d.NewState().(*state).Value = 1
	if got := d.NewState().(*state).GetValue(); got != 0 {
		t.Errorf("a new state has the value %d", got)
	}
}
