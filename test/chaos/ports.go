package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// The ports given out lie below those that the system usually picks for outgoing
// connections, and none is one of these unless they are all there are, so a node that
// is down for a while finds its port free again.
const (
	portFirst = 20000
	portLast  = 31999
)

// Ports holds ports against other test processes of this machine: each has a
// lock file, which the system unlocks when the holder ends, however it ends.
type Ports struct {
	locks []*os.File
}

// Take picks n free ports, TCP and UDP, and holds them until Release.
func (p *Ports) Take(n int) ([]int, error) {
	dir, err := lockFolder("ports")
	if err != nil {
		return nil, err
	}
	first, last := outgoingPorts()
	all := first <= portFirst && portLast <= last // then there is no choice
	var ports []int
	for range 100 * n {
		port := portFirst + rand.IntN(portLast-portFirst+1)
		if !all && first <= port && port <= last {
			continue
		}
		lock, err := lockNumber(dir, port)
		if err != nil {
			return nil, err
		}
		if lock == nil {
			continue
		}
		if !portFree(port) {
			_ = lock.Close()
			continue
		}
		p.locks = append(p.locks, lock)
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports between %d and %d", n, portFirst, portLast)
}

// Release gives all ports back.
func (p *Ports) Release() error {
	var errs []error
	for _, lock := range p.locks {
		errs = append(errs, lock.Close())
	}
	p.locks = nil
	return errors.Join(errs...)
}

// outgoingPorts are those that the system picks for outgoing connections, where it says so.
func outgoingPorts() (first, last int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &first, &last)
	}
	if err != nil {
		return 0, 0
	}
	return first, last
}

// lockFolder is where this user's lock files are: those that root has made are for
// nobody else to write. Between users only a port that is in use is held.
func lockFolder(name string) (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("writ-chaos-%s-%d", name, os.Getuid()))
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", fmt.Errorf("locks of %s: %w", name, err)
	}
	return dir, nil
}

// lockNumber returns nil if another process, or this one, holds the number.
func lockNumber(dir string, number int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(number)), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, nil
	}
	return f, nil
}

// portFree reports whether nobody listens on the port, TCP or UDP.
func portFree(port int) bool {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer func() { _ = tcp.Close() }()
	udp, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	return udp.Close() == nil
}
