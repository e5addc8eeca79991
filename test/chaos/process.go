package chaos

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ProcessConfig describes a cluster of operating system processes.
type ProcessConfig struct {
	// Binary is the program, as `go build ./cmd/node` makes it.
	Binary string
	// Dir holds a folder of data and a log file per node.
	Dir string
	// Nodes form the cluster; default n1, n2, n3.
	Nodes []string
	// Cluster is the cluster's name; default "chaos".
	Cluster string
	// Args are added to every node's command line.
	Args []string
	// LAN is the network that the nodes have seats in; nil: they are all on loopback.
	LAN *LAN
}

// Process is a cluster of processes. It implements [Cluster].
type Process struct {
	config ProcessConfig
	ports  Ports

	mu    sync.Mutex
	nodes map[string]*child
	order []string
	small string // the node with a small disk
}

// child is one node; its fields are guarded by Process.mu.
type child struct {
	name, dir, log string
	addrs          Addrs
	seat           *Seat // nil on loopback
	args           []string
	// binary is the program; empty: the cluster's.
	binary string
	// env names the variables that differ from the test's own.
	env []string

	cmd    *exec.Cmd
	output *os.File
	ended  chan struct{} // closed when cmd has ended
	code   int           // valid once ended is closed
}

// NewProcess prepares the nodes' addresses and folders; nothing runs yet.
func NewProcess(config ProcessConfig) (*Process, error) {
	if len(config.Nodes) == 0 {
		config.Nodes = []string{"n1", "n2", "n3"}
	}
	if config.Cluster == "" {
		config.Cluster = "chaos"
	}
	p := &Process{config: config, nodes: map[string]*child{}}
	for _, name := range config.Nodes {
		if err := p.add(name); err != nil {
			return nil, errors.Join(err, p.ports.Release())
		}
	}
	for _, name := range config.Nodes {
		p.nodes[name].args = append(p.nodes[name].args,
			"--initial-nodes", strings.Join(config.Nodes, ","), "--join", strings.Join(p.gossip(config.Nodes), ","))
	}
	return p, nil
}

// Add prepares one more node, which knows the others by their gossip addresses
// only. Start it like the others.
func (p *Process) Add(name string, args ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	seeds := p.gossip(p.order)
	if err := p.add(name); err != nil {
		return err
	}
	n := p.nodes[name]
	if len(seeds) > 0 {
		n.args = append(n.args, "--join", strings.Join(seeds, ","))
	}
	n.args = append(n.args, args...)
	return nil
}

// Remove forgets a node that has ended; its folder and log stay.
func (p *Process) Remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.nodes, name)
	p.order = slices.DeleteFunc(p.order, func(n string) bool { return n == name })
}

// SetArgs replaces the node's arguments other than its addresses.
func (p *Process) SetArgs(name string, args ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[name]
	n.args = append(n.base(p.config), args...)
}

// SetBinary gives a node another program, from its next start on.
func (p *Process) SetBinary(name, binary string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes[name].binary = binary
}

// SetEnv gives a node other variables than the test's own, from its next start on.
func (p *Process) SetEnv(name string, env ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes[name].env = env
}

// SetDir gives a node another data folder.
func (p *Process) SetDir(name, dir string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[name]
	for i, arg := range n.args {
		if arg == n.dir {
			n.args[i] = dir
		}
	}
	n.dir = dir
}

func (p *Process) add(name string) error {
	if p.nodes[name] != nil {
		return fmt.Errorf("node %s exists", name)
	}
	n := &child{name: name, dir: filepath.Join(p.config.Dir, name), log: filepath.Join(p.config.Dir, name+".log")}
	if err := p.place(n); err != nil {
		return err
	}
	n.args = append(n.base(p.config), p.config.Args...)
	p.nodes[name] = n
	p.order = append(p.order, name)
	return nil
}

// place gives a node its addresses, in a LAN with a seat.
func (p *Process) place(n *child) (err error) {
	ip, ports := "127.0.0.1", []int{7400, 7401, 7402, 7403}
	if p.config.LAN != nil {
		if n.seat, err = p.config.LAN.Seat(); err != nil {
			return err
		}
		ip = n.seat.IP
	} else if ports, err = p.ports.Take(len(ports)); err != nil {
		return err
	}
	at := func(i int) string { return net.JoinHostPort(ip, strconv.Itoa(ports[i])) }
	n.addrs = Addrs{GRPC: at(0), HTTP: at(1), Gossip: at(2), Raft: at(3)}
	return nil
}

// base is the part of the command line that names the node and its addresses.
func (n *child) base(config ProcessConfig) []string {
	return []string{
		"serve", "--id", n.name, "--dir", n.dir, "--cluster", config.Cluster,
		"--grpc", n.addrs.GRPC, "--http", n.addrs.HTTP, "--gossip", n.addrs.Gossip, "--raft", n.addrs.Raft,
	}
}

func (p *Process) gossip(names []string) []string {
	var addrs []string
	for _, name := range names {
		addrs = append(addrs, p.nodes[name].addrs.Gossip)
	}
	return addrs
}

// Nodes implements [View].
func (p *Process) Nodes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.order)
}

// Addrs implements [View].
func (p *Process) Addrs(node string) Addrs {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes[node].addrs
}

// SwapAddrs gives two nodes each other's addresses; both must be down.
func (p *Process) SwapAddrs(a, b string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, y := p.nodes[a], p.nodes[b]
	for _, n := range []*child{x, y} {
		n.args = n.args[len(n.base(p.config)):]
	}
	x.addrs, y.addrs = y.addrs, x.addrs
	x.seat, y.seat = y.seat, x.seat
	for _, n := range []*child{x, y} {
		n.args = append(n.base(p.config), n.args...)
	}
}

// Dir is a node's data folder.
func (p *Process) Dir(node string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes[node].dir
}

// MakeSmall gives a node that does not run yet a disk of its own, in memory, of the
// size that mount understands.
func (p *Process) MakeSmall(node, size string) error {
	if err := mountDisk(p.Dir(node), size); err != nil {
		return err
	}
	p.small = node
	return nil
}

// SmallDisk implements [Disk].
func (p *Process) SmallDisk() string { return p.small }

// Fill implements [Disk].
func (p *Process) Fill(left uint64) error { return fillDisk(p.Dir(p.small), left) }

// Empty implements [Disk].
func (p *Process) Empty() error { return emptyDisk(p.Dir(p.small)) }

// Running implements [View].
func (p *Process) Running(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes[node].running()
}

func (n *child) running() bool {
	if n.cmd == nil {
		return false
	}
	select {
	case <-n.ended:
		return false
	default:
		return true
	}
}

// Start implements [Lifecycle].
func (p *Process) Start(node string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[node]
	if n == nil {
		return fmt.Errorf("start %s: no such node", node)
	}
	if n.running() {
		return fmt.Errorf("start %s: it runs already", node)
	}
	return n.start(cmp.Or(n.binary, p.config.Binary))
}

func (n *child) start(binary string) error {
	output, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("log of %s: %w", n.name, err)
	}
	note(output, "start", strings.Join(n.args, " "))
	line := append([]string{binary}, n.args...)
	if n.seat != nil {
		line = append(inNetwork(n.seat.space.pid()), line...)
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = childAttributes()
	cmd.Env = append(os.Environ(), n.env...)
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", n.name, err), output.Close())
	}
	ended := make(chan struct{})
	n.cmd, n.output, n.ended = cmd, output, ended
	go func() {
		_ = cmd.Wait() // the state says it all
		n.code = cmd.ProcessState.ExitCode()
		note(output, "ended", cmd.ProcessState.String())
		_ = output.Close()
		close(ended)
	}()
	return nil
}

// note puts a line of the test's own between those of the node. A log that
// cannot be written is no reason to stop.
func note(log io.Writer, what, text string) {
	_, _ = fmt.Fprintf(log, "--- %s %s %s\n", what, time.Now().Format(time.RFC3339Nano), text)
}

// signal sends a signal and returns the channel that tells the end; nil if the
// node does not run.
func (p *Process) signal(node string, sig syscall.Signal) (*child, <-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[node]
	if n == nil {
		return nil, nil, fmt.Errorf("%v to %s: no such node", sig, node)
	}
	if !n.running() {
		return n, nil, nil
	}
	if err := n.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return n, nil, fmt.Errorf("%v to %s: %w", sig, node, err)
	}
	return n, n.ended, nil
}

// Stop implements [Lifecycle].
func (p *Process) Stop(ctx context.Context, node string) (code int, took time.Duration, err error) {
	start := time.Now()
	n, ended, err := p.signal(node, syscall.SIGTERM)
	if err != nil || ended == nil {
		return 0, 0, err
	}
	select {
	case <-ended:
		return n.code, time.Since(start), nil
	case <-ctx.Done():
		return 0, time.Since(start), fmt.Errorf("stop %s: still running after %v: %w", node, time.Since(start).Round(time.Millisecond), ctx.Err())
	}
}

// Exit waits until a node has ended by itself and returns its exit code.
func (p *Process) Exit(ctx context.Context, node string) (int, error) {
	p.mu.Lock()
	n := p.nodes[node]
	ended := n.ended
	p.mu.Unlock()
	select {
	case <-ended:
		return n.code, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("exit of %s: it still runs: %w", node, ctx.Err())
	}
}

// Kill implements [Lifecycle].
func (p *Process) Kill(node string) error {
	_, ended, err := p.signal(node, syscall.SIGKILL)
	if err == nil && ended != nil {
		<-ended
	}
	return err
}

// Pause implements [Faults].
func (p *Process) Pause(node string) error {
	n, ended, err := p.signal(node, syscall.SIGSTOP)
	if err != nil || ended == nil {
		return err
	}
	// The signal is only on its way: a thread on another processor may still answer.
	return awaitStopped(n.cmd.Process.Pid, ended)
}

// Resume implements [Faults].
func (p *Process) Resume(node string) error {
	_, _, err := p.signal(node, syscall.SIGCONT)
	return err
}

// Wipe implements [Faults].
func (p *Process) Wipe(node string) error {
	if p.Running(node) {
		return fmt.Errorf("wipe %s: it runs", node)
	}
	return os.RemoveAll(p.Dir(node))
}

// Logs implements [View].
func (p *Process) Logs(node string, lines int) string {
	p.mu.Lock()
	path := p.nodes[node].log
	p.mu.Unlock()
	text, err := tail(path, 256<<10)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// Since returns what a node has logged since its last start.
func (p *Process) Since(node string) string {
	text := "\n" + p.Logs(node, 10_000)
	if at := strings.LastIndex(text, "\n--- start"); at >= 0 {
		return text[at+1:]
	}
	return text
}

// tail reads the last bytes of a file.
func tail(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(0, info.Size()-limit), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// Close implements [Cluster]: it kills what still runs.
func (p *Process) Close() error {
	var errs []error
	for _, node := range p.Nodes() {
		errs = append(errs, p.Kill(node))
	}
	if p.small != "" {
		errs = append(errs, unmountDisk(p.Dir(p.small)))
	}
	return errors.Join(append(errs, p.ports.Release())...)
}

var (
	_ Cluster = (*Process)(nil)
	_ Disk    = (*Process)(nil)
)
