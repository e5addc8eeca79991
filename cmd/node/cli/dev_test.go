package cli

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"writ/actors/account"
	nodev1 "writ/proto/writ/node/v1"
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
	if got := errs.String(); !strings.HasPrefix(got, "starting 1 nodes") || strings.Contains(got, "level=INFO") || strings.Contains(got, "raft: ") {
		t.Errorf("it logs:\n%s", got)
	}
}

// TestDevWithTokens: where calls need a token the commands do not work without one.
func TestDevWithTokens(t *testing.T) {
	for _, tokens := range []string{"", "tokens.json"} {
		var out strings.Builder
		c := devCommand{clusterFlags: clusterFlags{Tokens: tokens}}
		if err := c.announce(&out, readyFile{Nodes: []readyNode{{GRPC: "127.0.0.1:1"}}}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "export WRIT_TOKEN="); got != (tokens != "") {
			t.Errorf("--tokens %q:\n%s", tokens, out.String())
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
