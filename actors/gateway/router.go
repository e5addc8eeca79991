package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
	"writ/sharding"
)

// Host is the runtime of this node. Its errors are *[entity.Error] or the
// context's. If it does not lead the shard it answers NOT_EXECUTED with the
// details "leader" (a node's name) and "term", as far as it knows them. It
// answers reads with consistency STALE from any replica that it holds.
type Host interface {
	Forward(ctx context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error)
	Deliver(ctx context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error)
}

// Table is what this node knows about shards and nodes. All of it may be old.
type Table interface {
	// Shards is the cluster's number of shards, 0 until it has formed.
	Shards() uint32
	// Leader is who leads a shard, "" if nobody is known to.
	Leader(shard uint32) (node string, term uint64)
	Addresses
	// Replicas are the nodes that should hold the shard.
	Replicas(shard uint32) []string
}

// Names of details by which a node that does not lead says who does.
const (
	leaderDetail = "leader"
	termDetail   = "term"
)

// DefaultLeaderWait is how long a call waits for a leader before it gets
// NOT_EXECUTED: longer than the half second within which a killed leader has a
// successor, so that the client need not retry; short enough for it to try another
// node well within its deadline.
const DefaultLeaderWait = 600 * time.Millisecond

// triesMax bounds how often one call is tried while leaders come and go: as often
// as a dead leader and its successor can be asked within DefaultLeaderWait.
const triesMax = 12

// againFirst is the first pause before a leader that has refused is asked again. The
// pause doubles each time and starts over with another leader. A new leader is known
// some milliseconds before it may serve: an entry of the log has to open its term.
const againFirst = 10 * time.Millisecond

// RouterConfig holds what a [Router] needs. All fields but the
// durations must be set.
type RouterConfig struct {
	// Node is this node's name.
	Node string
	// ClusterID is "" until the cluster has formed.
	ClusterID func() string
	Host      Host
	Table     Table
	Peers     *Peers
	// LeaderWait bounds the wait for a leader; 0: DefaultLeaderWait.
	LeaderWait time.Duration
	// SupersededGrace is how long a node that no longer leads is still waited
	// for; 0: DefaultSupersededGrace.
	SupersededGrace time.Duration
}

// Router carries calls and events to the leader of their shard. It is safe for
// concurrent use.
type Router struct {
	cfg RouterConfig

	mu      sync.Mutex
	changed chan struct{} // closed by Wake
	flights map[*flight]struct{}
}

// NewRouter makes a router. Call [Router.Wake] whenever the table has changed.
func NewRouter(cfg RouterConfig) (*Router, error) {
	if cfg.Node == "" || cfg.ClusterID == nil || cfg.Host == nil || cfg.Table == nil || cfg.Peers == nil {
		return nil, errors.New("router: node, cluster id, host, table and peers must be set")
	}
	if cfg.LeaderWait == 0 {
		cfg.LeaderWait = DefaultLeaderWait
	}
	if cfg.SupersededGrace == 0 {
		cfg.SupersededGrace = DefaultSupersededGrace
	}
	return &Router{cfg: cfg, changed: make(chan struct{}), flights: make(map[*flight]struct{})}, nil
}

// Wake tells calls that wait for a leader, or for one that no longer leads, to
// look at the table again.
func (r *Router) Wake() {
	r.mu.Lock()
	close(r.changed)
	r.changed = make(chan struct{})
	flying := slices.Collect(maps.Keys(r.flights))
	r.mu.Unlock()
	for _, f := range flying {
		r.supersede(f)
	}
}

func (r *Router) wakeup() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Forward carries a client's call to the leader of its entity's shard, or a
// stale read to any replica. It fills in cluster, shard and term hint. It
// repeats the call while the answer is NOT_EXECUTED, for LeaderWait at most. A call
// whose leader fell silent and was superseded goes to the successor once more: that
// one knows the key of a command that was executed. Unless the successor tells the outcome, the call is OUTCOME_UNKNOWN as
// before: a refusal of the repetition says nothing of the first.
func (r *Router) Forward(ctx context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
	ref, err := forwardRef(req)
	if err != nil {
		return nil, err
	}
	send := func(ctx context.Context, at target) (*nodev1.ForwardResponse, error) {
		// A fresh envelope for each try: the host may still hold an earlier one.
		own := &nodev1.ForwardRequest{
			ClusterId: r.cfg.ClusterID(),
			Shard:     at.shard,
			TermHint:  at.term,
			Tenant:    req.GetTenant(),
			Trace:     req.GetTrace(),
			Call:      req.GetCall(),
		}
		if at.node == r.cfg.Node {
			return r.cfg.Host.Forward(ctx, own)
		}
		return r.cfg.Peers.Forward(ctx, at.node, own)
	}
	if req.GetRead().GetConsistency() == writv1.Consistency_STALE {
		return anyReplica(ctx, r, ref, send)
	}
	resp, err := toLeader(ctx, r, ref, r.cfg.LeaderWait, send)
	if errors.Is(err, errSuperseded) && mayBeLate(req) {
		if again, refused := toLeader(ctx, r, ref, r.cfg.LeaderWait, send); refused == nil {
			return again, nil
		}
	}
	return resp, err
}

// mayBeLate reports whether a second copy of a call does no harm however late it
// comes. One of a command whose key is forgotten by then would execute again, unless
// it says when the command was issued: then it is EXPIRED.
func mayBeLate(req *nodev1.ForwardRequest) bool {
	command := req.GetSubmit()
	return command == nil || command.GetIssuedAt() != nil
}

// Deliver carries a batch of rows to the leader of their destination's shard. It
// does not wait for a leader: the relay does.
func (r *Router) Deliver(ctx context.Context, req *nodev1.DeliverRequest) (*nodev1.DeliverResponse, error) {
	ref, err := deliverRef(req)
	if err != nil {
		return nil, err
	}
	return toLeader(ctx, r, ref, 0, func(ctx context.Context, at target) (*nodev1.DeliverResponse, error) {
		own := &nodev1.DeliverRequest{ClusterId: r.cfg.ClusterID(), Shard: at.shard, TermHint: at.term, Rows: req.GetRows()}
		if at.node == r.cfg.Node {
			return r.cfg.Host.Deliver(ctx, own)
		}
		return r.cfg.Peers.Deliver(ctx, at.node, own)
	})
}

// target is where a try goes.
type target struct {
	shard uint32
	node  string
	term  uint64
}

// targets are the nodes to ask, in this order: the leader if one is known, else
// all replicas, the local one first, since one of them may know more.
func (r *Router) targets(shard uint32) []target {
	if node, term := r.cfg.Table.Leader(shard); node != "" {
		return []target{{shard, node, term}}
	}
	return r.replicas(shard, "")
}

// replicas are all nodes that may hold the shard: this one first, then the one
// preferred, if any, then the others.
func (r *Router) replicas(shard uint32, preferred string) []target {
	nodes := r.cfg.Table.Replicas(shard)
	var order []target
	add := func(node string) {
		for _, t := range order {
			if t.node == node {
				return
			}
		}
		order = append(order, target{shard: shard, node: node})
	}
	if slices.Contains(nodes, r.cfg.Node) {
		add(r.cfg.Node)
	}
	if preferred != "" {
		add(preferred)
	}
	for _, node := range nodes {
		add(node)
	}
	return order
}

type sender[Resp any] func(ctx context.Context, at target) (Resp, error)

// toLeader tries, follows one redirect, and as long as nothing was executed
// waits for the table to name another leader, or a little, and tries again.
func toLeader[Resp any](ctx context.Context, r *Router, ref entity.Ref, wait time.Duration, send sender[Resp]) (Resp, error) {
	var none Resp
	n := r.cfg.Table.Shards()
	if n == 0 {
		return none, notFormed()
	}
	shard := sharding.Locate(n, ref)
	send = unlessSuperseded(r, send)
	var over <-chan time.Time // runs from the first refusal
	again := againFirst
	for try := 1; ; try++ {
		wakeup := r.wakeup() // before the table is read, so that no change is missed
		tried := r.targets(shard)
		resp, err := follow(ctx, shard, tried, send)
		if entity.ReasonOf(err) != entity.NotExecuted {
			return resp, err
		}
		if over == nil {
			over = time.After(wait)
		}
		if try == triesMax {
			return none, r.hint(shard, err)
		}
		switch r.waitForOther(ctx, shard, tried, wakeup, over, again) {
		case givesUp:
			return none, r.hint(shard, err)
		case asksAgain:
			again *= 2
		case asksOther:
			again = againFirst
		}
	}
}

// follow asks one target after the other until one does more than refuse. The
// first that names another leader is followed, once.
func follow[Resp any](ctx context.Context, shard uint32, targets []target, send sender[Resp]) (Resp, error) {
	var resp Resp
	var err error = entity.Errorf(entity.NotExecuted, "no leader and no replica of shard %d is known", shard)
	for _, at := range targets {
		resp, err = send(ctx, at)
		if next, ok := redirect(at, err); ok {
			return send(ctx, next)
		}
		if entity.ReasonOf(err) != entity.NotExecuted {
			break
		}
	}
	return resp, err
}

// redirect reads the leader out of a node's refusal.
func redirect(at target, err error) (target, bool) {
	e, ok := errors.AsType[*entity.Error](err)
	if !ok || e.Reason != entity.NotExecuted {
		return target{}, false
	}
	leader := e.Details[leaderDetail]
	if leader == "" || leader == at.node {
		return target{}, false
	}
	term, _ := strconv.ParseUint(e.Details[termDetail], 10, 64) // 0, no hint, if it does not parse
	return target{shard: at.shard, node: leader, term: term}, true
}

// next is what a refused call does.
type next int

const (
	givesUp next = iota
	asksAgain
	asksOther
)

// waitForOther waits until the table names a leader that was not tried, or until
// those that were may be asked again. It gives up when the time is over or the
// caller is gone.
func (r *Router) waitForOther(ctx context.Context, shard uint32, tried []target, wakeup <-chan struct{}, over <-chan time.Time, again time.Duration) next {
	pause := time.NewTimer(again)
	defer pause.Stop()
	for {
		select {
		case <-wakeup:
		case <-pause.C:
			select {
			case <-over: // both at once: the time is over
				return givesUp
			default:
				return asksAgain
			}
		case <-over:
			return givesUp
		case <-ctx.Done():
			return givesUp
		}
		wakeup = r.wakeup()
		if node, term := r.cfg.Table.Leader(shard); node != "" && !slices.Contains(tried, target{shard, node, term}) {
			return asksOther
		}
	}
}

// hint is the answer to a call that only a leader may take and none took. Without a
// leader its text says so: what the last node of several has said, a refused
// connection for example, would send people the wrong way.
func (r *Router) hint(shard uint32, err error) error {
	located := r.located(shard, err)
	if e, ok := errors.AsType[*entity.Error](located); ok && e.Details[leaderDetail] == "" {
		e.Message = fmt.Sprintf("shard %d has no leader just now: see \"node cluster status\"", shard)
	}
	return located
}

// located adds to an error whom the table holds for the leader.
func (r *Router) located(shard uint32, err error) error {
	e, ok := errors.AsType[*entity.Error](err)
	if !ok {
		return err
	}
	own := &entity.Error{Reason: e.Reason, Message: e.Message, RetryAfter: e.RetryAfter, Details: maps.Clone(e.Details)}
	own.With("shard", strconv.FormatUint(uint64(shard), 10))
	if node, term := r.cfg.Table.Leader(shard); node != "" && own.Details[leaderDetail] == "" {
		own.With(leaderDetail, node).With(termDetail, strconv.FormatUint(term, 10))
	}
	return own
}

// anyReplica tries the local replica, then the leader, then the others, each
// once, until one answers.
func anyReplica[Resp any](ctx context.Context, r *Router, ref entity.Ref, send sender[Resp]) (Resp, error) {
	var resp Resp
	n := r.cfg.Table.Shards()
	if n == 0 {
		return resp, notFormed()
	}
	shard := sharding.Locate(n, ref)
	leader, _ := r.cfg.Table.Leader(shard)
	var err error = entity.Errorf(entity.NotExecuted, "no replica of shard %d is known", shard)
	for _, at := range r.replicas(shard, leader) {
		resp, err = send(ctx, at)
		// A read has no effect: one that was lost on the way can be tried elsewhere.
		if reason := entity.ReasonOf(err); reason != entity.NotExecuted && reason != entity.OutcomeUnknown {
			return resp, err
		}
	}
	return resp, r.located(shard, err)
}
