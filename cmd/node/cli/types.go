package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/grpc"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"

	recordv1 "writ/proto/writ/record/v1"
)

// messageTypes finds the messages of commands, replies and states: those linked
// into this program, and those of the kinds of others, which a node tells by gRPC
// server reflection. It is for one goroutine.
type messageTypes struct {
	ctx    context.Context //nolint:containedctx // protojson asks without one; it is that of the subcommand
	target *target
	conn   *grpc.ClientConn // nil until a node was asked
	shut   func()
	// files are all that nodes have told, by path, and told what is made of them.
	files map[string]*descriptorpb.FileDescriptorProto
	told  *dynamicpb.Types
	// silent is why no node could be asked: each further question would wait as long.
	silent error
}

// types looks messages up, at the nodes of t where this program lacks them. Close
// it after use.
func (t *target) types(ctx context.Context) *messageTypes {
	return &messageTypes{ctx: ctx, target: t, files: map[string]*descriptorpb.FileDescriptorProto{}, told: dynamicpb.NewTypes(new(protoregistry.Files))}
}

// Close ends the connection, if there is one.
func (m *messageTypes) Close() {
	if m.shut != nil {
		m.shut()
	}
}

// FindMessageByName implements protoregistry.MessageTypeResolver.
func (m *messageTypes) FindMessageByName(name protoreflect.FullName) (protoreflect.MessageType, error) {
	if mt, err := protoregistry.GlobalTypes.FindMessageByName(name); err == nil {
		return mt, nil
	}
	if mt, err := m.told.FindMessageByName(name); err == nil {
		return mt, nil
	}
	if err := m.ask(name); err != nil {
		return nil, err
	}
	return m.told.FindMessageByName(name)
}

// FindMessageByURL implements protoregistry.MessageTypeResolver.
func (m *messageTypes) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	return m.FindMessageByName(protoreflect.FullName(url[strings.LastIndexByte(url, '/')+1:]))
}

// FindExtensionByName implements protoregistry.ExtensionTypeResolver.
func (m *messageTypes) FindExtensionByName(name protoreflect.FullName) (protoreflect.ExtensionType, error) {
	return protoregistry.GlobalTypes.FindExtensionByName(name)
}

// FindExtensionByNumber implements protoregistry.ExtensionTypeResolver.
func (m *messageTypes) FindExtensionByNumber(message protoreflect.FullName, field protoreflect.FieldNumber) (protoreflect.ExtensionType, error) {
	return protoregistry.GlobalTypes.FindExtensionByNumber(message, field)
}

// unknownTypeError is a type that neither this program nor the node knows.
type unknownTypeError struct{ name protoreflect.FullName }

func (e *unknownTypeError) Error() string {
	return fmt.Sprintf("message type %q is known neither to this program nor to the node; give its full name, e.g. writ.account.v1.Deposit", e.name)
}

// ask has a node describe a message.
func (m *messageTypes) ask(name protoreflect.FullName) error {
	if !name.IsValid() {
		return &unknownTypeError{name}
	}
	if m.conn == nil {
		if m.silent != nil {
			return m.silent
		}
		conn, shut, err := m.target.connect(m.ctx, answersReflection)
		if err != nil {
			m.silent = err
			return err
		}
		m.conn, m.shut = conn, shut
	}
	files, err := describe(m.ctx, m.conn, name)
	if err != nil {
		return err
	}
	for _, text := range files {
		file := new(descriptorpb.FileDescriptorProto)
		if err := proto.Unmarshal(text, file); err != nil {
			return fmt.Errorf("description of %s: %w", name, err)
		}
		m.files[file.GetName()] = file
	}
	set := new(descriptorpb.FileDescriptorSet)
	for _, file := range m.files {
		set.File = append(set.File, file)
	}
	made, err := protodesc.NewFiles(set)
	if err != nil {
		return fmt.Errorf("description of %s: %w", name, err)
	}
	m.told = dynamicpb.NewTypes(made)
	return nil
}

// answersReflection is a probe: the node answers, and describes itself.
func answersReflection(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := exchange(ctx, conn, &reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	})
	return err
}

// describe asks for the file that holds a message; the answer has all files that it
// needs.
func describe(ctx context.Context, conn *grpc.ClientConn, name protoreflect.FullName) ([][]byte, error) {
	res, err := exchange(ctx, conn, &reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: string(name)},
	})
	if err != nil {
		return nil, err
	}
	if files := res.GetFileDescriptorResponse().GetFileDescriptorProto(); len(files) > 0 {
		return files, nil
	}
	return nil, &unknownTypeError{name}
}

func exchange(ctx context.Context, conn *grpc.ClientConn, req *reflectionv1.ServerReflectionRequest) (*reflectionv1.ServerReflectionResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(req); err != nil {
		// Send says only that the stream has ended; Recv says why.
		_, err = stream.Recv()
		return nil, err
	}
	return stream.Recv()
}

// parseCommand makes a command from its type's full name and its JSON fields.
func (m *messageTypes) parseCommand(typeName, body string) (proto.Message, error) {
	mt, err := m.FindMessageByName(protoreflect.FullName(typeName))
	if err != nil {
		return nil, err
	}
	command := mt.New().Interface()
	if err := (protojson.UnmarshalOptions{Resolver: m}).Unmarshal([]byte(body), command); err != nil {
		return nil, fmt.Errorf("command %s: %w", typeName, nameFields(err, mt.Descriptor(), []byte(body)))
	}
	return command, nil
}

var unknownField = regexp.MustCompile(`unknown field "([^"]*)"`)

// nameFields adds the fields of a message to the error about one that it does not
// have. A field of a message inside it is not its own.
func nameFields(err error, message protoreflect.MessageDescriptor, body []byte) error {
	found := unknownField.FindStringSubmatch(err.Error())
	var own map[string]json.RawMessage
	if found == nil || json.Unmarshal(body, &own) != nil {
		return err
	}
	fields := message.Fields()
	if _, top := own[found[1]]; !top || fields.ByTextName(found[1]) != nil || fields.ByJSONName(found[1]) != nil {
		return err
	}
	var names []string
	for i := range fields.Len() {
		names = append(names, fields.Get(i).TextName())
	}
	return fmt.Errorf("%w; its fields: %s", err, or(strings.Join(names, ", "), "none"))
}

// parseAny reads a command that carries its own "@type".
func (m *messageTypes) parseAny(body []byte) (proto.Message, error) {
	var named struct {
		Type string `json:"@type"`
	}
	var mt protoreflect.MessageType
	// protojson says only that the type is not found.
	if err := json.Unmarshal(body, &named); err == nil && named.Type != "" {
		if mt, err = m.FindMessageByURL(named.Type); err != nil {
			return nil, err
		}
	}
	var packed anypb.Any
	if err := (protojson.UnmarshalOptions{Resolver: m}).Unmarshal(body, &packed); err != nil {
		if mt != nil {
			err = nameFields(err, mt.Descriptor(), body)
		}
		return nil, err
	}
	return anypb.UnmarshalNew(&packed, proto.UnmarshalOptions{Resolver: m})
}

// json is messageJSON for what package client has received: a message whose type
// is not linked in comes as an Any.
func (m *messageTypes) json(message proto.Message) json.RawMessage {
	if packed, ok := message.(*anypb.Any); ok {
		if known, err := anypb.UnmarshalNew(packed, proto.UnmarshalOptions{Resolver: m}); err == nil {
			message = known
		}
	}
	return toJSON(message, m)
}

// payload is an event as JSON, or its bytes in base64 if nobody knows its type.
func (m *messageTypes) payload(p *recordv1.Payload) string {
	if mt, err := m.FindMessageByName(protoreflect.FullName(p.GetType())); err == nil {
		event := mt.New().Interface()
		if proto.Unmarshal(p.GetData(), event) == nil {
			if text, err := (protojson.MarshalOptions{Resolver: m}).Marshal(event); err == nil {
				return string(text)
			}
		}
	}
	return base64.StdEncoding.EncodeToString(p.GetData())
}

func toJSON(m proto.Message, types *messageTypes) json.RawMessage {
	if m == nil {
		return nil
	}
	o := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}
	if types != nil {
		o.Resolver = types
	}
	text, err := o.Marshal(m)
	if packed, ok := m.(*anypb.Any); err != nil && ok {
		// Nobody knows its type.
		text, err = json.Marshal(map[string]any{"@type": packed.GetTypeUrl(), "value": packed.GetValue()})
	}
	if err != nil {
		text, _ = json.Marshal(err.Error())
	}
	return text
}

// isUnknownType reports whether err is about a type that nobody knows.
func isUnknownType(err error) bool {
	_, ok := errors.AsType[*unknownTypeError](err)
	return ok
}
