package chaos

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// standIn is a program that behaves like a node to the driver: this test binary
// runs it when it is called with "serve". It writes a file to its folder, is
// ready at once, and ends with code 0 on SIGTERM.
func standIn(args []string) error {
	flag := func(name string) string {
		if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
			return args[i+1]
		}
		return ""
	}
	if flag("--fail") != "" {
		return errors.New(flag("--fail"))
	}
	if err := os.MkdirAll(flag("--dir"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(flag("--dir")+"/data", nil, 0o600); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := &http.Server{
		Addr: flag("--http"), ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// standIns is a cluster of stand-ins.
func standIns(t *testing.T, args ...string) *Process {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	p, err := NewProcess(ProcessConfig{Binary: self, Dir: t.TempDir(), Nodes: []string{"a", "b"}, Args: args})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

func TestDriverLifecycle(t *testing.T) {
	p := standIns(t)
	ctx := within(t, 30*time.Second)
	for _, node := range p.Nodes() {
		must(t, p.Start(node))
	}
	must(t, AwaitReady(ctx, p, p.Nodes()...))
	if p.Start("a") == nil {
		t.Error("a running node was started again")
	}
	if p.Wipe("a") == nil {
		t.Error("a running node was wiped")
	}

	must(t, p.Kill("a"))
	must(t, p.Kill("a")) // no process, no error
	if p.Running("a") || Alive(ctx, p, "a") {
		t.Error("a runs after SIGKILL")
	}
	if err := AwaitReady(ctx, p, "a"); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("waiting for a dead node: %v", err)
	}
	must(t, p.Wipe("a"))
	if _, err := os.Stat(p.Dir("a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	must(t, p.Start("a"))
	must(t, AwaitReady(ctx, p, "a"))

	code, _, err := p.Stop(ctx, "b")
	must(t, err)
	if code != 0 || p.Running("b") {
		t.Errorf("exit code %d, running %v", code, p.Running("b"))
	}
	if logs := p.Logs("a", 10); strings.Count(logs, "--- start") != 2 || !strings.Contains(logs, "signal: killed") {
		t.Errorf("log: %s", logs)
	}
}

func TestDriverPause(t *testing.T) {
	p := standIns(t)
	ctx := within(t, 30*time.Second)
	must(t, p.Start("a"))
	must(t, AwaitReady(ctx, p, "a"))
	must(t, p.Pause("a"))
	if !p.Running("a") || Alive(ctx, p, "a") {
		t.Error("a frozen node runs but does not answer")
	}
	must(t, p.Resume("a"))
	must(t, AwaitReady(ctx, p, "a"))
}

func TestDriverReportsExit(t *testing.T) {
	p := standIns(t, "--fail", "no luck today")
	must(t, p.Start("a"))
	code, err := p.Exit(within(t, 30*time.Second), "a")
	must(t, err)
	if code != 1 || !strings.Contains(p.Logs("a", 5), "no luck today") {
		t.Errorf("exit code %d, log %s", code, p.Logs("a", 5))
	}
}

func TestDriverAddresses(t *testing.T) {
	p := standIns(t)
	must(t, p.Add("c"))
	if p.Add("c") == nil {
		t.Error("a node was added twice")
	}
	a, b := p.Addrs("a"), p.Addrs("b")
	p.SwapAddrs("a", "b")
	if p.Addrs("a") != b || p.Addrs("b") != a {
		t.Error("the addresses are not swapped")
	}
	must(t, p.Start("a"))
	must(t, AwaitReady(within(t, 30*time.Second), p, "a"))
	if got := others(p, "a"); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("others: %v", got)
	}
	p.Remove("c")
	if got := p.Nodes(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("nodes: %v", got)
	}
}

func TestPortsAreHeld(t *testing.T) {
	var a, b Ports
	first, err := a.Take(20)
	must(t, err)
	second, err := b.Take(20)
	must(t, err)
	for _, port := range first {
		if slices.Contains(second, port) {
			t.Errorf("port %d was given out twice", port)
		}
	}
	must(t, a.Release())
	must(t, b.Release())
}
