package node_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/entity"
	"writ/cmd/node/node"
	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	testingv1 "writ/proto/writ/testing/v1"
	writv1 "writ/proto/writ/v1"
	"writ/sharding"
)

// collector receives what nodes export: a real OTLP service in this process.
type collector struct {
	coltracepb.UnimplementedTraceServiceServer
	url string

	mu    sync.Mutex
	spans []span
}

// span is an exported span, in words.
type span struct {
	trace, id, parent, name, node string
	attrs                         map[string]string
	failed                        bool
	status                        string
}

func (s span) String() string {
	return fmt.Sprintf("%s %s (trace %s, parent %s, node %s) %v %s", s.name, s.id, s.trace, s.parent, s.node, s.attrs, s.status)
}

// Export implements coltracepb.TraceServiceServer.
func (c *collector) Export(_ context.Context, req *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range req.GetResourceSpans() {
		from := ""
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "service.instance.id" {
				from = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, spanOf(from, s))
			}
		}
	}
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

func spanOf(node string, s *tracepb.Span) span {
	out := span{
		trace: hex.EncodeToString(s.GetTraceId()), id: hex.EncodeToString(s.GetSpanId()), parent: hex.EncodeToString(s.GetParentSpanId()),
		name: s.GetName(), node: node, attrs: map[string]string{},
		failed: s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR, status: s.GetStatus().GetMessage(),
	}
	for _, a := range s.GetAttributes() {
		text := a.GetValue().String() // e.g. int_value:3
		_, text, _ = strings.Cut(text, ":")
		out.attrs[strings.TrimPrefix(a.GetKey(), "writ.")] = strings.Trim(text, `"`)
	}
	return out
}

// all are the spans of a trace, "" for all traces.
func (c *collector) all(trace string) []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []span
	for _, s := range c.spans {
		if trace == "" || s.trace == trace {
			list = append(list, s)
		}
	}
	return list
}

// A key that is no text is shown as well as can be, and does not take its batch with
// it.
func TestTraceOfBinaryKey(t *testing.T) {
	col := newCollector(t)
	c := newCluster(t, 1, col.conf)
	req := command(t, "account", "a", "", eur(1))
	req.IdempotencyKeyBytes = []byte("k\xff")
	if got := submit(traced(t.Context(), "01"), writv1.NewEntityServiceClient(c.dial("n1")), req); got.code != codes.OK {
		t.Fatal(got)
	}
	col.await(t, callersTrace, "writ.commit", map[string]string{"key": "k?"})
}

// find are the spans of a trace that have a name and attributes.
func (c *collector) find(trace, name string, attrs map[string]string) []span {
	return slices.DeleteFunc(c.all(trace), func(s span) bool {
		for key, value := range attrs {
			if s.attrs[key] != value {
				return true
			}
		}
		return s.name != name
	})
}

// await waits for exactly one such span.
func (c *collector) await(t *testing.T, trace, name string, attrs map[string]string) span {
	t.Helper()
	return eventually(t, func(context.Context) (span, error) {
		found := c.find(trace, name, attrs)
		if len(found) != 1 {
			return span{}, fmt.Errorf("%d spans %s %v in trace %s, want 1 of:\n%v", len(found), name, attrs, trace, c.all(trace))
		}
		return found[0], nil
	})
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{url: "http://" + l.Addr().String()}
	server := grpc.NewServer()
	coltracepb.RegisterTraceServiceServer(server, c)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20") // milliseconds; the SDK's own setting
	return c
}

// conf has a node trace everything.
func (c *collector) conf(cfg *node.Config) { cfg.TraceEndpoint, cfg.TraceRatio = c.url, 1 }

// A caller's trace, as its traceparent says it.
const (
	callersTrace = "0af7651916cd43dd8448eb211c80319c"
	callersSpan  = "b7ad6b7169203331"
)

// traced is a call within the caller's trace.
func traced(ctx context.Context, flags string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+callersTrace+"-"+callersSpan+"-"+flags)
}

// account is the id of an account in another shard than those given.
func accountApart(others ...string) string {
	shardOf := func(id string) uint32 {
		return sharding.Locate(4, entity.Ref{Tenant: "default", Kind: "account", ID: id})
	}
	for i := 0; ; i++ {
		id := fmt.Sprint("account-", i)
		if !slices.ContainsFunc(others, func(other string) bool { return shardOf(other) == shardOf(id) }) {
			return id
		}
	}
}

// openAccount puts money into an account and waits until all that came of it is
// done.
func (c *testCluster) openAccount(id string) {
	c.t.Helper()
	if _, err := c.client().Submit(c.t.Context(), "account", id, "open", eur(100), clientOptions()); err != nil {
		c.t.Fatal(err)
	}
	c.audit()
}

// TestOneTrace covers that a transfer is one trace, the caller's: command, commit,
// sends, the handling at the receiver and at the statement, on whatever node, and
// that each step follows the one that it came of.
func TestOneTrace(t *testing.T) {
	col := newCollector(t)
	c := newCluster(t, 3, col.conf)
	c.settle()
	payer := accountApart()
	receiver := accountApart(payer)
	c.openAccount(payer)
	if spans := col.find("", "writ.submit", nil); len(spans) > 0 && spans[0].parent != "" {
		t.Errorf("a command without a traceparent has a parent: %v", spans)
	}

	cl := writv1.NewEntityServiceClient(c.dial("n2"))
	req := command(t, "account", payer, "k", &accountv1.Transfer{To: receiver, AmountMinor: 7, Currency: "EUR"})
	if got := submit(traced(t.Context(), "01"), cl, req); got.code != codes.OK {
		t.Fatal(got)
	}
	at := func(id string) map[string]string { return map[string]string{"entity.id": id} }
	row := func(source, destination, event string) map[string]string {
		return map[string]string{"source.id": source, "destination.id": destination, "event": "writ.account.v1." + event}
	}
	handled := func(source, id, event string) map[string]string {
		return map[string]string{"source.id": source, "entity.id": id, "event": "writ.account.v1." + event}
	}
	follows := func(child, parent span) {
		t.Helper()
		if child.parent != parent.id || child.failed {
			t.Errorf("%v\nshould follow\n%v", child, parent)
		}
	}
	command := col.await(t, callersTrace, "writ.submit", at(payer))
	follows(command, span{id: callersSpan})
	if command.node != "n2" || command.attrs["replayed"] != "false" {
		t.Errorf("command %v", command)
	}
	commit := col.await(t, callersTrace, "writ.commit", at(payer))
	follows(commit, command)
	if commit.attrs["key"] != "k" || commit.attrs["decision"] != "EXECUTED" || commit.attrs["rows"] != "2" {
		t.Errorf("commit %v", commit)
	}
	offered := col.await(t, callersTrace, "writ.send", row(payer, receiver, "CreditOffered"))
	follows(offered, commit)
	if offered.attrs["attempt"] != "1" || offered.attrs["lane_sequence"] != "1" {
		t.Errorf("send %v", offered)
	}
	taken := col.await(t, callersTrace, "writ.apply", handled(payer, receiver, "CreditOffered"))
	follows(taken, commit)
	follows(col.await(t, callersTrace, "writ.send", row(payer, "all", "Posted")), commit)
	follows(col.await(t, callersTrace, "writ.apply", handled(payer, "all", "Posted")), commit)

	// What comes of an event follows its handling.
	follows(col.await(t, callersTrace, "writ.send", row(receiver, "all", "Posted")), taken)
	follows(col.await(t, callersTrace, "writ.apply", handled(receiver, "all", "Posted")), taken)
	follows(col.await(t, callersTrace, "writ.send", row(receiver, payer, "CreditTaken")), taken)
	follows(col.await(t, callersTrace, "writ.apply", handled(receiver, payer, "CreditTaken")), taken)
	_, payersLeader := c.leader("account", payer)
	_, receiversLeader := c.leader("account", receiver)
	if commit.node != payersLeader || taken.node != receiversLeader {
		t.Errorf("committed on %s, applied on %s; leaders are %s and %s", commit.node, taken.node, payersLeader, receiversLeader)
	}

	// The outcome keeps where to look.
	res, err := c.admin().Inspect(t.Context(), &nodev1.InspectRequest{Entity: &recordv1.Ref{Tenant: "default", Kind: "account", Id: payer}, Key: []byte("k")})
	if err != nil {
		t.Fatal(err)
	}
	outcome := res.GetKey().GetOutcome()
	if want := "00-" + callersTrace + "-" + commit.id + "-01"; outcome.GetTrace() != want || outcome.GetRows() != 2 || len(outcome.GetEmitted()) != 2 {
		t.Errorf("outcome %v, want trace %s and two rows in two lanes", outcome, want)
	}

	// A retry is a command of its own, and nothing else.
	if got := submit(traced(t.Context(), "01"), cl, req); got.code != codes.OK || !got.replayed {
		t.Fatal(got)
	}
	col.await(t, callersTrace, "writ.submit", map[string]string{"replayed": "true"})
	c.audit()
	if n := len(col.all(callersTrace)); n != 11 {
		t.Errorf("%d spans, want 2 commands, 1 commit, 4 sends and 4 events handled:\n%v", n, col.all(callersTrace))
	}
}

// TestRefusedRowsAreTraced covers that each attempt is a span with its number and
// the consumer's reason, and that the row holds the trace.
func TestRefusedRowsAreTraced(t *testing.T) {
	col := newCollector(t)
	c := newCluster(t, 1, func(cfg *node.Config) { newActing().conf(cfg); col.conf(cfg) })
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	req := command(t, "actor", "a", "k", &testingv1.Act{What: "emit", ToKind: "actor", ToId: "b", Text: "no"})
	if got := submit(traced(t.Context(), "01"), cl, req); got.code != codes.OK {
		t.Fatal(got)
	}
	for _, attempt := range []string{"1", "2", "3"} {
		s := col.await(t, callersTrace, "writ.send", map[string]string{"attempt": attempt})
		if !s.failed || !strings.Contains(s.status, "REJECTED") {
			t.Errorf("attempt %s: %v", attempt, s)
		}
	}
	commit := col.await(t, callersTrace, "writ.commit", nil)
	res, err := c.admin().Inspect(t.Context(), &nodev1.InspectRequest{Entity: &recordv1.Ref{Tenant: "default", Kind: "actor", Id: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	want := "00-" + callersTrace + "-" + commit.id + "-01"
	if rows := res.GetOutgoing()[0].GetRows(); len(rows) != 1 || rows[0].GetTrace() != want {
		t.Errorf("rows %v, want one with trace %s", rows, want)
	}
	for _, s := range col.find(callersTrace, "writ.apply", nil) {
		if !s.failed || s.parent != commit.id {
			t.Errorf("%v: want it failed, and following %s", s, commit.id)
		}
	}
}

// TestFailedHandlersAreTraced covers that a span says how a handler has failed, and
// nothing of what it said.
func TestFailedHandlersAreTraced(t *testing.T) {
	col := newCollector(t)
	c := newCluster(t, 1, func(cfg *node.Config) { newActing().conf(cfg); col.conf(cfg) })
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	for what, want := range map[string]string{"panic": "the handler panicked", "error": "the handler returned an error that is no rejection"} {
		req := command(t, "actor", what, "k", &testingv1.Act{What: what})
		if got := submit(traced(t.Context(), "01"), cl, req); got.reason != "HANDLER_PANIC" {
			t.Fatal(got)
		}
		s := col.await(t, callersTrace, "writ.commit", map[string]string{"entity.id": what})
		if !s.failed || !strings.HasPrefix(s.status, want) || strings.Contains(s.status, "as told") {
			t.Errorf("%v: want %q", s, want)
		}
	}
}

// TestTimersAreTraced covers that what a timer does belongs to the trace of the
// command that set it.
func TestTimersAreTraced(t *testing.T) {
	col := newCollector(t)
	k := &alarms{}
	c := newCluster(t, 1, func(cfg *node.Config) { cfg.Kinds = k.kinds(); col.conf(cfg) })
	set := command(t, "alarm", "a", "k", &wrapperspb.StringValue{Value: "set 10ms"})
	if got := submit(traced(t.Context(), "01"), writv1.NewEntityServiceClient(c.dial("n1")), set); got.code != codes.OK {
		t.Fatal(got)
	}
	commit := col.await(t, callersTrace, "writ.commit", nil)
	for i := range 10 {
		fired := col.await(t, callersTrace, "writ.fire", map[string]string{"entity.id": "a", "timer": fmt.Sprint(i)})
		if fired.parent != commit.id || fired.failed {
			t.Errorf("%v does not follow %v", fired, commit)
		}
	}
}

// TestSampling covers that a caller that does not sample is heard, that commands of
// callers that have not decided are traced by ratio, and that an unsampled trace is
// handed on as it came.
func TestSampling(t *testing.T) {
	col := newCollector(t)
	c := newCluster(t, 1, func(cfg *node.Config) { newActing().conf(cfg); col.conf(cfg); cfg.TraceRatio = 0 })
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	emit := func(ctx context.Context, id string) *recordv1.Row {
		t.Helper()
		if got := submit(ctx, cl, command(t, "actor", id, "k", &testingv1.Act{What: "emit", ToKind: "actor", ToId: "b", Text: "no"})); got.code != codes.OK {
			t.Fatal(got)
		}
		res, err := c.admin().Inspect(t.Context(), &nodev1.InspectRequest{Entity: &recordv1.Ref{Tenant: "default", Kind: "actor", Id: id}})
		if err != nil || len(res.GetOutgoing()) != 1 || len(res.GetOutgoing()[0].GetRows()) != 1 {
			t.Fatal(res, err)
		}
		return res.GetOutgoing()[0].GetRows()[0]
	}
	if row := emit(t.Context(), "undecided"); row.GetTrace() != "" {
		t.Errorf("trace %q of a command that is not sampled", row.GetTrace())
	}
	unsampled := "00-" + callersTrace + "-" + callersSpan + "-00"
	if row := emit(traced(t.Context(), "00"), "unsampled"); row.GetTrace() != unsampled {
		t.Errorf("trace %q, want the caller's %q", row.GetTrace(), unsampled)
	}
	if row := emit(metadata.AppendToOutgoingContext(t.Context(), "traceparent", "not one"), "strange"); row.GetTrace() != "" {
		t.Errorf("trace %q of a header that is none", row.GetTrace())
	}
	emit(traced(t.Context(), "01"), "sampled")
	col.await(t, callersTrace, "writ.commit", map[string]string{"entity.id": "sampled"})
	for _, s := range col.all("") {
		if s.trace != callersTrace || (s.attrs["entity.id"] != "sampled" && s.attrs["source.id"] != "sampled") {
			t.Errorf("not sampled, and exported: %v", s)
		}
	}
}

// TestCollectorAway covers that commands go on, and that a node stops in time, if
// nobody takes its spans.
func TestCollectorAway(t *testing.T) {
	col := newCollector(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	col.url = "http://" + l.Addr().String()
	c := newCluster(t, 1, col.conf)
	payer := accountApart()
	c.openAccount(payer)
	if got := balance(t, c.client(), payer); got != 100 {
		t.Errorf("balance %d, want 100", got)
	}
	began := time.Now()
	c.stop()
	if took := time.Since(began); took > 9*time.Second { // what "node serve" allows
		t.Errorf("the stop took %v", took)
	}
}
