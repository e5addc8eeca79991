package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Wire spoils single connections. It needs root and the tools of [WireTools] on
// this machine: they work inside the nodes' network namespaces.
type Wire interface {
	// Drop loses everything that from sends to to; the other direction works.
	Drop(from, to string) error
	// Lose loses two of five datagrams (gossip) that reach the node.
	Lose(node string) error
	// Throttle makes the node's link slow, and says how.
	Throttle(node string) (how string, err error)
	// Mend undoes all of it.
	Mend() error
}

// WireTools says why wires cannot be spoiled here; nil if they can.
func WireTools() error {
	return tools([]string{"nsenter", "iptables", "tc"},
		"iptables -w -A INPUT "+gossipLoss, "tc qdisc add dev lo root tbf "+slowTBF)
}

// tools says what is missing here: root, a program, or the kernel's part in one of
// the commands, which are tried in a network namespace that ends with them.
func tools(programs []string, commands ...string) error {
	if os.Getuid() != 0 {
		return errors.New("only root may work on network namespaces")
	}
	for _, program := range append(programs, "unshare") {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is not installed", program)
		}
	}
	for _, command := range commands {
		if _, err := output(context.Background(), nil, "unshare", "--net", "sh", "-c", command); err != nil {
			return fmt.Errorf("this machine cannot do it: %w", err)
		}
	}
	return nil
}

// namespaces is a driver whose nodes have network namespaces of their own, each
// with a device eth0.
type namespaces interface {
	// IP is a node's address.
	IP(node string) (string, error)
	// wired are the nodes that have a namespace now.
	wired() []string
	// inside runs a command in a node's namespace.
	inside(node string, args ...string) error
}

// wires implements [Wire] for such a driver.
type wires struct{ of namespaces }

func (w wires) do(node, command string) error {
	return w.of.inside(node, strings.Fields(command)...)
}

func (w wires) Drop(from, to string) error {
	ip, err := w.of.IP(from)
	if err != nil {
		return err
	}
	return w.do(to, "iptables -w -A INPUT -s "+ip+" -j DROP")
}

func (w wires) Lose(node string) error {
	return w.do(node, "iptables -w -A INPUT "+gossipLoss)
}

// gossipLoss is a rule that loses two of five datagrams.
const gossipLoss = "-p udp -m statistic --mode random --probability 0.4 -j DROP"

// How a link is slow. Not every kernel has netem: without it the link is narrow, late
// by what waits before it, and loses some of what comes.
const (
	slowNetem = "delay 60ms 30ms 25% loss 2% reorder 10% 50% rate 4mbit"
	slowTBF   = "rate 2mbit burst 2k latency 400ms"
	slowLoss  = "-m statistic --mode random --probability 0.02 -j DROP"
)

func (w wires) Throttle(node string) (how string, err error) {
	err = w.do(node, "tc qdisc add dev eth0 root netem "+slowNetem)
	if err == nil || !strings.Contains(err.Error(), "qdisc kind is unknown") {
		return "tc netem " + slowNetem, err
	}
	if err := w.do(node, "tc qdisc add dev eth0 root tbf "+slowTBF); err != nil {
		return "", err
	}
	return "tc tbf " + slowTBF + " and a loss of 2%, for this kernel has no netem", w.do(node, "iptables -w -A INPUT "+slowLoss)
}

func (w wires) Mend() error {
	var errs []error
	for _, node := range w.of.wired() {
		errs = append(errs, w.do(node, "iptables -w -F INPUT"), w.do(node, "iptables -w -F OUTPUT"))
		// There may be nothing to delete.
		if err := w.do(node, "tc qdisc del dev eth0 root"); err != nil && !strings.Contains(err.Error(), "Cannot delete") {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// commandTimeout bounds one command.
const commandTimeout = 2 * time.Minute

// output runs a command and returns what it prints.
func output(ctx context.Context, env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return strings.TrimSpace(out.String()), nil
}

// inNetwork is the beginning of a command line that runs the rest in the network
// namespace of a process. It executes the rest in its place: signals reach that.
func inNetwork(pid string) []string { return []string{"nsenter", "-t", pid, "-n"} }
