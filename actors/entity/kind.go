package entity

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Kind is the definition of an entity kind whose state is the message S.
// Define it once at start and hand it to [NewRegistry], which checks it.
type Kind[S proto.Message] struct{ def *Definition }

// NewKind begins the definition of a kind. Its name is 1 to 64 letters, digits,
// '-', '_' or '.'.
func NewKind[S proto.Message](name string, options ...KindOption) *Kind[S] {
	var zero S
	k := &Kind[S]{def: &Definition{
		name:     name,
		state:    messageType(zero),
		commands: map[protoreflect.FullName]*Handler{},
		events:   map[protoreflect.FullName]*Handler{},
		queries:  map[protoreflect.FullName]*Handler{},
		schema:   1,
	}}
	for _, o := range options {
		if o == nil {
			k.def.wrong("an option is nil")
			continue
		}
		o(k.def)
	}
	return k
}

// Definition returns the untyped definition that the runtime works with; nil for a
// kind that [NewKind] has not made.
func (k *Kind[S]) Definition() *Definition {
	if k == nil {
		return nil
	}
	return k.def
}

// KindOption changes a kind's defaults.
type KindOption func(*Definition)

// Window sets the least time for which the kind's idempotency keys are remembered.
func Window(d time.Duration) KindOption { return func(def *Definition) { def.window = d } }

// Schema sets the version number stored beside the kind's states and events.
func Schema(version uint32) KindOption { return func(def *Definition) { def.schema = version } }

// HandleOption changes how one command is treated.
type HandleOption func(*Handler)

// AtLeastOnce drops the idempotency machinery for a command whose repetition is
// harmless: it needs no key and a retry executes it again.
func AtLeastOnce() HandleOption { return func(h *Handler) { h.AtLeastOnce = true } }

// Handle defines the handler of command C, whose reply is R. Like On and Read it
// is called before [NewRegistry], which names what is wrong, and panics afterwards.
func Handle[S, C, R proto.Message](k *Kind[S], fn func(*Context, S, C) (R, error), options ...HandleOption) {
	var zero C
	h := &Handler{Type: messageType(zero), call: func(c *Context, s, m proto.Message) (proto.Message, error) {
		reply, err := fn(c, s.(S), m.(C))
		if err != nil {
			return nil, err
		}
		return reply, nil
	}}
	for _, o := range options {
		if o == nil {
			k.def.wrong("an option of command %s is nil", h.name())
			continue
		}
		o(h)
	}
	var reply R
	k.def.add("command", k.def.commands, h, fn == nil, reply)
}

// On defines the handler of event E.
func On[S, E proto.Message](k *Kind[S], fn func(*Context, S, E) error) {
	var zero E
	k.def.add("event", k.def.events, &Handler{Type: messageType(zero), call: func(c *Context, s, m proto.Message) (proto.Message, error) {
		return nil, fn(c, s.(S), m.(E))
	}}, fn == nil, nil)
}

// Read defines the answer R to query Q. It must not change the state.
func Read[S, Q, R proto.Message](k *Kind[S], fn func(S, Q) (R, error)) {
	var zero Q
	var reply R
	k.def.add("query", k.def.queries, &Handler{Type: messageType(zero), call: func(_ *Context, s, m proto.Message) (proto.Message, error) {
		reply, err := fn(s.(S), m.(Q))
		if err != nil {
			return nil, err
		}
		return reply, nil
	}}, fn == nil, reply)
}

// Handler is one command, event or query of a kind.
type Handler struct {
	Type        protoreflect.MessageType
	AtLeastOnce bool
	call        func(*Context, proto.Message, proto.Message) (proto.Message, error)
}

func (h *Handler) name() protoreflect.FullName {
	if h.Type == nil {
		return ""
	}
	return h.Type.Descriptor().FullName()
}

// Call runs the handler. The state is changed in place: hand it a copy. The
// error is a *[Rejection], or any other error for a handler that failed.
func (h *Handler) Call(c *Context, state, message proto.Message) (proto.Message, error) {
	return h.call(c, state, message)
}

// Definition is a kind without its Go types. It is immutable once registered
// and safe for concurrent use.
type Definition struct {
	name     string
	state    protoreflect.MessageType
	commands map[protoreflect.FullName]*Handler
	events   map[protoreflect.FullName]*Handler
	queries  map[protoreflect.FullName]*Handler
	schema   uint32
	window   time.Duration
	problems []error

	registered atomic.Bool
}

// Name is the kind's name.
func (d *Definition) Name() string { return d.name }

// NewState is the state of an entity that has never handled anything.
func (d *Definition) NewState() proto.Message { return d.state.New().Interface() }

// Schema is the version stored beside states and events.
func (d *Definition) Schema() uint32 { return d.schema }

// Window is the kind's own idempotency window, 0 for the cluster's.
func (d *Definition) Window() time.Duration { return d.window }

// Command finds the handler of a command by its message's full name, nil if none.
func (d *Definition) Command(name string) *Handler { return d.commands[protoreflect.FullName(name)] }

// Event finds the handler of an event, nil if none.
func (d *Definition) Event(name string) *Handler { return d.events[protoreflect.FullName(name)] }

// Commands are the full names of the messages of all commands, in order.
func (d *Definition) Commands() []string {
	names := make([]string, 0, len(d.commands))
	for name := range d.commands {
		names = append(names, string(name))
	}
	slices.Sort(names)
	return names
}

// Query finds the handler of a query, nil if none.
func (d *Definition) Query(name string) *Handler { return d.queries[protoreflect.FullName(name)] }

// wrong keeps what is wrong with a definition until the registry asks for it.
func (d *Definition) wrong(format string, args ...any) {
	d.problems = append(d.problems, fmt.Errorf(format, args...))
}

// add takes a handler into the definition. reply is the zero value of its reply's
// type: nil where it has none, or leaves the type to the handler.
func (d *Definition) add(what string, to map[protoreflect.FullName]*Handler, h *Handler, missing bool, reply proto.Message) {
	name := h.name()
	if d.registered.Load() { // it may be in use: nobody checks the handler, and maps are read without a lock
		panic(fmt.Sprintf("entity: %s %s is defined after kind %q was registered: define all of a kind before NewRegistry", what, name, d.name))
	}
	if h.Type == nil {
		d.wrong("a %s's type must be a generated message, not an interface", what)
		return
	}
	if missing {
		d.wrong("the handler of %s %s is nil", what, name)
	}
	if reply != nil && !linked(messageType(reply)) {
		d.wrong("the reply to %s %s must be a generated message that is linked into the program", what, name)
	}
	if _, twice := to[name]; twice {
		d.wrong("%s %s is defined twice", what, name)
	}
	to[name] = h
}

// linked reports whether a message's type is the one that its name finds in the
// program: else what was stored could not be read again.
func linked(t protoreflect.MessageType) bool {
	if t == nil {
		return false
	}
	found, err := protoregistry.GlobalTypes.FindMessageByName(t.Descriptor().FullName())
	return err == nil && found == t
}

func (d *Definition) check() error {
	var errs []error
	if !validKindName(d.name) {
		errs = append(errs, errors.New("the name must be 1 to 64 letters, digits, '-', '_' or '.'"))
	}
	switch {
	case d.state == nil:
		errs = append(errs, errors.New("the state must be a generated protobuf message"))
	case !linked(d.state):
		errs = append(errs, fmt.Errorf("state %s is not linked into the program", d.state.Descriptor().FullName()))
	}
	if len(d.commands)+len(d.events) == 0 {
		errs = append(errs, errors.New("it handles neither commands nor events"))
	}
	if d.window < 0 {
		errs = append(errs, errors.New("its window is negative"))
	}
	if d.schema == 0 {
		errs = append(errs, errors.New("schema versions start at 1"))
	}
	for _, handlers := range []map[protoreflect.FullName]*Handler{d.commands, d.events, d.queries} {
		for name, h := range handlers {
			if !linked(h.Type) {
				errs = append(errs, fmt.Errorf("message %s is not linked into the program", name))
			}
		}
	}
	return errors.Join(append(errs, d.problems...)...)
}

func validKindName(name string) bool {
	if len(name) == 0 || len(name) > 64 {
		return false
	}
	for _, r := range name {
		ok := r == '-' || r == '_' || r == '.' ||
			('0' <= r && r <= '9') || ('a' <= r && r <= 'z') || ('A' <= r && r <= 'Z')
		if !ok {
			return false
		}
	}
	return true
}

// messageType is the type of a message of which there is only the zero value; nil
// for an interface, and for messages that are not generated: dynamic ones have no
// type of their own, and panic.
func messageType(zero proto.Message) (t protoreflect.MessageType) {
	if zero == nil {
		return nil
	}
	defer func() {
		if recover() != nil {
			t = nil
		}
	}()
	return zero.ProtoReflect().Type()
}

// Definer is a kind of any state type.
type Definer interface{ Definition() *Definition }

// Registry is the checked set of kinds of a node. It is immutable and safe for
// concurrent use.
type Registry struct{ kinds map[string]*Definition }

// NewRegistry checks all kinds and names everything that is wrong with them.
func NewRegistry(kinds ...Definer) (*Registry, error) {
	r := &Registry{kinds: make(map[string]*Definition, len(kinds))}
	var errs []error
	for i, k := range kinds {
		var d *Definition
		if k != nil {
			d = k.Definition()
		}
		if d == nil {
			errs = append(errs, fmt.Errorf("kind %d of %d is nil: make kinds with NewKind", i+1, len(kinds)))
			continue
		}
		d.registered.Store(true)
		if err := d.check(); err != nil {
			errs = append(errs, fmt.Errorf("kind %q: %w", d.name, err))
		}
		if _, twice := r.kinds[d.name]; twice {
			errs = append(errs, fmt.Errorf("kind %q is registered twice", d.name))
		}
		r.kinds[d.name] = d
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r, nil
}

// Kind finds a kind by name, nil if it is not registered.
func (r *Registry) Kind(name string) *Definition { return r.kinds[name] }

// Find finds a kind by name. The error, INVALID, lists the kinds that exist: a
// misspelt name must not look like an empty entity.
func (r *Registry) Find(name string) (*Definition, error) {
	if def := r.kinds[name]; def != nil {
		return def, nil
	}
	registered := strings.Join(r.Kinds(), ", ")
	if registered == "" {
		registered = "none"
	}
	return nil, Errorf(Invalid, "kind %.64q is not registered; registered: %s", name, registered)
}

// All are the definitions of all kinds, in any order.
func (r *Registry) All() iter.Seq[*Definition] { return maps.Values(r.kinds) }

// Kinds returns the names of all kinds, in order.
func (r *Registry) Kinds() []string { return slices.Sorted(maps.Keys(r.kinds)) }
