package replica

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"writ/internal/format"
)

func TestHandshake(t *testing.T) {
	c := newCluster(t, 1, func(config *Config) { config.Timing.Dial, config.Timing.RPC = patience, patience })
	c.startAll(1)
	c.lease(0, 0)
	good := hello{cluster: "cluster-1", from: c.server("b", 1).String(), to: c.server("a", 1).String(), shard: 0, epoch: 1, format: format.Base}
	for _, test := range []struct {
		name   string
		change func(*hello)
		want   string // in the refusal; empty = welcome
	}{
		{"welcome", func(*hello) {}, ""},
		{"another cluster", func(h *hello) { h.cluster = "cluster-2" }, "belongs to cluster cluster-1"},
		{"another node", func(h *hello) { h.to = c.server("c", 1).String() }, "is a#disk-a#1"},
		{"another generation", func(h *hello) { h.to = c.server("a", 2).String() }, "is a#disk-a#1"},
		{"another incarnation", func(h *hello) { h.to = "a#other#1" }, "is a#disk-a#1"},
		{"a shard that is not here", func(h *hello) { h.shard = 9 }, "serves no replica of shard 9"},
		{"another epoch", func(h *hello) { h.epoch = 2 }, "is at epoch 1"},
		{"a newer format", func(h *hello) { h.format = format.Max + 1 }, "start a newer version"},
		{"a sender without a name", func(h *hello) { h.from = "b" }, "sender"},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", c.addrs["a"])
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			h := good
			test.change(&h)
			err = greet(conn, h, time.Now().Add(patience))
			var no *refusal
			switch {
			case test.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.want != "" && (!errorsAs(err, &no) || !strings.Contains(no.reason, test.want)):
				t.Errorf("got %v, want a refusal with %q", err, test.want)
			}
		})
	}
}

func TestHandshakeRefusesOtherProtocols(t *testing.T) {
	frame := func(magic uint32, version, length uint16) []byte {
		b := binary.BigEndian.AppendUint32(nil, magic)
		return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, version), length)
	}
	for name, input := range map[string][]byte{
		"http":        []byte("GET / HTTP/1.1\r\n"),
		"new version": frame(wireMagic, uint16(format.Max)+1, 0),
		"version 0":   frame(wireMagic, 0, 0),
		"too long":    frame(wireMagic, 1, frameMax+1),
		"cut off":     frame(wireMagic, 1, 10),
		"empty":       nil,
	} {
		if _, err := readFrame(bytes.NewReader(input)); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func FuzzParseHello(f *testing.F) {
	f.Add(hello{cluster: "c", from: "a#i#1", to: "b#i#2", shard: 3, epoch: 4}.marshal())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err != nil {
			return
		}
		if again, err := parseHello(h.marshal()); err != nil || again != h {
			t.Errorf("%+v came back as %+v, %v", h, again, err)
		}
	})
}
