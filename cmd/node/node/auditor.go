package node

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"writ/persistence"
	"writ/persistence/replica"
	nodev1 "writ/proto/writ/node/v1"
)

// auditor recounts, in the background and with a small budget, the shards that
// this node leads: effects against keys in each store, the replicas' content
// against each other, and a slice of the lanes against their other ends. What it
// finds it counts, logs and keeps for "node audit --deep" until it is gone. It
// never repairs: a repair would hide what has gone wrong.
//
// It rests for auditRest times as long as it has read stores, so that it takes at
// most some two parts in a hundred of one core, and it leaves shards alone that have
// not changed since they were found sound, and whose other replicas have not either.
type auditor struct {
	node    *Node
	metrics *auditMetrics

	leads   chan struct{} // a lease has begun
	turn    sync.Mutex    // held by the round in progress
	reports reports       // of the round in progress
	worked  time.Duration // in the round in progress
	mu      sync.Mutex
	shards  map[uint32]*shardAudit
}

const (
	auditRest = 50
	// auditSoon is when a round begins after a lease has.
	auditSoon = time.Second
	// auditAgain is when an unchanged shard is recounted and walked all the same. Both
	// write into logs, for they need a checkpoint and barriers: an idle cluster should
	// hardly do so.
	auditAgain = 30 * time.Minute
	// laneSlice is the number of lanes compared in one round, on each side.
	laneSlice = 5000
	// auditTimeout bounds the work on one shard in one round.
	auditTimeout = time.Minute
)

// kindOfFinding classes what the auditor finds: the label of its metrics.
type kindOfFinding string

const (
	foundRecount  kindOfFinding = "recount"  // counters, hashes or effects contradict the content
	foundReplicas kindOfFinding = "replicas" // two replicas differ at one index
	foundPhantom  kindOfFinding = "phantom"  // applied without a source row
	foundLost     kindOfFinding = "lost"     // confirmed but not applied
)

func kindsOfFinding() []kindOfFinding {
	return []kindOfFinding{foundRecount, foundReplicas, foundPhantom, foundLost}
}

// shardAudit is what is known of one shard in one term. Only a round changes it,
// under the auditor's lock.
type shardAudit struct {
	term          uint64
	index         uint64
	finished      time.Time // of the last recount
	effects, keys uint64
	recount       []string
	replicas      map[string]string // what differs, by the node that holds the other replica
	lanes         map[laneEnd]laneFinding
	lanesChecked  uint64

	hash      string // content at the last recount
	walk      laneWalk
	soundHash string // content that was walked to its end
	soundAt   time.Time
}

// laneWalk is a walk over all lanes of a shard. Each side is walked once; the one that
// is at its end first waits for the other. Its zero value is a walk that is over.
type laneWalk struct {
	going          bool
	hash           string            // content since the beginning
	clean          bool              // no look-up has failed
	sources, marks *persistence.Pair // how far they have come, nil at their end
}

// laneEnd is one side of a lane.
type laneEnd struct {
	persistence.Pair
	kind kindOfFinding
}

// laneFinding is by how many events a lane's ends disagree.
type laneFinding struct {
	events uint64
	text   string
}

type auditMetrics struct {
	rounds   prometheus.Counter
	lanes    prometheus.Counter
	findings *prometheus.CounterVec
	phantoms prometheus.Counter
}

func newAuditor(n *Node, registry *prometheus.Registry) *auditor {
	m := &auditMetrics{
		rounds: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "writ_audit_recounts_total", Help: "Recounts of a shard by the background auditor of its leader.",
		}),
		lanes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "writ_audit_lanes_checked_total", Help: "Lanes whose end in a shard led here was compared with the other end.",
		}),
		findings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "writ_audit_findings_total", Help: "Contradictions found by the background auditor, by kind; each is counted when it appears.",
		}, []string{"finding"}),
		phantoms: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "writ_idempotency_phantom_effect_total", Help: "Effects without a cause, found by reconciliation: events applied that no source has numbered, and commands decided beyond the keys registered.",
		}),
	}
	for _, kind := range kindsOfFinding() {
		m.findings.WithLabelValues(string(kind)) // 0 from the start
	}
	registry.MustRegister(m.rounds, m.lanes, m.findings, m.phantoms)
	return &auditor{node: n, metrics: m, leads: make(chan struct{}, 1), shards: map[uint32]*shardAudit{}}
}

// run audits until the context ends.
func (a *auditor) run(ctx context.Context) {
	due := time.Now().Add(a.node.cfg.AuditInterval)
	timer := time.NewTimer(a.node.cfg.AuditInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.leads:
			if soon := time.Now().Add(auditSoon); soon.Before(due) {
				due = soon
				timer.Reset(auditSoon)
			}
			continue
		case <-timer.C:
		}
		rest := max(a.node.cfg.AuditInterval, auditRest*a.round(ctx))
		due = time.Now().Add(rest)
		timer.Reset(rest)
	}
}

// lead tells that this node leads a shard now. What the leader before had found is
// to be known here soon: else an alarm would end although nothing has been mended.
func (a *auditor) lead() {
	select {
	case a.leads <- struct{}{}:
	default:
	}
}

// round looks at every shard led here, and tells how long it has read stores. To
// wait for the log or for other nodes is no work: if it counted, a busy hour of
// leaders that come and go would put off what is to be found.
func (a *auditor) round(ctx context.Context) (worked time.Duration) {
	a.turn.Lock()
	defer a.turn.Unlock()
	p := a.node.parts()
	if p == nil {
		return 0
	}
	a.reports, a.worked = reports{}, 0
	replicas := p.host.Replicas()
	a.keepLed(replicas)
	for _, r := range replicas {
		lease := r.Lease()
		if lease == nil || r.Store() == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, auditTimeout)
		stop := context.AfterFunc(lease.Context(), cancel)
		if err := a.shard(ctx, p, r, lease); err != nil && ctx.Err() == nil {
			a.node.log.Warn("audit not finished", slog.Uint64("shard", uint64(r.Shard())), slog.Any("error", err))
		}
		stop()
		cancel()
	}
	return a.worked
}

// work counts what a part of the round takes.
func (a *auditor) work(part func() error) error {
	began := time.Now()
	defer func() { a.worked += time.Since(began) }()
	return part()
}

// keepLed forgets the shards that are not led here any more, those among them whose
// replica has left the node: it is their leaders that know what there is to find.
func (a *auditor) keepLed(replicas []*replica.Replica) {
	led := map[uint32]bool{}
	for _, r := range replicas {
		led[r.Shard()] = r.Lease() != nil && r.Store() != nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.shards, func(shard uint32, _ *shardAudit) bool { return !led[shard] })
}

// state is the audit of a shard in a term; what an earlier term found starts anew.
func (a *auditor) state(shard uint32, term uint64) *shardAudit {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.shards[shard]
	if s == nil || s.term != term {
		s = &shardAudit{term: term, lanes: map[laneEnd]laneFinding{}}
		a.shards[shard] = s
	}
	return s
}

// shard does one round on one shard.
func (a *auditor) shard(ctx context.Context, p *parts, r *replica.Replica, lease *replica.Lease) error {
	s := a.state(r.Shard(), lease.Term())
	_, hash := r.Store().StateHash()
	switch now := string(hash); {
	// A replica that differed may have been mended, which changes nothing here.
	case now != s.hash || len(s.replicas) > 0 || time.Since(s.finished) >= auditAgain || a.otherContent(ctx, r):
		if err := a.recount(ctx, p, r, lease, s); err != nil {
			return err
		}
	case now == s.soundHash && time.Since(s.soundAt) < auditAgain:
		return nil
	}
	return a.walk(ctx, p, r, s)
}

// otherContent looks, without an entry in the log, whether a replica has other
// content than this one: a node may have come back with a file that was changed
// while it was away. It is a reason to recount, not a finding.
func (a *auditor) otherContent(ctx context.Context, r *replica.Replica) bool {
	st := r.Status()
	index, hash := r.Store().StateHash()
	for _, other := range append(st.Voters, st.Learners...) {
		if m, known := a.node.gossip.Lookup(other.Node); other.Node == a.node.cfg.ID || !known || !m.Alive {
			continue
		}
		shards, err := a.reports.of(ctx, reporter{a.node}, other.Node)
		if err != nil {
			continue // it does not answer, which proves nothing
		}
		for _, s := range shards {
			if s.GetShard() == r.Shard() && s.GetHashIndex() == index && len(s.GetHash()) > 0 && string(s.GetHash()) != string(hash) {
				return true
			}
		}
	}
	return false
}

// reports are what other nodes say of their replicas, asked once a round.
type reports map[string][]*nodev1.ShardStatus

func (r reports) of(ctx context.Context, from reporter, node string) ([]*nodev1.ShardStatus, error) {
	if shards, known := r[node]; known {
		return shards, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reportWait)
	defer cancel()
	shards, err := from.Shards(ctx, node)
	r[node] = shards // nothing, if it does not answer: it is not asked again in this round
	return shards, err
}

// recount recounts a shard and compares its replicas, at one index.
func (a *auditor) recount(ctx context.Context, p *parts, r *replica.Replica, lease *replica.Lease, s *shardAudit) error {
	id := "background-" + rand.Text()
	if err := lease.Checkpoint(ctx, id); err != nil {
		return err
	}
	var found *persistence.Audit
	err := a.work(func() (err error) {
		found, err = r.Store().Audit(ctx)
		return err
	})
	if err != nil {
		return err
	}
	// found.Differences tell of the past: they stay in the store's memory.
	differ := a.compareReplicas(ctx, p, r, id, s.replicas)
	keys := found.KeysLive + found.KeysExpired
	recount := found.Findings
	if found.Effects != keys {
		recount = append(recount, fmt.Sprintf("effects %d, keys %d", found.Effects, keys))
	}
	a.metrics.rounds.Inc()
	for _, finding := range recount {
		if !slices.Contains(s.recount, finding) {
			a.count(r.Shard(), foundRecount, finding)
		}
	}
	for node, finding := range differ {
		if s.replicas[node] == "" { // its text names the index, which is another one each time
			a.count(r.Shard(), foundReplicas, finding)
		}
	}
	if over := excess(found.Effects, keys); over > excess(s.effects, s.keys) {
		a.metrics.phantoms.Add(float64(over - excess(s.effects, s.keys)))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s.index, s.finished, s.hash = found.Index, time.Now(), string(found.Hash)
	s.effects, s.keys, s.recount, s.replicas = found.Effects, keys, recount, differ
	return nil
}

func excess(a, b uint64) uint64 { return max(a, b) - b }

// compareReplicas names the replicas whose content differs from this one's, by their
// node. One that does not answer proves nothing: what was found of it stands.
func (a *auditor) compareReplicas(ctx context.Context, p *parts, r *replica.Replica, audit string, before map[string]string) map[string]string {
	st := r.Status()
	admin := &admin{node: a.node}
	own := admin.replicaHash(ctx, p, a.node.cfg.ID, r.Shard(), audit)
	differ := map[string]string{}
	for _, other := range append(st.Voters, st.Learners...) {
		if other.Node == a.node.cfg.ID {
			continue
		}
		var h *nodev1.ReplicaHash
		if m, known := a.node.gossip.Lookup(other.Node); known && m.Alive && own.GetError() == "" {
			h = admin.replicaHash(ctx, p, other.Node, r.Shard(), audit)
		}
		switch {
		case h == nil || h.GetError() != "" || h.GetIndex() != own.GetIndex():
			if finding := before[other.Node]; finding != "" {
				differ[other.Node] = finding
			}
		case string(h.GetHash()) != string(own.GetHash()):
			differ[other.Node] = fmt.Sprintf("the replica on %s differs at index %d: %x there, %x here", other.Node, h.GetIndex(), h.GetHash(), own.GetHash())
		}
	}
	return differ
}

// count logs and counts a finding that is new.
func (a *auditor) count(shard uint32, kind kindOfFinding, finding string) {
	a.metrics.findings.WithLabelValues(string(kind)).Inc()
	a.node.log.Error("audit finding", slog.Uint64("shard", uint64(shard)), slog.String("class", string(kind)), slog.String("finding", finding))
}
