package membership

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/hashicorp/go-sockaddr"
	"github.com/hashicorp/memberlist"
)

// transport is memberlist's own one, whose dials end when the node closes, and
// whose ways can be cut in tests.
type transport struct {
	*memberlist.NetTransport
	ctx   context.Context //nolint:containedctx // the library's dials take none
	block func(addr string) bool
}

var errCut = errors.New("the link is cut")

func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if t.block(a.Addr) {
		return nil, errCut
	}
	d := net.Dialer{Timeout: timeout}
	return d.DialContext(t.ctx, "tcp", a.Addr)
}

func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	if t.block(a.Addr) {
		return time.Now(), nil // lost on the way, as datagrams are
	}
	return t.NetTransport.WriteToAddress(b, a)
}

// listen opens the gossip port for UDP and TCP.
func listen(ctx context.Context, c Config, logger *log.Logger) (*transport, error) {
	host, port, err := splitPort(c.Bind)
	if err != nil {
		return nil, err
	}
	ip := "0.0.0.0"
	if host != "" {
		found, err := resolve(ctx, host)
		if err != nil {
			return nil, fmt.Errorf("gossip address %s: %w", c.Bind, err)
		}
		ip = found[0].String()
	}
	attempts := 1
	if port == 0 {
		attempts = 10 // a port that is free for TCP may be taken for UDP
	}
	for range attempts {
		var t *memberlist.NetTransport
		t, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{ip}, BindPort: port, Logger: logger})
		if err == nil {
			return &transport{NetTransport: t, ctx: ctx, block: c.block}, nil
		}
	}
	if strings.Contains(err.Error(), "address already in use") {
		return nil, fmt.Errorf("gossip address %s is in use by another process: stop it or choose another address", c.Bind)
	}
	return nil, fmt.Errorf("listen for gossip on %s: %w", c.Bind, err)
}

// advertised is the address that the others are told: as configured, or the
// bind address, or a private address of this machine.
func advertised(ctx context.Context, c Config, bound int) (netip.AddrPort, error) {
	host, port, _ := splitPort(c.Bind)
	if c.Advertise != "" {
		host, port, _ = splitPort(c.Advertise)
	}
	if port == 0 {
		port = bound
	}
	if unspecified(host) {
		private, err := sockaddr.GetPrivateIP()
		if err != nil || private == "" {
			return netip.AddrPort{}, fmt.Errorf("gossip listens on %s and this machine has no private address that others could use: say which one to advertise", c.Bind)
		}
		host = private
	}
	found, err := resolve(ctx, host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("gossip address to advertise: %w", err)
	}
	return netip.AddrPortFrom(found[0], uint16(port)), nil
}
