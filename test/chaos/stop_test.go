package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/anypb"

	writv1 "writ/proto/writ/v1"
)

// stopWithin is how long an orderly stop may take, whatever clients hold open, and some
// of the machine's longest turns more: the program's own bound is 8 s.
const stopWithin = 10 * time.Second

// SIGTERM comes while clients hold streams open, one of them with commands in
// flight, and never close them: the leader ends in order all the same, and each
// command has executed once.
func TestProcessStopWithOpenStreams(t *testing.T) {
	t.Parallel()
	r := start(t, ProcessConfig{})
	ctx := within(t, 4*time.Minute)
	home := r.deposits(ctx, "stream-", 1)
	machine := watchMachine(t)
	for _, majority := range []bool{true, false} {
		var s *openStreams
		var sent []*openStreams
		for n, ready := 0, false; !ready; n++ {
			if n == tries {
				t.Skip("SKIP: the machine was held up each time: no command was in flight while the node had its lease")
			}
			leaders, err := r.links.Leaders(ctx, r.cluster.Nodes())
			must(t, err)
			s = &openStreams{rig: r, node: leaders[home["stream-0"]], prefix: fmt.Sprintf("majority-%v-%d", majority, n)}
			sent = append(sent, s)
			s.open(ctx)
			if ready = majority; ready {
				break
			}
			// What is in flight now cannot be committed while the node stops.
			for _, other := range others(r.cluster, s.node) {
				must(t, r.cluster.Pause(other))
			}
			if ready = s.flight(ctx); !ready { // its lease may have ended before the command came
				for _, other := range others(r.cluster, s.node) {
					must(t, r.cluster.Resume(other))
				}
				s.close()
			}
		}
		node := s.node
		waiting := s.unanswered()
		begin := time.Now()
		stopping, cancel := context.WithTimeout(ctx, 3*stopWithin)
		code, took, err := r.cluster.Stop(stopping, node)
		cancel()
		must(t, err)
		t.Logf("%s, majority %v: %d commands in flight at SIGTERM; exit code %d after %v", node, majority, waiting, code, millis(took))
		if limit := stopWithin + turns*machine.slowest(begin); code != 0 || took > limit {
			t.Errorf("%s: exit code %d after %v with open streams; want 0 in under %v", node, code, took, limit)
		}
		if waiting == 0 {
			t.Error("nothing was in flight: the round proves nothing")
		}
		s.close()
		if !majority {
			for _, other := range others(r.cluster, node) {
				must(t, r.cluster.Resume(other))
			}
		}
		r.up(node)
		must(t, AwaitReady(within(t, time.Minute), r.cluster, r.cluster.Nodes()...))
		for _, s := range sent {
			s.again(ctx)
		}
	}
	want := int64(100)
	for _, op := range r.side.Ops() {
		if op.Amount == 1 {
			want++
		}
	}
	if got := r.balances(ctx, []string{"stream-0"})["stream-0"].Amount; got != want {
		t.Errorf("balance %d, want %d", got, want)
	}
	r.audit()
}

// again sends all commands once more: each has executed once, or does so now.
func (s *openStreams) again(ctx context.Context) {
	s.t.Helper()
	for key, a := range Resend(ctx, &Rounds{Links: s.links, Nodes: s.cluster.Nodes()}, s.ops()) {
		switch {
		case a.Verdict != Executed:
			s.t.Errorf("key %q: %+v", key, a)
		case s.answered[key] && !a.Replayed:
			s.t.Errorf("key %q was acknowledged and executed again", key)
		}
		s.side.Add(Op{Action: Deposit, Account: "stream-0", Amount: 1, Key: key, Answer: a})
	}
}

// openStreams are what clients hold open at one node: a stream of commands that
// stands idle, one that is kept full, a watch of the health.
type openStreams struct {
	*rig
	node, prefix string

	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu             sync.Mutex
	sent, returned int
	answered       map[string]bool // keys whose execution was acknowledged
}

// request is the deposit of 1 with the key of a number.
func (s *openStreams) request(n int) *writv1.SubmitRequest {
	command, err := anypb.New((Op{Action: Deposit, Amount: 1}).Command())
	must(s.t, err)
	return &writv1.SubmitRequest{
		Entity: &writv1.EntityRef{Kind: "account", Id: "stream-0"}, IdempotencyKey: s.key(n), Command: command, Tag: uint64(n),
	}
}

func (s *openStreams) key(n int) string { return fmt.Sprintf("%s-%d", s.prefix, n) }

func (s *openStreams) open(ctx context.Context) {
	ctx, s.cancel = context.WithCancel(ctx)
	s.answered = map[string]bool{}
	idle := s.stream(ctx)
	must(s.t, s.send(idle))
	must(s.t, s.receive(idle))
	health, err := grpc_health_v1.NewHealthClient(s.links.conns[s.node]).Watch(ctx, &grpc_health_v1.HealthCheckRequest{Service: "readiness"})
	must(s.t, err)
	_, err = health.Recv()
	must(s.t, err)
	busy := s.stream(ctx)
	must(s.t, s.send(busy))
	must(s.t, s.receive(busy))
	// Both go on until the stream breaks: the client does not heed that the node stops.
	s.wg.Go(func() {
		for s.receive(busy) == nil {
		}
	})
	s.wg.Go(func() {
		for {
			for s.unanswered() >= 32 && ctx.Err() == nil {
				pause(ctx, time.Millisecond)
			}
			if ctx.Err() != nil || s.send(busy) != nil {
				return
			}
		}
	})
	must(s.t, eventually(ctx, "commands in flight", func(context.Context) error {
		if s.unanswered() < 16 {
			return errors.New("there are few")
		}
		return nil
	}))
}

func (s *openStreams) stream(ctx context.Context) writv1.EntityService_SubmitStreamClient {
	stream, err := s.links.Entity(s.node).SubmitStream(ctx)
	must(s.t, err)
	return stream
}

func (s *openStreams) send(stream writv1.EntityService_SubmitStreamClient) error {
	s.mu.Lock()
	n := s.sent
	s.sent++
	s.mu.Unlock()
	return stream.Send(s.request(n))
}

func (s *openStreams) receive(stream writv1.EntityService_SubmitStreamClient) error {
	res, err := stream.Recv()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.returned++
	if res.GetRejection() == nil {
		s.answered[s.key(int(res.GetTag()))] = true
	}
	return nil
}

// flight sends one command by a call of its own, and waits until the node says that
// its key is in flight. It says so only while it has its lease: false if that is over.
func (s *openStreams) flight(ctx context.Context) bool {
	s.t.Helper()
	s.mu.Lock()
	n := s.sent
	s.sent++
	s.mu.Unlock()
	calling, cancel := context.WithTimeout(ctx, 30*time.Second)
	s.wg.Go(func() {
		defer cancel()
		if _, err := s.links.Entity(s.node).Submit(calling, s.request(n)); err == nil {
			s.mu.Lock()
			s.answered[s.key(n)] = true
			s.mu.Unlock()
		}
		s.mu.Lock()
		s.returned++
		s.mu.Unlock()
	})
	again := s.request(n)
	again.NoWait = true
	soon, done := context.WithTimeout(ctx, 5*time.Second)
	defer done()
	executed := false
	err := eventually(soon, "the command is in flight", func(ctx context.Context) error {
		one, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := s.links.Entity(s.node).Submit(one, again)
		switch a := failure(err, nil); {
		case err == nil:
			executed = true
			return nil
		case a.Reason != "IN_FLIGHT":
			return fmt.Errorf("%+v", a)
		}
		return nil
	})
	if err != nil {
		s.t.Log(err)
	}
	if executed {
		s.t.Fatal("a command was executed without a majority")
	}
	return err == nil
}

func (s *openStreams) unanswered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent - s.returned
}

func (s *openStreams) close() {
	s.cancel()
	s.wg.Wait()
}

// ops are all commands that were sent.
func (s *openStreams) ops() []Op {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Op
	for n := range s.sent {
		all = append(all, Op{Action: Deposit, Account: "stream-0", Amount: 1, Key: s.key(n)})
	}
	return all
}
