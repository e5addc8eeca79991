package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ComposeConfig describes a cluster of containers.
type ComposeConfig struct {
	// Binary is a static build of the program for the image.
	Binary string
	// Repository is the folder with docker-compose.yml and Dockerfile.
	Repository string
	// Dir takes the derived compose file and the image's context.
	Dir string
	// Project names the containers, the volumes and the image.
	Project string
	// Extra are nodes beside those of docker-compose.yml; they know the
	// cluster by its gossip addresses only.
	Extra []string
	// Small names a node whose volume is a small disk in memory; "": none.
	Small string
}

// Compose is a cluster of containers made from the repository's
// docker-compose.yml, with ports of its own. It implements [Cluster], [Network]
// and [Wire]; a restarted container has a fresh wire.
type Compose struct {
	wires
	config ComposeConfig
	tool   []string
	file   string
	ports  Ports
	addrs  map[string]Addrs
	order  []string
}

// NewCompose builds the image and derives the compose file; nothing runs yet.
func NewCompose(ctx context.Context, config ComposeConfig) (*Compose, error) {
	c := &Compose{config: config, tool: []string{"docker-compose"}, file: filepath.Join(config.Dir, "docker-compose.yml")}
	c.wires = wires{c}
	if exec.CommandContext(ctx, "docker", "compose", "version").Run() == nil {
		c.tool = []string{"docker", "compose"}
	}
	if err := c.derive(); err != nil {
		return nil, errors.Join(err, c.ports.Release())
	}
	if err := c.build(ctx, c.image(), config.Binary); err != nil {
		return nil, errors.Join(err, c.ports.Release())
	}
	return c, nil
}

func (c *Compose) derive() error {
	text, err := os.ReadFile(filepath.Join(c.config.Repository, "docker-compose.yml"))
	if err != nil {
		return fmt.Errorf("compose file: %w", err)
	}
	derived, order, err := withNodes(string(text), c.config.Extra)
	if err != nil {
		return err
	}
	if c.config.Small != "" {
		derived = withSmallDisk(derived, c.config.Small)
	}
	ports, err := c.ports.Take(2 * len(order))
	if err != nil {
		return err
	}
	derived, c.addrs = withPorts(derived, order, ports)
	c.order = order
	if err := os.WriteFile(c.file, []byte(derived), 0o600); err != nil {
		return fmt.Errorf("compose file: %w", err)
	}
	return nil
}

var (
	serviceLine   = regexp.MustCompile(`(?m)^  (n\d+):\n    <<: \*node\n`)
	publishedPort = regexp.MustCompile(`127\.0\.0\.1:\d+:(7400|7401)`)
)

// withNodes adds services that copy the last one, and returns all their names.
func withNodes(text string, extra []string) (string, []string, error) {
	var names []string
	for _, m := range serviceLine.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	volumes := strings.Index(text, "\nvolumes:\n")
	if len(names) == 0 || volumes < 0 {
		return "", nil, errors.New("compose file: no services n1, n2 … or no volumes found in it")
	}
	last := names[len(names)-1]
	begin := strings.Index(text, "\n  "+last+":\n") + 1
	block := text[begin : volumes+1]
	head, tail := text[:volumes+1], strings.TrimRight(text[volumes+1:], "\n")+"\n"
	for _, name := range extra {
		service := strings.ReplaceAll(block, last, name)
		service = strings.Replace(service, "WRIT_ID: "+name, "WRIT_ID: "+name+"\n      WRIT_INITIAL_NODES: \"\"", 1)
		head += service
		tail += "  " + name + ":\n"
	}
	return head + "\n" + tail, append(names, extra...), nil
}

// withSmallDisk makes a node's volume a small disk in memory, with a container that
// keeps it while the node is down: else it would be gone with the last container
// that uses it. That one asks in vain whether a node is ready.
func withSmallDisk(text, node string) string {
	head, volumes, _ := strings.Cut(text, "\nvolumes:\n")
	volumes = strings.Replace("\n"+volumes, "\n  "+node+":\n", "\n  "+node+":\n    driver_opts:\n      type: tmpfs\n      device: tmpfs\n"+
		"      o: size="+smallDiskSize+",uid=65532,gid=65532,mode=0700\n", 1)
	head = strings.Replace(head, "\n  WRIT_DIR: /data\n", "\n  WRIT_DIR: /data\n  WRIT_FREE_MIN_MB: \""+lowDiskMB+"\"\n", 1)
	return head + "  " + keeper(node) + ":\n    <<: *node\n    command: [health, --http, \"127.0.0.1:1\", --wait, 24h]\n" +
		"    volumes:\n      - " + node + ":/data\n\nvolumes:" + volumes
}

// keeper is the service that keeps a node's small disk.
func keeper(node string) string { return "disk-" + node }

// withPorts publishes each node's gRPC and HTTP port at a port of its own.
func withPorts(text string, order []string, ports []int) (string, map[string]Addrs) {
	addrs := map[string]Addrs{}
	next := 0
	text = publishedPort.ReplaceAllStringFunc(text, func(published string) string {
		inside := published[strings.LastIndex(published, ":")+1:]
		host := "127.0.0.1:" + strconv.Itoa(ports[next])
		node := order[next/2]
		a := addrs[node]
		if inside == "7400" {
			a.GRPC = host
		} else {
			a.HTTP = host
		}
		addrs[node] = a
		next++
		return host + ":" + inside
	})
	return text, addrs
}

// build makes the image: FROM scratch, nothing is pulled.
func (c *Compose) build(ctx context.Context, image, program string) error {
	context := filepath.Join(c.config.Dir, "image")
	if err := os.MkdirAll(filepath.Join(context, "data"), 0o755); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := os.WriteFile(filepath.Join(context, "node"), binary, 0o755); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	_, err = c.docker(ctx, "build", "-q", "-t", image, "-f", filepath.Join(c.config.Repository, "Dockerfile"), context)
	return err
}

func (c *Compose) image() string { return c.config.Project + ":test" }

// nextImage is the image of the next version.
func (c *Compose) nextImage() string { return c.config.Project + ":next" }

// BuildNext makes the image of the next version from its program.
func (c *Compose) BuildNext(ctx context.Context, binary string) error {
	return c.build(ctx, c.nextImage(), binary)
}

// UseNext has a node run the next version's image from its next start on.
func (c *Compose) UseNext(node string) error {
	text, err := os.ReadFile(c.file)
	if err != nil {
		return fmt.Errorf("compose file: %w", err)
	}
	changed, err := withImage(string(text), node, c.nextImage())
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.file, []byte(changed), 0o600); err != nil {
		return fmt.Errorf("compose file: %w", err)
	}
	return nil
}

// withImage gives a service an image of its own.
func withImage(text, node, image string) (string, error) {
	head := "\n  " + node + ":\n    <<: *node\n"
	if strings.Count(text, head) != 1 {
		return "", fmt.Errorf("compose file: no service %s found in it", node)
	}
	return strings.Replace(text, head, head+"    image: "+image+"\n", 1), nil
}

func (c *Compose) docker(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, append([]string{"docker"}, args...))
}

func (c *Compose) compose(args ...string) error {
	_, err := c.run(context.Background(), slices.Concat(c.tool, []string{"-p", c.config.Project, "-f", c.file}, args))
	return err
}

func (c *Compose) run(ctx context.Context, args []string) (string, error) {
	return output(ctx, []string{"WRIT_IMAGE=" + c.image()}, args...)
}

// container is the id of a node's container, "" if it has none.
func (c *Compose) container(node string) (string, error) {
	return c.docker(context.Background(), "ps", "-aq",
		"--filter", "label=com.docker.compose.project="+c.config.Project, "--filter", "label=com.docker.compose.service="+node)
}

// onContainer runs a docker command on a node's container.
func (c *Compose) onContainer(node string, args ...string) error {
	id, err := c.container(node)
	if err != nil {
		return err
	}
	if id == "" {
		return fmt.Errorf("%s %s: there is no container", args[0], node)
	}
	_, err = c.docker(context.Background(), append(args, id)...)
	return err
}

// Nodes implements [View].
func (c *Compose) Nodes() []string { return slices.Clone(c.order) }

// Remove forgets a node that has ended.
func (c *Compose) Remove(node string) {
	c.order = slices.DeleteFunc(slices.Clone(c.order), func(n string) bool { return n == node })
}

// Addrs implements [View]; gossip and Raft cannot be reached from outside.
func (c *Compose) Addrs(node string) Addrs { return c.addrs[node] }

// Running implements [View].
func (c *Compose) Running(node string) bool {
	running, err := c.inspect(node, "{{.State.Running}}")
	return err == nil && running == "true"
}

func (c *Compose) inspect(node, format string) (string, error) {
	id, err := c.container(node)
	if err != nil || id == "" {
		return "", err
	}
	return c.docker(context.Background(), "inspect", "-f", format, id)
}

// IP is the address of a node's container.
func (c *Compose) IP(node string) (string, error) {
	return c.inspect(node, "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
}

// Start implements [Lifecycle].
func (c *Compose) Start(node string) error {
	up := []string{"up", "-d", "--no-deps"}
	if node == c.config.Small {
		up = append(up, keeper(node))
	}
	return c.compose(append(up, node)...)
}

// SmallDisk implements [Disk].
func (c *Compose) SmallDisk() string { return c.config.Small }

// smallFolder is where this machine has the small disk, if its engine is here and
// we may see it.
func (c *Compose) smallFolder() (string, error) {
	dir, err := c.docker(context.Background(), "volume", "inspect", "-f", "{{.Mountpoint}}", c.config.Project+"_"+c.config.Small)
	if err == nil && !isDisk(dir) {
		err = fmt.Errorf("the small disk of %s is not to be seen here, at %s", c.config.Small, dir)
	}
	return dir, err
}

// Fill implements [Disk].
func (c *Compose) Fill(left uint64) error {
	dir, err := c.smallFolder()
	if err != nil {
		return err
	}
	return fillDisk(dir, left)
}

// Empty implements [Disk].
func (c *Compose) Empty() error {
	dir, err := c.smallFolder()
	if err != nil {
		return err
	}
	return emptyDisk(dir)
}

// Stop implements [Lifecycle].
func (c *Compose) Stop(ctx context.Context, node string) (code int, took time.Duration, err error) {
	start := time.Now()
	id, err := c.container(node)
	if err != nil || id == "" {
		return 0, 0, err
	}
	if _, err := c.docker(ctx, "stop", "-t", "15", id); err != nil {
		return 0, time.Since(start), err
	}
	took = time.Since(start)
	text, err := c.inspect(node, "{{.State.ExitCode}}")
	if err != nil {
		return 0, took, err
	}
	code, err = strconv.Atoi(text)
	return code, took, err
}

// Kill implements [Lifecycle].
func (c *Compose) Kill(node string) error {
	if !c.Running(node) {
		return nil
	}
	if err := c.onContainer(node, "kill", "--signal", "KILL"); err != nil {
		return err
	}
	return c.onContainer(node, "wait")
}

// Pause implements [Faults].
func (c *Compose) Pause(node string) error { return c.onContainer(node, "pause") }

// Resume implements [Faults].
func (c *Compose) Resume(node string) error { return c.onContainer(node, "unpause") }

// Wipe implements [Faults]: the container and its volume are removed.
func (c *Compose) Wipe(node string) error {
	if c.Running(node) {
		return fmt.Errorf("wipe %s: it runs", node)
	}
	if err := c.onContainer(node, "rm", "-f"); err != nil {
		return err
	}
	if node == c.config.Small {
		if err := c.onContainer(keeper(node), "rm", "-f"); err != nil {
			return err
		}
	}
	_, err := c.docker(context.Background(), "volume", "rm", c.config.Project+"_"+node)
	return err
}

// Volume is the folder of a node's volume on this machine; only root may read it.
func (c *Compose) Volume(node string) (string, error) {
	return c.docker(context.Background(), "volume", "inspect", "-f", "{{.Mountpoint}}", c.config.Project+"_"+node)
}

// Health is what Docker's own check of a container says, and how often Docker has
// restarted it.
func (c *Compose) Health(node string) (health string, restarts int, err error) {
	text, err := c.inspect(node, "{{.State.Health.Status}} {{.RestartCount}}")
	if err != nil {
		return "", 0, err
	}
	_, err = fmt.Sscan(text, &health, &restarts)
	return health, restarts, err
}

func (c *Compose) network() string { return c.config.Project + "_default" }

// Disconnect implements [Network].
func (c *Compose) Disconnect(node string) error {
	return c.onContainer(node, "network", "disconnect", c.network())
}

// Connect implements [Network].
func (c *Compose) Connect(node string) error {
	return c.onContainer(node, "network", "connect", "--alias", node, c.network())
}

// wired implements [namespaces].
func (c *Compose) wired() []string {
	return slices.DeleteFunc(c.Nodes(), func(node string) bool { return !c.Running(node) })
}

// inside implements [namespaces]. The tools are this machine's: the image has
// nothing in it.
func (c *Compose) inside(node string, args ...string) error {
	pid, err := c.inspect(node, "{{.State.Pid}}")
	if err != nil {
		return err
	}
	_, err = c.run(context.Background(), append(inNetwork(pid), args...))
	return err
}

// Down removes containers and network; the volumes stay.
func (c *Compose) Down() error { return c.compose("down", "--timeout", "15") }

// Logs implements [View].
func (c *Compose) Logs(node string, lines int) string {
	id, err := c.container(node)
	if err != nil || id == "" {
		return fmt.Sprintf("no container of %s: %v", node, err)
	}
	out, err := exec.Command("docker", "logs", "--tail", strconv.Itoa(lines), id).CombinedOutput()
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// Isolate has a node neither hear nor be heard; it keeps its address, which Docker
// would give to another container if the node were disconnected.
func (c *Compose) Isolate(node string) error {
	return errors.Join(c.inside(node, "iptables", "-w", "-A", "INPUT", "-j", "DROP"), c.inside(node, "iptables", "-w", "-A", "OUTPUT", "-j", "DROP"))
}

// Close implements [Cluster]: containers, volumes, network and image are removed.
func (c *Compose) Close() error {
	err := c.compose("down", "--volumes", "--timeout", "0")
	_, imageErr := c.docker(context.Background(), "image", "rm", "-f", c.image(), c.nextImage())
	return errors.Join(err, imageErr, c.ports.Release())
}

var (
	_ Cluster = (*Compose)(nil)
	_ Network = (*Compose)(nil)
	_ Wire    = (*Compose)(nil)
	_ Disk    = (*Compose)(nil)
)
