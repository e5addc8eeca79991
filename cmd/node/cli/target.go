package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"writ/actors/client"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"

	// The example's messages are known without asking a node.
	_ "writ/proto/writ/account/v1"
)

// target is the cluster that a subcommand talks to.
type target struct {
	Addr  []string `default:"127.0.0.1:7400" env:"WRIT_ADDR" help:"gRPC addresses of nodes, host:port; any one will do, several survive a dead one."`
	Token string   `env:"WRIT_TOKEN" help:"Bearer token, where the cluster asks for one."`

	wait *patience
}

// AfterApply checks the addresses before anything waits for an answer from them.
func (t *target) AfterApply(std streams) error {
	t.wait = newPatience(std.err)
	for _, addr := range t.Addr {
		if err := client.CheckAddress(addr); err != nil {
			return fmt.Errorf("--addr: %w", err)
		}
	}
	return nil
}

func (t *target) client() (*client.Client, func(), error) {
	cl, err := client.New(client.Config{Addresses: t.Addr, Token: t.Token, Troubled: func(e *client.Error) {
		t.wait.trouble(inWords(&client.Error{Message: e.Message, Address: e.Address}, ""))
	}})
	if err != nil {
		return nil, nil, err
	}
	return cl, func() {
		t.wait.over()
		_ = cl.Close()
	}, nil
}

// entityFlags name one entity.
type entityFlags struct {
	Kind string `required:"" help:"Kind of the entity, e.g. account."`
	ID   string `required:"" name:"id" help:"Id of the entity."`
}

// adminRetries lets gRPC repeat an operator's call while a shard changes its
// leader. All of them may be repeated: they read, or set what is to be. The probes
// of connect have a loop of their own.
const adminRetries = `{"methodConfig": [{
	"name": [{"service": "writ.node.v1.AdminService", "method": "Status"}]
}, {
	"name": [{"service": "writ.node.v1.AdminService"}],
	"retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.2s", "maxBackoff": "2s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["UNAVAILABLE"]}
}]}`

const (
	// connectFor is how long a verb waits for a node that answers, and probeFor how
	// long for the answer of one of them.
	connectFor   = 5 * time.Second
	probeFor     = 5 * time.Second
	connectPause = 250 * time.Millisecond
)

// admin connects to the first node that answers an operator's call and knows the
// cluster's shards.
func (t *target) admin(ctx context.Context) (nodev1.AdminServiceClient, func(), error) {
	conn, closeConn, err := t.connect(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := nodev1.NewAdminServiceClient(conn).Status(ctx, &nodev1.StatusRequest{})
		if err != nil {
			return err
		}
		return knowsShards(s)
	})
	if err != nil {
		return nil, nil, err
	}
	return nodev1.NewAdminServiceClient(conn), closeConn, nil
}

// knowsShards refuses the word of a node that belongs to no cluster yet, or not again
// after a loss of memory: a list of no shards would look like one of which nothing is
// to be told.
func knowsShards(s *nodev1.StatusResponse) error {
	if len(s.GetMeta().GetShards()) > 0 {
		return nil
	}
	return noNews("node %s knows of no shards: name another one in --addr, or wait until it is ready (its /readyz says for what it waits)", s.GetNode())
}

// connect connects to the first node that passes a probe. It goes round until one
// does, until one answers what asking again does not change, or for connectFor.
func (t *target) connect(ctx context.Context, probe func(context.Context, *grpc.ClientConn) error) (*grpc.ClientConn, func(), error) {
	defer t.wait.over()
	over := time.Now().Add(connectFor)
	var last error // of a whole round: one that the end cut short says nothing of the nodes
	for {
		var errs []error
		other := 0
		for _, addr := range t.Addr {
			conn, err := t.dial(addr)
			if err != nil {
				return nil, nil, err
			}
			probeCtx, cancel := context.WithTimeout(ctx, probeFor)
			err = probe(probeCtx, conn)
			cancel()
			if err == nil {
				return conn, func() { _ = conn.Close() }, nil
			}
			_ = conn.Close()
			if status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil {
				err = &callError{text: fmt.Sprintf("no node answers at %s: nothing came within %v", addr, probeFor), err: err}
			}
			if !silent(err) && status.Code(err) != codes.Unavailable {
				return nil, nil, err
			}
			if speaksOther(err) {
				other++
			}
			errs = append(errs, err)
		}
		err := errors.Join(errs...)
		if last != nil && ctx.Err() != nil {
			return nil, nil, last
		}
		last = err
		if other == len(errs) || time.Now().After(over) {
			return nil, nil, err
		}
		t.wait.trouble(errs[0])
		pause := time.NewTimer(connectPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, nil, err
		}
	}
}

// answerMax is the largest answer to an operator, bytes: what a node may send is set
// on the node, and gRPC's own limit is smaller than one event may be.
const answerMax = 256 << 20

// dial prepares the connection of operators to a node.
func (t *target) dial(addr string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, // the dialer resolves names, at each dial
		append([]grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithNoProxy(),
			node.OperatorPings(),
			grpc.WithDefaultServiceConfig(adminRetries),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerMax)),
			grpc.WithChainUnaryInterceptor(wordsUnary(addr), bearerUnary(t.Token)),
			grpc.WithChainStreamInterceptor(wordsStream(addr), bearerStream(t.Token)),
		}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	return conn, nil
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
func (f *jsonFlag) Decode(ctx *kong.DecodeContext) error {
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

// messageJSON is a message as JSON under its fields' own names, as they are
// written in commands. Nil stays null.
func messageJSON(m proto.Message) json.RawMessage { return toJSON(m, nil) }

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
