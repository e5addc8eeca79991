package node_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/actors/client"
	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
	testingv1 "writ/proto/writ/testing/v1"
	writv1 "writ/proto/writ/v1"
	"writ/sharding"
)

// dial is a plain gRPC connection, without the retries of package client.
func (c *testCluster) dial(name string) *grpc.ClientConn {
	c.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+c.nodes[name].Addresses().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(), grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func command(t *testing.T, kind, id, key string, m proto.Message) *writv1.SubmitRequest {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return &writv1.SubmitRequest{Entity: &writv1.EntityRef{Kind: kind, Id: id}, IdempotencyKey: key, Command: packed}
}

// answer is what a client can see of a call.
type answer struct {
	code     codes.Code
	reason   string
	retry    bool
	replayed bool
	details  map[string]string
	text     string
	late     bool // an earlier try of the same call may have been executed, see insist
}

func (a answer) String() string {
	return fmt.Sprintf("%v %s, retry %v, replayed %v, late %v, %v: %.200q", a.code, a.reason, a.retry, a.replayed, a.late, a.details, a.text)
}

// first reports whether the call was executed, and not by a call before it.
func (a answer) first() bool { return a.code == codes.OK && (!a.replayed || a.late) }

// insist makes a call until it is answered: on any machine a leader may lose its
// lease for a moment, or its disk hang, and then calls are UNAVAILABLE.
func insist(t *testing.T, call func(context.Context) answer) answer {
	t.Helper()
	late := false
	return eventually(t, func(ctx context.Context) (answer, error) {
		got := call(ctx)
		got.late = late
		if got.code == codes.Unavailable || got.code == codes.DeadlineExceeded {
			late = late || got.reason != "NOT_EXECUTED"
			return got, fmt.Errorf("%v", got)
		}
		return got, nil
	})
}

// send submits a command until it is answered.
func send(t *testing.T, cl writv1.EntityServiceClient, req *writv1.SubmitRequest) answer {
	t.Helper()
	return insist(t, func(ctx context.Context) answer { return submit(ctx, cl, req) })
}

func submit(ctx context.Context, cl writv1.EntityServiceClient, req *writv1.SubmitRequest) answer {
	var header, trailer metadata.MD
	_, err := cl.Submit(ctx, req, grpc.Header(&header), grpc.Trailer(&trailer))
	a := answerOf(err)
	a.replayed = len(header.Get("idempotency-replayed"))+len(trailer.Get("idempotency-replayed")) > 0
	return a
}

// answerOf is what an error tells.
func answerOf(err error) answer {
	st := status.Convert(err)
	a := answer{code: st.Code(), text: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			a.reason, a.details = d.GetReason(), d.GetMetadata()
			if d.GetDomain() != "writ" {
				a.reason = "domain " + d.GetDomain()
			}
		case *errdetails.RetryInfo:
			a.retry = d.GetRetryDelay().AsDuration() > 0
		}
	}
	return a
}

// TestOutcomeTable covers every row of the table in docs/guarantee.md that can be
// provoked from outside, over the wire.
func TestOutcomeTable(t *testing.T) {
	acts := newActing()
	c := newCluster(t, 1, acts.conf)
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	do := func(req *writv1.SubmitRequest) answer { return send(t, cl, req) }
	act := func(key, what string, change func(*testingv1.Act)) *writv1.SubmitRequest {
		cmd := &testingv1.Act{What: what}
		if change != nil {
			change(cmd)
		}
		return command(t, "actor", "a", key, cmd)
	}
	reject := func(code entity.Code, reason string) func(*testingv1.Act) {
		return func(a *testingv1.Act) { a.Code, a.Reason, a.Text = uint32(code), reason, "no" }
	}
	unknown := command(t, "actor", "a", "unknown", &testingv1.Act{What: "ok"})
	unknown.Command.Value = append(unknown.Command.GetValue(), 0x98, 0x06, 0x01) // field 99
	garbage := command(t, "actor", "a", "garbage", &testingv1.Act{What: "ok"})
	garbage.Command.Value = []byte{0xff, 0xff}
	atVersion := act("version", "ok", nil)
	atVersion.IfVersion = new(uint64(12345))
	cancelled := &writv1.OutcomeRequest{Entity: &writv1.EntityRef{Kind: "actor", Id: "a"}, IdempotencyKey: "cancelled", CommandType: "writ.testing.v1.Act"}
	cancel := func(ctx context.Context) (*writv1.OutcomeResponse, error) { return cl.Cancel(ctx, cancelled) }
	if out, err := patiently(t, cancel); err != nil || out.GetState() != writv1.OutcomeResponse_CANCELLED {
		t.Fatalf("cancel: %v, %v", out, err)
	}
	for _, row := range []struct {
		name   string
		req    *writv1.SubmitRequest
		code   codes.Code
		reason string
		retry  bool
		replay bool // send again: the same answer, flagged
		detail string
	}{
		{name: "executed", req: act("ok", "ok", nil), code: codes.OK, replay: true},
		{name: "rejected, the default code", req: act("r9", "reject", reject(entity.FailedPrecondition, "WHY")), code: codes.FailedPrecondition, reason: "WHY", replay: true, detail: "outcome"},
		{name: "rejected, not found", req: act("r5", "reject", reject(entity.NotFound, "WHY")), code: codes.NotFound, reason: "WHY", replay: true, detail: "outcome"},
		{name: "rejected, already exists", req: act("r6", "reject", reject(entity.AlreadyExists, "WHY")), code: codes.AlreadyExists, reason: "WHY", replay: true, detail: "outcome"},
		{name: "rejected, permission denied", req: act("r7", "reject", reject(entity.PermissionDenied, "WHY")), code: codes.PermissionDenied, reason: "WHY", replay: true, detail: "outcome"},
		{name: "rejected, out of range", req: act("r11", "reject", reject(entity.OutOfRange, "WHY")), code: codes.OutOfRange, reason: "WHY", replay: true, detail: "outcome"},
		{name: "rejected with a word of the table", req: act("word", "reject", reject(entity.NotFound, "OUTCOME_UNKNOWN")), code: codes.NotFound, reason: "OUTCOME_UNKNOWN", replay: true, detail: "outcome"},
		{name: "rejected with a code that is not allowed", req: act("r13", "reject", reject(13, "WHY")), code: codes.Internal, reason: "HANDLER_PANIC"},
		{name: "no key", req: act("", "ok", nil), code: codes.InvalidArgument, reason: "INVALID"},
		{name: "key too long", req: act(strings.Repeat("k", 256), "ok", nil), code: codes.InvalidArgument, reason: "TOO_LARGE", detail: "limit"},
		{name: "longest key", req: act(strings.Repeat("k", 255), "ok", nil), code: codes.OK, replay: true},
		{name: "unknown kind", req: command(t, "nothing", "a", "k", &testingv1.Act{}), code: codes.InvalidArgument, reason: "INVALID"},
		{name: "unknown command", req: command(t, "order", "a", "k", &testingv1.Act{}), code: codes.InvalidArgument, reason: "INVALID"},
		{name: "payload does not decode", req: garbage, code: codes.InvalidArgument, reason: "INVALID"},
		{name: "unknown field", req: unknown, code: codes.InvalidArgument, reason: "INVALID"},
		{name: "command too large", req: act("large", "ok", func(a *testingv1.Act) { a.Text = strings.Repeat("x", 5<<20) }), code: codes.InvalidArgument, reason: "TOO_LARGE", detail: "limit"},
		{name: "event too large", req: act("event", "emit", func(a *testingv1.Act) { a.ToKind, a.ToId, a.Bytes = "actor", "b", 5<<20 }), code: codes.InvalidArgument, reason: "TOO_LARGE", detail: "size"},
		{name: "too many rows", req: act("flood", "flood", func(a *testingv1.Act) { a.ToKind, a.ToId, a.Bytes = "actor", "b", 1001 }), code: codes.InvalidArgument, reason: "TOO_LARGE", detail: "limit"},
		{name: "key reused", req: act("ok", "ok", func(a *testingv1.Act) { a.Text = "other" }), code: codes.Aborted, reason: "KEY_REUSED"},
		{name: "rejected key reused", req: act("r5", "ok", nil), code: codes.Aborted, reason: "KEY_REUSED"},
		{name: "another version", req: atVersion, code: codes.Aborted, reason: "VERSION_MISMATCH", detail: "version"},
		{name: "cancelled", req: act("cancelled", "ok", nil), code: codes.FailedPrecondition, reason: "CANCELLED"},
		{name: "panic", req: act("panic", "panic", nil), code: codes.Internal, reason: "HANDLER_PANIC"},
		{name: "error that is no rejection", req: act("error", "error", nil), code: codes.Internal, reason: "HANDLER_PANIC"},
		{name: "at least once, no key", req: command(t, "actor", "a", "", &testingv1.Touch{}), code: codes.OK},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := do(row.req)
			if got.code != row.code || got.reason != row.reason || got.retry != row.retry || got.replayed && !got.late {
				t.Fatalf("got %v, want %v %s, retry %v", got, row.code, row.reason, row.retry)
			}
			if _, there := got.details[row.detail]; row.detail != "" && !there {
				t.Errorf("detail %q is missing: %v", row.detail, got)
			}
			again := do(row.req)
			if row.replay && (!again.replayed || again.code != got.code || again.reason != got.reason || again.text != got.text || fmt.Sprint(again.details) != fmt.Sprint(got.details)) {
				t.Errorf("again: %v, want the first answer %v, flagged", again, got)
			}
			if !row.replay && row.code != codes.OK && (again.replayed || again.code != got.code || again.reason != got.reason) {
				t.Errorf("again: %v, first %v", again, got)
			}
		})
	}
	future := act("future", "ok", nil)
	future.IssuedAt = timestamppb.New(time.Now().Add(time.Hour))
	if got := do(future); got.code != codes.InvalidArgument || got.reason != "INVALID" {
		t.Errorf("issued in an hour: %v", got)
	}
	// A key whose command failed in a way that stores nothing is free.
	if got := do(act("panic", "ok", nil)); !got.first() {
		t.Errorf("key of a handler that panicked, with another payload: %v", got)
	}
}

// TestLongTexts covers that no text breaks the answer: it is cut, and details are
// bounded.
func TestLongTexts(t *testing.T) {
	acts := newActing()
	c := newCluster(t, 1, acts.conf)
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	for name, text := range map[string]string{"ascii": "x", "runes": "€", "percent": "%", "not printable": "\x01"} {
		req := command(t, "actor", "a", name, &testingv1.Act{What: "reject", Code: uint32(entity.NotFound), Reason: strings.Repeat("R", 5000), Text: strings.Repeat(text, 1<<20)})
		got := send(t, cl, req)
		if got.code != codes.NotFound || len(got.text) > 2<<10 || len(got.text) < 1000 || len(got.reason) > 64 {
			t.Errorf("%s: text of %d bytes, reason of %d: %v", name, len(got.text), len(got.reason), got)
		}
		if again := send(t, cl, req); again.text != got.text || !again.replayed {
			t.Errorf("%s: the replay differs: %v", name, again)
		}
	}
}

// TestInFlight covers the rows about a key that is being executed, and about
// callers that left.
func TestInFlight(t *testing.T) {
	acts := newActing()
	c := newCluster(t, 1, acts.conf)
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	wait := func(key string) *writv1.SubmitRequest {
		return command(t, "actor", "a", key, &testingv1.Act{What: "wait", Text: key})
	}
	first := make(chan answer, 1)
	go func() { first <- submit(t.Context(), cl, wait("k")) }()
	<-acts.began

	// Whoever does not wait long enough knows nothing; whoever leaves before the
	// turn of its command came is not executed at all.
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got := submit(short, cl, wait("late")); got.code != codes.DeadlineExceeded || got.reason != "" {
		t.Errorf("deadline in the queue: %v", got)
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	if got := submit(left, cl, wait("left")); got.code != codes.Canceled {
		t.Errorf("caller that left: %v", got)
	}
	// The server has a clock of its own for the deadline. It reads what comes over one
	// connection in order: once this one is answered it knows that nobody waits.
	send(t, cl, command(t, "actor", "b", "k", &testingv1.Act{What: "ok"}))
	close(acts.finish)
	got := <-first
	if got.reason == "NOT_EXECUTED" {
		got = send(t, cl, wait("k"))
	}
	if !got.first() {
		t.Errorf("first call: %v", got)
	}
	if got := send(t, cl, wait("k")); got.code != codes.OK || !got.replayed {
		t.Errorf("same key later: %v", got)
	}
	inFlight(t, cl)
	out, err := patiently(t, func(ctx context.Context) (*writv1.OutcomeResponse, error) {
		return cl.Outcome(ctx, &writv1.OutcomeRequest{Entity: &writv1.EntityRef{Kind: "actor", Id: "a"}, IdempotencyKey: "late", CommandType: "writ.testing.v1.Act"})
	})
	if err != nil || out.GetState() != writv1.OutcomeResponse_NEVER_SEEN {
		t.Errorf("a command whose deadline passed in the queue: %v, %v; want NEVER_SEEN", out, err)
	}
}

// inFlight sends pairs of calls with one key until the second meets the first on
// its way through the log.
func inFlight(t *testing.T, cl writv1.EntityServiceClient) {
	t.Helper()
	for i := range 5000 {
		req := command(t, "actor", "pairs", fmt.Sprint(i), &testingv1.Act{What: "ok"})
		impatient := proto.CloneOf(req)
		impatient.NoWait = true
		other := make(chan answer, 1)
		go func() { other <- submit(t.Context(), cl, req) }()
		got := submit(t.Context(), cl, impatient)
		a := <-other
		if got.code == codes.OK || got.code == codes.Unavailable || a.code == codes.Unavailable {
			continue
		}
		if a.code != codes.OK {
			t.Fatalf("patient call: %v", a)
		}
		if got.code != codes.Aborted || got.reason != "IN_FLIGHT" || !got.retry {
			t.Errorf("impatient call: %v", got)
		}
		return
	}
	t.Error("no call met another one with its key")
}

// TestQuorumLost covers UNAVAILABLE.
func TestQuorumLost(t *testing.T) {
	acts := newActing()
	c := newCluster(t, 3, acts.conf)
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	for _, name := range []string{"n2", "n3"} {
		if err := c.nodes[name].Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		delete(c.nodes, name)
	}
	// Without a quorum: unknown if the record was proposed under a lease that then
	// ended, else not executed; always UNAVAILABLE, always with a hint.
	answers := make(chan answer)
	const calls = 20
	for i := range calls {
		go func() {
			answers <- submit(t.Context(), cl, command(t, "actor", fmt.Sprint("e", i), "k", &testingv1.Act{What: "ok"}))
		}()
	}
	check := func(got answer) {
		t.Helper()
		if got.code != codes.Unavailable || (got.reason != "NOT_EXECUTED" && got.reason != "OUTCOME_UNKNOWN") || !got.retry {
			t.Errorf("without a quorum: %v", got)
		}
	}
	for range calls {
		check(<-answers)
	}
	// All of these may have been under leases that had not ended; later ones are not.
	eventually(t, func(ctx context.Context) (answer, error) {
		got := submit(ctx, cl, command(t, "actor", "later", client.NewKey(), &testingv1.Act{What: "ok"}))
		if check(got); got.reason != "NOT_EXECUTED" {
			return got, fmt.Errorf("%v", got)
		}
		return got, nil
	})
}

// TestOutcomeUnknown covers the row about leadership that is lost after a record was
// proposed: clients that never stop sending meet the moment at which the quorum
// goes. What the answer promises is then put to the test: with the quorum back, the
// same key tells the outcome, and every command has taken effect once.
func TestOutcomeUnknown(t *testing.T) {
	acts := newActing()
	c := newCluster(t, 3, acts.conf)
	conn := c.dial("n1")
	cl := writv1.NewEntityServiceClient(conn)
	const clients = 16 // more than shards
	ref := func(i int) string { return fmt.Sprint("unknown-", i) }
	add := func(i, n int) *writv1.SubmitRequest {
		return command(t, "order", ref(i), fmt.Sprint(n), &testingv1.Order{AmountMinor: 1, Currency: "EUR"})
	}
	type last struct {
		client, command int
		answer          answer
	}
	begun, failed := make(chan struct{}, clients), make(chan last, clients)
	for i := range clients {
		go func() {
			for n := 0; ; n++ {
				got := submit(t.Context(), cl, add(i, n))
				if got.code != codes.OK {
					failed <- last{i, n, got}
					return
				}
				if n == 0 {
					begun <- struct{}{}
				}
			}
		}()
	}
	for range clients {
		<-begun
	}
	for _, name := range []string{"n2", "n3"} {
		if err := c.nodes[name].Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		delete(c.nodes, name)
	}
	unknown := 0
	ends := make([]last, clients)
	for range clients {
		end := <-failed
		ends[end.client] = end
		got := end.answer
		if got.code != codes.Unavailable || (got.reason != "NOT_EXECUTED" && got.reason != "OUTCOME_UNKNOWN") || !got.retry || got.replayed {
			t.Errorf("without a quorum: %v", got)
		}
		if got.reason == "OUTCOME_UNKNOWN" {
			unknown++
		}
	}
	if unknown == 0 {
		t.Error("no call was told that its outcome is unknown")
	}
	t.Logf("%d of %d clients were told OUTCOME_UNKNOWN", unknown, clients)
	c.restart("n2", "n3")
	for i, end := range ends {
		again := send(t, cl, add(i, end.command))
		if again.code != codes.OK || (end.answer.reason == "NOT_EXECUTED" && !again.first()) {
			t.Errorf("the same key again, after %v: %v", end.answer, again)
		}
		out, err := patiently(t, func(ctx context.Context) (*writv1.ReadResponse, error) {
			return cl.Read(ctx, &writv1.ReadRequest{Entity: &writv1.EntityRef{Kind: "order", Id: ref(i)}})
		})
		var sum testingv1.Sum
		if err == nil {
			err = out.GetState().UnmarshalTo(&sum)
		}
		if want := uint64(end.command + 1); err != nil || sum.GetOrders() != want {
			t.Errorf("%s: %d orders, want %d: %v", ref(i), sum.GetOrders(), want, err)
		}
	}
	c.audit()
}

// TestCredentials covers the rows about who calls.
func TestCredentials(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.WriteFile(tokens, []byte(`{"token-a": "acme", "token-b": "other", "token-o": {"tenant": "acme", "admin": true}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	acts := newActing()
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	c := newCluster(t, 3, func(cfg *node.Config) { acts.conf(cfg); cfg.Tokens, cfg.GossipKey = tokens, key })
	conn := c.dial("n1")
	cl := writv1.NewEntityServiceClient(conn)
	with := func(ctx context.Context, token string) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	as := func(token string) context.Context { return with(t.Context(), token) }
	req := command(t, "actor", "a", "k", &testingv1.Act{What: "ok"})
	if got := submit(t.Context(), cl, req); got.code != codes.Unauthenticated || got.reason != "UNAUTHENTICATED" {
		t.Errorf("no token: %v", got)
	}
	if got := submit(as("strange"), cl, req); got.code != codes.Unauthenticated || got.reason != "UNAUTHENTICATED" {
		t.Errorf("bad token: %v", got)
	}
	for _, token := range []string{"token-a", "token-b"} { // one key, of two tenants
		if got := insist(t, func(ctx context.Context) answer { return submit(with(ctx, token), cl, req) }); !got.first() {
			t.Errorf("with %s: %v", token, got)
		}
	}
	_, err := nodev1.NewAdminServiceClient(conn).Status(as("token-a"), &nodev1.StatusRequest{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("operator's call with a client's token: %v", err)
	}
	if _, err := writv1.NewGuaranteeServiceClient(conn).Get(t.Context(), &writv1.GetGuaranteeRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("guarantee without a token: %v", err)
	}
	if g, err := writv1.NewGuaranteeServiceClient(conn).Get(as("token-a"), &writv1.GetGuaranteeRequest{}); err != nil || len(g.GetClauses()) != 5 {
		t.Errorf("guarantee with a client's token: %v, %v", g, err)
	}
	// The service between nodes takes the tenant from the request: no token opens
	// it, nor does the knowledge of the cluster's id.
	st, err := nodev1.NewAdminServiceClient(conn).Status(as("token-o"), &nodev1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	forward := &nodev1.ForwardRequest{
		ClusterId: st.GetClusterId(), Shard: sharding.Locate(4, entity.Ref{Tenant: "other", Kind: "actor", ID: "a"}), Tenant: "other",
		Call: &nodev1.ForwardRequest_Read{Read: &writv1.ReadRequest{Entity: req.GetEntity()}},
	}
	for _, token := range []string{"token-a", "token-o"} {
		if _, err := nodev1.NewNodeServiceClient(conn).Forward(as(token), forward); status.Code(err) != codes.PermissionDenied {
			t.Errorf("as a node, with %s: %v", token, err)
		}
	}
}

// TestOverloaded covers RESOURCE_EXHAUSTED: more calls for one entity than may
// wait, while its handler is busy.
func TestOverloaded(t *testing.T) {
	acts := newActing()
	c := newCluster(t, 1, acts.conf)
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	const calls = 2100 // the limit is 2,048
	answers := make(chan answer, calls)
	send := func(key, what string) {
		answers <- submit(t.Context(), cl, command(t, "actor", "a", key, &testingv1.Act{What: what}))
	}
	go send("first", "wait")
	<-acts.began
	for i := range calls - 1 {
		go send(fmt.Sprint(i), "ok")
	}
	over := <-answers // the first answer is a refusal: all others wait
	if over.code != codes.ResourceExhausted || over.reason != "OVERLOADED" || !over.retry {
		t.Errorf("too much work for one entity: %v", over)
	}
	close(acts.finish)
	refused := 1
	for range calls - 1 {
		switch got := <-answers; got.code {
		case codes.OK, codes.Unavailable: // the disk may hang for a moment
		case codes.ResourceExhausted:
			refused++
		default:
			t.Errorf("got %v", got)
		}
	}
	if refused > calls/2 {
		t.Errorf("%d of %d calls were refused", refused, calls)
	}
}
