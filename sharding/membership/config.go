package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"
)

// Member is what a node tells about itself. Addresses are host:port; a host
// that is empty or unspecified (0.0.0.0) means the address that the node uses
// for gossip.
type Member struct {
	Name, Incarnation string
	GRPC, HTTP, Raft  string
	// Gossip is filled in by this package: the address as the others see it.
	Gossip    string
	Zone      string
	ClusterID string // empty: belongs to no cluster yet
	Alive     bool   // as believed here and now
}

// Config is what Start needs.
type Config struct {
	// Self is this node. Name and incarnation are required.
	Self Member
	// Cluster is the name of the cluster, required: members with another name do
	// not hear each other. At most 255 bytes.
	Cluster string
	// Key encrypts gossip if set: 16, 24 or 32 bytes.
	Key []byte
	// Bind is the address to listen on, UDP and TCP. Port 0 takes a free one.
	Bind string
	// Advertise is the host:port at which others reach this node. Empty: the
	// bind address, and if that is unspecified, a private address of the machine.
	Advertise string
	// Join holds the seeds, host:port. Names are resolved anew at every attempt.
	Join []string
	// RejoinInterval is the time between attempts to find lost members, give or
	// take a quarter. Default 10 s.
	RejoinInterval time.Duration
	Logger         *slog.Logger

	tune  func(*memberlist.Config) // tests: shorter intervals
	block func(addr string) bool   // tests: true cuts the way to an address
}

const (
	rejoinIntervalDefault = 10 * time.Second
	resolveTimeout        = 3 * time.Second
	nameBytesMax          = 128
	// Members of another cluster are refused, and not probed: they are heard of
	// when one side tries to join the other, once in a rejoin interval.
	strangerLife = 3
)

func (c Config) withDefaults() Config {
	c.RejoinInterval = cmp.Or(c.RejoinInterval, rejoinIntervalDefault)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.block == nil {
		c.block = func(string) bool { return false }
	}
	if c.tune == nil {
		c.tune = func(*memberlist.Config) {}
	}
	return c
}

// Validate names everything that is wrong.
func (c Config) Validate() error {
	var errs []error
	if n := len(c.Self.Name); n == 0 || n > nameBytesMax {
		errs = append(errs, fmt.Errorf("the node's name must have 1 to %d bytes", nameBytesMax))
	}
	if c.Self.Incarnation == "" {
		errs = append(errs, errors.New("the node's incarnation is missing"))
	}
	if c.Cluster == "" || len(c.Cluster) > memberlist.LabelMaxSize {
		errs = append(errs, fmt.Errorf("the cluster's name must have 1 to %d bytes", memberlist.LabelMaxSize))
	}
	switch len(c.Key) {
	case 0, 16, 24, 32:
	default:
		errs = append(errs, fmt.Errorf("the gossip key must have 16, 24 or 32 bytes, not %d", len(c.Key)))
	}
	if c.RejoinInterval < 0 {
		errs = append(errs, errors.New("the rejoin interval is negative"))
	}
	if _, _, err := splitPort(c.Bind); err != nil {
		errs = append(errs, fmt.Errorf("gossip address: %w", err))
	}
	if c.Advertise != "" {
		if _, _, err := splitPort(c.Advertise); err != nil {
			errs = append(errs, fmt.Errorf("advertised gossip address: %w", err))
		}
	}
	for _, seed := range c.Join {
		if host, _, err := splitPort(seed); err != nil || host == "" {
			errs = append(errs, fmt.Errorf("seed %q is not host:port", seed))
		}
	}
	return errors.Join(errs...)
}

func splitPort(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port", address)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q has no valid port", address)
	}
	return host, int(n), nil
}

// resolve finds the addresses of a host, IPv4 first.
func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var v4, v6 []netip.Addr
	for _, ip := range found {
		if ip = ip.Unmap(); ip.Is4() {
			v4 = append(v4, ip)
		} else {
			v6 = append(v6, ip)
		}
	}
	if len(v4)+len(v6) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return append(v4, v6...), nil
}

func unspecified(host string) bool {
	if host == "" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}
