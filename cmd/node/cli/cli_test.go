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
	"strings"
	"testing"
	"time"

	"writ/actors/account"
	"writ/actors/entity"
	"writ/cmd/node/node"
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

// says checks the exit status and that every text is there. Nothing of gRPC's own
// ever is.
func (r result) says(t *testing.T, status int, texts ...string) {
	t.Helper()
	if r.status != status {
		t.Errorf("exit %d, want %d: %v", r.status, status, r)
	}
	all := r.out + r.err
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
	call(shop("submit", "--key", "k2", "--command", order, "--json", `{"amount":5}`)...).says(t, 1, `unknown field "amount"`)
	call(shop("submit", "--key", "k2", "--command", "writ.testing.v1.Ordr")...).says(t, 1, `command "writ.testing.v1.Ordr" is not registered`, order)
	call(shop("submit", "--key", "k2", "--command", "Order")...).says(t, 1, `command "Order" is not registered`, order)
	call(shop("submit", "--key", "k3", "--command", act, "--json", `{"what":"reject"}`)...).says(t, 1, "rejected: NO: not today")
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
		"serve --cluster c --id n --dir d --limits " + limits:                   {1, []string{`unknown field "Row"`, "entities: {Command, State"}},
		"submit --kind shop --id a --key p --command writ.testing.v1.Act --json {\"what\":\"panic\"}": {1, []string{"HANDLER_PANIC", "panicked", "see the log of node n1"}},
		"submit --kind shop --id a --key p --command writ.testing.v1.Act --json {\"what\":\"error\"}": {1, []string{"HANDLER_PANIC", "a handler returns c.Reject", "see the log of node n1"}},
	} {
		t.Run(line, func(t *testing.T) { call(t, strings.Fields(line)...).says(t, want.status, want.texts...) })
	}
}

// TestWrongPorts covers addresses where something else answers, or nothing.
func TestWrongPorts(t *testing.T) {
	t.Parallel()
	at := startNode(t, nil).Addresses()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	one := func(addr string) []string {
		return []string{"submit", "--timeout", "3500ms", "--kind", "account", "--id", "a", "--key", "k", "--command", "writ.account.v1.Deposit", "--json", `{"amount_minor":1,"currency":"EUR"}`, "--addr", addr}
	}
	for name, tt := range map[string]struct {
		args   []string
		status int
		texts  []string
	}{
		"verb, HTTP port":     {[]string{"audit", "--addr", at.HTTP}, 1, []string{"does not speak gRPC: is this a node's gRPC port?"}},
		"command, HTTP port":  {one(at.HTTP), 1, []string{"is this a node's gRPC port?", "; still trying", "NOT_EXECUTED", "the time is over"}},
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
		"verb, operator": {[]string{"cluster", "status", "--token", "op"}, 0, []string{"1 nodes"}},
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
	r.says(t, 1, "executed 2, replayed 0, rejected 0, failed 2", `line 2, key "k1": INVALID: kind "acount"`, "2 commands have no outcome: 2 refused, and not executed: mend them")
	if strings.Contains(r.err, "run the same file again") {
		t.Errorf("it sends a person in circles: %v", r)
	}
	call(t, "submit", "--file", file, "--json").says(t, 1, `"replayed": 2`, `"failed": 2`, `"refused": 2`, `"unknown": 0`)
}

// TestExpired covers commands that were issued before what is remembered: nothing
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
	r.says(t, 1, "EXPIRED", "1 were issued before what is remembered")
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
		"refused":       {submitSummary{Failed: 1, Refused: 1}, "1 commands have no outcome: 1 refused, and not executed: mend them, the same lines will be refused again"},
		"expired":       {submitSummary{Failed: 3, Expired: 2, Held: 1}, "3 commands have no outcome: 2 were issued before what is remembered: whether they took effect nobody can say; the same file does not help: take their lines out once it is found out; 1 not sent, behind one of those for the same entity: run the same file again, keys that took effect are replayed"},
		"unknown":       {submitSummary{Failed: 2, Unknown: 2}, "2 commands have no outcome: 2 may have been executed: run the same file again, keys that took effect are replayed"},
		"all":           {submitSummary{Failed: 6, Refused: 1, Unknown: 2}, "6 commands have no outcome: 1 refused, and not executed: mend them, the same lines will be refused again; 2 may have been executed, 3 not executed, their time was over: run the same file again, keys that took effect are replayed"},
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
	call(t, "lanes", "skip", "--destination", "nowhere/x01", "--yes", "--replay").says(t, 0, "1 lane done")
	call(t, "submit", "--kind", "account", "--id", "a", "--key", "k", "--command", "writ.account.v1.Deposit", "--json", `{"amount_minor":1,"currency":"EUR"}`).says(t, 0, "executed")
	call(t, "lanes", "pause", "--destination", "statement", "--yes").says(t, 0, "1 lane done")
	call(t, "audit", "--wait", "1ms").says(t, 0, fmt.Sprintf("%d parked and 1 paused", lanes-1))
	call(t, "lanes", "resume", "--destination", "statement", "--yes").says(t, 0, "1 lane done")
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
