package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	writv1 "writ/proto/writ/v1"
)

// limitRow is what happens above one limit.
type limitRow struct {
	// set makes the limit so small that a test can go over it, on a node of its own.
	// Rows without it share one node, with the limits of sizes.
	set func(*node.Limits)
	// over goes over it and says which command was refused and how. Rows about what is
	// no command check by themselves, and return nil.
	over func(*limitWorld) (*writv1.SubmitRequest, answer)
}

// TestOverLimit has a row for each limit that can be set: what is above it is refused
// by a real node before it reaches the log, and the answer names the limit and its
// value; or what else docs/limits.md says happens there.
func TestOverLimit(t *testing.T) {
	rows, shared := limitRows(), newLimitWorld(t, sizes())
	for part := range reflect.TypeFor[node.Limits]().Fields() {
		for field := range part.Type.Fields() {
			name := part.Tag.Get("json") + "." + field.Name
			row, there := rows[name]
			if delete(rows, name); !there {
				t.Errorf("%s has no row here", name)
				continue
			}
			t.Run(name, func(t *testing.T) {
				limits, l := sizes(), shared
				if row.set != nil {
					t.Parallel()
					limits = node.DefaultLimits()
					row.set(&limits)
					l = newLimitWorld(t, limits)
				}
				l.t = t
				most := reflect.ValueOf(limits).FieldByName(part.Name).FieldByName(field.Name).Int()
				l.refused(name, most, row.over)
			})
		}
	}
	for name := range rows {
		t.Errorf("there is no limit %s", name)
	}
}

// madeByHandler are the limits of what is known only when the handler has run.
var madeByHandler = map[string]bool{
	"entities.State": true, "entities.Event": true, "entities.Reply": true, "entities.Rows": true, "entities.Timers": true, "entities.Record": true,
}

// sizes are small limits of what is looked at in a command, or in what it makes.
func sizes() node.Limits {
	l := node.DefaultLimits()
	l.Entities.Command, l.Gateway.Command = 1000, 1000
	l.Entities.State, l.Entities.Event, l.Entities.Reply, l.Entities.Record = 1000, 1000, 1000, 2000
	l.Entities.Rows, l.Entities.Timers = 3, 3
	l.Entities.Name, l.Entities.Key, l.Entities.Text = 300, 300, 100
	return l
}

// limitWorld is a node of one shard whose entities do what their commands say.
type limitWorld struct {
	t     *testing.T
	c     *testCluster
	cl    writv1.EntityServiceClient
	began chan struct{} // a handler that was told to wait has begun
	free  chan struct{} // closed: none waits any more
	now   atomic.Int64  // of these, at this moment
	peak  atomic.Int64
	sent  int
}

func newLimitWorld(t *testing.T, limits node.Limits) *limitWorld {
	t.Helper()
	l := &limitWorld{t: t, began: make(chan struct{}, 1000), free: make(chan struct{})}
	k := entity.NewKind[*wrapperspb.StringValue]("bound")
	entity.Handle(k, l.act)
	entity.On(k, func(c *entity.Context, _ *wrapperspb.StringValue, e *wrapperspb.StringValue) error {
		c.Emit(entity.To("bound", c.ID()), e) // for ever, but for the limit of hops
		return nil
	})
	l.c = newCluster(t, 1, func(cfg *node.Config) {
		cfg.Shards, cfg.Kinds, cfg.Limits = 1, []entity.Definer{k}, limits
	})
	l.cl = writv1.NewEntityServiceClient(l.c.dial("n1"))
	t.Cleanup(l.release) // before the node is stopped
	return l
}

// act is the handler: "what size".
func (l *limitWorld) act(c *entity.Context, s *wrapperspb.StringValue, cmd *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	var what string
	var n int
	if _, err := fmt.Sscan(cmd.GetValue(), &what, &n); err != nil {
		return nil, err
	}
	message := &wrapperspb.StringValue{Value: strings.Repeat("x", n)}
	switch what {
	case "wait":
		now := l.now.Add(1)
		for peak := l.peak.Load(); now > peak && !l.peak.CompareAndSwap(peak, now); peak = l.peak.Load() {
		}
		l.began <- struct{}{}
		<-l.free
		l.now.Add(-1)
	case "state":
		s.Value = message.GetValue()
	case "reply":
		return message, nil
	case "event":
		c.Emit(entity.To("nobody", "1"), message)
	case "events":
		for range n {
			c.Emit(entity.To("nobody", "1"), &wrapperspb.StringValue{})
		}
	case "timers":
		for i := range n {
			c.SetTimer(fmt.Sprint(i), entity.Timer{After: time.Hour, Command: &wrapperspb.StringValue{Value: "none 0"}})
		}
	case "record":
		s.Value = message.GetValue()
		c.Emit(entity.To("nobody", "1"), message)
		c.Emit(entity.To("nobody", "1"), message)
	case "chain":
		c.Emit(entity.To("bound", c.ID()), message)
	case "reject":
		return nil, c.Reject(entity.OutOfRange, "NO", "%s", message.GetValue())
	}
	return &wrapperspb.StringValue{}, nil
}

// request is a command with a key of its own.
func (l *limitWorld) request(id, what string, n int) *writv1.SubmitRequest {
	l.sent++
	return command(l.t, "bound", id, fmt.Sprint("k", l.sent), &wrapperspb.StringValue{Value: fmt.Sprint(what, " ", n)})
}

// submit sends a command and returns it with its answer.
func (l *limitWorld) submit(id, what string, n int) (*writv1.SubmitRequest, answer) {
	l.t.Helper()
	req := l.request(id, what, n)
	return req, send(l.t, l.cl, req)
}

// quietly sends a command that must not reach the log.
func (l *limitWorld) quietly(req *writv1.SubmitRequest) (*writv1.SubmitRequest, answer) {
	l.t.Helper()
	return l.writing(0, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
		got := send(l.t, l.cl, req)
		if got.replayed {
			l.t.Errorf("stored under its key: %v", got)
		}
		return req, got
	})
}

// writing does what may write so many entries. The auditor writes a few as well, soon
// after a lease begins; what is to be found writes each time.
func (l *limitWorld) writing(most uint64, do func(*limitWorld) (*writv1.SubmitRequest, answer)) (req *writv1.SubmitRequest, got answer) {
	l.t.Helper()
	for range 5 {
		before := l.commitIndex()
		req, got = do(l)
		index := l.commitIndex()
		if index-before <= most {
			return req, got
		}
		l.t.Logf("the log has grown from %d to %d", before, index)
	}
	l.t.Errorf("each time the log has grown by more than %d", most)
	return req, got
}

// large is a command with a padding of n bytes that is no part of what it says.
func (l *limitWorld) large(id, what string, n int) *writv1.SubmitRequest {
	text := what + " 0 "
	l.sent++
	return command(l.t, "bound", id, fmt.Sprint("k", l.sent), &wrapperspb.StringValue{Value: text + strings.Repeat(" ", n-len(text))})
}

// hold has handlers wait, each with a command of its own.
func (l *limitWorld) hold(requests ...*writv1.SubmitRequest) {
	for _, req := range requests {
		go func() {
			if got := submit(l.t.Context(), l.cl, req); got.code != codes.OK && got.code != codes.Unavailable && l.t.Context().Err() == nil {
				l.t.Errorf("a command that was waited for: %v", got)
			}
		}()
	}
	for range requests {
		<-l.began
	}
}

func (l *limitWorld) release() {
	select {
	case <-l.free:
	default:
		close(l.free)
	}
}

// crowd sends commands to different entities at once, again and again, until one of
// them is refused.
func (l *limitWorld) crowd() (*writv1.SubmitRequest, answer) {
	type refusal struct {
		req *writv1.SubmitRequest
		got answer
	}
	for range 1000 {
		const atOnce = 16
		answers := make(chan refusal, atOnce)
		for i := range atOnce {
			req := l.request(fmt.Sprint("e", i), "none", 0)
			go func() { answers <- refusal{req, submit(l.t.Context(), l.cl, req)} }()
		}
		var refused *refusal
		for range atOnce {
			if r := <-answers; r.got.code != codes.OK && r.got.code != codes.Unavailable {
				refused = &r
			}
		}
		if refused != nil {
			return refused.req, refused.got
		}
	}
	l.t.Error("no command was refused")
	return nil, answer{}
}

// atMost sends commands that wait and are answered over one way, and wants only so
// many of them to have been begun at once.
func (l *limitWorld) atMost(most int, answered <-chan error, all int) {
	l.t.Helper()
	for range most {
		<-l.began
	}
	// Another way is open all the same, and time passes on this one.
	if got := send(l.t, writv1.NewEntityServiceClient(l.c.dial("n1")), l.request("other", "none", 0)); got.code != codes.OK {
		l.t.Errorf("over another way: %v", got)
	}
	l.release()
	for range all {
		if err := <-answered; err != nil && status.Code(err) != codes.Unavailable {
			l.t.Errorf("a command above the limit waits, and has got %v", err)
		}
	}
	if peak := l.peak.Load(); peak != int64(most) {
		l.t.Errorf("%d commands at once, the limit is %d", peak, most)
	}
}

func (l *limitWorld) commitIndex() uint64 {
	l.t.Helper()
	res, err := l.c.admin().Status(l.t.Context(), &nodev1.StatusRequest{})
	if err != nil || len(res.GetShards()) != 1 {
		l.t.Fatalf("status: %v, %v", res, err)
	}
	return res.GetShards()[0].GetCommitIndex()
}

// forwarded has a command passed on by another node.
func (l *limitWorld) forwarded(req *writv1.SubmitRequest) (*writv1.SubmitRequest, answer) {
	status, err := l.c.admin().Status(l.t.Context(), &nodev1.StatusRequest{})
	if err != nil {
		l.t.Fatal(err)
	}
	return req, insist(l.t, func(ctx context.Context) answer {
		_, err := nodev1.NewNodeServiceClient(l.c.dial("n1")).Forward(ctx, &nodev1.ForwardRequest{
			ClusterId: status.GetClusterId(), Tenant: "default", Call: &nodev1.ForwardRequest_Submit{Submit: req},
		})
		return answerOf(err)
	})
}

// parked waits for a parked lane whose reason has all texts.
func (l *limitWorld) parked(texts ...string) {
	l.t.Helper()
	eventually(l.t, func(ctx context.Context) (any, error) {
		stream, err := l.c.admin().ListLanes(ctx, &nodev1.ListLanesRequest{ParkedOnly: true})
		if err != nil {
			return nil, err
		}
		lane, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		for _, text := range texts {
			if reason := lane.GetLane().GetReason(); lane.GetLane().GetStatus() != recordv1.Lane_PARKED || !strings.Contains(reason, text) {
				return nil, fmt.Errorf("%v does not say %q", lane, text)
			}
		}
		return nil, nil
	})
}

// passivated uses five entities, of which two may stay in memory.
func (l *limitWorld) passivated(what string, n int) (*writv1.SubmitRequest, answer) {
	l.t.Helper()
	for i := range 5 {
		if _, got := l.submit(fmt.Sprint(i), what, n); got.code != codes.OK {
			l.t.Errorf("entity %d: %v", i, got)
		}
	}
	eventually(l.t, func(ctx context.Context) (any, error) {
		const want = "\nwrit_passivations_total 3\n"
		if told := l.c.metrics(ctx, "n1"); !strings.Contains(told, want) {
			return nil, fmt.Errorf("the metrics do not say %q:\n%s", want, told)
		}
		return nil, nil
	})
	return nil, answer{}
}

// refused checks what came back from above a limit.
func (l *limitWorld) refused(name string, most int64, over func(*limitWorld) (*writv1.SubmitRequest, answer)) {
	l.t.Helper()
	before := l.commitIndex()
	req, got := over(l)
	if req == nil {
		return
	}
	// Above these two there is no key to ask for, and up to them was asked before.
	known := name != "entities.Name" && name != "entities.Key"
	if got.details["limit"] != name || got.details["max"] != fmt.Sprint(most) || !strings.Contains(got.text, name) {
		l.t.Errorf("the answer does not say that %s is %d: %v", name, most, got)
	}
	switch got.reason {
	case "TOO_LARGE":
		if got.code != codes.InvalidArgument || got.retry || got.details["size"] == "" {
			l.t.Errorf("too large: %v", got)
		}
		// What a handler makes is refused behind a read barrier, an entry without
		// records: a leader that was replaced must not say that nothing was executed.
		barrier := uint64(0)
		if madeByHandler[name] {
			barrier = 1
		}
		if known && l.commitIndex()-before > barrier {
			l.writing(barrier, over)
		}
	case "OVERLOADED":
		if got.code != codes.ResourceExhausted || !got.retry {
			l.t.Errorf("overloaded: %v", got)
		}
	default:
		l.t.Errorf("got %v", got)
	}
	if !known {
		return
	}
	l.release()
	ask := &writv1.OutcomeRequest{Entity: req.GetEntity(), IdempotencyKey: req.GetIdempotencyKey(), CommandType: "google.protobuf.StringValue"}
	out := eventually(l.t, func(ctx context.Context) (*writv1.OutcomeResponse, error) {
		out, err := l.cl.Outcome(ctx, ask)
		if code := status.Code(err); code == codes.ResourceExhausted || code == codes.Unavailable {
			return nil, err // those that were held are just leaving
		}
		if err != nil {
			l.t.Fatal(err)
		}
		return out, nil
	})
	if out.GetState() != writv1.OutcomeResponse_NEVER_SEEN {
		l.t.Errorf("what was refused is %v", out)
	}
}

// limitRows has what is done above each limit.
func limitRows() map[string]limitRow {
	// over sends one command to a node at rest.
	over := func(what string, n int) func(*limitWorld) (*writv1.SubmitRequest, answer) {
		return func(l *limitWorld) (*writv1.SubmitRequest, answer) { return l.submit("a", what, n) }
	}
	small := func(l *node.Limits) { // commands of a KiB
		l.Entities.Command, l.Gateway.Command = 1000, 1000
	}
	return map[string]limitRow{
		"entities.Command": {nil, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			// The door has a limit of its own that is not above this one; a node that has
			// a greater one may pass the command on.
			return l.forwarded(l.large("a", "none", 1000))
		}},
		"entities.State":  {nil, over("state", 1001)},
		"entities.Event":  {nil, over("event", 1001)},
		"entities.Reply":  {nil, over("reply", 1001)},
		"entities.Rows":   {nil, over("events", 4)},
		"entities.Timers": {nil, over("timers", 4)},
		"entities.Record": {nil, over("record", 900)},
		"entities.Name": {nil, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			if _, got := l.submit(strings.Repeat("i", 300), "none", 0); got.code != codes.OK {
				l.t.Errorf("at the limit: %v", got)
			}
			return l.quietly(l.request(strings.Repeat("i", 301), "none", 0))
		}},
		"entities.Key": {nil, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			req := l.request("a", "none", 0)
			req.IdempotencyKey = strings.Repeat("k", 300)
			if got := send(l.t, l.cl, req); got.code != codes.OK {
				l.t.Errorf("at the limit: %v", got)
			}
			req.IdempotencyKey += "k"
			return l.quietly(req)
		}},
		"entities.Text": {nil, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			if _, got := l.submit("a", "reject", 200); got.code != codes.OutOfRange || len(got.text) != 100 {
				l.t.Errorf("a text of 200 bytes became one of %d: %v", len(got.text), got)
			}
			return nil, answer{}
		}},
		"entities.Hops": {func(l *node.Limits) { l.Entities.Hops = 3 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			if _, got := l.submit("a", "chain", 1); got.code != codes.OK {
				l.t.Errorf("the chain's begin: %v", got)
			}
			l.parked("HOP_LIMIT", "entities.Hops", "3")
			return nil, answer{}
		}},
		"entities.Outbox": {func(l *node.Limits) { l.Entities.Outbox = 3 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			if _, got := l.submit("a", "events", 3); got.code != codes.OK {
				l.t.Errorf("up to the limit: %v", got)
			}
			return l.submit("a", "none", 0)
		}},
		"entities.ShardCalls": {func(l *node.Limits) { l.Entities.ShardCalls, l.Entities.EntityCalls = 2, 2 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			l.hold(l.request("a", "wait", 0), l.request("b", "wait", 0))
			return l.submit("c", "none", 0)
		}},
		"entities.ShardBytes": {func(l *node.Limits) { small(l); l.Entities.ShardBytes = 1000 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			l.hold(l.large("a", "wait", 900))
			req := l.large("b", "none", 900)
			return req, send(l.t, l.cl, req)
		}},
		"entities.EntityCalls": {func(l *node.Limits) { l.Entities.EntityCalls = 1 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			l.hold(l.request("a", "wait", 0))
			return l.submit("a", "none", 0)
		}},
		"entities.EntityBytes": {func(l *node.Limits) { small(l); l.Entities.EntityBytes = 1000 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			l.hold(l.large("a", "wait", 900))
			req := l.large("a", "none", 900)
			return req, send(l.t, l.cl, req)
		}},
		"entities.Activations": {func(l *node.Limits) { l.Entities.Activations = 2 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			return l.passivated("none", 0)
		}},
		"entities.ActivationBytes": {func(l *node.Limits) { l.Entities.ActivationBytes = 2100 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			return l.passivated("state", 1000)
		}},
		"entities.Waits": {func(l *node.Limits) { l.Entities.Waits = 1 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			ctx, leave := context.WithCancel(l.t.Context())
			answers := make(chan error, 2)
			for range 2 {
				go func() {
					_, err := l.cl.Read(ctx, &writv1.ReadRequest{Entity: &writv1.EntityRef{Kind: "bound", Id: "a"}, MinVersion: 99})
					answers <- err
				}()
			}
			if got := answerOf(<-answers); got.reason != "OVERLOADED" || got.details["limit"] != "entities.Waits" || got.details["max"] != "1" || !got.retry {
				l.t.Errorf("a second read that waits: %v", got)
			}
			leave()
			if err := <-answers; status.Code(err) != codes.Canceled {
				l.t.Errorf("the first one: %v", err)
			}
			return nil, answer{}
		}},
		"entities.Proposals":     {func(l *node.Limits) { l.Entities.Proposals = 1 }, (*limitWorld).crowd},
		"entities.ProposalBytes": {func(l *node.Limits) { l.Entities.ProposalBytes = 1 }, (*limitWorld).crowd},
		"gateway.Command": {nil, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			req := l.large("a", "none", 1000)
			return req, send(l.t, l.cl, req)
		}},
		"gateway.Message": {func(l *node.Limits) {
			small(l)
			l.Entities.State, l.Entities.Event, l.Entities.Reply, l.Gateway.Message = 1000, 1000, 1000, 100_000
		}, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			// gRPC itself refuses it, as docs/limits.md says.
			if _, got := l.quietly(l.large("a", "none", 100_000)); got.code != codes.ResourceExhausted || !strings.Contains(got.text, "larger than max") || !strings.Contains(got.text, "100000") {
				l.t.Errorf("a message that is too large: %v", got)
			}
			return nil, answer{}
		}},
		"gateway.InFlight": {func(l *node.Limits) { l.Gateway.InFlight = 2 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			l.hold(l.request("a", "wait", 0), l.request("b", "wait", 0))
			return l.submit("c", "none", 0)
		}},
		"gateway.InFlightBytes": {func(l *node.Limits) {
			l.Entities.State, l.Entities.Event, l.Entities.Reply = 1000, 1000, 1000
			l.Entities.Command, l.Gateway.Command, l.Gateway.Message, l.Gateway.InFlightBytes = 60_000, 60_000, 130_000, 130_000
		}, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			l.hold(l.large("a", "wait", 50_000), l.large("b", "wait", 50_000))
			req := l.large("c", "none", 50_000)
			return req, send(l.t, l.cl, req)
		}},
		"gateway.StreamInFlight": {func(l *node.Limits) { l.Gateway.StreamInFlight = 2 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			const all = 8
			stream, err := l.cl.SubmitStream(l.t.Context())
			if err != nil {
				l.t.Fatal(err)
			}
			for i := range all {
				if err := stream.Send(l.request(fmt.Sprint("e", i), "wait", 0)); err != nil {
					l.t.Fatal(err)
				}
			}
			answered := make(chan error, all)
			go func() {
				for range all {
					res, err := stream.Recv()
					answered <- errors.Join(err, status.ErrorProto(res.GetRejection()))
				}
			}()
			l.atMost(2, answered, all)
			return nil, answer{}
		}},
		"gateway.ConnectionStreams": {func(l *node.Limits) { l.Gateway.ConnectionStreams = 2 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			const all = 8
			answered := make(chan error, all)
			for i := range all {
				req := l.request(fmt.Sprint("e", i), "wait", 0)
				go func() {
					_, err := l.cl.Submit(l.t.Context(), req)
					answered <- err
				}()
			}
			l.atMost(2, answered, all)
			return nil, answer{}
		}},
		"gateway.Connections": {func(l *node.Limits) { l.Gateway.Connections = 1 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			// The one that there may be has asked for the status already.
			extra, err := net.Dial("tcp", l.c.nodes["n1"].Addresses().GRPC)
			if err != nil {
				l.t.Fatal(err)
			}
			defer func() { _ = extra.Close() }()
			if _, err := extra.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
				l.t.Errorf("a connection above the limit: %v", err)
			}
			return nil, answer{}
		}},
		"store.Unflushed": {func(l *node.Limits) { l.Store.Unflushed = 1 }, func(l *limitWorld) (*writv1.SubmitRequest, answer) {
			// Every command leaves more than that, until the next flush.
			var req *writv1.SubmitRequest
			got := answer{}
			for n := 0; got.code == codes.OK && n < 1000; n++ {
				req, got = l.submit("a", "none", 0)
			}
			again := eventually(l.t, func(ctx context.Context) (answer, error) {
				next := submit(ctx, l.cl, l.request("a", "none", 0))
				if next.reason == "OVERLOADED" || next.code == codes.Unavailable {
					return next, fmt.Errorf("%v", next)
				}
				return next, nil
			})
			if again.code != codes.OK {
				l.t.Errorf("after the flush: %v", again)
			}
			return req, got
		}},
	}
}
