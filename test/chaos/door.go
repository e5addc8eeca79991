package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"writ/actors/client"
	accountv1 "writ/proto/writ/account/v1"
	writv1 "writ/proto/writ/v1"
	"writ/test/check"
)

// Door is a way into the cluster. The answer's verdict is Unknown if none came
// before ctx ended; it never fails otherwise.
type Door interface {
	Do(ctx context.Context, op Op) Answer
}

// call sends one copy of an operation to one node.
func call(ctx context.Context, node writv1.EntityServiceClient, op Op) Answer {
	ref := &writv1.EntityRef{Kind: "account", Id: op.Account}
	if op.Action == Read {
		res, err := node.Read(ctx, &writv1.ReadRequest{Entity: ref})
		if err != nil {
			return failure(err, nil)
		}
		return reading(res)
	}
	packed, err := anypb.New(op.Command())
	if err != nil {
		return Answer{Verdict: Refused, Text: err.Error(), Calls: 1}
	}
	var trailer metadata.MD
	res, err := node.Submit(ctx, &writv1.SubmitRequest{
		Entity: ref, IdempotencyKey: op.Key, Command: packed, IssuedAt: timestamppb.Now(),
	}, grpc.Trailer(&trailer))
	if err != nil {
		return failure(err, trailer)
	}
	return success(res)
}

// reading is the answer of a read. An account that was never touched has no
// state and a balance of 0.
func reading(res *writv1.ReadResponse) Answer {
	a := Answer{Verdict: Executed, Version: res.GetVersion(), Calls: 1}
	if res.GetState() == nil {
		return a
	}
	var b accountv1.Balance
	if err := res.GetState().UnmarshalTo(&b); err != nil {
		return Answer{Verdict: Refused, Text: err.Error(), Calls: 1}
	}
	a.Balance = check.BalanceOf(&b)
	return a
}

func success(res *writv1.SubmitResponse) Answer {
	var b accountv1.Balance
	if err := res.GetReply().UnmarshalTo(&b); err != nil {
		return Answer{Verdict: Refused, Text: err.Error(), Calls: 1}
	}
	return Answer{
		Verdict: Executed, Balance: check.BalanceOf(&b), Version: res.GetVersion(),
		AcceptedAt: res.GetAcceptedAt().AsTime().UnixNano(), Replayed: res.GetReplayed(), Calls: 1,
	}
}

// failure reads an error: a rejection by rule, a refusal, or an unknown outcome.
func failure(err error, trailer metadata.MD) Answer {
	st := status.Convert(err)
	a := Answer{Code: st.Code(), Text: st.Message(), Calls: 1}
	info := infoOf(st.Proto())
	a.Reason = info.GetReason()
	switch {
	case info.GetMetadata()["outcome"] == "rejected":
		a.Verdict = Rejected
		a.Replayed = len(trailer.Get("idempotency-replayed")) > 0
		a.Version, _ = strconv.ParseUint(info.GetMetadata()["version"], 10, 64)
		if at, err := time.Parse(time.RFC3339Nano, info.GetMetadata()["accepted_at"]); err == nil {
			a.AcceptedAt = at.UnixNano()
		}
	case final(info):
		a.Verdict = Refused
	default:
		a.Verdict = Unknown
	}
	return a
}

// final reports whether the same call would always get this error: only Writ
// itself can say so.
func final(info *errdetails.ErrorInfo) bool {
	switch info.GetReason() {
	case "", "NOT_EXECUTED", "OVERLOADED", "OUTCOME_UNKNOWN", "IN_FLIGHT":
		return false
	}
	return true
}

// infoOf is the ErrorInfo of the domain "writ", or nil.
func infoOf(st *spb.Status) *errdetails.ErrorInfo {
	for _, d := range st.GetDetails() {
		var info errdetails.ErrorInfo
		if d.UnmarshalTo(&info) == nil && info.GetDomain() == "writ" {
			return &info
		}
	}
	return nil
}

// Rounds is a door that tries one node after the other with the same key until
// a definite answer comes.
type Rounds struct {
	Links *Links
	Nodes []string
	// Patience is how long one call may take; 0 means 2 s.
	Patience time.Duration
}

// Do implements [Door].
func (r *Rounds) Do(ctx context.Context, op Op) Answer {
	patience := r.Patience
	if patience == 0 {
		patience = 2 * time.Second
	}
	first := rand.IntN(len(r.Nodes))
	for calls := 1; ; calls++ {
		one, cancel := context.WithTimeout(ctx, patience)
		a := call(one, r.Links.Entity(r.Nodes[(first+calls)%len(r.Nodes)]), op)
		cancel()
		a.Calls = calls
		if a.Verdict != Unknown || ctx.Err() != nil {
			return a
		}
		pause(ctx, time.Duration(1+rand.IntN(40))*time.Millisecond)
	}
}

// Hedge is a door that sends the same command to two nodes at once, over and
// over, and takes the first definite answer; a second one must say the same.
type Hedge struct {
	Links *Links
	Nodes []string

	mu          sync.Mutex
	differences []error
}

// Do implements [Door].
func (h *Hedge) Do(ctx context.Context, op Op) Answer {
	first := rand.IntN(len(h.Nodes))
	var total Answer
	for ctx.Err() == nil {
		answers := make(chan Answer, 2)
		for i := range 2 {
			node := h.Links.Entity(h.Nodes[(first+i)%len(h.Nodes)])
			go func() {
				one, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				answers <- call(one, node, op)
			}()
		}
		a, b := <-answers, <-answers
		calls := total.Calls + 2
		if a.Verdict == Unknown {
			a, b = b, a
		}
		a.Calls = calls
		if op.Key != "" && a.Verdict != Unknown && b.Verdict != Unknown && !a.Same(b) {
			h.differ(fmt.Errorf("key %q sent to two nodes at once: %+v and %+v", op.Key, a, b))
		}
		if total = a; a.Verdict != Unknown {
			return a
		}
		first++
		pause(ctx, time.Duration(1+rand.IntN(40))*time.Millisecond)
	}
	return total
}

func (h *Hedge) differ(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.differences = append(h.differences, err)
}

// Differences are the pairs of answers that were not the same.
func (h *Hedge) Differences() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(h.differences...)
}

// Hasty is a door that gives up its first call after a moment, so that the
// answer is lost, and then goes through another.
type Hasty struct {
	Links *Links
	Nodes []string
	Then  Door
}

// Do implements [Door].
func (h *Hasty) Do(ctx context.Context, op Op) Answer {
	one, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(3000))*time.Microsecond)
	a := call(one, h.Links.Entity(h.Nodes[rand.IntN(len(h.Nodes))]), op)
	cancel()
	if a.Verdict != Unknown {
		return a
	}
	a = h.Then.Do(ctx, op)
	a.Calls++
	return a
}

// Library is the door that users have: the Go client.
type Library struct {
	Client *client.Client
}

// Do implements [Door].
func (l *Library) Do(ctx context.Context, op Op) Answer {
	if op.Action == Read {
		state, err := l.Client.Read(ctx, "account", op.Account, client.ReadOptions{})
		if err != nil {
			return clientFailure(err)
		}
		a := Answer{Verdict: Executed, Version: state.Version, Calls: 1}
		if b, ok := state.State.(*accountv1.Balance); ok {
			a.Balance = check.BalanceOf(b)
		}
		return a
	}
	out, err := l.Client.Submit(ctx, "account", op.Account, op.Key, op.Command(), client.SubmitOptions{})
	if err != nil {
		return clientFailure(err)
	}
	b, ok := out.Reply.(*accountv1.Balance)
	if !ok {
		return Answer{Verdict: Refused, Text: fmt.Sprintf("the reply is %T", out.Reply), Calls: out.Attempts}
	}
	return Answer{
		Verdict: Executed, Balance: check.BalanceOf(b), Version: out.Version,
		AcceptedAt: out.AcceptedAt.UnixNano(), Replayed: out.Replayed, Calls: out.Attempts,
	}
}

func clientFailure(err error) Answer {
	if rejected, ok := errors.AsType[*client.RejectedError](err); ok {
		return Answer{
			Verdict: Rejected, Code: rejected.Code, Reason: rejected.Reason, Text: rejected.Message, Version: rejected.Version,
			AcceptedAt: rejected.AcceptedAt.UnixNano(), Replayed: rejected.Replayed, Calls: rejected.Attempts,
		}
	}
	failed, ok := errors.AsType[*client.Error](err)
	if !ok {
		return Answer{Verdict: Unknown, Text: err.Error(), Calls: 1}
	}
	a := Answer{Verdict: Refused, Code: failed.Code, Reason: failed.Reason, Text: failed.Message, Calls: failed.Attempts}
	switch {
	case failed.Unknown, failed.Err != nil, failed.Reason == client.ReasonNotExecuted, failed.Reason == client.ReasonOverloaded, failed.Reason == "":
		a.Verdict = Unknown
	}
	return a
}

// Resend sends every command of a history once more, to any node, with its key.
// The answers are by key.
func Resend(ctx context.Context, door Door, ops []Op) map[string]Answer {
	const workers = 32
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		answers = map[string]Answer{}
		queue   = make(chan Op)
	)
	for range workers {
		wg.Go(func() {
			for op := range queue {
				a := door.Do(ctx, op)
				mu.Lock()
				answers[op.Key] = a
				mu.Unlock()
			}
		})
	}
	for _, op := range ops {
		if op.Key != "" {
			queue <- op
		}
	}
	close(queue)
	wg.Wait()
	return answers
}
