package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/account"
	"writ/actors/client"
	"writ/actors/entity"
	"writ/cmd/node/node"
	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	"writ/test/chaos"
)

// What ends a node's process: handlers that call os.Exit, run in real processes
// that a supervisor starts again.
const (
	dirVariable  = "WRIT_CRASH_DIR"       // its base is the node's name
	addrVariable = "WRIT_CRASH_ADDRESSES" // of all nodes, four each
	mended       = "mended"               // a file beside the folders: handlers end nothing any more
	exitCode     = 77
)

// TestMain is the node's process, too.
func TestMain(m *testing.M) {
	if dir := os.Getenv(dirVariable); dir != "" {
		if err := serve(dir, strings.Split(os.Getenv(addrVariable), ",")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// deadly is a kind whose handlers end the process when they are told to.
func deadly() entity.Definer {
	k := entity.NewKind[*wrapperspb.Int64Value]("deadly")
	entity.Handle(k, func(c *entity.Context, s *wrapperspb.Int64Value, cmd *wrapperspb.StringValue) (*wrapperspb.Int64Value, error) {
		switch cmd.GetValue() {
		case "exit":
			if _, err := os.Stat(filepath.Join(filepath.Dir(os.Getenv(dirVariable)), mended)); err != nil {
				os.Exit(exitCode)
			}
		case "timer":
			c.SetTimer("bomb", entity.Timer{Command: &wrapperspb.StringValue{Value: "exit"}})
		case "event":
			c.Emit(entity.To("deadly", "target"), &wrapperspb.BoolValue{Value: true})
		case "good":
			c.Emit(entity.To("deadly", "other"), &wrapperspb.BoolValue{})
		}
		s.Value++
		return s, nil
	})
	entity.On(k, func(_ *entity.Context, s *wrapperspb.Int64Value, e *wrapperspb.BoolValue) error {
		if e.GetValue() {
			os.Exit(exitCode)
		}
		s.Value++
		return nil
	})
	entity.Read(k, func(s *wrapperspb.Int64Value, q *wrapperspb.StringValue) (*wrapperspb.Int64Value, error) {
		if q.GetValue() == "exit" {
			os.Exit(exitCode)
		}
		return s, nil
	})
	return k
}

func serve(dir string, addr []string) error {
	cfg := node.Config{
		ID: filepath.Base(dir), Dir: dir, Cluster: "crash", Shards: 2, Kinds: append(account.Kinds(), deadly()),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	for i := range len(addr) / 4 {
		name, own := fmt.Sprint("n", i+1), addr[4*i:4*i+4]
		cfg.InitialNodes, cfg.Join = append(cfg.InitialNodes, name), append(cfg.Join, own[2])
		if name == cfg.ID {
			cfg.GRPC, cfg.HTTP, cfg.Gossip, cfg.Raft = own[0], own[1], own[2], own[3]
		}
	}
	n, err := node.Start(context.Background(), cfg)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return n.Stop(ctx)
}

// supervised are nodes that are started again whenever their process ends.
type supervised struct {
	t      *testing.T
	dir    string
	addr   []string
	deaths atomic.Int64
}

func supervise(t *testing.T, nodes int) *supervised {
	t.Helper()
	s := &supervised{t: t, dir: t.TempDir(), addr: ports(t, 4*nodes)}
	for i := range nodes {
		s.start(fmt.Sprint("n", i+1))
	}
	return s
}

func (s *supervised) start(name string) {
	t := s.t
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			cmd.WaitDelay = 15 * time.Second
			cmd.Env = append(os.Environ(), dirVariable+"="+filepath.Join(s.dir, name), addrVariable+"="+strings.Join(s.addr, ","))
			cmd.Stderr = log
			err := cmd.Run()
			if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitCode {
				s.deaths.Add(1)
			} else if ctx.Err() == nil {
				t.Errorf("the node ended: %v", err)
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if t.Failed() {
			_, _ = log.Seek(0, io.SeekStart)
			text, _ := io.ReadAll(log)
			t.Logf("log of %s:\n%s", name, text[max(0, len(text)-8000):])
		}
		_ = log.Close()
	})
}

// ports are addresses that stay free while nobody listens there: below those that the
// system gives to others, and held against other tests.
func ports(t *testing.T, n int) (list []string) {
	t.Helper()
	var held chaos.Ports
	t.Cleanup(func() {
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	})
	numbers, err := held.Take(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, number := range numbers {
		list = append(list, net.JoinHostPort("127.0.0.1", strconv.Itoa(number)))
	}
	return list
}

func (s *supervised) grpc() (list []string) {
	for i := 0; i < len(s.addr); i += 4 {
		list = append(list, s.addr[i])
	}
	return list
}

// mend has the handlers end nothing any more.
func (s *supervised) mend() {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, mended), nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *supervised) client() *client.Client {
	s.t.Helper()
	cl, err := client.New(client.Config{Addresses: s.grpc()})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

func (s *supervised) submit(ctx context.Context, cl *client.Client, id, what string) error {
	_, err := cl.Submit(ctx, "deadly", id, what, &wrapperspb.StringValue{Value: what}, client.SubmitOptions{})
	return err
}

// A command, an event, a timer and a query that end the process are each stopped
// after three times; then the node lives, and nothing else has been lost.
func TestWhatEndsTheProcessIsStopped(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := supervise(t, 1)
	cl := s.client()
	if _, err := cl.Submit(ctx, "account", "alice", "1", &accountv1.Deposit{AmountMinor: 5, Currency: "EUR"}, client.SubmitOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.submit(ctx, cl, "source", "good"); err != nil {
		t.Fatal(err)
	}

	err := s.submit(ctx, cl, "command", "exit") // the client goes on until it has an answer
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Reason != string(entity.HandlerPanic) || !strings.Contains(e.Error(), "ended") {
		t.Errorf("the deadly command: %v", err)
	}
	if n := s.deaths.Load(); n != 3 {
		t.Errorf("the command ended the process %d times", n)
	}

	if err := s.submit(ctx, cl, "source", "event"); err != nil {
		t.Fatal(err)
	}
	lane := s.parked(ctx)
	if !strings.Contains(lane.GetReason(), "CRASHED") || lane.GetAttempts() != 3 {
		t.Errorf("lane: %v", lane)
	}
	if n := s.deaths.Load(); n != 6 {
		t.Errorf("command and event ended the process %d times", n)
	}

	if err := s.submit(ctx, cl, "timed", "timer"); err != nil {
		t.Fatal(err)
	}
	version := s.version(ctx, cl, "timed", 4) // the command, and three failures of the timer
	if n := s.deaths.Load(); n != 9 || version != 4 {
		t.Errorf("with the timer the process ended %d times, version %d", n, version)
	}

	_, err = cl.Read(ctx, "deadly", "timed", client.ReadOptions{Query: &wrapperspb.StringValue{Value: "exit"}})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Reason != string(entity.HandlerPanic) || !strings.Contains(e.Error(), "ended") {
		t.Errorf("the deadly query: %v", err)
	}
	if n := s.deaths.Load(); n != 12 {
		t.Errorf("with the query the process ended %d times", n)
	}
	if res, err := cl.Read(ctx, "deadly", "timed", client.ReadOptions{Query: &wrapperspb.StringValue{}}); err != nil || res.Version != 4 {
		t.Errorf("a good query: %v, %v", res, err)
	}

	if res, err := cl.Read(ctx, "account", "alice", client.ReadOptions{}); err != nil || res.Version != 1 {
		t.Errorf("account: %v, %v", res, err)
	}
	if err := s.submit(ctx, cl, "source2", "good"); err != nil {
		t.Fatal(err)
	}
	if version := s.version(ctx, cl, "other", 2); version != 2 {
		t.Errorf("good events: version %d", version)
	}

	// The operator sees what is refused and lifts it.
	admin := s.admin(0)
	crashes, err := admin.ListCrashes(ctx, &nodev1.ListCrashesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var refused []string
	for _, c := range crashes.GetCrashes() {
		if c.GetRefused() {
			refused = append(refused, c.GetWhat())
		}
		if c.GetTimes() < 3 || c.GetLast() == 0 {
			t.Errorf("crash: %v", c)
		}
	}
	if len(crashes.GetCrashes()) != 4 || len(refused) != 2 || !strings.Contains(refused[0], "command google.protobuf.StringValue key \"exit\"") ||
		!strings.HasPrefix(refused[1], "query google.protobuf.StringValue") {
		t.Fatalf("crashes: %v", crashes)
	}
	if res, err := admin.ForgetCrashes(ctx, &nodev1.ForgetCrashesRequest{What: "something else"}); err != nil || res.GetForgotten() != 0 {
		t.Errorf("forget something else: %v, %v", res, err)
	}
	if res, err := admin.ForgetCrashes(ctx, &nodev1.ForgetCrashesRequest{What: refused[0]}); err != nil || res.GetForgotten() != 1 {
		t.Errorf("forget: %v, %v", res, err)
	}
	s.mend()
	if err := s.submit(ctx, cl, "command", "exit"); err != nil {
		t.Errorf("the command, after it was forgiven: %v", err)
	}
	if n := s.deaths.Load(); n != 12 {
		t.Errorf("the process ended %d times", n)
	}
}

// A command that ends processes is stopped by all nodes together: what one knows
// the others hear when it starts again.
func TestCrashesAreCountedTogether(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	s := supervise(t, 3)
	cl := s.client()
	if err := s.submit(ctx, cl, "source", "good"); err != nil {
		t.Fatal(err)
	}
	var err error
	for { // while no process is up, or no quorum, the client may give up
		err = s.submit(ctx, cl, "command", "exit")
		if e, ok := errors.AsType[*client.Error](err); err == nil || ctx.Err() != nil || ok && e.Reason == string(entity.HandlerPanic) {
			break
		}
	}
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Reason != string(entity.HandlerPanic) || !strings.Contains(e.Error(), "node crashes") {
		t.Fatalf("the deadly command: %v", err)
	}
	// Every node refuses it, once it has heard of the others.
	names := []string{"n1", "n2", "n3"}
	for i, name := range names { // through any node, for each
		admin := s.admin((i + 1) % 3)
		eventually(t, func(ctx context.Context) (any, error) {
			res, err := admin.ListCrashes(ctx, &nodev1.ListCrashesRequest{Node: name})
			if err != nil {
				return nil, err
			}
			if len(res.GetCrashes()) != 1 || !res.GetCrashes()[0].GetRefused() || res.GetNode() != name {
				return nil, fmt.Errorf("crashes of %s: %v", name, res)
			}
			if crash := res.GetCrashes()[0]; crash.GetElsewhere() == 0 && int64(crash.GetTimes()) != s.deaths.Load() {
				return nil, fmt.Errorf("%s knows of its own crashes only: %v", name, res)
			}
			return nil, nil
		})
	}
	// Three, and those that happened before the others had been told.
	deaths := s.deaths.Load()
	t.Logf("%d processes ended", deaths)
	if deaths < 3 || deaths > 9 {
		t.Errorf("the command ended processes %d times", deaths)
	}
	// Also when it is asked again and again.
	for range 20 {
		err := s.submit(ctx, cl, "command", "exit")
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Reason != string(entity.HandlerPanic) {
			t.Errorf("the deadly command again: %v", err)
		}
	}
	if again := s.deaths.Load(); again != deaths {
		t.Errorf("refused everywhere, it has ended processes %d times more", again-deaths)
	}
	for i, name := range names {
		admin := s.admin((i + 1) % 3)
		res, err := patiently(t, func(ctx context.Context) (*nodev1.ForgetCrashesResponse, error) {
			return admin.ForgetCrashes(ctx, &nodev1.ForgetCrashesRequest{Node: name})
		})
		if err != nil || res.GetForgotten() != 1 || res.GetNode() != name {
			t.Errorf("forget on %s: %v, %v", name, res, err)
		}
	}
	s.mend()
	if err := s.submit(ctx, cl, "command", "exit"); err != nil {
		t.Errorf("the command, after it was forgiven: %v", err)
	}
}

// version waits until an entity has reached a version.
func (s *supervised) version(ctx context.Context, cl *client.Client, id string, least uint64) uint64 {
	s.t.Helper()
	res, err := cl.Read(ctx, "deadly", id, client.ReadOptions{MinVersion: least})
	if err != nil {
		s.t.Fatalf("read %s: %v", id, err)
	}
	return res.Version
}

// admin is the way of operators to a node.
func (s *supervised) admin(i int) nodev1.AdminServiceClient {
	s.t.Helper()
	conn, err := grpc.NewClient(s.grpc()[i], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return nodev1.NewAdminServiceClient(conn)
}

// parked waits for the one lane that is parked.
func (s *supervised) parked(ctx context.Context) *recordv1.Lane {
	s.t.Helper()
	admin := s.admin(0)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		for shard := range uint32(2) {
			stream, err := admin.ListLanes(ctx, &nodev1.ListLanesRequest{Shard: shard, ParkedOnly: true}, grpc.WaitForReady(true))
			if err != nil {
				continue
			}
			if l, err := stream.Recv(); err == nil {
				return l.GetLane()
			}
		}
		select {
		case <-ctx.Done():
			s.t.Fatal("no lane is parked")
		case <-tick.C:
		}
	}
}
