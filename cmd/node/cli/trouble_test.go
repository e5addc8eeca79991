package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"writ/actors/client"
	"writ/actors/entity"
	"writ/actors/gateway"
)

// TestInWords has texts as gRPC really makes them.
func TestInWords(t *testing.T) {
	const addr = "10.0.0.1:7400"
	link := func(desc string) error {
		return status.Error(codes.Unavailable, `connection error: desc = "`+desc+`"`)
	}
	noLeader := gateway.ToStatus(entity.Errorf(entity.NotExecuted, "shard 7 has no leader just now"))
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"refused":     {link("transport: Error while dialing: dial tcp 10.0.0.1:7400: connect: connection refused"), "no node answers at 10.0.0.1:7400: connection refused"},
		"no such":     {link("transport: Error while dialing: dial tcp: lookup n1 on 10.0.0.53:53: no such host"), "no node answers at 10.0.0.1:7400: lookup n1 on 10.0.0.53:53: no such host"},
		"a peer":      {link("transport: Error while dialing: dial tcp 10.0.0.2:7400: connect: connection refused"), "no node answers at 10.0.0.2:7400: connection refused"},
		"frozen":      {link("error reading server preface: read tcp 10.0.0.9:1->10.0.0.1:7400: i/o timeout"), "no node answers at 10.0.0.1:7400: i/o timeout"},
		"HTTP":        {link("error reading server preface: http2: failed reading the frame payload: http2: frame too large, note that the frame header looked like an HTTP/1.1 header"), "what answers at 10.0.0.1:7400 does not speak gRPC: is this a node's gRPC port? Its HTTP port is another one"},
		"exhausted":   {fmt.Errorf("rpc error: code = Unavailable desc = max retries exhausted: failed after 5 attempts: %w", noLeader), "shard 7 has no leader just now"},
		"wrapped":     {status.Error(codes.Unavailable, "max retries exhausted: failed after 5 attempts: rpc error: code = Unavailable desc = shard 7 has no leader just now"), "shard 7 has no leader just now"},
		"cancelled":   {status.Error(codes.Canceled, context.Canceled.Error()), "interrupted"},
		"of a client": {&client.Error{Reason: client.ReasonInvalid, Code: codes.InvalidArgument, Message: "no", Attempts: 1}, "INVALID: no"},
		"of a read":   {&client.Error{Code: codes.Unavailable, Message: "context deadline exceeded; last answer: shard 7 has no leader", Attempts: 9}, "timed out; last answer: shard 7 has no leader"},
		"of the rest": {errors.New("of the disk"), "of the disk"},
		"end":         {io.EOF, "EOF"},
	} {
		if got := inWords(tt.err, addr); got.Error() != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	words := inWords(noLeader, addr)
	if status.Code(words) != codes.Unavailable || reasonOf(status.Convert(words)) != "NOT_EXECUTED" || silent(words) || !silent(inWords(link("EOF"), addr)) {
		t.Errorf("%v has lost its code or its reason", words)
	}
}
