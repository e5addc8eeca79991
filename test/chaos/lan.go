package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// LAN is a private network of this machine: a switch and seats for nodes, each in a
// network namespace of its own and joined to the switch by a cable (a veth pair). The
// test process has a cable to it too. Only that one's end lies in the host's own
// namespace, so no rule of the host's firewall touches what nodes say to each other:
// Docker's drop what is forwarded, bridged frames too.
//
// A LAN leaves nothing behind: the system removes a namespace with all cables in it
// once nobody is in it, and what holds one ends with the test process, however that ends.
type LAN struct {
	subnet netip.Prefix
	lock   *os.File // of the subnet's number
	hub    *namespace

	mu    sync.Mutex
	seats []*Seat
}

// Seat is a node's place in a LAN. It stays when its node ends.
type Seat struct {
	IP string

	lan   *LAN
	space *namespace
	port  string // the cable's name at the switch
}

// LANTools says why there can be no LAN here; nil if there can.
func LANTools() error {
	if err := WireTools(); err != nil {
		return err
	}
	return tools([]string{"ip"}, "ip link add hub type bridge && ip link add port1 type veth peer name port2")
}

// NewLAN makes a switch and the test process's cable to it.
func NewLAN() (*LAN, error) {
	l := &LAN{}
	if err := l.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("LAN: %w", err), l.Close())
	}
	return l, nil
}

func (l *LAN) open() (err error) {
	if l.subnet, l.lock, err = takeSubnet(); err != nil {
		return err
	}
	if l.hub, err = newNamespace(); err != nil {
		return err
	}
	leg := l.leg()
	if err := l.hub.run("sh", "-ec", "ip link add hub type bridge; ip link set hub up"); err != nil {
		return err
	}
	if err := host("sh", "-ec", "ip link add "+leg+" type veth peer name host netns "+l.hub.pid()+
		"; ip addr add "+l.address(254)+"/24 dev "+leg+"; ip link set "+leg+" up"); err != nil {
		return err
	}
	return l.hub.run("ip", "link", "set", "host", "master", "hub", "up")
}

// leg is the name of the test process's end of its cable. The subnet's number is in
// it, which nobody else holds.
func (l *LAN) leg() string {
	bytes := l.subnet.Addr().As4()
	return fmt.Sprintf("writ%d-%d", bytes[1], bytes[2])
}

func (l *LAN) address(last byte) string {
	bytes := l.subnet.Addr().As4()
	bytes[3] = last
	return netip.AddrFrom4(bytes).String()
}

// Seat adds a seat.
func (l *LAN) Seat() (*Seat, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	number := len(l.seats) + 1
	space, err := newNamespace()
	if err != nil {
		return nil, err
	}
	s := &Seat{lan: l, space: space, IP: l.address(byte(number)), port: "port" + strconv.Itoa(number)}
	l.seats = append(l.seats, s)
	if err := l.hub.run("sh", "-ec", "ip link add "+s.port+" type veth peer name eth0 netns "+space.pid()+
		"; ip link set "+s.port+" master hub up"); err != nil {
		return nil, err
	}
	return s, space.run("sh", "-ec", "ip link set lo up; ip addr add "+s.IP+"/24 dev eth0; ip link set eth0 up")
}

// Unplug takes the seat's cable out of the switch. Nothing tells the node.
func (s *Seat) Unplug() error { return s.lan.hub.run("ip", "link", "set", s.port, "nomaster") }

// Plug puts it back.
func (s *Seat) Plug() error { return s.lan.hub.run("ip", "link", "set", s.port, "master", "hub") }

// Close removes the network; what still runs in it is cut off.
func (l *LAN) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	if l.hub != nil {
		// The system removes namespaces in its own time, the cable at once.
		if err := host("ip", "link", "del", l.leg()); err != nil && !strings.Contains(err.Error(), "Cannot find device") {
			errs = append(errs, err)
		}
		errs = append(errs, l.hub.close())
	}
	for _, s := range l.seats {
		errs = append(errs, s.space.close())
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	return errors.Join(errs...)
}

// host runs a command in the namespace of the test process.
func host(args ...string) error {
	_, err := output(context.Background(), nil, args...)
	return err
}

// takeSubnet picks a subnet that no route of this machine leads to, and holds its
// number against other test processes. It is one of those that are set aside for
// tests of networks (RFC 2544), which Docker does not use.
func takeSubnet() (netip.Prefix, *os.File, error) {
	dir, err := lockFolder("subnets")
	if err != nil {
		return netip.Prefix{}, nil, err
	}
	for range 100 {
		number := rand.IntN(2 << 8)
		lock, err := lockNumber(dir, number)
		if err != nil {
			return netip.Prefix{}, nil, err
		}
		if lock == nil {
			continue
		}
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18 + byte(number>>8), byte(number), 0}), 24)
		used, err := routed(subnet)
		if err == nil && !used {
			return subnet, lock, nil
		}
		if err := errors.Join(err, lock.Close()); err != nil {
			return netip.Prefix{}, nil, err
		}
	}
	return netip.Prefix{}, nil, errors.New("no free subnet in 198.18.0.0/15: remove routes to it")
}

// routed reports whether a route of this machine, beside the default one, leads to
// any address of a subnet.
func routed(subnet netip.Prefix) (bool, error) {
	text, err := output(context.Background(), nil, "ip", "-j", "-4", "route", "show", "table", "all")
	if err != nil {
		return false, err
	}
	var routes []struct{ Dst string }
	if err := json.Unmarshal([]byte(text), &routes); err != nil {
		return false, fmt.Errorf("routes: %w", err)
	}
	for _, r := range routes {
		if !strings.Contains(r.Dst, "/") {
			r.Dst += "/32"
		}
		// What is no prefix is the default route.
		if to, err := netip.ParsePrefix(r.Dst); err == nil && to.Overlaps(subnet) {
			return true, nil
		}
	}
	return false, nil
}

// namespace is a network namespace. A process that does nothing holds it: it reads
// from a pipe that ends with the test process.
type namespace struct {
	holder *exec.Cmd
	pipe   io.Closer
}

func newNamespace() (*namespace, error) {
	cmd := exec.Command("cat")
	cmd.SysProcAttr = namespaceAttributes()
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	return &namespace{holder: cmd, pipe: pipe}, nil
}

func (n *namespace) pid() string { return strconv.Itoa(n.holder.Process.Pid) }

// run runs a command in the namespace.
func (n *namespace) run(args ...string) error { return host(append(inNetwork(n.pid()), args...)...) }

func (n *namespace) close() error { return errors.Join(n.pipe.Close(), n.holder.Wait()) }

// Networked is a cluster of processes in a LAN. It implements [Cluster], [Network]
// and [Wire]. What is done to a node's wire stays when the node ends.
type Networked struct {
	*Process
	wires
}

// NewNetworked prepares a LAN, and the nodes' seats and folders; nothing runs yet.
func NewNetworked(config ProcessConfig) (*Networked, error) {
	lan, err := NewLAN()
	if err != nil {
		return nil, err
	}
	config.LAN = lan
	p, err := NewProcess(config)
	if err != nil {
		return nil, errors.Join(err, lan.Close())
	}
	n := &Networked{Process: p}
	n.wires = wires{n}
	return n, nil
}

func (n *Networked) seat(node string) *Seat {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[node].seat
}

// Disconnect implements [Network].
func (n *Networked) Disconnect(node string) error { return n.seat(node).Unplug() }

// Connect implements [Network].
func (n *Networked) Connect(node string) error { return n.seat(node).Plug() }

// IP implements [namespaces].
func (n *Networked) IP(node string) (string, error) { return n.seat(node).IP, nil }

// wired implements [namespaces].
func (n *Networked) wired() []string { return n.Nodes() }

// inside implements [namespaces].
func (n *Networked) inside(node string, args ...string) error {
	return n.seat(node).space.run(args...)
}

// Close implements [Cluster]: it kills what still runs and removes the LAN.
func (n *Networked) Close() error {
	return errors.Join(n.Process.Close(), n.config.LAN.Close())
}

var (
	_ Cluster = (*Networked)(nil)
	_ Network = (*Networked)(nil)
	_ Wire    = (*Networked)(nil)
)
