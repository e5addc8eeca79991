package gateway

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/actors/entity"
	writv1 "writ/proto/writ/v1"
)

// form checks requests before they are routed: what it refuses was executed
// nowhere. It is immutable and safe for concurrent use.
type form struct {
	registry *entity.Registry
	limits   Limits
	names    NameLimits
	commands map[string]string // kind → its commands, for texts
	queries  map[string]string
}

func newForm(registry *entity.Registry, limits Limits, names NameLimits) *form {
	kinds := registry.Kinds()
	f := &form{
		registry: registry,
		limits:   limits,
		names:    names,
		commands: make(map[string]string, len(kinds)),
		queries:  make(map[string]string, len(kinds)),
	}
	for _, kind := range kinds {
		def := registry.Kind(kind)
		f.commands[kind] = known(def.Command)
		f.queries[kind] = known(def.Query)
	}
	return f
}

// known lists the messages for which find has a handler. All of them are linked
// into the program: the registry has checked that.
func known(find func(name string) *entity.Handler) string {
	var names []string
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		if name := string(mt.Descriptor().FullName()); find(name) != nil {
			names = append(names, name)
		}
		return true
	})
	slices.Sort(names)
	return list(names)
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// submit checks a command. The result is a request with the key in its place;
// the one given is not changed.
func (f *form) submit(ctx context.Context, req *writv1.SubmitRequest) (*writv1.SubmitRequest, error) {
	if err := noUnknownAround(req, req.GetEntity(), req.GetCommand(), req.GetIssuedAt()); err != nil {
		return nil, err
	}
	def, err := f.entity(req.GetEntity())
	if err != nil {
		return nil, err
	}
	handler, err := f.payload("command", f.commands[def.Name()], def.Command, req.GetCommand())
	if err != nil {
		return nil, err
	}
	key, err := f.key(ctx, req, handler.AtLeastOnce)
	if err != nil {
		return nil, err
	}
	if err := issued(req.GetIssuedAt()); err != nil {
		return nil, err
	}
	if key == req.GetIdempotencyKey() && len(req.GetIdempotencyKeyBytes()) == 0 {
		return req, nil
	}
	checked := &writv1.SubmitRequest{
		Entity:    req.GetEntity(),
		Command:   req.GetCommand(),
		IssuedAt:  req.GetIssuedAt(),
		Tag:       req.GetTag(),
		IfVersion: req.IfVersion,
		NoWait:    req.GetNoWait(),
	}
	checked.IdempotencyKey, checked.IdempotencyKeyBytes = keyFields(key)
	return checked, nil
}

// read checks a read.
func (f *form) read(req *writv1.ReadRequest) error {
	if err := noUnknownAround(req, req.GetEntity(), req.GetQuery()); err != nil {
		return err
	}
	def, err := f.entity(req.GetEntity())
	if err != nil {
		return err
	}
	if _, ok := writv1.Consistency_name[int32(req.GetConsistency())]; !ok {
		return entity.Errorf(entity.Invalid, "consistency %d is not known here: use LINEARIZABLE or STALE", req.GetConsistency())
	}
	if req.GetQuery() == nil {
		return nil
	}
	_, err = f.payload("query", f.queries[def.Name()], def.Query, req.GetQuery())
	return err
}

// outcome checks a call of Outcome or Cancel, and puts the key in its place.
func (f *form) outcome(ctx context.Context, req *writv1.OutcomeRequest) (*writv1.OutcomeRequest, error) {
	if err := noUnknownAround(req, req.GetEntity(), req.GetIssuedAt()); err != nil {
		return nil, err
	}
	def, err := f.entity(req.GetEntity())
	if err != nil {
		return nil, err
	}
	name := req.GetCommandType()
	handler := def.Command(name)
	if handler == nil {
		return nil, unknownType("command", name, f.commands[def.Name()])
	}
	if handler.AtLeastOnce {
		return nil, entity.Errorf(entity.Invalid, "command %s is at least once: no key and no outcome of it is kept", name)
	}
	key, err := f.key(ctx, req, false)
	if err != nil {
		return nil, err
	}
	if err := issued(req.GetIssuedAt()); err != nil {
		return nil, err
	}
	checked := &writv1.OutcomeRequest{Entity: req.GetEntity(), CommandType: name, IssuedAt: req.GetIssuedAt()}
	checked.IdempotencyKey, checked.IdempotencyKeyBytes = keyFields(key)
	return checked, nil
}

func (f *form) entity(ref *writv1.EntityRef) (*entity.Definition, error) {
	if ref == nil {
		return nil, entity.Errorf(entity.Invalid, "the request names no entity: set entity.kind and entity.id")
	}
	def, err := f.registry.Find(ref.GetKind())
	if err != nil {
		return nil, err
	}
	switch n, most := len(ref.GetId()), f.names.Name; {
	case n == 0:
		return nil, entity.Errorf(entity.Invalid, "entity.id must be 1 to %d bytes, has %d", most, n)
	case n > most:
		return nil, entity.OverLimit("entity's id", "entities.Name", n, most)
	}
	if !utf8.ValidString(ref.GetId()) {
		return nil, entity.Errorf(entity.Invalid, "entity.id must be UTF-8")
	}
	return def, nil
}

// keyed is a request with an idempotency key.
type keyed interface {
	GetIdempotencyKey() string
	GetIdempotencyKeyBytes() []byte
}

// keyFields are the fields of a request for a key: a text as such, other bytes
// apart, since a protobuf string must be UTF-8.
func keyFields(key string) (text string, raw []byte) {
	if utf8.ValidString(key) {
		return key, nil
	}
	return "", []byte(key)
}

// key takes the key from the request or from the metadata.
func (f *form) key(ctx context.Context, req keyed, optional bool) (string, error) {
	key, empty := req.GetIdempotencyKey(), ""
	given := []string{string(req.GetIdempotencyKeyBytes())}
	for _, header := range []string{keyHeader, keyBytesHeader} {
		values := metadata.ValueFromIncomingContext(ctx, header)
		if slices.Contains(values, "") {
			empty = header
		}
		given = append(given, values...)
	}
	for _, v := range given {
		if key != "" && v != "" && v != key {
			return "", entity.Errorf(entity.Invalid,
				"the call names two idempotency keys: send one, in the request or as metadata %s", keyHeader)
		}
		key = cmp.Or(key, v)
	}
	switch {
	case key != "" && empty != "":
		return "", entity.Errorf(entity.Invalid, "the metadata %s is empty, and the call has an idempotency key: leave the metadata out", empty)
	case key == "" && optional:
		return "", nil
	case key == "":
		return "", entity.Errorf(entity.Invalid,
			"the idempotency key is missing: set idempotency_key or the metadata %s, and send the same key again in every retry", keyHeader)
	case len(key) > f.names.Key:
		return "", entity.OverLimit("idempotency key", "entities.Key", len(key), f.names.Key)
	}
	return key, nil
}

// payload finds the handler of a command or query and decodes the message.
func (f *form) payload(what, registered string, find func(string) *entity.Handler, packed *anypb.Any) (*entity.Handler, error) {
	if packed == nil {
		return nil, entity.Errorf(entity.Invalid, "the request holds no %s", what)
	}
	url := packed.GetTypeUrl()
	name := url[strings.LastIndexByte(url, '/')+1:]
	handler := find(name)
	if handler == nil {
		return nil, unknownType(what, name, registered)
	}
	if size := len(packed.GetValue()); size > f.limits.Command {
		return nil, entity.OverLimit(what+" "+name, "gateway.Command", size, f.limits.Command)
	}
	message := handler.Type.New().Interface()
	if err := proto.Unmarshal(packed.GetValue(), message); err != nil {
		return nil, entity.Errorf(entity.Invalid, "%s %s does not decode: %s", what, name, plain(err))
	}
	if err := noUnknown(what+" "+name, message); err != nil {
		return nil, err
	}
	return handler, nil
}

func unknownType(what, name, registered string) error {
	return entity.Errorf(entity.Invalid, "%s %q is not registered for this kind; registered: %s", what, short(name, 128), registered)
}

// noUnknown refuses a payload with fields that this node does not know. To drop
// what a client meant is worse than to refuse it.
func noUnknown(what string, m proto.Message) error {
	if path, found := entity.UnknownField(m); found {
		return unknownFieldAt(what, path)
	}
	return nil
}

// noUnknownAround does the same for the messages around a payload, into which it
// does not look: a field of a newer version could have limited what it does.
func noUnknownAround(messages ...proto.Message) error {
	for _, m := range messages {
		fields := m.ProtoReflect().GetUnknown() // empty for a nil message
		if len(fields) == 0 {
			continue
		}
		number, _, _ := protowire.ConsumeTag(fields)
		return unknownFieldAt(string(m.ProtoReflect().Descriptor().Name()), fmt.Sprint(number))
	}
	return nil
}

func unknownFieldAt(what, path string) error {
	return entity.Errorf(entity.Invalid,
		"%s has a field that this node does not know: %s; upgrade the nodes before the clients", what, path).With("field", path)
}

// plain is the text of a protobuf error, without the random space that keeps
// programs from depending on it. What it unwraps to names no field.
func plain(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
}

// issued checks the form of issued_at. How far it may lie ahead is for the leader
// to say, after it has looked the key up.
func issued(at *timestamppb.Timestamp) error {
	if at == nil {
		return nil
	}
	if err := at.CheckValid(); err != nil {
		return entity.Errorf(entity.Invalid, "issued_at is not a timestamp: %s", plain(err))
	}
	if at.AsTime().Before(time.Unix(0, 0)) {
		return entity.Errorf(entity.Invalid, "issued_at lies before 1970: leave it unset or give the time of the first attempt")
	}
	return nil
}
