package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"writ/actors/client"
	nodev1 "writ/proto/writ/node/v1"

	// The example's messages, so that --json and --file can name them.
	_ "writ/proto/writ/account/v1"
)

// target is the cluster that a subcommand talks to.
type target struct {
	Addr  []string `default:"127.0.0.1:7400" env:"WRIT_ADDR" help:"gRPC addresses of nodes; any one will do, several survive a dead one."`
	Token string   `env:"WRIT_TOKEN" help:"Bearer token, where the cluster asks for one."`
}

func (t target) client() (*client.Client, func(), error) {
	cl, err := client.New(client.Config{Addresses: t.Addr, Token: t.Token})
	if err != nil {
		return nil, nil, err
	}
	return cl, func() { _ = cl.Close() }, nil
}

// entityFlags name one entity.
type entityFlags struct {
	Kind string `required:"" help:"Kind of the entity, e.g. account."`
	ID   string `required:"" name:"id" help:"Id of the entity."`
}

// adminRetries lets gRPC repeat an operator's call while a shard changes its
// leader. All of them may be repeated: they read, or set what is to be.
const adminRetries = `{"methodConfig": [{
	"name": [{"service": "writ.node.v1.AdminService"}],
	"retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.2s", "maxBackoff": "2s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["UNAVAILABLE"]}
}]}`

// admin connects to the first node that answers an operator's call.
func (t target) admin(ctx context.Context) (nodev1.AdminServiceClient, func(), error) {
	conn, closeConn, err := t.connect(func(conn *grpc.ClientConn) error {
		_, err := nodev1.NewAdminServiceClient(conn).Status(ctx, &nodev1.StatusRequest{})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return nodev1.NewAdminServiceClient(conn), closeConn, nil
}

// connect connects to the first node that passes a probe.
func (t target) connect(probe func(*grpc.ClientConn) error) (*grpc.ClientConn, func(), error) {
	var errs []error
	for _, addr := range t.Addr {
		conn, err := grpc.NewClient(addr,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithNoProxy(),
			grpc.WithDefaultServiceConfig(adminRetries),
			grpc.WithUnaryInterceptor(bearerUnary(t.Token)),
			grpc.WithStreamInterceptor(bearerStream(t.Token)))
		if err != nil {
			return nil, nil, fmt.Errorf("address %q: %w", addr, err)
		}
		if err = probe(conn); err == nil {
			return conn, func() { _ = conn.Close() }, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", addr, err))
		_ = conn.Close()
	}
	return nil, nil, fmt.Errorf("no node answers: %w", errors.Join(errs...))
}

func withBearer(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

func bearerUnary(token string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return invoke(withBearer(ctx, token), method, req, reply, conn, opts...)
	}
}

func bearerStream(token string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return stream(withBearer(ctx, token), desc, conn, method, opts...)
	}
}

// jsonFlag is --json in `node submit`: with a text that begins with "{" it is
// the command's body, without one it asks for the summary as JSON.
type jsonFlag struct {
	body   string
	output bool
}

// Decode implements kong.MapperValue.
func (f *jsonFlag) Decode(ctx *kong.DecodeContext) error { //nolint:unparam // the interface wants an error
	next := ctx.Scan.Peek()
	text, isText := next.Value.(string)
	if (next.IsValue() || next.Type == kong.UntypedToken) && isText && strings.HasPrefix(strings.TrimSpace(text), "{") {
		ctx.Scan.Pop()
		f.body = text
		return nil
	}
	f.output = true
	return nil
}

// IsBool implements kong.BoolMapperValue: the flag may stand alone.
func (f *jsonFlag) IsBool() bool { return true }

// parseCommand makes a command from its type's full name and its JSON fields.
func parseCommand(typeName, body string) (proto.Message, error) {
	mt, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(typeName))
	if err != nil {
		return nil, fmt.Errorf("command type %q is not known to this program; use the full name, e.g. writ.account.v1.Deposit", typeName)
	}
	m := mt.New().Interface()
	if err := protojson.Unmarshal([]byte(body), m); err != nil {
		return nil, fmt.Errorf("command %s: %w", typeName, err)
	}
	return m, nil
}

// parseAny reads a command that carries its own "@type".
func parseAny(body []byte) (proto.Message, error) {
	var packed anypb.Any
	if err := protojson.Unmarshal(body, &packed); err != nil {
		return nil, err
	}
	return packed.UnmarshalNew()
}

// messageJSON is a message as JSON under its fields' own names, as they are
// written in commands. Nil stays null.
func messageJSON(m proto.Message) json.RawMessage {
	if m == nil {
		return nil
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		// An Any whose type is not linked in.
		text, _ = json.Marshal(err.Error())
	}
	return text
}

// printMessage writes a message as indented JSON.
func printMessage(w io.Writer, m proto.Message) error { return printJSON(w, messageJSON(m)) }

// printJSON writes v as indented JSON with a newline.
func printJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, string(text))
	return err
}
