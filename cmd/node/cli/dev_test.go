package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"writ/actors/account"
	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
	testingv1 "writ/proto/writ/testing/v1"
)

// freePorts is the first of four ports that nobody uses, TCP or UDP.
func freePorts(t *testing.T) int {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
next:
	for range 100 {
		base := 20000 + rng.IntN(10000)
		for port := base; port < base+4; port++ {
			addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			tcp, err := net.Listen("tcp", addr)
			if err != nil {
				continue next
			}
			udp, err := net.ListenPacket("udp", addr)
			_ = tcp.Close()
			if err != nil {
				continue next
			}
			_ = udp.Close()
		}
		return base
	}
	t.Fatal("no free ports")
	return 0
}

// TestDevSaysWhatToDo: the first thing that a newcomer sees is what to type, and it
// works; not the log of a cluster that forms.
func TestDevSaysWhatToDo(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	read, write := io.Pipe()
	var errs bytes.Buffer
	ended := make(chan error, 1)
	dir := t.TempDir()
	args := []string{"dev", "--nodes", "1", "--dir", dir, "--base-port", strconv.Itoa(freePorts(t)), "--ready-file", filepath.Join(dir, "ready.json")}
	go func() {
		err := run(ctx, args, account.Kinds(), streams{out: write, err: &errs})
		_ = write.CloseWithError(err)
		ended <- err
	}()
	var guide strings.Builder
	buf := make([]byte, 4<<10)
	for !strings.Contains(guide.String(), "Ctrl-C") {
		n, err := read.Read(buf)
		guide.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v after:\n%s", err, guide.String())
		}
	}
	if !strings.Contains(guide.String(), "\n  "+os.Args[0]+" submit --addr ") {
		t.Errorf("the commands are not called as this program was:\n%s", guide.String())
	}
	if _, err := os.Stat(filepath.Join(dir, "ready.json")); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(guide.String()) {
		args := strings.Fields(strings.ReplaceAll(line, "'", ""))
		if len(args) > 2 && args[0] == os.Args[0] {
			call(t, args[1:]...).says(t, 0)
		}
	}
	stop()
	go func() { _, _ = io.Copy(io.Discard, read) }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	// On a machine that is busy there may be a warning of Writ's own.
	if got := errs.String(); !strings.HasPrefix(got, "starting 1 node with") || strings.Contains(got, "level=INFO") || strings.Contains(got, "raft: ") {
		t.Errorf("it logs:\n%s", got)
	}
}

// locked is a buffer that is read while others write to it.
type locked struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// TestDevSaysWhatItWaitsFor: the log of the only node is damaged. The first start
// finds that out and ends; the second would wait for ever and say nothing.
func TestDevSaysWhatItWaitsFor(t *testing.T) {
	dir := t.TempDir()
	args := []string{"dev", "--nodes", "1", "--dir", dir, "--base-port", strconv.Itoa(freePorts(t)), "--ready-file", filepath.Join(dir, "ready.json")}
	dev := func(until func(said string) bool) (string, error) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var out, errs locked
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, args, account.Kinds(), streams{out: &out, err: &errs}) }()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case err := <-ended:
				return errs.String(), err
			case <-tick.C:
				if until(errs.String()) {
					stop()
				}
			}
		}
	}
	ready := func(string) bool {
		_, err := os.Stat(filepath.Join(dir, "ready.json"))
		return err == nil
	}
	if said, err := dev(ready); err != nil || !ready("") {
		t.Fatalf("%v:\n%s", err, said)
	}
	manifests, err := filepath.Glob(filepath.Join(dir, "n1", "log", "MANIFEST-*"))
	if err != nil || len(manifests) == 0 {
		t.Fatalf("no manifest: %v", err)
	}
	for _, path := range manifests {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
	}
	if said, err := dev(func(string) bool { return false }); !errors.Is(err, node.ErrMemoryLost) {
		t.Fatalf("%v:\n%s", err, said)
	}
	said, err := dev(func(said string) bool { return strings.Contains(said, "n1 is not ready: ") })
	if err != nil {
		t.Error(err)
	}
	for _, words := range []string{"n1 is not ready: memory: ", filepath.Join(dir, "n1", "quarantine"), "start the other nodes", "docs/operations.md"} {
		if strings.Count(said, words) != 1 {
			t.Errorf("it does not say %q once:\n%s", words, said)
		}
	}
}

func TestUnready(t *testing.T) {
	r := node.Readiness{Node: "n2", Reasons: map[string]string{"registry": "refused", "disk": "full"}, Shards: map[uint32]string{7: "late", 3: "catching up"}}
	want := "n2 is not ready: disk: full\nn2 is not ready: registry: refused\nn2 is not ready: 2 shards, of these shard 3: catching up\n"
	if got := unready(r); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := unready(node.Readiness{Node: "n1", Ready: true}); got != "" {
		t.Errorf("of a node that is ready: %q", got)
	}
}

// TestDevWithTokens: where calls need a token the commands do not work without one.
func TestDevWithTokens(t *testing.T) {
	for _, tokens := range []string{"", "tokens.json"} {
		var out strings.Builder
		c := devCommand{clusterFlags: clusterFlags{Tokens: tokens}}
		if err := c.announce(&out, readyFile{Nodes: []readyNode{{GRPC: "127.0.0.1:1"}}}, account.Kinds()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "export WRIT_TOKEN="); got != (tokens != "") {
			t.Errorf("--tokens %q:\n%s", tokens, out.String())
		}
	}
}

// TestDevGuidesOwnKinds: the example's commands would fail where its kinds are not.
func TestDevGuidesOwnKinds(t *testing.T) {
	guide := func(kinds ...entity.Definer) string {
		var out strings.Builder
		if err := new(devCommand).announce(&out, readyFile{Nodes: []readyNode{{GRPC: "127.0.0.1:1"}}}, kinds); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	own := entity.NewKind[*testingv1.Sum]("account") // another one than the example's
	entity.Handle(own, func(_ *entity.Context, s *testingv1.Sum, _ *testingv1.Order) (*testingv1.Sum, error) { return s, nil })
	entity.Handle(own, func(_ *entity.Context, s *testingv1.Sum, _ *testingv1.Act) (*testingv1.Sum, error) { return s, nil })
	got := guide(own)
	for _, want := range []string{"1 node serves", " audit --addr 127.0.0.1:1\n", "\n  account: writ.testing.v1.Act, writ.testing.v1.Order\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "Deposit") {
		t.Errorf("it shows a command that fails:\n%s", got)
	}
	if got := guide(append(account.Kinds(), own)...); !strings.Contains(got, "Deposit") || strings.Contains(got, "The kinds") {
		t.Errorf("with the example's kinds:\n%s", got)
	}
}

func TestDevRefuses(t *testing.T) {
	err := run(t.Context(), []string{"dev"}, nil, streams{out: io.Discard, err: io.Discard})
	if err == nil || err.Error() != "no kinds: pass at least one to cli.Main" {
		t.Errorf("without kinds: %v", err)
	}
	dir := t.TempDir()
	for _, name := range []string{"n1", "n3"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "node.json"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	call(t, "dev", "--dir", dir, "--nodes", "1").says(t, 2, "this folder holds a cluster of 3 nodes (n1, n2, n3): give --nodes 3, or another --dir")
	for _, nodes := range []int{3, 5} {
		if err := (&devCommand{Dir: dir, Nodes: nodes}).checkFolder(); err != nil {
			t.Errorf("--nodes %d: %v", nodes, err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	call(t, "dev", "--dir", t.TempDir(), "--nodes", "1", "--base-port", port).says(t, 1, "127.0.0.1:"+port, "in use", "--base-port")
}

func TestDevShardsIgnored(t *testing.T) {
	for _, tt := range []struct {
		given uint32
		has   int
		want  string
	}{{0, 8, ""}, {0, 16, ""}, {8, 8, ""}, {16, 8, "the cluster has 8 shards, fixed when it formed; --shards 16 is ignored\n"}, {8, 1, "the cluster has 1 shard, fixed when it formed; --shards 8 is ignored\n"}} {
		c := devCommand{clusterFlags: clusterFlags{Shards: tt.given}}
		if got := c.ignored(tt.has); got != tt.want {
			t.Errorf("--shards %d of %d: %q, want %q", tt.given, tt.has, got, tt.want)
		}
	}
}

func TestSettled(t *testing.T) {
	status := func(preferred, leader string) *nodev1.StatusResponse {
		return &nodev1.StatusResponse{
			Meta:   &nodev1.MetaState{Shards: []*nodev1.ShardPlacement{{Shard: 1, Preferred: preferred}}},
			Shards: []*nodev1.ShardStatus{{Shard: 1, Leader: leader}},
		}
	}
	for _, tt := range []struct {
		preferred, leader string
		want              bool
	}{{"n1", "n1", true}, {"n1", "n2", false}, {"n1", "", false}, {"", "n2", true}} {
		if got := settled(status(tt.preferred, tt.leader)); got != tt.want {
			t.Errorf("preferred %q, leader %q: %v", tt.preferred, tt.leader, got)
		}
	}
}
