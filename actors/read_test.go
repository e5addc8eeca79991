package actors_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"writ/actors"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	writv1 "writ/proto/writ/v1"
)

func TestRead(t *testing.T) {
	w := newWorld(t, worldConfig{change: func(c *actors.Config) {
		c.Freshness = func(uint32) (uint64, time.Duration) { return 42, time.Second }
	}})
	e := ref("counter", "a")
	if value, version := w.read(e); value != 0 || version != 0 {
		t.Errorf("value %d, version %d of an entity that was never written", value, version)
	}
	w.must(e, "1", &num{Value: 3})
	double := func(ask bool) func(*writv1.ReadRequest) {
		return func(r *writv1.ReadRequest) { r.Query = pack(t, &flag{Value: ask}) }
	}
	answer, err := w.readWith(e, double(true))
	if err != nil || unpack(t, answer.GetState()) != 6 || answer.GetVersion() != 1 {
		t.Errorf("query: %v, %v", answer, err)
	}
	_, err = w.readWith(e, double(false))
	wantReason(t, err, entity.Invalid)
	_, err = w.readWith(e, func(r *writv1.ReadRequest) { r.Query = pack(t, &text{}) })
	wantReason(t, err, entity.Invalid)

	// Speculative state is not read, and nothing is read before the barrier.
	w.leases[0].hold()
	write := w.later(submitted{ref: e, key: "2", command: &num{Value: 4}})
	w.held(0, 1)
	stale, err := w.readWith(e, func(r *writv1.ReadRequest) { r.Consistency = writv1.Consistency_STALE })
	if err != nil || unpack(t, stale.GetState()) != 3 || stale.GetLogIndex() != 42 || stale.GetAge().AsDuration() != time.Second {
		t.Errorf("stale: %v, %v", stale, err)
	}
	read := make(chan int64, 1)
	go func() {
		value, _ := w.read(e)
		read <- value
	}()
	w.held(0, 2)
	select {
	case value := <-read:
		t.Errorf("read %d before the barrier", value)
	default:
	}
	w.leases[0].release()
	if value := <-read; value != 7 {
		t.Errorf("read %d", value)
	}
	if r := <-write; r.err != nil {
		t.Error(r.err)
	}
	if value, _ := w.read(e); value != 7 { // the query's doubling was on a copy
		t.Errorf("read %d", value)
	}
}

// A read that waits gives its place up when its caller leaves.
func TestReadWhoseCallerLeaves(t *testing.T) {
	limits := actors.DefaultLimits()
	limits.Waits = 1
	w := newWorld(t, worldConfig{change: func(c *actors.Config) { c.Limits = limits }})
	e := ref("counter", "a")
	req := &nodev1.ForwardRequest{Shard: w.shard(e), Tenant: e.Tenant, Call: &nodev1.ForwardRequest_Read{
		Read: &writv1.ReadRequest{Entity: &writv1.EntityRef{Kind: e.Kind, Id: e.ID}, MinVersion: 1},
	}}
	for i := range 3 {
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		w.leases[0].hold()
		go func() {
			_, err := w.rt.Forward(ctx, req)
			left <- err
		}()
		w.held(0, 1)
		w.leases[0].release()
		w.read(e) // answered in turn: the other one waits for its version now
		_, err := w.rt.Forward(t.Context(), req)
		wantReason(t, err, entity.Overloaded)
		leave()
		wantGone(t, <-left, context.Canceled)
		w.metrics.until(t, func() bool { return w.metrics.get(string(actors.Refused)+" "+string(entity.NotExecuted)) > i })
	}
	w.must(e, "1", &num{Value: 1})
	if _, version := w.read(e); version != 1 {
		t.Errorf("version %d, want 1", version)
	}
}

func TestReadMinVersion(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	w.must(e, "1", &num{Value: 1})
	atLeast := func(version uint64) func(*writv1.ReadRequest) {
		return func(r *writv1.ReadRequest) { r.MinVersion = version }
	}
	if _, err := w.readWith(e, atLeast(1)); err != nil {
		t.Error(err)
	}
	waits := make(chan uint64, 1)
	go func() {
		answer, err := w.readWith(e, atLeast(3))
		if err != nil {
			t.Error(err)
		}
		waits <- answer.GetVersion()
	}()
	w.must(e, "2", &num{Value: 1})
	w.must(e, "3", &num{Value: 1})
	if version := <-waits; version < 3 {
		t.Errorf("version %d", version)
	}
	req := &nodev1.ForwardRequest{Tenant: "t", Call: &nodev1.ForwardRequest_Read{
		Read: &writv1.ReadRequest{Entity: &writv1.EntityRef{Kind: e.Kind, Id: e.ID}, MinVersion: 9},
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := w.rt.Forward(ctx, req)
	wantGone(t, err, context.DeadlineExceeded)
	_, err = w.readWith(e, func(r *writv1.ReadRequest) { r.MinVersion, r.Consistency = 9, writv1.Consistency_STALE })
	wantReason(t, err, entity.NotExecuted)
}

// Reads that wait for a version that is far off keep no command out. Too many of
// them are refused, and those that wait are answered when it comes.
func TestWaitingReads(t *testing.T) {
	limits := actors.DefaultLimits()
	limits.ShardCalls, limits.EntityCalls, limits.Waits = 4, 2, 8
	w := newWorld(t, worldConfig{change: func(c *actors.Config) { c.Limits, c.Passivation = limits, 80*time.Millisecond }})
	e := ref("counter", "a")
	w.must(e, "0", &num{Value: 1})
	wait := func(errs chan<- error) {
		_, err := w.readWith(e, func(r *writv1.ReadRequest) { r.MinVersion = 20 })
		errs <- err
	}
	errs := make(chan error, limits.Waits)
	for range limits.Waits {
		w.leases[0].hold()
		go wait(errs)
		w.held(0, 1)
		w.leases[0].release()
		w.read(e) // answered in turn: the other one waits for its version now
	}
	one := make(chan error, 1)
	wait(one)
	err := <-one
	wantReason(t, err, entity.Overloaded)
	var is *entity.Error
	if errors.As(err, &is) && is.RetryAfter == 0 {
		t.Error("no hint when to retry")
	}
	for i := 1; i < 20; i++ {
		w.must(e, fmt.Sprint(i), &num{Value: 1})
	}
	for range limits.Waits {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	wait(one) // their places are free again
	if err := <-one; err != nil {
		t.Error(err)
	}
}

func TestOutcomeAndCancel(t *testing.T) {
	w := newWorld(t, worldConfig{})
	e := ref("counter", "a")
	ask := func(key string, cancel bool) (*writv1.OutcomeResponse, error) {
		o := &writv1.OutcomeRequest{
			Entity: &writv1.EntityRef{Kind: e.Kind, Id: e.ID}, IdempotencyKey: key, CommandType: "google.protobuf.Int64Value",
		}
		req := &nodev1.ForwardRequest{Tenant: "t", Call: &nodev1.ForwardRequest_Outcome{Outcome: o}}
		if cancel {
			req.Call = &nodev1.ForwardRequest_Cancel{Cancel: o}
		}
		answer, err := w.rt.Forward(t.Context(), req)
		return answer.GetOutcome(), err
	}
	want := func(key string, cancel bool, state writv1.OutcomeResponse_State) *writv1.SubmitResponse {
		t.Helper()
		answer, err := ask(key, cancel)
		if err != nil || answer.GetState() != state {
			t.Errorf("outcome of %q: %v, %v, want %v", key, answer, err, state)
		}
		return answer.GetOutcome()
	}
	want("done", false, writv1.OutcomeResponse_NEVER_SEEN)
	w.must(e, "done", &num{Value: 5})
	if answer := want("done", false, writv1.OutcomeResponse_EXECUTED); unpack(t, answer.GetReply()) != 5 || answer.GetVersion() != 1 {
		t.Errorf("outcome %v", answer)
	}
	want("done", true, writv1.OutcomeResponse_EXECUTED)
	if _, err := w.submit(submitted{ref: e, key: "refused", command: &num{Value: -9}}); err != nil {
		t.Fatal(err)
	}
	if answer := want("refused", true, writv1.OutcomeResponse_REJECTED); answer.GetRejection() == nil {
		t.Errorf("outcome %v", answer)
	}
	for range 2 {
		want("never", true, writv1.OutcomeResponse_CANCELLED)
	}
	want("never", false, writv1.OutcomeResponse_CANCELLED)
	_, err := w.submit(submitted{ref: e, key: "never", command: &num{Value: 1}})
	wantReason(t, err, entity.Cancelled)

	lease := w.leases[0]
	lease.hold()
	running := w.later(submitted{ref: e, key: "running", command: &num{Value: 1}})
	w.held(0, 1)
	want("running", false, writv1.OutcomeResponse_IN_FLIGHT)
	late := make(chan writv1.OutcomeResponse_State, 1)
	go func() {
		answer, err := ask("running", true)
		if err != nil {
			t.Error(err)
		}
		late <- answer.GetState()
	}()
	cancelled := make(chan error, 1)
	go func() {
		_, err := ask("gone", true)
		cancelled <- err
	}()
	w.held(0, 2)
	behind := w.later(submitted{ref: e, key: "gone", command: &num{Value: 1}})
	lease.release()
	if r := <-running; r.err != nil {
		t.Error(r.err)
	}
	if state := <-late; state != writv1.OutcomeResponse_EXECUTED {
		t.Errorf("cancel of a running command: %v", state)
	}
	if err := <-cancelled; err != nil {
		t.Error(err)
	}
	wantReason(t, (<-behind).err, entity.Cancelled)
	if value, _ := w.read(e); value != 6 {
		t.Errorf("value %d", value)
	}
	lease.fail(func(*recordv1.Record) (error, bool) { return entity.Errorf(entity.OutcomeUnknown, "?"), false })
	_, err = ask("unsure", true)
	wantReason(t, err, entity.OutcomeUnknown)
	lease.fail(nil)
	if _, err := ask("", false); entity.ReasonOf(err) != entity.Invalid {
		t.Error(err)
	}
}
