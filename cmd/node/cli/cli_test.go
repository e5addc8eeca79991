package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"writ/actors/account"
	"writ/actors/client"
	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	testingv1 "writ/proto/writ/testing/v1"
)

// ownKinds are the example's kinds, and one whose messages the program lacks: they
// are linked into this test, not into the binary that it builds.
func ownKinds() []entity.Definer {
	shop := entity.NewKind[*testingv1.Sum]("shop")
	entity.Handle(shop, func(_ *entity.Context, s *testingv1.Sum, o *testingv1.Order) (*testingv1.Sum, error) {
		s.AmountMinor += o.GetAmountMinor() * int64(max(1, len(o.GetStops())))
		s.Orders++
		return s, nil
	})
	entity.Handle(shop, func(c *entity.Context, s *testingv1.Sum, a *testingv1.Act) (*testingv1.Sum, error) {
		switch a.GetWhat() {
		case "reject":
			return nil, c.Reject(entity.FailedPrecondition, "NO", "not today")
		case "panic":
			panic("as told")
		case "error":
			return nil, errors.New("as told")
		case "tell":
			c.Emit(entity.To("picky", a.GetToId()), &testingv1.Told{Text: a.GetText()})
		case "emit":
			// Nobody defines the kind, so the lane is parked at once.
			c.Emit(entity.To("nowhere", a.GetToId()), &testingv1.Told{Text: a.GetText()})
		}
		return s, nil
	})
	return append(account.Kinds(), shop)
}

// startNode runs a cluster of one node.
func startNode(t *testing.T, change func(*node.Config)) *node.Node {
	t.Helper()
	cfg := node.Config{
		ID: "n1", Dir: filepath.Join(t.TempDir(), "n1"), Cluster: "test", InitialNodes: []string{"n1"}, Shards: 4, Kinds: ownKinds(),
		GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Gossip: "127.0.0.1:0", Raft: "127.0.0.1:0",
	}
	if change != nil {
		change(&cfg)
	}
	n, err := node.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := n.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return n
}

// result is what a command line left behind.
type result struct {
	out, err string // err holds the error as well
	status   int
}

func (r result) String() string {
	return fmt.Sprintf("exit %d\n--- out\n%s--- err\n%s", r.status, r.out, r.err)
}

// call runs a command line in this process.
func call(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	err := run(ctx, args, account.Kinds(), streams{out: &out, err: &errs})
	if err != nil && !errors.Is(err, errSilent) {
		fmt.Fprintln(&errs, "node:", err)
	}
	return result{out.String(), errs.String(), exitStatus(err)}
}

// firstTries is the summary of a file, with those commands as executed that were
// replayed because an attempt was repeated: it finds what the first one has done.
func firstTries(out string) string {
	var executed, replayed, rejected, failed, retries int
	const format = "executed %d, replayed %d, rejected %d, failed %d"
	_, err := fmt.Sscanf(out, format+", retries %d", &executed, &replayed, &rejected, &failed, &retries)
	if again := min(replayed, retries); err == nil && again > 0 {
		return fmt.Sprintf(format, executed+again, replayed-again, rejected, failed)
	}
	return ""
}

// says checks the exit status and that every text is there. Nothing of gRPC's own
// ever is.
func (r result) says(t *testing.T, status int, texts ...string) {
	t.Helper()
	if r.status != status {
		t.Errorf("exit %d, want %d: %v", r.status, status, r)
	}
	all := r.out + r.err + firstTries(r.out)
	for _, text := range texts {
		if !strings.Contains(all, text) {
			t.Errorf("nothing says %q: %v", text, r)
		}
	}
	for _, wrapping := range []string{"rpc error", "desc =", "code =", "retries exhausted"} {
		if strings.Contains(all, wrapping) {
			t.Errorf("it shows %q: %v", wrapping, r)
		}
	}
}

// TestMessagesThatTheProgramLacks: the commands of other people's kinds are found
// by reflection. It needs the program itself, since this one has their messages.
func TestMessagesThatTheProgramLacks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	binary := filepath.Join(dir, "node")
	if text, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "writ/cmd/node").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, text)
	}
	addr := startNode(t, nil).Addresses().GRPC
	call := func(args ...string) result {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = append(os.Environ(), "WRIT_ADDR="+addr)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
	}
	shop := func(verb string, more ...string) []string {
		return append([]string{verb, "--kind", "shop", "--id", "a"}, more...)
	}
	const order, act = "writ.testing.v1.Order", "writ.testing.v1.Act"

	call("--version").says(t, 0, "writ "+node.Version)
	call("submit", "--nope").says(t, 2, "unknown flag --nope")
	body := `{"amount_minor":5,"items":{"x":1},"to":{"street":"s","door":""},"stops":{"1":{"street":"a"},"2":{"street":"b"}}}`
	call(shop("submit", "--key", "k1", "--command", order, "--json", body)...).says(t, 0, `"amount_minor": "10"`, `"orders": "1"`, "executed")
	call(shop("submit", "--key", "k1", "--command", order, "--json", body)...).says(t, 0, `"amount_minor": "10"`, "replayed")
	call(shop("submit", "--key", "k2", "--command", order, "--json", `{"amount":5}`)...).says(t, 1, `unknown field "amount"; its fields: amount_minor, `)
	call(shop("submit", "--key", "k2", "--command", "writ.testing.v1.Ordr")...).says(t, 1, `command "writ.testing.v1.Ordr" is not registered`, order)
	call(shop("submit", "--key", "k2", "--command", "Order")...).says(t, 1, `command "Order" is not registered`, order)
	call(shop("submit", "--key", "k3", "--command", act, "--json", `{"what":"reject"}`)...).says(t, 1, "rejected: NO: not today")
	if r := call(shop("submit", "--json", "--key", "k3", "--command", act, "--json", `{"what":"reject"}`)...); r.status != 1 || !strings.Contains(r.err, "rejected: NO: not today") ||
		r.out != call(shop("outcome", "--json", "--key", "k3", "--command", act)...).out || !strings.Contains(r.out, `"reason": "NO"`) {
		t.Errorf("a rejection as JSON is not what outcome prints: %v", r)
	}
	call(shop("read", "--json")...).says(t, 0, `"amount_minor": "10"`, `"version": 2`)
	call(shop("outcome", "--key", "k1", "--command", order)...).says(t, 0, "EXECUTED", `"amount_minor": "10"`)
	call("explain", "--entity", "shop/a", "--key", "k1").says(t, 0, order+" was executed once")

	file := filepath.Join(dir, "commands.jsonl")
	line := func(key, typ, fields string) string {
		return fmt.Sprintf(`{"kind":"shop","id":"b","key":%q,"command":{"@type":"type.googleapis.com/%s",%s}}`+"\n", key, typ, fields)
	}
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(line("1", order, `"amount_minor":1`) + line("2", order, `"amount_minor":2`) + line("3", act, `"what":"emit","to_id":"x","text":"hello"`))
	call("submit", "--file", file).says(t, 0, "executed 3, replayed 0")
	call("submit", "--file", file).says(t, 0, "executed 0, replayed 3")
	call("read", "--kind", "shop", "--id", "b").says(t, 0, `"amount_minor": "3"`)
	write(line("4", "writ.testing.v1.Ordr", `"amount_minor":1`))
	call("submit", "--file", file).says(t, 1, "line 1", `"writ.testing.v1.Ordr" is known neither`, "nothing was sent")
	call("lanes", "show", "shop/b", "nowhere/x", "--payloads").says(t, 0, `"text":"hello"`)

	// An event of the largest size is shown, too.
	write(line("5", act, fmt.Sprintf(`"what":"emit","to_id":"y","text":%q`, strings.Repeat("x", 4<<20-100))))
	call("submit", "--file", file).says(t, 0, "executed 1")
	if r := call("lanes", "show", "shop/b", "nowhere/y", "--payloads"); r.status != 0 || len(r.out) < 4<<20-100 {
		t.Errorf("exit %d, %d bytes shown, %s", r.status, len(r.out), r.err)
	}
}

// TestCommandLines covers what a person who errs is told.
func TestCommandLines(t *testing.T) {
	n := startNode(t, nil)
	t.Setenv("WRIT_ADDR", n.Addresses().GRPC)
	limits := filepath.Join(t.TempDir(), "limits.json")
	if err := os.WriteFile(limits, []byte(`{"entities":{"Row":5}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const registered = "is not registered; registered: account, shop, statement"
	one := "submit --kind account --id a --key k --command writ.account.v1.Deposit "
	for line, want := range map[string]struct {
		status int
		texts  []string
	}{
		"version":                         {0, []string{"writ " + node.Version}},
		"submit --nope":                   {2, []string{"unknown flag --nope", `"node submit --help"`}},
		"contract set --window 48":        {2, []string{"missing unit"}},
		"contract set --kind account=48":  {2, []string{"--kind account=48: give a duration with its unit, e.g. account=48h"}},
		"contract set --kind acount=48h":  {1, []string{`kind "acount" ` + registered}},
		one + "--addr localhost":          {2, []string{`address "localhost": give host:port, e.g. localhost:7400`}},
		one + "--addr http://localhost:1": {2, []string{"without scheme or path"}},
		"audit --addr localhost:http":     {2, []string{"the port must be a number"}},
		"health --http 127.0.0.1":         {2, []string{`address "127.0.0.1": give host:port`}},
		"submit --kind acount --id a --key k --command writ.account.v1.Deposit": {1, []string{`INVALID: kind "acount" ` + registered}},
		"submit --file x --kind account":                                        {2, []string{"--kind does not go with --file"}},
		one + "--json {amount_minor:5}":                                         {2, []string{"--json is not JSON at column 2: names need double quotes"}},
		one + `--json {"amount_minor":5`:                                        {2, []string{"--json is not JSON at column 17: unexpected end"}},
		one + `--json {"amount":5}`:                                             {1, []string{`unknown field "amount"; its fields: amount_minor, currency`}},
		"submit --file " + filepath.Dir(limits):                                 {1, []string{"is a folder"}},
		"bench --rate=NaN":                                                      {2, []string{"--rate must be 0, for no limit, to 1e+09 a second"}},
		"bench --rate=Inf":                                                      {2, []string{"--rate must be 0"}},
		"bench --duration -3s":                                                  {2, []string{"--duration is -3s: it must not be negative; see"}},
		"bench --clients 2 --duration 3s --warmup 0s --duplicates 0.5":          {0, []string{"(answered differently: 0), failed 0", "OK: effects"}},
		"dev --shards -1":                                                       {2, []string{"--shards is -1: it must not be negative; see"}},
		"dev --shards=-1":                                                       {2, []string{"--shards: expected a valid 32 bit uint"}},
		"submit --kind account":                                                 {2, []string{"--id is missing"}},
		"explain":                                                               {2, []string{"say what to explain"}},
		"explain --entity acount/a":                                             {1, []string{`kind "acount" ` + registered}},
		"explain --entity account":                                              {2, []string{`--entity "account": give KIND/ID, e.g. account/alice`}},
		"explain --key order-3":                                                 {2, []string{"on which entity the key was used"}},
		"explain --event account#3":                                             {2, []string{`the source of --event "account": give KIND/ID`}},
		"explain --entity account/nobody":                                       {0, []string{"never handled anything"}},
		"lanes list --destination ledger":                                       {1, []string{`kind "ledger" ` + registered}},
		"lanes list --kind acount --json":                                       {1, []string{`kind "acount" ` + registered}},
		"lanes list --destination statement":                                    {0, []string{"DESTINATION"}},
		"lanes list --entity account":                                           {2, []string{`--entity "account": give KIND/ID`}},
		"lanes skip --destination / --yes":                                      {2, []string{`--destination "/": give KIND/ID or KIND, e.g. statement/all or statement`}},
		"lanes skip --destination statement/ --yes":                             {2, []string{`--destination "statement/": give KIND/ID or KIND`}},
		"lanes list --destination /all":                                         {2, []string{`--destination "/all": give KIND/ID or KIND`}},
		"outbox list --destination statement/":                                  {2, []string{`--destination "statement/": give KIND/ID or KIND`}},
		"lanes replay --tenant default --destination= --yes":                    {2, []string{"--destination: it is empty: give a value, or leave the filter out"}},
		"lanes skip --kind account --entity= --yes":                             {2, []string{"--entity: it is empty"}},
		"lanes pause --destination ledger --yes":                                {1, []string{`kind "ledger" ` + registered}},
		"lanes show account/a":                                                  {2, []string{"name the destination, too", "account/a statement/all"}},
		"lanes show account/a ledger/all":                                       {1, []string{`kind "ledger" ` + registered}},
		"lanes show account/a statement/all":                                    {1, []string{"there is no lane"}},
		"timers list --kind acount":                                             {1, []string{`kind "acount" ` + registered}},
		"timers list --entity account":                                          {2, []string{`--entity "account": give KIND/ID`}},
		"timers list --entity account/a":                                        {0, []string{"TIMER"}},
		"lanes pause --yes":                                                     {2, []string{"say which lanes"}},
		"crashes forget":                                                        {2, []string{"say what to forget"}},
		"crashes forget --all":                                                  {0, []string{"n1: 0 forgotten"}},
		"crashes forget nothing":                                                {1, []string{"no node knows of it"}},
		"crashes list":                                                          {0, nil},
		"outbox list --kind acount":                                             {1, []string{`kind "acount" ` + registered}},
		"cluster drain n9":                                                      {1, []string{`there is no node "n9"; registered: n1`}},
		"cluster drain n1 --undo":                                               {0, []string{"done"}},
		"cluster move 99 --to n1":                                               {1, []string{"there is no shard 99; shards are 0 to 3"}},
		"cluster move 3 --to n9":                                                {1, []string{`there is no node "n9"; registered: n1`}},
		"cluster move 3 --from n1 --to n9":                                      {1, []string{`there is no node "n9"; registered: n1`}},
		"explain --event account/a#1.1":                                         {0, []string{"Event 1 does not exist: account/a has emitted 0."}},
		"serve --cluster c --id n --dir d --limits " + limits:                   {1, []string{`unknown field "Row"`, "entities: {Command, State"}},
		"submit --kind shop --id a --key p --command writ.testing.v1.Act --json {\"what\":\"panic\"}": {1, []string{"HANDLER_PANIC", "panicked", "see the log of node n1"}},
		"submit --kind shop --id a --key p --command writ.testing.v1.Act --json {\"what\":\"error\"}": {1, []string{"HANDLER_PANIC", "a handler returns c.Reject", "see the log of node n1"}},
	} {
		t.Run(line, func(t *testing.T) { call(t, strings.Fields(line)...).says(t, want.status, want.texts...) })
	}
}

// nobody is an address where nobody listens, nor will while the test runs: it is the
// near end of a connection, so that the system gives its port to nobody else.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.LocalAddr().String()
}

// TestWrongPorts covers addresses where something else answers, or nothing.
func TestWrongPorts(t *testing.T) {
	t.Parallel()
	at := startNode(t, nil).Addresses()
	dead := nobody(t)
	one := func(addr string) []string { // in time for the notice, which comes after 2 s
		return []string{"submit", "--timeout", "8s", "--kind", "account", "--id", "a", "--key", "k", "--command", "writ.account.v1.Deposit", "--json", `{"amount_minor":1,"currency":"EUR"}`, "--addr", addr}
	}
	for name, tt := range map[string]struct {
		args   []string
		status int
		texts  []string
	}{
		"verb, HTTP port":     {[]string{"audit", "--addr", at.HTTP}, 1, []string{"does not speak gRPC: is this a node's gRPC port?"}},
		"command, HTTP port":  {one(at.HTTP), 1, []string{"is this a node's gRPC port?", "; still trying", "NOT_EXECUTED", "timed out"}},
		"verb, nobody":        {[]string{"audit", "--addr", dead}, 1, []string{"no node answers at " + dead + ": connection refused; still trying"}},
		"command, nobody":     {one(dead), 1, []string{"no node answers at " + dead + ": connection refused; still trying", "NOT_EXECUTED"}},
		"verb, one of two":    {[]string{"audit", "--addr", dead + "," + at.GRPC}, 0, []string{"OK: effects"}},
		"command, one of two": {one(dead + "," + at.GRPC), 0, []string{"executed"}},
		"health, gRPC port":   {[]string{"health", "--http", at.GRPC}, 1, []string{"does not speak HTTP: is this a node's HTTP port?"}},
		"health, nobody":      {[]string{"health", "--http", dead}, 1, []string{"no node answers at " + dead + ": connection refused"}},
		"health":              {[]string{"health", "--http", at.HTTP}, 0, []string{`"ready":true`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call(t, tt.args...).says(t, tt.status, tt.texts...)
		})
	}
}

// TestNobodySpeaks covers a port that takes a connection and says nothing, as that of
// a frozen process, and one where nobody is: a wait is as long as it is asked for,
// and a look-up that had to be waited for is not waited for again.
func TestNobodySpeaks(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	start := time.Now()
	call(t, "health", "--http", l.Addr().String(), "--wait", "200ms").says(t, 1, "no node answers")
	if took := time.Since(start); took > askTimeout*9/10 {
		t.Errorf("--wait 200ms took %v", took)
	}
	types := (&target{Addr: []string{l.Addr().String()}, wait: newPatience(io.Discard)}).types(t.Context())
	defer types.Close()
	payload := &recordv1.Payload{Type: "nobody.knows.This", Data: []byte("x")}
	start = time.Now()
	if got := types.payload(payload); got != "eA==" {
		t.Errorf("payload %q", got)
	}
	first := time.Since(start)
	for range 10 {
		types.payload(payload)
	}
	if took := time.Since(start) - first; took > first/2 {
		t.Errorf("ten more look-ups took %v, the first %v", took, first)
	}
}

// TestTokens covers a cluster that asks for one.
func TestTokens(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.WriteFile(tokens, []byte(`{"op":{"tenant":"default","admin":true},"user":"default"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WRIT_ADDR", startNode(t, func(cfg *node.Config) {
		cfg.Tokens, cfg.GossipKey = tokens, base64.StdEncoding.EncodeToString(make([]byte, 32))
	}).Addresses().GRPC)
	deposit := []string{"submit", "--kind", "account", "--id", "a", "--key", "k", "--command", "writ.account.v1.Deposit", "--json", `{"amount_minor":1,"currency":"EUR"}`}
	for name, tt := range map[string]struct {
		args   []string
		status int
		texts  []string
	}{
		"verb without":   {[]string{"audit"}, 1, []string{"this cluster wants a token: give --token, or set WRIT_TOKEN"}},
		"call without":   {deposit, 1, []string{"UNAUTHENTICATED", "give --token, or set WRIT_TOKEN"}},
		"verb, stranger": {[]string{"audit", "--token", "?"}, 1, []string{"the token is not known here"}},
		"verb, user":     {[]string{"audit", "--token", "user"}, 1, []string{"this call is for operators"}},
		"call, user":     {append(deposit, "--token", "user"), 0, []string{"executed"}},
		"verb, operator": {[]string{"cluster", "status", "--token", "op"}, 0, []string{", 1 node, 4 shards, "}},
	} {
		t.Run(name, func(t *testing.T) {
			r := call(t, tt.args...)
			r.says(t, tt.status, tt.texts...)
			if strings.Contains(r.err, "no node answers") || strings.Contains(r.err, "metadata") {
				t.Errorf("a node has answered, and a person has a flag: %v", r)
			}
		})
	}
}

// TestFileSaysWhatToMend: a command that is refused for good is not one whose
// outcome is unknown.
func TestFileSaysWhatToMend(t *testing.T) {
	t.Setenv("WRIT_ADDR", startNode(t, nil).Addresses().GRPC)
	file := filepath.Join(t.TempDir(), "commands.jsonl")
	var text strings.Builder
	for i, kind := range []string{"account", "acount", "statement", "account"} {
		fmt.Fprintf(&text, `{"kind":%q,"id":"a","key":"k%d","command":{"@type":"type.googleapis.com/writ.account.v1.Deposit","amount_minor":1,"currency":"EUR"}}`+"\n", kind, i)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r := call(t, "submit", "--file", file)
	r.says(t, 1, "executed 2, replayed 0, rejected 0, failed 2", `line 2, key "k1": INVALID: kind "acount"`, "2 commands have no outcome: 2 refused, and not executed: fix them")
	if strings.Contains(r.err, "run the same file again") {
		t.Errorf("it sends a person in circles: %v", r)
	}
	call(t, "submit", "--file", file, "--json").says(t, 1, `"replayed": 2`, `"failed": 2`, `"refused": 2`, `"unknown": 0`)
}

// TestExpired covers commands whose keys may have been forgotten: nothing
// tells a person to repeat them.
func TestExpired(t *testing.T) {
	t.Setenv("WRIT_ADDR", startNode(t, func(cfg *node.Config) { cfg.Window, cfg.RetryHorizon = time.Second, time.Second }).Addresses().GRPC)
	deposit := func(key string, more ...string) result {
		return call(t, append([]string{"submit", "--kind", "account", "--id", "a", "--key", key, "--command", "writ.account.v1.Deposit", "--json", `{"amount_minor":1,"currency":"EUR"}`}, more...)...)
	}
	issued := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	n := 0
	eventually(t, func() bool { // a shard forgets as its commands go on
		n++
		deposit(fmt.Sprint("k", n)).says(t, 0, "executed")
		return strings.Contains(call(t, "outcome", "--kind", "account", "--id", "a", "--key", "late", "--command", "writ.account.v1.Deposit", "--issued-at", issued).out, "EXPIRED")
	})
	if r := deposit("k1", "--issued-at", issued); r.status != 1 || !strings.Contains(r.err, "EXPIRED") || strings.Contains(r.err, "retry") {
		t.Errorf("a retry that states when it was first sent: %v", r)
	}
	file := filepath.Join(t.TempDir(), "commands.jsonl")
	line := strings.Replace(lineOf("a", "late"), `"key"`, fmt.Sprintf(`"issued_at":%q,"key"`, issued), 1)
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	r := call(t, "submit", "--file", file)
	r.says(t, 1, "EXPIRED", "1 were issued so long ago")
	if strings.Contains(r.err, "run the same file again") || strings.Contains(r.err, "retry with the same key") {
		t.Errorf("it sends a person in circles: %v", r)
	}
}

func TestSubmitVerdict(t *testing.T) {
	for name, tt := range map[string]struct {
		sum  submitSummary
		want string
	}{
		"all went well": {submitSummary{Executed: 3}, ""},
		"refused":       {submitSummary{Failed: 1, Refused: 1}, "1 command has no outcome: 1 refused, and not executed: fix them, the same lines will be refused again"},
		"expired":       {submitSummary{Failed: 3, Expired: 2, Held: 1}, "3 commands have no outcome: 2 were issued so long ago that their keys may have been forgotten: whether they took effect is not known, and running the file again does not help; find out, then remove their lines; 1 not sent, after one of those for the same entity: run the same file again, keys that took effect are replayed"},
		"unknown":       {submitSummary{Failed: 2, Unknown: 2}, "2 commands have no outcome: 2 may have been executed: run the same file again, keys that took effect are replayed"},
		"all":           {submitSummary{Failed: 6, Refused: 1, Unknown: 2}, "6 commands have no outcome: 1 refused, and not executed: fix them, the same lines will be refused again; 2 may have been executed, 3 not executed, they timed out: run the same file again, keys that took effect are replayed"},
	} {
		got := ""
		if err := tt.sum.verdict(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestLanesThatStand covers what a person sees of lanes that wait for an operator.
func TestLanesThatStand(t *testing.T) {
	t.Setenv("WRIT_ADDR", startNode(t, nil).Addresses().GRPC)
	const lanes = lanesShown + 5
	for i := range lanes {
		call(t, "submit", "--kind", "shop", "--id", "a", "--key", fmt.Sprint("k", i), "--command", "writ.testing.v1.Act", "--json",
			fmt.Sprintf(`{"what":"emit","to_id":"x%02d"}`, i)).says(t, 0, "executed")
	}
	eventually(t, func() bool { return strings.Count(call(t, "lanes", "list", "--parked").out, "PARKED") == lanes })
	call(t, "audit", "--wait", "1ms").says(t, 0, "OK:", fmt.Sprintf("pending %d, parked lanes %d", lanes, lanes), fmt.Sprintf("%d lanes stand", lanes), "see node lanes list")
	preview := call(t, "lanes", "replay", "--all")
	preview.says(t, 0, "and 5 more", fmt.Sprintf("would replay %d lanes with %d rows waiting", lanes, lanes))
	if n := strings.Count(preview.out, "shop/a"); n != lanesShown {
		t.Errorf("%d lanes are listed: %v", n, preview)
	}
	// Lanes to kinds that nobody defines exist: their names are no typing mistakes.
	call(t, "lanes", "skip", "--destination", "nowhere/x00", "--yes").says(t, 0, "row 1 skipped, replay to go on", "1 lane done")
	call(t, "lanes", "list", "--destination", "nowhere/x00").says(t, 0, "PARKED", "row 1 skipped, replay to go on")
	call(t, "lanes", "list", "--destination", "nowhere/x02").says(t, 0, "PARKED", "nowhere")
	for _, args := range [][]string{{"--entity", "shop/a", "--key", "k0"}, {"--event", "shop/a#1.1"}} {
		r := call(t, append([]string{"explain"}, args...)...)
		r.says(t, 0, "event 1 was skipped by an operator, and the lane stands still until \"node lanes replay --entity shop/a --destination nowhere/x00\".")
		if strings.Contains(r.out, "on its way back") {
			t.Errorf("nothing is on its way: %v", r)
		}
	}
	// What is skipped already is not offered again, and each verb says so as the list does.
	for _, args := range [][]string{{"replay"}, {"skip", "--replay"}} {
		r := call(t, append(append([]string{"lanes"}, args...), "--destination", "nowhere/x00")...)
		r.says(t, 0, "row 1 skipped, replay to go on", "1 lane with 1 row waiting; add --yes to do it")
		if strings.Contains(r.out, "UNKNOWN_KIND") {
			t.Errorf("the reason of an event that is gone: %v", r)
		}
	}
	for _, more := range [][]string{nil, {"--yes"}} {
		r := call(t, append([]string{"lanes", "skip", "--destination", "nowhere/x00"}, more...)...)
		r.says(t, 0, "row 1 skipped, replay to go on", "the first row of 1 lane is skipped already: replay parked lanes, resume paused ones")
		if strings.Contains(r.String(), "done") || strings.Contains(r.String(), "would") {
			t.Errorf("nothing is left to skip: %v", r)
		}
	}
	call(t, "lanes", "skip", "--all").says(t, 0, "is skipped already", fmt.Sprintf("would skip the first row of %d lanes with %d rows waiting", lanes-1, lanes-1))
	call(t, "lanes", "skip", "--destination", "nowhere/x01", "--yes", "--replay").says(t, 0, "1 lane done")
	call(t, "lanes", "skip", "--destination", "nowhere/x00", "--yes", "--replay").says(t, 0, "1 lane done")
	for _, args := range [][]string{
		{"parked or paused", "skip"}, {"parked or paused", "skip", "--yes"}, {"parked", "replay", "--yes"}, {"paused", "resume", "--yes"}, {"active", "pause", "--yes", "--json"},
	} {
		if r := call(t, append(append([]string{"lanes"}, args[1:]...), "--entity", "shop/nobody")...); r.status != 0 || r.out != "" || r.err != "no "+args[0]+" lane matches\n" {
			t.Errorf("%v: %v", args, r)
		}
	}
	call(t, "submit", "--kind", "account", "--id", "a", "--key", "k", "--command", "writ.account.v1.Deposit", "--json", `{"amount_minor":1,"currency":"EUR"}`).says(t, 0, "executed")
	call(t, "lanes", "pause", "--destination", "statement", "--yes").says(t, 0, "1 lane done")
	call(t, "audit", "--wait", "1ms").says(t, 0, fmt.Sprintf("%d parked and 1 paused", lanes-2))
	call(t, "lanes", "resume", "--destination", "statement", "--yes").says(t, 0, "1 lane done")
}

// TestLanesOfOneTenant covers an id that is in use in two tenants: a verb that names
// the entity changes the lanes of one, and explain says how to name the other.
func TestLanesOfOneTenant(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.WriteFile(tokens, []byte(`{"op":{"tenant":"default","admin":true},"acme":"acme"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WRIT_ADDR", startNode(t, func(cfg *node.Config) {
		cfg.Tokens, cfg.GossipKey = tokens, base64.StdEncoding.EncodeToString(make([]byte, 32))
	}).Addresses().GRPC)
	t.Setenv("WRIT_TOKEN", "op")
	for _, token := range []string{"op", "acme"} {
		call(t, "submit", "--token", token, "--kind", "shop", "--id", "a", "--key", "k", "--command", "writ.testing.v1.Act", "--json", `{"what":"emit","to_id":"x"}`).says(t, 0, "executed")
	}
	eventually(t, func() bool { return strings.Count(call(t, "lanes", "list", "--parked").out, "PARKED") == 2 })
	skip := []string{"lanes", "skip", "--entity", "shop/a", "--yes"}
	call(t, skip...).says(t, 0, "1 lane done")
	call(t, skip...).says(t, 0, "the first row of 1 lane is skipped already")
	call(t, "lanes", "list", "--entity", "shop/a").says(t, 0, "default", "row 1 skipped")
	if r := call(t, "outbox", "list", "--entity", "shop/a", "--tenant", "acme"); strings.Contains(r.out, "(skipped)") || strings.Count(r.out, "shop/a#") != 1 {
		t.Errorf("an event of another tenant: %v", r)
	}
	const flags = "--tenant acme --entity shop/a --destination nowhere/x"
	call(t, "explain", "--tenant", "acme", "--entity", "shop/a").says(t, 0, `until "node lanes replay `+flags+`" or "node lanes skip `+flags+`".`)
	call(t, append([]string{"lanes", "skip", "--yes"}, strings.Fields(flags)...)...).says(t, 0, "acme", "1 lane done")
}

// TestNodesThatKnowNothing covers a node that belongs to no cluster yet: it has nothing
// to list and nothing to change, which is not a success, and another one is asked.
func TestNodesThatKnowNothing(t *testing.T) {
	t.Parallel()
	forming, err := node.Start(t.Context(), node.Config{
		ID: "n1", Dir: t.TempDir(), Cluster: "forming", InitialNodes: []string{"n1", "n2", "n3"}, Kinds: ownKinds(),
		GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Gossip: "127.0.0.1:0", Raft: "127.0.0.1:0",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := forming.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	alone := forming.Addresses().GRPC
	both := alone + "," + startNode(t, nil).Addresses().GRPC
	for line, text := range map[string]string{
		"lanes list":              "DESTINATION",
		"lanes replay --all":      "no parked lane matches",
		"outbox list":             "no event waits",
		"timers list":             "TIMER",
		"crashes list":            "ELSEWHERE",
		"crashes forget --all":    "n1: 0 forgotten",
		"audit":                   "OK: effects",
		"explain --entity shop/a": "never handled anything",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			call(t, append(strings.Fields(line), "--addr", both)...).says(t, 0, text)
		})
	}
	const what = "node n1 knows of no shards: name another one in --addr, or wait until it is ready"
	for _, line := range []string{"lanes replay --all", "crashes forget --all"} { // each is patient for some seconds
		t.Run(line+", alone", func(t *testing.T) {
			t.Parallel()
			call(t, append(strings.Fields(line), "--addr", alone)...).says(t, 1, what)
		})
	}
	t.Run("what it was asked before", func(t *testing.T) { // a node may lose its memory in between
		conn, err := (&target{wait: newPatience(io.Discard)}).dial(alone)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		admin := nodev1.NewAdminServiceClient(conn)
		if err := eachShard(t.Context(), admin, func(uint32) error { return nil }); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("shards: %v", err)
		}
		if err := eachNode(t.Context(), admin, streams{io.Discard, io.Discard}, func(string) error { return nil }); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("nodes: %v", err)
		}
	})
	t.Run("what is asked while it forms", func(t *testing.T) {
		t.Parallel()
		call(t, "cluster", "status", "--addr", alone).says(t, 0, "0 nodes, 0 shards", "as n1 sees it")
		call(t, "cluster", "nodes", "--addr", alone).says(t, 0, "INCARNATION")
		call(t, "cluster", "shards", "--addr", alone).says(t, 0, "LEARNERS")
		call(t, "contract", "show", "--addr", alone).says(t, 1, "NOT HELD")
		call(t, "health", "--http", forming.Addresses().HTTP).says(t, 1, `"ready":false`)
	})
}

// TestBenchOfNothing covers loads of which nothing is executed: figures of 0 are no
// result.
func TestBenchOfNothing(t *testing.T) {
	t.Setenv("WRIT_ADDR", startNode(t, func(cfg *node.Config) { cfg.Kinds = ownKinds()[2:] }).Addresses().GRPC)
	for line, text := range map[string]string{
		// It ends long before its time: a client that is refused does not go on.
		"bench --clients 2 --duration 1h":                          `a command was refused: INVALID: kind "account" is not registered; registered: shop`,
		"bench --clients 2 --duration 1s --warmup 1h":              `a command was refused: INVALID: kind "account"`,
		"bench --clients 1 --duration 1ms --warmup 0s --rate 1e-6": "no command was answered while measuring: give a longer --duration or a higher --rate",
	} {
		r := call(t, strings.Fields(line)...)
		r.says(t, 1, text)
		if r.out != "" {
			t.Errorf("%s shows figures: %v", line, r)
		}
	}
}

func TestFailuresOfBench(t *testing.T) {
	late := &client.Error{Reason: client.ReasonOutcomeUnknown, Message: "timed out", Unknown: true, Err: context.DeadlineExceeded}
	for name, tt := range map[string]struct {
		counted int64
		errs    []error
		refused string // "": the run goes on
		nothing string
	}{
		"timed out":              {0, []error{late}, "", "no command was executed: OUTCOME_UNKNOWN: timed out"},
		"timed out among others": {1, []error{late}, "", ""},
		"refused":                {1, []error{late, &client.Error{Reason: client.ReasonDenied, Message: "no"}, &client.Error{Reason: client.ReasonInvalid}}, "a command was refused: DENIED: no", ""},
		"rejected":               {1, []error{&client.RejectedError{Reason: "SHUT", Message: "not now"}}, "a command was refused: rejected: SHUT: not now", ""},
	} {
		ctx, refuse := context.WithCancelCause(t.Context())
		l := &benchLoad{refuse: refuse}
		l.counted.Store(tt.counted)
		for _, err := range tt.errs {
			l.fails(t.Context(), err)
		}
		said := func(err error) string {
			if err == nil {
				return ""
			}
			return err.Error()
		}
		if got := said(context.Cause(ctx)); got != tt.refused {
			t.Errorf("%s: refused: %q, want %q", name, got, tt.refused)
		}
		if got := said(l.nothing()); got != tt.nothing {
			t.Errorf("%s: nothing: %q, want %q", name, got, tt.nothing)
		}
		if got := l.failed.Load(); got != int64(len(tt.errs)) {
			t.Errorf("%s: %d failed", name, got)
		}
	}
}

func TestLaneFilter(t *testing.T) {
	for name, tt := range map[string]struct {
		filter laneFilter
		want   *nodev1.LaneFilter // nil: refused
	}{
		"an entity":                  {laneFilter{Entity: "account/a"}, &nodev1.LaneFilter{Tenant: "default", SourceKind: "account", SourceId: "a"}},
		"an entity of a tenant":      {laneFilter{Entity: "account/a", Tenant: "acme"}, &nodev1.LaneFilter{Tenant: "acme", SourceKind: "account", SourceId: "a"}},
		"its kind, too":              {laneFilter{Entity: "account/a", Kind: "account"}, &nodev1.LaneFilter{Tenant: "default", SourceKind: "account", SourceId: "a"}},
		"another kind":               {laneFilter{Entity: "account/a", Kind: "statement"}, nil},
		"no entity":                  {laneFilter{Entity: "account/"}, nil},
		"a kind, of all tenants":     {laneFilter{Kind: "account"}, &nodev1.LaneFilter{SourceKind: "account"}},
		"a destination":              {laneFilter{Destination: "statement/a/b"}, &nodev1.LaneFilter{DestinationKind: "statement", DestinationId: "a/b"}},
		"destinations of a kind":     {laneFilter{Destination: "statement"}, &nodev1.LaneFilter{DestinationKind: "statement"}},
		"a destination without id":   {laneFilter{Destination: "statement/"}, nil},
		"a destination without kind": {laneFilter{Destination: "/all"}, nil},
		"neither":                    {laneFilter{Destination: "/"}, nil},
	} {
		got, err := tt.filter.proto()
		if tt.want == nil {
			if _, usage := errors.AsType[*usageError](err); !usage {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		} else if err != nil || !proto.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// TestLanesThatWait covers a lane that stands still for no reason that is stored.
func TestLanesThatWait(t *testing.T) {
	older := entity.NewKind[*testingv1.Sum]("picky") // does not handle what shop tells it
	entity.Handle(older, func(_ *entity.Context, s *testingv1.Sum, _ *testingv1.Touch) (*testingv1.Sum, error) { return s, nil })
	t.Setenv("WRIT_ADDR", startNode(t, func(cfg *node.Config) { cfg.Kinds = append(ownKinds(), older) }).Addresses().GRPC)
	call(t, "outbox", "list").says(t, 0, "no event waits")
	call(t, "submit", "--kind", "shop", "--id", "a", "--key", "k", "--command", "writ.testing.v1.Act", "--json", `{"what":"tell","to_id":"p"}`).says(t, 0, "executed")
	const reason = `UNKNOWN_KIND: kind "picky" of node n1 does not handle event "writ.testing.v1.Told"`
	eventually(t, func() bool { return strings.Contains(call(t, "lanes", "list").out, reason) })
	call(t, "lanes", "list", "--reason", "does not handle").says(t, 0, "shop/a", "ACTIVE", reason)
	call(t, "lanes", "show", "shop/a", "picky/p").says(t, 0, "ACTIVE: 1 row numbered", "0 refused attempts", "waits: "+reason)
	call(t, "outbox", "list", "--destination", "picky/q").says(t, 0, "no event waits that passes the filter")
	if r := call(t, "outbox", "list", "--destination", "picky/q", "--json"); r.status != 0 || r.out != "" {
		t.Errorf("for scripts: %v", r)
	}
}

// pickyKind refuses events while it is shut, and passes them on otherwise, to a kind
// that nobody has: what it emits names the event that it comes of.
func pickyKind(shut *atomic.Bool) entity.Definer {
	picky := entity.NewKind[*testingv1.Sum]("picky")
	entity.Handle(picky, func(_ *entity.Context, s *testingv1.Sum, _ *testingv1.Touch) (*testingv1.Sum, error) { return s, nil })
	entity.On(picky, func(c *entity.Context, _ *testingv1.Sum, e *testingv1.Told) error {
		if shut.Load() {
			return c.Reject(entity.FailedPrecondition, "SHUT", "not now")
		}
		c.Emit(entity.To("nowhere", c.ID()), e)
		return nil
	})
	return picky
}

// TestReplayKeepsTheEventID covers outbox list, and that an event which an operator has
// replayed is the one that it was, at its source and where it arrives.
func TestReplayKeepsTheEventID(t *testing.T) {
	var shut atomic.Bool
	shut.Store(true)
	n := startNode(t, func(cfg *node.Config) { cfg.Kinds = append(ownKinds(), pickyKind(&shut)) })
	t.Setenv("WRIT_ADDR", n.Addresses().GRPC)
	rows := func(args ...string) (list []*recordv1.Row) {
		t.Helper()
		res := call(t, append([]string{"outbox", "list", "--json"}, args...)...)
		res.says(t, 0)
		for line := range strings.Lines(res.out) {
			row := new(nodev1.OutboxRow)
			if err := protojson.Unmarshal([]byte(line), row); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			list = append(list, row.GetRow())
		}
		return list
	}
	id := func(e *recordv1.EventId) string {
		return fmt.Sprintf("%s/%s#%d.%d", e.GetSource().GetKind(), e.GetSource().GetId(), e.GetEpoch(), e.GetSequence())
	}
	ids := func(list []*recordv1.Row) (all []string) {
		for _, row := range list {
			all = append(all, id(&recordv1.EventId{Source: row.GetSource(), Epoch: row.GetEpoch(), Sequence: row.GetSequence()}))
		}
		return all
	}
	want := []string{"shop/a#1.1", "shop/a#1.2", "shop/a#1.3"}
	for i := range want {
		call(t, "submit", "--kind", "shop", "--id", "a", "--key", fmt.Sprint("k", i), "--command", "writ.testing.v1.Act", "--json",
			fmt.Sprintf(`{"what":"tell","to_id":"p","text":"%d"}`, i)).says(t, 0, "executed")
	}
	parked := func() bool {
		return strings.Contains(call(t, "lanes", "list", "--parked", "--entity", "shop/a").out, "SHUT")
	}
	eventually(t, parked)
	if got := ids(rows("--entity", "shop/a")); !slices.Equal(got, want) {
		t.Fatalf("the outbox has %v, want %v", got, want)
	}
	text := call(t, "outbox", "list", "--destination", "picky/p")
	text.says(t, 0, "shop/a#1.1  to picky/p row 1  writ.testing.v1.Told", "PARKED")
	if lines := strings.Count(text.out, "\n"); lines != len(want) {
		t.Errorf("%d lines: %v", lines, text)
	}
	if list := rows("--destination", "picky/q"); len(list) != 0 {
		t.Errorf("rows that do not pass the filter: %v", list)
	}
	if list := rows("--limit", "1"); len(list) != 1 {
		t.Errorf("%d rows, one was asked for", len(list))
	}

	replay := []string{"lanes", "replay", "--entity", "shop/a", "--yes"}
	call(t, replay...).says(t, 0, "1 lane done")
	eventually(t, parked) // in vain: it stands again
	if got := ids(rows("--entity", "shop/a")); !slices.Equal(got, want) {
		t.Errorf("after a replay the outbox has %v, want %v", got, want)
	}
	shut.Store(false)
	call(t, replay...).says(t, 0, "1 lane done")
	eventually(t, func() bool { return len(rows("--entity", "picky/p")) == len(want) })
	var arrived []string
	for _, row := range rows("--entity", "picky/p") {
		arrived = append(arrived, id(row.GetParent()))
	}
	if !slices.Equal(arrived, want) {
		t.Errorf("what has arrived is %v, want %v", arrived, want)
	}
	eventually(t, func() bool { return len(rows("--entity", "shop/a")) == 0 })
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for over := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(over) {
			t.Fatal("it did not happen within a minute")
		}
	}
}
