package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	nodev1 "writ/proto/writ/node/v1"
)

// clause is one of the five clauses of the guarantee.
type clause string

const (
	clauseScope       clause = "scope"
	clauseWindow      clause = "window"
	clauseReplay      clause = "replay"
	clauseDegradation clause = "degradation"
	clauseBoundary    clause = "boundary"
)

// promises are the clauses in their order, in short; docs/guarantee.md has them in
// full.
func promises() []struct {
	clause clause
	text   string
} {
	return []struct {
		clause clause
		text   string
	}{
		{clauseScope, "one execution per (tenant, kind, id, command type, idempotency key)"},
		{clauseWindow, "a key is remembered for at least its window, counted in log time from its acceptance"},
		{clauseReplay, "the first outcome, verbatim and flagged; the same key with another payload is refused"},
		{clauseDegradation, "fail closed: what cannot be kept is refused, nothing is executed on a guess; held means that nothing is degraded now"},
		{clauseBoundary, "events between entities are applied once, for ever; Writ makes no effects outside itself"},
	}
}

// observation is all that preconditions are judged by: what one node sees at one
// moment.
type observation struct {
	meta      string // why the meta group does not answer, "" if it does
	contract  *nodev1.Contract
	drift     error
	windows   map[string]time.Duration // by kind
	shards    []observedShard
	disk      string // why the disk is no good
	audits    []auditView
	replicate int // replicas that each shard should have
}

// observedShard is one shard as this node sees it.
type observedShard struct {
	shard  uint32
	leader string
	// leads: the lease is here. Then live and voters are known.
	leads        bool
	live, voters int
	// dead are the nodes of the placement that gossip does not have alive.
	dead []string
	// trouble of the local replica, "" if there is none or no replica.
	trouble string
}

// precondition is one thing that a clause rests on.
type precondition struct {
	name   string
	clause clause
	about  string
	// own: what it is judged by is known to one node alone, of its replicas and disk,
	// or of the shards that it leads. What is known to all need not be told by each.
	own bool
	// unmet says why it is not met, "" if it is.
	unmet func(observation) string
}

// preconditions are all of them. Their names are labels and stand in alerts.
func preconditions() []precondition {
	return []precondition{
		{"effects_match_keys", clauseScope, "the auditor's recount finds as many effects as keys, and no contradiction in the stores", true, found(foundRecount)},
		{"window_agreed", clauseWindow, "this node's settings equal the contract's", true, windowAgreed},
		{"window_covers_retries", clauseWindow, "no kind's window is shorter than the time for which clients may retry", false, windowCovers},
		{"replicas_equal", clauseReplay, "all replicas of a shard have the same content at one index, so that any of them would replay the same", true, found(foundReplicas)},
		{"leaders_known", clauseDegradation, "every shard has a leader", false, leadersKnown},
		{"meta_group", clauseDegradation, "the meta group answers", false, func(o observation) string { return o.meta }},
		{"replicas_complete", clauseDegradation, "every shard has all its voters, and they are alive", true, replicasComplete},
		{"storage_sound", clauseDegradation, "no replica is in quarantine or has failed", true, storageSound},
		{"disk_space", clauseDegradation, "the data disk has room", true, func(o observation) string { return o.disk }},
		{"lanes_agree", clauseBoundary, "both ends of every lane agree: nothing is applied that was not sent, nothing confirmed that was not applied", true, found(foundPhantom, foundLost)},
	}
}

// reasonsShown bounds what a reason lists.
const reasonsShown = 5

func list(reasons []string) string {
	if over := len(reasons) - reasonsShown; over > 0 {
		reasons = append(slices.Clip(reasons[:reasonsShown]), fmt.Sprintf("and %d more", over))
	}
	return strings.Join(reasons, "; ")
}

// found is unmet while the auditor knows of such findings.
func found(kinds ...kindOfFinding) func(observation) string {
	return func(o observation) string {
		var reasons []string
		for _, v := range o.audits {
			for _, kind := range kinds {
				for _, f := range v.findings[kind] {
					reasons = append(reasons, fmt.Sprintf("shard %d: %s", v.shard, f))
				}
			}
		}
		slices.Sort(reasons)
		return list(reasons)
	}
}

func windowAgreed(o observation) string {
	switch {
	case o.contract == nil:
		return "the contract is not known yet"
	case o.drift != nil:
		return o.drift.Error()
	}
	return ""
}

func windowCovers(o observation) string {
	if o.contract == nil {
		return "the contract is not known yet"
	}
	var reasons []string
	horizon := retryHorizon(o.contract)
	for kind, window := range o.windows {
		if window < horizon {
			reasons = append(reasons, fmt.Sprintf("keys of kind %s are remembered for %v, clients may retry for %v", kind, window, horizon))
		}
	}
	slices.Sort(reasons)
	return list(reasons)
}

func leadersKnown(o observation) string {
	if len(o.shards) == 0 {
		return "no shards are placed yet"
	}
	var reasons []string
	for _, s := range o.shards {
		if s.leader == "" {
			reasons = append(reasons, fmt.Sprintf("shard %d has no leader", s.shard))
		}
	}
	return list(reasons)
}

func replicasComplete(o observation) string {
	var reasons []string
	for _, s := range o.shards {
		switch {
		case s.leads && s.live < o.replicate:
			reasons = append(reasons, fmt.Sprintf("shard %d: %d of %d voters are alive, %d are wanted", s.shard, s.live, s.voters, o.replicate))
		case s.leads:
		case len(s.dead) > 0: // the leader knows better, if there is one
			reasons = append(reasons, fmt.Sprintf("shard %d: not alive: %s", s.shard, strings.Join(s.dead, ", ")))
		}
	}
	return list(reasons)
}

func storageSound(o observation) string {
	var reasons []string
	for _, s := range o.shards {
		if s.trouble != "" {
			reasons = append(reasons, fmt.Sprintf("shard %d: %s", s.shard, s.trouble))
		}
	}
	return list(reasons)
}
