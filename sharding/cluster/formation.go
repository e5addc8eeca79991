package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

// FormationConfig is what NewFormation needs.
type FormationConfig struct {
	Identity *Identity
	Zone     string
	// FormatMax is the newest format that this program reads.
	FormatMax uint32
	// InitialNodes form the cluster: the same names on each of them, in any order.
	// Empty on a node that only joins.
	InitialNodes []string
	Directory    Directory
	Peers        Founders
	// Configured reports whether this node's meta replica is part of a
	// configuration: it has been reached by a cluster that is formed. Nil: never.
	Configured func() bool
	// Interval between attempts. Default 500 ms.
	Interval time.Duration
	Logger   *slog.Logger
}

const (
	formationInterval = 500 * time.Millisecond
	callTimeout       = 3 * time.Second
	// A node that gossip holds for dead is asked too, with less patience.
	callTimeoutDead = time.Second
)

// Formed says how a node takes up its meta replica.
type Formed struct {
	ClusterID string
	// Bootstrap is the first configuration of the meta group on the node that
	// founds the cluster, and empty on all others.
	Bootstrap []Server
}

// Formation brings a node into a cluster: the one that the initial nodes form,
// or one that there is already. It is safe for concurrent use.
type Formation struct {
	config   FormationConfig
	list     []string // sorted
	listHash string   // hex
	notice   *notice
}

// NewFormation checks the list of initial nodes, also against an earlier promise.
func NewFormation(c FormationConfig) (*Formation, error) {
	if c.Interval <= 0 {
		c.Interval = formationInterval
	}
	if c.Configured == nil {
		c.Configured = func() bool { return false }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	list := slices.Sorted(slices.Values(c.InitialNodes))
	for i, name := range list {
		if name == "" || (i > 0 && name == list[i-1]) {
			return nil, fmt.Errorf("initial nodes: %q is empty or listed twice", name)
		}
	}
	f := &Formation{config: c, list: list, listHash: hashList(list), notice: newNotice(c.Logger)}
	if r := c.Identity.snapshot(); !r.Member && r.ClusterID != "" && r.ListHash != f.listHash {
		return nil, fmt.Errorf("initial nodes: node %s has promised itself to cluster %s with another list than %s: give it that list again, or clear its data folder",
			r.Name, r.ClusterID, strings.Join(list, ","))
	}
	return f, nil
}

// hashList is SHA-256 over the sorted names, each preceded by its length.
func hashList(sorted []string) string {
	var b []byte
	for _, name := range sorted {
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// State says what the formation waits for, "" once it is over.
func (f *Formation) State() string { return f.notice.text() }

// Run brings the node into a cluster, trying for ever: its errors are the end of
// the context, a disk that cannot be written, and a refusal that only a person
// can lift. It may be run again after a restart at any point.
func (f *Formation) Run(ctx context.Context) (Formed, error) {
	ticker := time.NewTicker(f.config.Interval)
	defer ticker.Stop()
	for {
		formed, done, err := f.step(ctx)
		if err != nil {
			return Formed{}, err
		}
		if done {
			f.notice.say("")
			return formed, nil
		}
		select {
		case <-ctx.Done():
			return Formed{}, ctx.Err()
		case <-ticker.C:
		}
	}
}

// step does what can be done now.
func (f *Formation) step(ctx context.Context) (formed Formed, done bool, err error) {
	r := f.config.Identity.snapshot()
	switch {
	case r.rejoins():
		done, err = f.rejoin(ctx, r)
	case r.Member, r.Bootstrap != nil, r.ClusterID != "" && !f.first(r.Name):
		return Formed{ClusterID: r.ClusterID, Bootstrap: r.Bootstrap}, true, nil
	case r.ClusterID != "":
		done, err = f.collect(ctx, r)
	case f.first(r.Name):
		done, err = f.begin(ctx, r)
	default:
		done, err = f.joinAny(ctx, r)
	}
	if err != nil || !done {
		return Formed{}, false, err
	}
	r = f.config.Identity.snapshot()
	return Formed{ClusterID: r.ClusterID, Bootstrap: r.Bootstrap}, true, nil
}

// first reports whether a node is the one that draws the cluster's id.
func (f *Formation) first(name string) bool { return len(f.list) > 0 && f.list[0] == name }

// begin is for the first node with nothing on its disk. Its disk may have been
// wiped, so it draws an id only after every listed node has said that it belongs
// to no cluster; a promise that one of them remembers is taken up again.
func (f *Formation) begin(ctx context.Context, r identityRecord) (bool, error) {
	answers := f.ask(ctx, &nodev1.PromiseRequest{From: r.Name})
	var waiting []string
	promised := ""
	for _, a := range answers {
		bound := boundTo(a.err)
		switch {
		case a.err == nil:
		case bound.state == boundMember:
			return f.join(ctx, r, bound.clusterID)
		case bound.state == boundPromised && bound.listHash == f.listHash && (promised == "" || promised == bound.clusterID):
			promised = bound.clusterID
		default:
			waiting = append(waiting, a.trouble())
		}
	}
	if id := f.elsewhere(""); id != "" {
		return f.join(ctx, r, id)
	}
	if len(waiting) > 0 {
		f.notice.say("forming a cluster: waiting for " + strings.Join(waiting, "; "))
		return false, nil
	}
	if promised == "" {
		id, err := randomHex(8)
		if err != nil {
			return false, err
		}
		promised = id
	}
	if err := f.config.Identity.promise(promised, f.listHash); err != nil {
		return false, err
	}
	f.config.Logger.Info("forming a cluster", slog.String("cluster", promised), slog.String("nodes", strings.Join(f.list, ",")))
	return f.collect(ctx, f.config.Identity.snapshot())
}

// collect asks every listed node for its promise. When all have given it, the
// set of servers to bootstrap is written down: only then may the meta group
// begin.
func (f *Formation) collect(ctx context.Context, r identityRecord) (bool, error) {
	hash, err := hex.DecodeString(f.listHash)
	if err != nil {
		return false, err
	}
	answers := f.ask(ctx, &nodev1.PromiseRequest{ClusterId: r.ClusterID, ListHash: hash, From: r.Name})
	servers := []Server{{Node: r.Name, Incarnation: r.Incarnation, Generation: MetaGeneration}}
	var waiting []string
	for _, a := range answers {
		if a.err != nil {
			waiting = append(waiting, a.trouble())
			continue
		}
		servers = append(servers, Server{Node: a.node, Incarnation: a.promise.GetIncarnation(), Generation: MetaGeneration})
	}
	if len(waiting) > 0 {
		f.notice.say(fmt.Sprintf("forming cluster %s: waiting for %s", r.ClusterID, strings.Join(waiting, "; ")))
		return false, nil
	}
	// The others become learners when they register.
	servers = servers[:min(len(servers), MetaVotersMax)]
	if err := f.config.Identity.found(servers); err != nil {
		return false, err
	}
	f.config.Logger.Info("all initial nodes have promised: the cluster begins", slog.String("cluster", r.ClusterID))
	return true, nil
}

// answer is one listed node's answer to a request for its promise.
type answer struct {
	node    string
	promise *nodev1.PromiseResponse
	err     error
}

// trouble names the node and what is wrong with it, without details that change
// from one attempt to the next.
func (a answer) trouble() string {
	var e *entity.Error
	if errors.As(a.err, &e) && e.Reason == entity.Denied {
		return a.node + ": " + e.Message
	}
	if errors.Is(a.err, errUnseen) {
		return a.node + " (not seen in gossip)"
	}
	return a.node + " (does not answer)"
}

var errUnseen = errors.New("not seen in gossip")

// ask sends one request to all other listed nodes, and returns their answers in
// the order of the list.
func (f *Formation) ask(ctx context.Context, req *nodev1.PromiseRequest) []answer {
	alive := map[string]bool{}
	for _, m := range f.config.Directory.Members() {
		alive[m.Name] = m.Alive
	}
	var others []string
	for _, name := range f.list {
		if name != f.config.Identity.Name() {
			others = append(others, name)
		}
	}
	answers := make([]answer, len(others))
	each(len(others), func(i int) {
		a := answer{node: others[i], err: errUnseen}
		if alive[a.node] {
			callCtx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			a.promise, a.err = f.config.Peers.Promise(callCtx, a.node, req)
			if a.err == nil && (a.promise.GetNode() != a.node || a.promise.GetIncarnation() == "") {
				a.err = entity.Errorf(entity.Denied, "another node, %q, answers in its place", a.promise.GetNode())
			}
		}
		answers[i] = a
	})
	return answers
}
