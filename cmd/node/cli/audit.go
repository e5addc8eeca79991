package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
)

// auditCommand recounts the cluster.
type auditCommand struct {
	target `embed:""`
	Deep   bool          `help:"List every finding, lane by lane, instead of only the first ones, and what the background auditors have found."`
	JSON   bool          `name:"json" help:"Print one JSON object."`
	Wait   time.Duration `default:"10s" help:"How long to wait for events in flight before counting."`
}

// auditReport is the result over all shards.
type auditReport struct {
	Keys          uint64   `json:"keys"`
	Effects       uint64   `json:"effects"`
	Ratio         float64  `json:"ratio"`
	OutboxPending uint64   `json:"outbox_pending"`
	Parked        uint64   `json:"parked"`
	Paused        uint64   `json:"paused"`
	Applied       uint64   `json:"applied"`
	Phantoms      uint64   `json:"phantoms"`
	Lost          uint64   `json:"lost"`
	ReplicasEqual bool     `json:"replicas_equal"`
	OK            bool     `json:"ok"`
	Findings      []string `json:"findings,omitempty"`
	// Unreachable are nodes whose replicas could not be compared. Nothing is wrong
	// with what was counted; the audit is not ok because it is not complete.
	Unreachable []string `json:"unreachable,omitempty"`
	// Background is what the auditor of each shard's leader last saw; with --deep.
	Background []backgroundAudit `json:"background,omitempty"`
}

// findingsShown bounds the list without --deep.
const findingsShown = 20

// Run implements the subcommand.
func (c *auditCommand) Run(ctx context.Context, std streams) error {
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	report, err := audit(ctx, admin, c.Wait)
	if err != nil {
		return err
	}
	if c.Deep {
		if err := report.addBackground(ctx, admin); err != nil {
			return err
		}
	}
	if !c.Deep && len(report.Findings) > findingsShown {
		more := len(report.Findings) - findingsShown
		report.Findings = append(report.Findings[:findingsShown:findingsShown], fmt.Sprintf("and %d more: see --deep", more))
	}
	if c.JSON {
		err = printJSON(std.out, report)
	} else {
		err = report.print(std.out)
	}
	if err == nil && !report.OK {
		err = errSilent
	}
	return err
}

func (r *auditReport) print(w io.Writer) error {
	verdict, equal := "OK", fmt.Sprint(r.ReplicasEqual)
	switch {
	case r.OK:
	case r.sound() && len(r.Unreachable) > 0:
		verdict = "INCOMPLETE"
		equal = fmt.Sprintf("those that answered are; %s could not be asked: audit again when all nodes are up", strings.Join(r.Unreachable, ", "))
	default:
		verdict = "NOT OK"
	}
	_, err := fmt.Fprintf(w, "%s: effects %d ÷ keys %d = %.3f\nevents applied %d, pending %d, parked lanes %d, phantom %d, lost %d\nreplicas equal: %s\n",
		verdict, r.Effects, r.Keys, r.Ratio, r.Applied, r.OutboxPending, r.Parked, r.Phantoms, r.Lost, equal)
	if standing := r.Parked + r.Paused; standing > 0 {
		fmt.Fprintf(w, "%s, %d parked and %d paused, and what waits there is not delivered: see node lanes list\n",
			number(standing, "lane stands still", "lanes stand still"), r.Parked, r.Paused)
	}
	for _, f := range r.Findings {
		fmt.Fprintln(w, "-", f)
	}
	for _, b := range r.Background {
		fmt.Fprintln(w, b)
	}
	return err
}

// number is a count with its noun.
func number(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// countPaused counts the lanes that an operator has stopped; a shard's own audit
// counts those that are parked.
func (r *auditReport) countPaused(ctx context.Context, admin nodev1.AdminServiceClient) error {
	return eachLane(ctx, admin, &nodev1.ListLanesRequest{ParkedOnly: true}, func(l foundLane) error {
		if l.info.GetLane().GetStatus() == recordv1.Lane_PAUSED {
			r.Paused++
		}
		return nil
	})
}

// audit counts all shards. Effects and keys are taken of each shard at one log
// index, so their sums can be compared exactly. A lane has its two ends in two
// shards that no single index joins; the order of the passes makes the
// comparison sound all the same while events travel:
// confirmed (read first) ≤ applied (read second) ≤ numbered (read last).
func audit(ctx context.Context, admin nodev1.AdminServiceClient, wait time.Duration) (*auditReport, error) {
	status, err := admin.Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	if err := knowsShards(status); err != nil {
		return nil, err
	}
	shards := status.GetMeta().GetShards()
	if err := awaitQuiet(ctx, admin, shards, wait); err != nil {
		return nil, err
	}
	r := &auditReport{ReplicasEqual: true}
	before, err := collectLanes(ctx, admin, shards, false)
	if err != nil {
		return nil, err
	}
	applied, err := collectLanes(ctx, admin, shards, true)
	if err != nil {
		return nil, err
	}
	after, err := collectLanes(ctx, admin, shards, false)
	if err != nil {
		return nil, err
	}
	r.compareLanes(before, applied, after)

	id := rand.Text()
	for _, s := range shards {
		res, err := admin.AuditShard(ctx, &nodev1.AuditShardRequest{Shard: s.GetShard(), Audit: id})
		if err != nil {
			return nil, fmt.Errorf("audit of shard %d: %w", s.GetShard(), err)
		}
		r.addShard(res)
	}
	if err := r.countPaused(ctx, admin); err != nil {
		return nil, err
	}
	r.conclude()
	return r, nil
}

func (r *auditReport) conclude() {
	switch {
	case r.Keys > 0:
		r.Ratio = float64(r.Effects) / float64(r.Keys)
	case r.Effects == 0:
		r.Ratio = 1
	}
	r.OK = r.sound() && r.ReplicasEqual
}

// sound reports that nothing that was seen contradicts the guarantee.
func (r *auditReport) sound() bool {
	return r.Effects == r.Keys && r.Phantoms == 0 && r.Lost == 0 && len(r.Findings) == 0
}

func (r *auditReport) addShard(s *nodev1.AuditShardResponse) {
	r.Keys += s.GetKeysLive() + s.GetKeysExpired()
	r.Effects += s.GetEffects()
	r.OutboxPending += s.GetRowsPending()
	r.Parked += s.GetLanesParked()
	r.Applied += s.GetApplied()
	if s.GetEffects() != s.GetKeysLive()+s.GetKeysExpired() {
		r.Findings = append(r.Findings, fmt.Sprintf("shard %d: effects %d, keys %d", s.GetShard(), s.GetEffects(), s.GetKeysLive()+s.GetKeysExpired()))
	}
	for _, f := range s.GetFindings() {
		r.Findings = append(r.Findings, fmt.Sprintf("shard %d: %s", s.GetShard(), f))
	}
	if !s.GetReplicasEqual() {
		r.ReplicasEqual = false
		r.compareReplicas(s)
	}
}

// compareReplicas tells replicas that differ from those that were not compared.
func (r *auditReport) compareReplicas(s *nodev1.AuditShardResponse) {
	var first *nodev1.ReplicaHash
	for _, h := range s.GetReplicas() {
		switch {
		case h.GetError() != "":
			if !slices.Contains(r.Unreachable, h.GetNode()) {
				r.Unreachable = append(r.Unreachable, h.GetNode())
			}
		case first == nil:
			first = h
		case h.GetIndex() != first.GetIndex() || !bytes.Equal(h.GetHash(), first.GetHash()):
			r.Findings = append(r.Findings, fmt.Sprintf("shard %d: at index %d the replica on %s has hash %x, at index %d that on %s has %x",
				s.GetShard(), h.GetIndex(), h.GetNode(), h.GetHash(), first.GetIndex(), first.GetNode(), first.GetHash()))
		}
	}
	slices.Sort(r.Unreachable)
}

// laneKey names a lane; a struct, because names may contain anything.
type laneKey struct {
	tenant, fromKind, fromID, toKind, toID string
}

func laneKeyOf(source, destination *recordv1.Ref) laneKey {
	return laneKey{source.GetTenant(), source.GetKind(), source.GetId(), destination.GetKind(), destination.GetId()}
}

func (k laneKey) String() string {
	return fmt.Sprintf("%s: %s/%q → %s/%q", k.tenant, k.fromKind, k.fromID, k.toKind, k.toID)
}

func collectLanes(ctx context.Context, admin nodev1.AdminServiceClient, shards []*nodev1.ShardPlacement, asDestination bool) (map[laneKey]*nodev1.AuditLane, error) {
	lanes := map[laneKey]*nodev1.AuditLane{}
	for _, s := range shards {
		stream, err := admin.AuditLanes(ctx, &nodev1.AuditLanesRequest{Shard: s.GetShard(), AsDestination: asDestination})
		if err != nil {
			return nil, fmt.Errorf("lanes of shard %d: %w", s.GetShard(), err)
		}
		for {
			l, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("lanes of shard %d: %w", s.GetShard(), err)
			}
			lanes[laneKeyOf(l.GetSource(), l.GetDestination())] = l
		}
	}
	return lanes, nil
}

// compareLanes counts events applied without a source row (phantoms) and rows
// confirmed without having been applied (lost).
func (r *auditReport) compareLanes(before, applied, after map[laneKey]*nodev1.AuditLane) {
	for key, dst := range applied {
		if numbered := after[key].GetNumbered(); dst.GetApplied() > numbered {
			r.Phantoms += dst.GetApplied() - numbered
			r.Findings = append(r.Findings, fmt.Sprintf("phantom: lane %v applied up to %d, but only %d rows were numbered", key, dst.GetApplied(), numbered))
		}
	}
	for key, src := range before {
		if got := applied[key].GetApplied(); src.GetConfirmed() > got {
			r.Lost += src.GetConfirmed() - got
			r.Findings = append(r.Findings, fmt.Sprintf("lost: lane %v confirmed up to %d, but applied only up to %d", key, src.GetConfirmed(), got))
		}
	}
}

// awaitQuiet gives events on their way some time to arrive; rows that stay are
// counted, not waited for.
func awaitQuiet(ctx context.Context, admin nodev1.AdminServiceClient, shards []*nodev1.ShardPlacement, wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		pending, err := pendingRows(ctx, admin, shards)
		if err != nil || pending == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return nil
		case <-tick.C:
		}
	}
}

// pendingRows counts rows of lanes that are not parked.
func pendingRows(ctx context.Context, admin nodev1.AdminServiceClient, shards []*nodev1.ShardPlacement) (uint64, error) {
	var pending uint64
	for _, s := range shards {
		stream, err := admin.ListLanes(ctx, &nodev1.ListLanesRequest{Shard: s.GetShard()})
		if err != nil {
			return 0, fmt.Errorf("lanes of shard %d: %w", s.GetShard(), err)
		}
		for {
			l, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return 0, fmt.Errorf("lanes of shard %d: %w", s.GetShard(), err)
			}
			if l.GetLane().GetStatus() == recordv1.Lane_ACTIVE {
				pending += l.GetLane().GetNumbered() - l.GetLane().GetConfirmed()
			}
		}
	}
	return pending, nil
}
