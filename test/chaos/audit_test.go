package chaos

import (
	"strings"
	"testing"
)

func TestAuditVerdict(t *testing.T) {
	right := AuditReport{Keys: 3, Effects: 3, Ratio: 1, Applied: 2, ReplicasEqual: true, OK: true}
	if err := right.Verdict(); err != nil {
		t.Fatalf("a right audit is refused: %v", err)
	}
	for want, spoil := range map[string]func(*AuditReport){
		"audit is not ok":       func(r *AuditReport) { r.OK = false },
		"effects 4 ÷ keys 3":    func(r *AuditReport) { r.Effects, r.Ratio = 4, 4.0/3 },
		"1 rows stay pending":   func(r *AuditReport) { r.OutboxPending = 1 },
		"1 lanes are parked":    func(r *AuditReport) { r.Parked = 1 },
		"1 phantoms, 0 lost":    func(r *AuditReport) { r.Phantoms = 1 },
		"0 phantoms, 1 lost":    func(r *AuditReport) { r.Lost = 1 },
		"replicas differ":       func(r *AuditReport) { r.ReplicasEqual = false },
		"effects 2 ÷ keys 3 = ": func(r *AuditReport) { r.Effects = 2 },
	} {
		r := right
		spoil(&r)
		if err := r.Verdict(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if _, err := parseAudit([]byte("no JSON")); err == nil {
		t.Error("an answer that is no JSON passes")
	}
}
