package chaos

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	accountv1 "writ/proto/writ/account/v1"
	writv1 "writ/proto/writ/v1"
)

// packed is a command as bytes of a type.
func packed(t *testing.T, m proto.Message, extra ...byte) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	must(t, err)
	a.Value = append(a.Value, extra...)
	return a
}

// badInput is a call that must be refused with INVALID_ARGUMENT.
type badInput struct {
	name, reason string
	// word must be in the message: it names what is wrong.
	word string
	req  *writv1.SubmitRequest
}

func badInputs(t *testing.T) []badInput {
	t.Helper()
	deposit := &accountv1.Deposit{AmountMinor: 1, Currency: currency}
	request := func(change func(*writv1.SubmitRequest)) *writv1.SubmitRequest {
		req := &writv1.SubmitRequest{Entity: &writv1.EntityRef{Kind: "account", Id: "bad"}, IdempotencyKey: "bad", Command: packed(t, deposit)}
		change(req)
		return req
	}
	unknownField := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 7)
	return []badInput{
		{"unknown kind", "INVALID", "nosuch", request(func(r *writv1.SubmitRequest) { r.Entity.Kind = "nosuch" })},
		{"missing kind", "INVALID", "kind", request(func(r *writv1.SubmitRequest) { r.Entity.Kind = "" })},
		{"missing id", "INVALID", "id", request(func(r *writv1.SubmitRequest) { r.Entity.Id = "" })},
		{"missing entity", "INVALID", "", request(func(r *writv1.SubmitRequest) { r.Entity = nil })},
		{"missing key", "INVALID", "key", request(func(r *writv1.SubmitRequest) { r.IdempotencyKey = "" })},
		{"256-byte key", "TOO_LARGE", "255", request(func(r *writv1.SubmitRequest) { r.IdempotencyKey = strings.Repeat("k", 256) })},
		{"missing command", "INVALID", "command", request(func(r *writv1.SubmitRequest) { r.Command = nil })},
		{"unknown field", "INVALID", "99", request(func(r *writv1.SubmitRequest) { r.Command = packed(t, deposit, unknownField...) })},
		{"broken bytes", "INVALID", "", request(func(r *writv1.SubmitRequest) { r.Command = packed(t, deposit, 0xff, 0xff) })},
		{"not a command", "INVALID", "Balance", request(func(r *writv1.SubmitRequest) { r.Command = packed(t, &accountv1.Balance{}) })},
		{"unknown type", "INVALID", "no.Such", request(func(r *writv1.SubmitRequest) {
			r.Command = &anypb.Any{TypeUrl: "type.googleapis.com/no.Such"}
		})},
		{"oversize payload", "TOO_LARGE", "", request(func(r *writv1.SubmitRequest) {
			r.Command = packed(t, &accountv1.Deposit{AmountMinor: 1, Currency: currency, Reference: strings.Repeat("x", 5<<20)})
		})},
	}
}

// Bad input over gRPC gets a clear error and changes nothing.
func TestProcessBadInput(t *testing.T) {
	t.Parallel()
	r := start(t, ProcessConfig{Nodes: []string{"n1"}})
	ctx := within(t, 2*time.Minute)
	for _, c := range badInputs(t) {
		t.Run("grpc "+c.name, func(t *testing.T) {
			_, err := r.links.Entity("n1").Submit(ctx, c.req)
			a := failure(err, nil)
			if a.Code != codes.InvalidArgument || a.Reason != c.reason || !strings.Contains(a.Text, c.word) || len(a.Text) > 2<<10 {
				t.Errorf("%v %s %q; want InvalidArgument %s with %q in it", a.Code, a.Reason, a.Text, c.reason, c.word)
			}
		})
	}
	t.Run("grpc key in the metadata and another in the message", func(t *testing.T) {
		r.twoKeys(ctx, t)
	})
	t.Run("command line", func(t *testing.T) { r.badCommandLine(ctx, t) })
	t.Run("serve", func(t *testing.T) { r.badServe(t) })

	report := r.audit()
	if report.Keys != 0 || report.Effects != 0 {
		t.Errorf("bad input has left %d keys and %d effects", report.Keys, report.Effects)
	}
	if a := call(ctx, r.links.Entity("n1"), Op{Action: Read, Account: "bad"}); a.Verdict != Executed || a.Balance.Amount != 0 || a.Version != 0 {
		t.Errorf("bad input has changed the account: %+v", a)
	}
}

// badCommandLine tries wrong calls of the subcommands: a non-zero exit, and a
// line that says what is wrong.
func (r *rig) badCommandLine(ctx context.Context, t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "commands.jsonl")
	lines := func(text string) []string {
		return []string{"submit", "--addr", r.addr(), "--file", file, "--json", "\x00" + text}
	}
	one := func(args ...string) []string {
		return append([]string{"submit", "--addr", r.addr(), "--timeout", "5s"}, args...)
	}
	const deposit = "writ.account.v1.Deposit"
	body := `{"amount_minor":1,"currency":"EUR"}`
	for name, c := range map[string]struct {
		args []string
		word string
	}{
		"unknown kind":          {one("--kind", "nosuch", "--id", "bad", "--key", "k", "--command", deposit, "--json", body), "nosuch"},
		"missing key":           {one("--kind", "account", "--id", "bad", "--command", deposit, "--json", body), "--key"},
		"256-byte key":          {one("--kind", "account", "--id", "bad", "--key", strings.Repeat("k", 256), "--command", deposit, "--json", body), "255"},
		"unknown field":         {one("--kind", "account", "--id", "bad", "--key", "k", "--command", deposit, "--json", `{"no_such":1}`), "no_such"},
		"wrong type of a field": {one("--kind", "account", "--id", "bad", "--key", "k", "--command", deposit, "--json", `{"amount_minor":"x"}`), "amount"},
		"unknown command":       {one("--kind", "account", "--id", "bad", "--key", "k", "--command", "no.Such"), "no.Such"},
		"not a command":         {one("--kind", "account", "--id", "bad", "--key", "k", "--command", "writ.account.v1.Balance"), "Balance"},
		"file is missing":       {[]string{"submit", "--addr", r.addr(), "--file", file + ".no"}, "no such file"},
		"file is no JSON":       {lines("hello\n"), "line 1"},
		"line without a key":    {lines(`{"kind":"account","id":"bad","command":{"@type":"type.googleapis.com/` + deposit + `"}}` + "\n"), "key"},
		"line of another kind":  {lines(`{"kind":"account","id":"bad","key":"k","command":{"@type":"type.googleapis.com/no.Such"}}` + "\n"), "no.Such"},
		"nobody there":          {[]string{"audit", "--addr", "127.0.0.1:1"}, "127.0.0.1:1"},
		"unknown flag":          {[]string{"serve", "--no-such"}, "no-such"},
	} {
		args := c.args
		if last := args[len(args)-1]; strings.HasPrefix(last, "\x00") {
			must(t, os.WriteFile(file, []byte(last[1:]), 0o600))
			args = args[:len(args)-1]
		}
		res, err := r.cli.Run(ctx, args...)
		must(t, err)
		if res.Code == 0 || !strings.Contains(string(res.Stderr), c.word) {
			t.Errorf("%s: exit %d, %q%q; want a failure that names %q", name, res.Code, res.Stdout, res.Stderr, c.word)
		}
	}
}

// badServe starts nodes that cannot run: each ends soon, with the reason.
func (r *rig) badServe(t *testing.T) {
	t.Helper()
	free := prepare(t, ProcessConfig{Nodes: []string{"s1"}})
	a := free.cluster.Addrs("s1")
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	sealed := filepath.Join(dir, "sealed")
	must(t, os.Mkdir(sealed, 0o500))
	serve := func(change map[string]string) []string {
		flags := map[string]string{
			"--id": "s1", "--dir": filepath.Join(dir, "data"), "--cluster": "chaos", "--initial-nodes": "s1",
			"--grpc": a.GRPC, "--http": a.HTTP, "--gossip": a.Gossip, "--raft": a.Raft,
		}
		args := []string{"serve"}
		maps.Copy(flags, change)
		for flag, value := range flags {
			if value != "" {
				args = append(args, flag, value)
			}
		}
		return args
	}
	cases := map[string]struct {
		args []string
		word string
	}{
		"grpc port in use":      {serve(map[string]string{"--grpc": r.cluster.Addrs("n1").GRPC}), "in use"},
		"http port in use":      {serve(map[string]string{"--http": r.cluster.Addrs("n1").HTTP}), "in use"},
		"gossip port in use":    {serve(map[string]string{"--gossip": r.cluster.Addrs("n1").Gossip}), "in use"},
		"raft port in use":      {serve(map[string]string{"--raft": r.cluster.Addrs("n1").Raft}), "in use"},
		"folder is a file":      {serve(map[string]string{"--dir": file}), file},
		"folder in use":         {serve(map[string]string{"--dir": r.process.Dir("n1"), "--id": "n1"}), r.process.Dir("n1")},
		"no cluster name":       {serve(map[string]string{"--cluster": ""}), "--cluster"},
		"nobody to form with":   {serve(map[string]string{"--initial-nodes": ""}), "--join"},
		"dead at once":          {serve(map[string]string{"--dead-grace": "-5m"}), "-5m"},
		"bad node name":         {serve(map[string]string{"--id": "no spaces"}), "no spaces"},
		"bad address":           {serve(map[string]string{"--grpc": "nonsense"}), "nonsense"},
		"bad gossip key":        {serve(map[string]string{"--gossip-key": "short"}), "gossip key"},
		"too many shards":       {serve(map[string]string{"--shards": "100000"}), "100000"},
		"window too short":      {serve(map[string]string{"--window": "1ms"}), "1ms"},
		"token file is missing": {serve(map[string]string{"--tokens": filepath.Join(dir, "no.json"), "--gossip-key": "c2l4dGVlbiBieXRlcyEhIQ=="}), "no.json"},
	}
	unwritable := filepath.Join(sealed, "data")
	if os.Getuid() == 0 { // root writes anywhere but here
		unwritable = "/proc/data"
	}
	cases["unwritable folder"] = struct {
		args []string
		word string
	}{serve(map[string]string{"--dir": unwritable}), unwritable}
	for name, c := range cases {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		res, err := r.cli.Run(ctx, c.args...)
		cancel()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if res.Code == 0 || !strings.Contains(string(res.Stderr), c.word) {
			t.Errorf("%s: exit %d, %q; want a failure that names %q", name, res.Code, res.Stderr, c.word)
		}
		if strings.Contains(string(res.Stderr), "goroutine ") {
			t.Errorf("%s: a panic: %s", name, res.Stderr)
		}
	}
}

// twoKeys sends a call with two different keys, and one with the key as
// metadata only.
func (r *rig) twoKeys(ctx context.Context, t *testing.T) {
	t.Helper()
	req := badInputs(t)[0].req
	req.Entity.Kind = "account"
	_, err := r.links.Entity("n1").Submit(withKey(ctx, "another"), req)
	if a := failure(err, nil); a.Code != codes.InvalidArgument || a.Reason != "INVALID" {
		t.Errorf("two keys in one call: %+v", fmt.Sprint(a))
	}
}

func withKey(ctx context.Context, key string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
}
