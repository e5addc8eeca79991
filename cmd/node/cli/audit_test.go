package cli

import (
	"strings"
	"testing"

	nodev1 "writ/proto/writ/node/v1"
)

// TestAuditTellsUnequalFromUnreachable covers that a node that is down is no
// contradiction, and hides none.
func TestAuditTellsUnequalFromUnreachable(t *testing.T) {
	replica := func(node string, index uint64, hash, err string) *nodev1.ReplicaHash {
		return &nodev1.ReplicaHash{Node: node, Index: index, Hash: []byte(hash), Error: err}
	}
	down := replica("n1", 0, "", "NOT_EXECUTED: the node could not be reached")
	for name, test := range map[string]struct {
		replicas []*nodev1.ReplicaHash
		verdict  string
	}{
		"one is down":                {[]*nodev1.ReplicaHash{down, replica("n2", 7, "a", ""), replica("n3", 7, "a", "")}, "INCOMPLETE: "},
		"one is down, others differ": {[]*nodev1.ReplicaHash{down, replica("n2", 7, "a", ""), replica("n3", 7, "b", "")}, "NOT OK: "},
		"other indexes":              {[]*nodev1.ReplicaHash{replica("n2", 7, "a", ""), replica("n3", 8, "a", "")}, "NOT OK: "},
	} {
		t.Run(name, func(t *testing.T) {
			r := &auditReport{ReplicasEqual: true}
			r.addShard(&nodev1.AuditShardResponse{Effects: 2, KeysLive: 2, Replicas: test.replicas})
			if r.conclude(); r.OK || r.ReplicasEqual {
				t.Errorf("ok %v, replicas equal %v: not all were compared", r.OK, r.ReplicasEqual)
			}
			var out strings.Builder
			if err := r.print(&out); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(out.String(), test.verdict) {
				t.Errorf("%q in\n%s", test.verdict, &out)
			}
		})
	}
}
