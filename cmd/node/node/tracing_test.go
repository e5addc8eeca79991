package node_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
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
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	c.undisturbed(col, func(r *trial) {
		req := command(t, "account", r.name("a"), "", eur(1))
		req.IdempotencyKeyBytes = []byte("k\xff")
		if _, ok := r.submit(cl, req, codes.OK); ok {
			r.await("writ.commit", map[string]string{"key": "k?"})
		}
	})
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

// await waits for such spans.
func (c *collector) await(t *testing.T, trace, name string, attrs map[string]string) []span {
	t.Helper()
	return eventually(t, func(context.Context) ([]span, error) {
		found := c.find(trace, name, attrs)
		if len(found) == 0 {
			return nil, fmt.Errorf("no span %s %v in trace %s:\n%v", name, attrs, trace, c.all(trace))
		}
		return found, nil
	})
}

// trial is a run of a scenario, in a trace of its own.
type trial struct {
	t     *testing.T
	col   *collector
	trace string
	calm  func(context.Context) bool // no leader has changed since its beginning
	wrong []string
	void  bool
}

// undisturbed runs a scenario until no leader changes meanwhile, and no call is
// refused because there is none: what is sent again leaves spans of its own.
func (c *testCluster) undisturbed(col *collector, scenario func(*trial)) {
	c.t.Helper()
	for round := range 10 {
		before := eventually(c.t, c.written).terms
		r := &trial{t: c.t, col: col, trace: fmt.Sprintf("%032x", round+1)}
		r.calm = func(ctx context.Context) bool {
			now, err := c.written(ctx)
			return err != nil || maps.Equal(before, now.terms)
		}
		scenario(r)
		if r.void || len(r.wrong) > 0 && !r.calm(c.t.Context()) {
			c.t.Logf("disturbed, so once more: %v", r.wrong)
			continue
		}
		for _, text := range r.wrong {
			c.t.Error(text)
		}
		return
	}
	c.t.Error("disturbed each time")
}

func (r *trial) errorf(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

// name is one that no other trial uses.
func (r *trial) name(id string) string { return id + "-" + r.trace }

// submit sends a command within the trial's trace, and reports whether it was answered
// as it should be.
func (r *trial) submit(cl writv1.EntityServiceClient, req *writv1.SubmitRequest, want codes.Code) (got answer, ok bool) {
	got = submit(within(r.t.Context(), r.trace, "01"), cl, req)
	switch got.code {
	case want:
		return got, true
	case codes.Unavailable:
		r.void = true
	default:
		r.errorf("%v", got)
	}
	return got, false
}

// await waits for exactly one such span. There may never be one if a leader changes
// meanwhile: then it returns an empty one.
func (r *trial) await(name string, attrs map[string]string) span {
	r.t.Helper()
	found := eventually(r.t, func(ctx context.Context) ([]span, error) {
		found := r.col.find(r.trace, name, attrs)
		if r.void = r.void || len(found) == 0 && !r.calm(ctx); len(found) == 0 && !r.void {
			return nil, fmt.Errorf("no span %s %v in trace %s:\n%v", name, attrs, r.trace, r.col.all(r.trace))
		}
		return found, nil
	})
	switch len(found) {
	case 0:
		return span{}
	case 1:
	default:
		r.errorf("%d spans %s %v, want 1 of:\n%v", len(found), name, attrs, r.col.all(r.trace))
	}
	return found[0]
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

// within is a call within the caller's span of a trace.
func within(ctx context.Context, trace, flags string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+trace+"-"+callersSpan+"-"+flags)
}

// accountApart is the id of an account in another shard than those given.
func accountApart(prefix string, others ...string) string {
	shardOf := func(id string) uint32 {
		return sharding.Locate(4, entity.Ref{Tenant: "default", Kind: "account", ID: id})
	}
	for i := 0; ; i++ {
		id := fmt.Sprint(prefix, "-", i)
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
	c.openAccount("first")
	if spans := col.find("", "writ.submit", nil); len(spans) > 0 && spans[0].parent != "" {
		t.Errorf("a command without a traceparent has a parent: %v", spans)
	}
	c.undisturbed(col, c.transfer)
}

// transfer is the scenario of TestOneTrace.
func (c *testCluster) transfer(r *trial) {
	t := c.t
	t.Helper()
	payer := accountApart(r.name("payer"))
	receiver := accountApart(r.name("receiver"), payer)
	c.openAccount(payer)
	cl := writv1.NewEntityServiceClient(c.dial("n2"))
	req := command(t, "account", payer, "k", &accountv1.Transfer{To: receiver, AmountMinor: 7, Currency: "EUR"})
	if _, ok := r.submit(cl, req, codes.OK); !ok {
		return
	}
	at := func(id string) map[string]string { return map[string]string{"entity.id": id} }
	row := func(source, destination, event string) map[string]string {
		return map[string]string{"source.id": source, "destination.id": destination, "event": "writ.account.v1." + event}
	}
	handled := func(source, id, event string) map[string]string {
		return map[string]string{"source.id": source, "entity.id": id, "event": "writ.account.v1." + event}
	}
	follows := func(child, parent span) {
		if child.parent != parent.id || child.failed {
			r.errorf("%v\nshould follow\n%v", child, parent)
		}
	}
	command := r.await("writ.submit", at(payer))
	follows(command, span{id: callersSpan})
	if command.node != "n2" || command.attrs["replayed"] != "false" {
		r.errorf("command %v", command)
	}
	commit := r.await("writ.commit", at(payer))
	follows(commit, command)
	if commit.attrs["key"] != "k" || commit.attrs["decision"] != "EXECUTED" || commit.attrs["rows"] != "2" {
		r.errorf("commit %v", commit)
	}
	offered := r.await("writ.send", row(payer, receiver, "CreditOffered"))
	follows(offered, commit)
	if offered.attrs["attempt"] != "1" || offered.attrs["lane_sequence"] != "1" {
		r.errorf("send %v", offered)
	}
	taken := r.await("writ.apply", handled(payer, receiver, "CreditOffered"))
	follows(taken, commit)
	follows(r.await("writ.send", row(payer, "all", "Posted")), commit)
	follows(r.await("writ.apply", handled(payer, "all", "Posted")), commit)

	// What comes of an event follows its handling.
	follows(r.await("writ.send", row(receiver, "all", "Posted")), taken)
	follows(r.await("writ.apply", handled(receiver, "all", "Posted")), taken)
	follows(r.await("writ.send", row(receiver, payer, "CreditTaken")), taken)
	follows(r.await("writ.apply", handled(receiver, payer, "CreditTaken")), taken)
	_, payersLeader := c.leader("account", payer)
	_, receiversLeader := c.leader("account", receiver)
	if commit.node != payersLeader || taken.node != receiversLeader {
		r.errorf("committed on %s, applied on %s; leaders are %s and %s", commit.node, taken.node, payersLeader, receiversLeader)
	}

	// The outcome keeps where to look.
	res := c.inspect("account", payer, "k")
	outcome := res.GetKey().GetOutcome()
	if want := "00-" + r.trace + "-" + commit.id + "-01"; outcome.GetTrace() != want || outcome.GetRows() != 2 || len(outcome.GetEmitted()) != 2 {
		r.errorf("outcome %v, want trace %s and two rows in two lanes", outcome, want)
	}

	// A retry is a command of its own, and nothing else.
	if _, ok := r.submit(cl, req, codes.OK); !ok {
		return
	}
	r.await("writ.submit", map[string]string{"replayed": "true"})
	c.audit()
	if all := r.col.all(r.trace); len(all) != 11 {
		r.errorf("%d spans, want 2 commands, 1 commit, 4 sends and 4 events handled:\n%v", len(all), all)
	}
}

// inspect is what is known of an entity and one of its keys.
func (c *testCluster) inspect(kind, id, key string) *nodev1.InspectResponse {
	c.t.Helper()
	admin := c.admin()
	return eventually(c.t, func(ctx context.Context) (*nodev1.InspectResponse, error) {
		return admin.Inspect(ctx, &nodev1.InspectRequest{Entity: &recordv1.Ref{Tenant: "default", Kind: kind, Id: id}, Key: []byte(key)})
	})
}

// TestRefusedRowsAreTraced covers that each attempt is a span with its number and
// the consumer's reason, and that the row holds the trace.
func TestRefusedRowsAreTraced(t *testing.T) {
	col := newCollector(t)
	c := newCluster(t, 1, func(cfg *node.Config) { newActing().conf(cfg); col.conf(cfg) })
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	c.undisturbed(col, func(r *trial) {
		id := r.name("a")
		req := command(t, "actor", id, "k", &testingv1.Act{What: "emit", ToKind: "actor", ToId: "b", Text: "no"})
		if _, ok := r.submit(cl, req, codes.OK); !ok {
			return
		}
		for _, attempt := range []string{"1", "2", "3"} {
			s := r.await("writ.send", map[string]string{"attempt": attempt})
			if !s.failed || !strings.Contains(s.status, "REJECTED") {
				r.errorf("attempt %s: %v", attempt, s)
			}
		}
		commit := r.await("writ.commit", nil)
		want := "00-" + r.trace + "-" + commit.id + "-01"
		if out := c.inspect("actor", id, "").GetOutgoing(); len(out) != 1 || len(out[0].GetRows()) != 1 || out[0].GetRows()[0].GetTrace() != want {
			r.errorf("lanes %v, want one row with trace %s", out, want)
		}
		for _, s := range col.find(r.trace, "writ.apply", nil) {
			if !s.failed || s.parent != commit.id {
				r.errorf("%v: want it failed, and following %s", s, commit.id)
			}
		}
	})
}

// TestFailedHandlersAreTraced covers that a span says how a handler has failed, and
// nothing of what it said.
func TestFailedHandlersAreTraced(t *testing.T) {
	col := newCollector(t)
	c := newCluster(t, 1, func(cfg *node.Config) { newActing().conf(cfg); col.conf(cfg) })
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	for what, want := range map[string]string{"panic": "the handler panicked", "error": "the handler returned an error that is no rejection"} {
		c.undisturbed(col, func(r *trial) {
			id := r.name(what)
			if got, ok := r.submit(cl, command(t, "actor", id, "k", &testingv1.Act{What: what}), codes.Internal); !ok || got.reason != "HANDLER_PANIC" {
				r.errorf("%v", got)
				return
			}
			s := r.await("writ.commit", map[string]string{"entity.id": id})
			if !s.failed || !strings.HasPrefix(s.status, want) || strings.Contains(s.status, "as told") {
				r.errorf("%v: want %q", s, want)
			}
		})
	}
}

// TestTimersAreTraced covers that what a timer does belongs to the trace of the
// command that set it.
func TestTimersAreTraced(t *testing.T) {
	col := newCollector(t)
	k := &alarms{}
	c := newCluster(t, 1, func(cfg *node.Config) { cfg.Kinds = k.kinds(); col.conf(cfg) })
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	c.undisturbed(col, func(r *trial) {
		id := r.name("a")
		if _, ok := r.submit(cl, command(t, "alarm", id, "k", &wrapperspb.StringValue{Value: "set 10ms"}), codes.OK); !ok {
			return
		}
		commit := r.await("writ.commit", nil)
		for i := range 10 {
			fired := r.await("writ.fire", map[string]string{"entity.id": id, "timer": fmt.Sprint(i)})
			if fired.parent != commit.id || fired.failed {
				r.errorf("%v does not follow %v", fired, commit)
			}
		}
	})
}

// TestSampling covers that a caller that does not sample is heard, that commands of
// callers that have not decided are traced by ratio, and that an unsampled trace is
// handed on as it came.
func TestSampling(t *testing.T) {
	col := newCollector(t)
	c := newCluster(t, 1, func(cfg *node.Config) { newActing().conf(cfg); col.conf(cfg); cfg.TraceRatio = 0 })
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	emit := func(id string, traced func(context.Context) context.Context) *recordv1.Row {
		t.Helper()
		req := command(t, "actor", id, "k", &testingv1.Act{What: "emit", ToKind: "actor", ToId: "b", Text: "no"})
		if got := insist(t, func(ctx context.Context) answer { return submit(traced(ctx), cl, req) }); got.code != codes.OK {
			t.Fatal(got)
		}
		res := c.inspect("actor", id, "")
		if len(res.GetOutgoing()) != 1 || len(res.GetOutgoing()[0].GetRows()) != 1 {
			t.Fatal(res)
		}
		return res.GetOutgoing()[0].GetRows()[0]
	}
	if row := emit("undecided", func(ctx context.Context) context.Context { return ctx }); row.GetTrace() != "" {
		t.Errorf("trace %q of a command that is not sampled", row.GetTrace())
	}
	traced := func(flags string) func(context.Context) context.Context {
		return func(ctx context.Context) context.Context { return within(ctx, callersTrace, flags) }
	}
	unsampled := "00-" + callersTrace + "-" + callersSpan + "-00"
	if row := emit("unsampled", traced("00")); row.GetTrace() != unsampled {
		t.Errorf("trace %q, want the caller's %q", row.GetTrace(), unsampled)
	}
	strange := func(ctx context.Context) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "traceparent", "not one")
	}
	if row := emit("strange", strange); row.GetTrace() != "" {
		t.Errorf("trace %q of a header that is none", row.GetTrace())
	}
	emit("sampled", traced("01"))
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
	const payer = "payer"
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
