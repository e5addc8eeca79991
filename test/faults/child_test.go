//go:build faults

package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/internal/fault"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
	"writ/sharding"
	"writ/test/faults"
)

const (
	childDir = "WRIT_FAULTS_CHILD"
	// childLoop has the child swap in the files of two senders, over and over.
	childLoop = "WRIT_FAULTS_LOOP"
)

// TestChild is the process that is harmed: it copies one shard file and swaps it in
// for another.
func TestChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("runs as a child only")
	}
	go func() { // what hangs hangs until the parent says so
		_, _ = io.Copy(io.Discard, os.Stdin)
		point, _, armed := strings.Cut(os.Getenv(fault.Variable), "=")
		if !armed {
			return
		}
		req := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/debug/fault?action=none&point="+point, nil)
		answer := httptest.NewRecorder()
		if fault.Handler().ServeHTTP(answer, req); answer.Code != http.StatusOK {
			panic("the point is not disarmed: " + answer.Body.String()) // ends the child, which would hang
		}
	}()
	if os.Getenv(childLoop) != "" {
		swapForEver(t, dir)
	}
	from, err := persistence.Open(storeConfig(dir, "from", 1))
	if err != nil {
		t.Fatal(err)
	}
	to, err := persistence.Open(storeConfig(dir, "to", 2))
	if err != nil {
		t.Fatal(err)
	}
	path, _, err := from.CopyFile(dir)
	if err == nil {
		err = to.Replace(path)
	}
	if err = errors.Join(err, from.Close(), to.Close()); err != nil {
		t.Fatal(err)
	}
}

// swapForEver swaps the files of two senders in, one after the other, until it is
// killed. When it has swapped once it says so, and how long that took.
func swapForEver(t *testing.T, dir string) {
	t.Helper()
	var stores []*persistence.Store
	for i, name := range []string{"short", "long", "to"} {
		s, err := persistence.Open(storeConfig(dir, name, uint64(i+1)))
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, s)
	}
	began := time.Now()
	for n := 0; ; n++ {
		path, _, err := stores[n%2].CopyFile(dir)
		if err == nil {
			err = stores[2].Replace(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			_, _ = fmt.Fprintln(os.Stderr, time.Since(began), swapping)
		}
	}
}

const swapping = "swapping"

// A process that is killed at any moment while it copies shard files and swaps them
// in leaves the senders as they were, and the receiver with the one file or the other,
// whole: content and index are one. The same receiver is killed a hundred times.
func TestKilledWhileFilesAreSwapped(t *testing.T) {
	const kills, short, long = 100, 20, 300
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 34))
	dir := t.TempDir()
	fill(t, storeConfig(dir, "short", 1), short)
	fill(t, storeConfig(dir, "long", 2), long)
	fill(t, storeConfig(dir, "to", 3), short)
	stands := map[uint64]int{}
	for range kills {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestChild$")
		cmd.Env = append(os.Environ(), childDir+"="+dir, childLoop+"=1")
		output := &watched{text: swapping, seen: make(chan struct{})}
		cmd.Stdout, cmd.Stderr = output, output
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-output.seen:
		case <-time.After(time.Minute):
			t.Error("the child does not swap")
		}
		// Within a few swaps, however slow the disk is: else only the first file is met.
		<-time.After(time.Duration(random.Int64N(int64(max(30*time.Millisecond, 4*firstSwap(output))))))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.Exited() {
			t.Fatalf("the child has ended by itself: %v\n%s", err, output.String())
		}
		to := storeConfig(dir, "to", 3)
		n := indexOf(t, to)
		if n != short && n != long {
			t.Fatalf("the receiver stands at %d: neither file", n)
		}
		stands[n]++
		wantStore(t, to, n)
		wantStore(t, storeConfig(dir, "short", 1), short)
		wantStore(t, storeConfig(dir, "long", 2), long)
		left, err := filepath.Glob(filepath.Join(dir, "*.copy"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range left { // a replica does so at its start
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d kills; the receiver stood at %v", kills, stands)
	if stands[short] == 0 || stands[long] == 0 {
		t.Errorf("the kills met one file only: %v", stands)
	}
}

// firstSwap is how long the child's first swap took; 0 if it has made none.
func firstSwap(output *watched) time.Duration {
	words := strings.Fields(output.head)
	if at := slices.Index(words, swapping); at > 0 {
		took, _ := time.ParseDuration(words[at-1])
		return took
	}
	return 0
}

func indexOf(t *testing.T, cfg persistence.Config) uint64 {
	t.Helper()
	s, err := persistence.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	return s.Meta().GetIndex()
}

// Harm while a shard file is copied or swapped in leaves the sender as it was, and
// the receiver with the old file or the new one, whole.
func TestPointsAroundSnapshots(t *testing.T) {
	for _, c := range faults.Cases() {
		if c.Victim != faults.Child {
			continue
		}
		for _, action := range fault.Actions() {
			t.Run(fmt.Sprintf("%s/%s", c.Point, action), func(t *testing.T) { harmChild(t, c, action) })
		}
	}
}

func harmChild(t *testing.T, c faults.Case, action fault.Action) {
	t.Helper()
	const before, after = 20, 300
	dir := t.TempDir()
	fill(t, storeConfig(dir, "from", 1), after)
	fill(t, storeConfig(dir, "to", 2), before)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestChild$")
	cmd.Env = append(os.Environ(), childDir+"="+dir, fault.Variable+"="+string(c.Point)+"="+string(action))
	acts := fmt.Sprintf("fault point %s: %s\n", c.Point, action)
	output := &watched{text: acts, seen: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = output, output
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	want := uint64(after)
	switch c.Outcomes[action] { //nolint:exhaustive // the others need no help
	case faults.Freezes:
		awaitStop(t, cmd.Process.Pid)
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	case faults.Hangs:
		select {
		case <-output.seen:
		case <-time.After(time.Minute):
			t.Error("the point has not acted within a minute")
		}
		if err := stdin.Close(); err != nil {
			t.Fatal(err)
		}
	}
	err = cmd.Wait()
	if !strings.Contains(output.String(), acts) {
		t.Fatalf("the point has not acted: %v\n%s", err, output.String())
	}
	switch c.Outcomes[action] {
	case faults.Dies:
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			t.Errorf("the child was not killed: %v\n%s", err, output.String())
		}
		if c.Point != fault.Restored {
			want = before
		}
	case faults.Refuses:
		if err == nil || !strings.Contains(output.String(), fault.ErrInjected.Error()) {
			t.Errorf("the child does not report the failure: %v\n%s", err, output.String())
		}
		want = before
	case faults.GoesOn, faults.Freezes, faults.Hangs:
		if err != nil {
			t.Errorf("the child has failed: %v\n%s", err, output.String())
		}
	case faults.Fails, faults.Yields:
		t.Errorf("a child alone cannot have the outcome %q", c.Outcomes[action])
	}
	wantStore(t, storeConfig(dir, "from", 1), after)
	wantStore(t, storeConfig(dir, "to", 2), want)
}

// watched is what a process prints; seen is closed when it has printed the text, and
// head is all until then.
type watched struct {
	all  bytes.Buffer
	text string
	seen chan struct{}
	head string
}

func (w *watched) Write(p []byte) (int, error) {
	before := strings.Contains(w.String(), w.text)
	n, err := w.all.Write(p)
	if !before && strings.Contains(w.String(), w.text) {
		w.head = w.String()
		close(w.seen)
	}
	return n, err
}

func (w *watched) String() string { return w.all.String() }

// awaitStop waits until a child stands still.
func awaitStop(t *testing.T, pid int) {
	t.Helper()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the child does not stop: %v, %v", status, err)
	}
}

func storeConfig(dir, name string, generation uint64) persistence.Config {
	return persistence.Config{
		Path: filepath.Join(dir, name), ClusterID: "c", Shard: 1, Range: sharding.Range{First: 0, Last: math.MaxUint64},
		Epoch: 1, Generation: generation, GenerationWidth: time.Minute,
	}
}

// fill writes n commands with a key and a row each.
func fill(t *testing.T, cfg persistence.Config, n uint64) {
	t.Helper()
	s, err := persistence.Create(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a, b := &recordv1.Ref{Tenant: "t", Kind: "k", Id: "a"}, &recordv1.Ref{Tenant: "t", Kind: "k", Id: "b"}
	for i := uint64(1); i <= n; i++ {
		payload := &recordv1.Payload{Type: "t", Schema: 1, Data: fmt.Append(nil, i)}
		rec := &recordv1.Record{Epoch: 1, Term: 1, Body: &recordv1.Record_Commit{Commit: &recordv1.Commit{
			Entity: a, BaseVersion: i - 1,
			Mutations: []*recordv1.Mutation{{Bucket: recordv1.Bucket_STATE, Value: payload}},
			Key:       &recordv1.Key{CommandType: "c", Key: fmt.Append(nil, i), FingerprintAlgorithm: 1, AcceptedAt: 1, ExpiresAt: int64(time.Hour)},
			Outcome:   &recordv1.Outcome{Decision: recordv1.Outcome_EXECUTED, Version: i},
			Rows:      []*recordv1.Row{{Source: a, Epoch: 1, Sequence: i, Destination: b, LaneSequence: i, Event: payload}},
		}}}
		entry, err := proto.Marshal(&recordv1.Entry{Format: 1, LogTime: 1, Records: []*recordv1.Record{rec}})
		if err != nil {
			t.Fatal(err)
		}
		if results, err := s.Apply(i, 1, entry); err != nil || results[0] != nil {
			t.Fatal(results, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantStore opens a store after the crash: it must be sound, and stand at n.
func wantStore(t *testing.T, cfg persistence.Config, n uint64) {
	t.Helper()
	s, err := persistence.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	audit, err := s.Audit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(audit.Findings) > 0 {
		t.Errorf("audit: %s", strings.Join(audit.Findings, "; "))
	}
	rec, err := s.Entity(entity.Ref{Tenant: "t", Kind: "k", ID: "a"})
	if err != nil || s.Meta().GetIndex() != n || rec.GetVersion() != n || audit.KeysLive != n || audit.Pending != n {
		t.Errorf("%s stands at index %d, version %d, %d keys, %d rows: want %d (%v)", filepath.Base(cfg.Path),
			s.Meta().GetIndex(), rec.GetVersion(), audit.KeysLive, audit.Pending, n, err)
	}
}
