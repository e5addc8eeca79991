package gateway_test

import (
	"context"
	"testing"

	"writ/actors/entity"
	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

func (fakeControl) LookupLanes(_ context.Context, req *nodev1.LookupLanesRequest) (*nodev1.LookupLanesResponse, error) {
	return &nodev1.LookupLanesResponse{Lanes: make([]*nodev1.AuditLane, len(req.GetLanes()))}, nil
}

func (fakeControl) ExchangeCrashes(context.Context, *nodev1.ExchangeCrashesRequest) (*nodev1.ExchangeCrashesResponse, error) {
	return &nodev1.ExchangeCrashesResponse{}, nil
}

func (fakeControl) Guarantee(context.Context, *nodev1.GuaranteeRequest) (*nodev1.GuaranteeResponse, error) {
	return &nodev1.GuaranteeResponse{Guarantee: &writv1.Guarantee{Held: true}}, nil
}

// TestAuditCallsCheckTheCluster covers that the auditor's calls reach the node
// they name, and that a node of another cluster does not answer them.
func TestAuditCallsCheckTheCluster(t *testing.T) {
	for name, call := range map[string]func(p *gateway.Peers, cluster string) error{
		"lanes": func(p *gateway.Peers, cluster string) error {
			_, err := p.LookupLanes(ctx(t), "n2", &nodev1.LookupLanesRequest{ClusterId: cluster, Lanes: []*nodev1.LaneName{{}}})
			return err
		},
		"guarantee": func(p *gateway.Peers, cluster string) error {
			_, err := p.Guarantee(ctx(t), "n2", &nodev1.GuaranteeRequest{ClusterId: cluster})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			peers := start(t, setup{hosts: map[string]gateway.Host{"n1": echoes(1), "n2": echoes(2)}}).peers["n1"]
			if err := call(peers, clusterID); err != nil {
				t.Errorf("same cluster: %v", err)
			}
			if err := call(peers, "c-2"); entity.ReasonOf(err) != entity.NotExecuted {
				t.Errorf("other cluster: %v, want NOT_EXECUTED", err)
			}
		})
	}
}
