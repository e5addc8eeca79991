package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	nodev1 "writ/proto/writ/node/v1"
)

// backgroundAudit is what the background auditor knows of one shard.
type backgroundAudit struct {
	Shard        uint32    `json:"shard"`
	Node         string    `json:"node"`
	RecountedAt  time.Time `json:"recounted_at,omitzero"`
	Effects      uint64    `json:"effects"`
	Keys         uint64    `json:"keys"`
	LanesChecked uint64    `json:"lanes_checked"`
	Findings     []string  `json:"findings,omitempty"`
}

func (b backgroundAudit) String() string {
	when := "not recounted yet"
	if !b.RecountedAt.IsZero() {
		when = "recounted " + b.RecountedAt.UTC().Format(time.RFC3339)
	}
	text := fmt.Sprintf("shard %d, auditor on %s: %s, effects %d, keys %d, ends of lanes compared %d", b.Shard, b.Node, when, b.Effects, b.Keys, b.LanesChecked)
	return strings.Join(append([]string{text}, b.Findings...), "\n- ")
}

// addBackground adds what the auditors of all shards' leaders have found. A finding
// of theirs spoils the verdict like any other.
func (r *auditReport) addBackground(ctx context.Context, admin nodev1.AdminServiceClient) error {
	status, err := admin.Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	for _, s := range status.GetMeta().GetShards() {
		res, err := admin.AuditFindings(ctx, &nodev1.AuditFindingsRequest{Shard: s.GetShard()})
		if err != nil {
			return fmt.Errorf("findings of shard %d: %w", s.GetShard(), err)
		}
		b := backgroundAudit{
			Shard: res.GetShard(), Node: res.GetNode(), Effects: res.GetEffects(), Keys: res.GetKeys(),
			LanesChecked: res.GetLanesChecked(), Findings: res.GetFindings(),
		}
		if at := res.GetFinishedAt(); at != 0 {
			b.RecountedAt = time.Unix(0, at).UTC()
		}
		r.Background = append(r.Background, b)
		r.OK = r.OK && len(b.Findings) == 0
	}
	return nil
}
