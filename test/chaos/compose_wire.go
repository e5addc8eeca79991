package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Wire spoils single connections. It needs root and the tools of [WireTools] on
// this machine: they work inside the containers' network namespaces, and the
// image has nothing in it. A restarted container has a fresh wire.
type Wire interface {
	// Drop loses everything that from sends to to; the other direction works.
	Drop(from, to string) error
	// Lose loses two of five datagrams (gossip) that reach the node.
	Lose(node string) error
	// Throttle limits what the node sends to 2 Mbit/s.
	Throttle(node string) error
	// Mend undoes all of it.
	Mend() error
}

// WireTools says why wires cannot be spoiled here; nil if they can.
func WireTools() error {
	if os.Getuid() != 0 {
		return errors.New("only root may enter the containers' networks")
	}
	for _, tool := range []string{"nsenter", "iptables", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is not installed", tool)
		}
	}
	return nil
}

// inside runs a command in a node's network namespace.
func (c *Compose) inside(node string, args ...string) error {
	pid, err := c.inspect(node, "{{.State.Pid}}")
	if err != nil {
		return err
	}
	_, err = c.run(context.Background(), append([]string{"nsenter", "-t", pid, "-n"}, args...))
	return err
}

// Drop implements [Wire].
func (c *Compose) Drop(from, to string) error {
	ip, err := c.IP(from)
	if err != nil {
		return err
	}
	return c.inside(to, "iptables", "-A", "INPUT", "-s", ip, "-j", "DROP")
}

// Lose implements [Wire].
func (c *Compose) Lose(node string) error {
	return c.inside(node, "iptables", "-A", "INPUT", "-p", "udp", "-m", "statistic", "--mode", "random", "--probability", "0.4", "-j", "DROP")
}

// Throttle implements [Wire].
func (c *Compose) Throttle(node string) error {
	return c.inside(node, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "2mbit", "burst", "32k", "latency", "400ms")
}

// Mend implements [Wire].
func (c *Compose) Mend() error {
	var errs []error
	for _, node := range c.Nodes() {
		if !c.Running(node) {
			continue
		}
		errs = append(errs, c.inside(node, "iptables", "-F", "INPUT"))
		// There may be nothing to delete.
		if err := c.inside(node, "tc", "qdisc", "del", "dev", "eth0", "root"); err != nil && !strings.Contains(err.Error(), "Cannot delete") {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

var _ Wire = (*Compose)(nil)
