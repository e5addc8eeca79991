// Command alarm is a node that has one kind more than the released one: "alarm",
// an entity that sets timers and keeps how late each of them was. The test driver
// starts it with the flags of "node serve".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/account"
	"writ/actors/entity"
	"writ/cmd/node/node"
)

func main() {
	if err := serve(os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// alarm is set by one command, "set N MILLISECOND APART", to N timers from a time
// on, and its state holds a list for each of them: the microseconds by which it
// fired too late, every time that it did.
func alarm() entity.Definer {
	k := entity.NewKind[*structpb.Struct]("alarm")
	entity.Handle(k, func(c *entity.Context, s *structpb.Struct, cmd *wrapperspb.StringValue) (*structpb.Struct, error) {
		if name, fires := strings.CutPrefix(cmd.GetValue(), "fire "); fires {
			if s.Fields == nil {
				s.Fields = map[string]*structpb.Value{}
			}
			late := structpb.NewNumberValue(float64(time.Since(c.Due()).Microseconds()))
			before := s.Fields[name].GetListValue().GetValues()
			s.Fields[name] = structpb.NewListValue(&structpb.ListValue{Values: append(before, late)})
			return nil, nil
		}
		var n int
		var first, apart int64
		if _, err := fmt.Sscanf(cmd.GetValue(), "set %d %d %d", &n, &first, &apart); err != nil {
			return nil, c.Reject(entity.OutOfRange, "MALFORMED", "set N MILLISECOND APART: %v", err)
		}
		for i := range n {
			name := fmt.Sprint(i)
			c.SetTimer(name, entity.Timer{At: time.UnixMilli(first + int64(i)*apart), Command: &wrapperspb.StringValue{Value: "fire " + name}})
		}
		return nil, nil
	})
	return k
}

func serve(args []string) error {
	if len(args) == 0 || args[0] != "serve" {
		return errors.New("usage: alarm serve FLAGS")
	}
	cfg := node.Config{Kinds: append(account.Kinds(), alarm()), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	for name, field := range map[string]*string{
		"id": &cfg.ID, "dir": &cfg.Dir, "cluster": &cfg.Cluster, "grpc": &cfg.GRPC, "http": &cfg.HTTP, "gossip": &cfg.Gossip, "raft": &cfg.Raft,
	} {
		flags.StringVar(field, name, "", "as of node serve")
	}
	for name, field := range map[string]*[]string{"initial-nodes": &cfg.InitialNodes, "join": &cfg.Join} {
		flags.Func(name, "as of node serve", func(list string) error {
			*field = strings.Split(list, ",")
			return nil
		})
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	n, err := node.Start(ctx, cfg)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case err = <-n.Failed():
	}
	ending, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(err, n.Stop(ending))
}
