package membership

import (
	"bytes"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/memberlist"
)

func TestEntryRoundTrip(t *testing.T) {
	long := strings.Repeat("h", 200) + ".example"
	for name, m := range map[string]Member{
		"one host":        {GRPC: long + ":1", HTTP: long + ":2", Raft: long + ":3", ClusterID: strings.Repeat("c", 32)},
		"different hosts": {GRPC: "a:1", HTTP: "b:2", Raft: "[::1]:3"},
		"nothing":         {},
	} {
		m.Name, m.Incarnation, m.Gossip = "n", "0123456789abcdef", "10.0.0.1:7"
		b, err := encodeEntry(m, "instance", 1<<60)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, e, err := decodeEntry(&memberlist.Node{Name: "n", Addr: net.IPv4(10, 0, 0, 1), Port: 7, Meta: b})
		if diff := cmp.Diff(m, got); diff != "" || err != nil || e.Instance != "instance" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

func TestUnspecifiedHostIsTheGossipHost(t *testing.T) {
	b, err := encodeEntry(Member{Incarnation: "i", GRPC: "0.0.0.0:1", HTTP: ":2", Raft: "[::]:3"}, "p", 1)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := decodeEntry(&memberlist.Node{Name: "n", Addr: net.ParseIP("fd00::1"), Port: 7, Meta: b})
	if err != nil || got.GRPC != "[fd00::1]:1" || got.HTTP != "[fd00::1]:2" || got.Raft != "[fd00::1]:3" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestEntriesThatMakeNoSense(t *testing.T) {
	for _, meta := range []string{"", "x", "{}", `{"v":2,"i":"x"}`, `{"v":1}`} {
		if _, _, err := decodeEntry(&memberlist.Node{Name: "n", Meta: []byte(meta)}); err == nil {
			t.Errorf("%q was taken", meta)
		}
	}
}

func TestHintTable(t *testing.T) {
	var table hints
	for _, step := range []struct {
		hint LeaderHint
		news bool
	}{
		{LeaderHint{Shard: 1, Term: 3, Node: "a"}, true},
		{LeaderHint{Shard: 1, Term: 3, Node: "b"}, false},
		{LeaderHint{Shard: 1, Term: 2, Node: "b"}, false},
		{LeaderHint{Shard: 1, Epoch: 1, Term: 1, Node: "b"}, true},
		{LeaderHint{Shard: 1, Term: 100, Node: "a"}, false},
		{LeaderHint{Shard: 2, Term: 0, Node: "a"}, false},
		{LeaderHint{Shard: 2, Term: math.MaxUint64, Node: "a"}, false},
		{LeaderHint{Shard: 2, Epoch: math.MaxUint64, Term: 1, Node: "a"}, false},
		{LeaderHint{Shard: 2, Term: 1}, false},
		{LeaderHint{Shard: 2, Term: 1, Node: "\xff"}, false},
		{LeaderHint{Shard: math.MaxUint32, Term: 1, Node: "a"}, false},
		{LeaderHint{Shard: 0, Term: 1, Node: "c"}, true},
	} {
		if got := table.merge(step.hint); got != step.news {
			t.Errorf("%+v: news %v", step.hint, got)
		}
	}
	want := []LeaderHint{{Shard: 0, Term: 1, Node: "c"}, {Shard: 1, Epoch: 1, Term: 1, Node: "b"}}
	if diff := cmp.Diff(want, table.all()); diff != "" {
		t.Error(diff)
	}
	clusterID, list, err := decodeHints(encodeHints("x", want...))
	if diff := cmp.Diff(want, list); diff != "" || err != nil || clusterID != "x" {
		t.Errorf("%q %v %s", clusterID, err, diff)
	}
}

func FuzzDecodeHints(f *testing.F) {
	f.Add(encodeHints("x", LeaderHint{Shard: 1, Term: 2, Node: "n"}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		clusterID, list, err := decodeHints(b)
		if err != nil {
			return
		}
		again, relist, err := decodeHints(encodeHints(clusterID, list...))
		if err != nil || again != clusterID || !cmp.Equal(list, relist) {
			t.Errorf("%v: %v, %v", err, list, relist)
		}
	})
}

func FuzzDecodeInstance(f *testing.F) {
	f.Add(instance{kind: messageAsk, name: "n", id: "i", started: 5, reply: "a:1"}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		m, err := decodeInstance(b)
		if err != nil {
			return
		}
		if again, err := decodeInstance(m.encode()); err != nil || again != m {
			t.Errorf("%v: %+v, %+v", err, m, again)
		}
	})
}

func TestLogLines(t *testing.T) {
	var out bytes.Buffer
	w := &logWriter{logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))}
	for _, line := range []string{"[DEBUG] memberlist: d\n", "[INFO] memberlist: i\n", "[WARN] memberlist: w\n", "[WARN] memberlist: w\n", "[ERR] memberlist: e\n", "plain\n"} {
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%d %v", n, err)
		}
	}
	want := `level=INFO msg="gossip: i"
level=WARN msg="gossip: w"
level=WARN msg="gossip: e"
level=INFO msg="gossip: plain"
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}
