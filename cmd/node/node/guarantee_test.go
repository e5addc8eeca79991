package node_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"writ/actors/entity"
	"writ/cmd/node/node"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	testingv1 "writ/proto/writ/testing/v1"
	writv1 "writ/proto/writ/v1"
)

// guarantee is what a node says.
func (c *testCluster) guarantee(ctx context.Context, name string) (*writv1.Guarantee, error) {
	return writv1.NewGuaranteeServiceClient(c.dial(name)).Get(ctx, &writv1.GetGuaranteeRequest{})
}

// soon wants what takes 15 s at most within that time in the long form, which has the
// machine to itself, and within a minute otherwise.
func soon(t *testing.T, what string, took time.Duration) {
	t.Helper()
	limit := time.Minute
	if os.Getenv("WRIT_LONG") != "" {
		limit = 15 * time.Second
	}
	if took > limit {
		t.Errorf("%s took %v", what, took)
	}
}

// awaitPrecondition waits until the API and the metric of a node say that a
// precondition is met, or not met.
func (c *testCluster) awaitPrecondition(name, precondition string, met bool) *writv1.Guarantee {
	c.t.Helper()
	began := time.Now()
	g := eventually(c.t, func(ctx context.Context) (*writv1.Guarantee, error) {
		g, err := c.guarantee(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, pre := range g.GetPreconditions() {
			if pre.GetName() != precondition || pre.GetMet() != met || !met && untold(pre) {
				continue
			}
			want := fmt.Sprintf("writ_guarantee_precondition_met{precondition=%q} %d", precondition, map[bool]int{true: 1}[met])
			var told strings.Builder
			for node := range c.nodes { // each tells what it sees itself
				told.WriteString(c.metrics(ctx, node))
			}
			if !strings.Contains(told.String(), want) {
				return nil, fmt.Errorf("no metric says %s", want)
			}
			return g, nil
		}
		return nil, fmt.Errorf("%s is not %v: %v", precondition, met, g.GetPreconditions())
	})
	soon(c.t, fmt.Sprintf("%s: to become %v", precondition, met), time.Since(began))
	for _, clause := range g.GetClauses() {
		if !met && clause.GetHeld() && strings.Contains(strings.Join(clause.GetViolated(), " "), precondition) {
			c.t.Errorf("clause %s is held though %s is violated", clause.GetName(), precondition)
		}
	}
	if !met && g.GetHeld() {
		c.t.Errorf("the guarantee is held though %s is violated", precondition)
	}
	return g
}

// untold reports whether a precondition is not met only because nodes are silent, as
// one is that has just started: what it knows will be told later.
func untold(pre *writv1.Precondition) bool {
	return !slices.ContainsFunc(pre.GetReasons(), func(reason string) bool { return !strings.HasSuffix(reason, ": no answer") })
}

func TestGuaranteeStatesFiveClauses(t *testing.T) {
	c := newCluster(t, 3, func(cfg *node.Config) { newActing().conf(cfg); cfg.AuditInterval = 100 * time.Millisecond })
	if _, err := c.client().Submit(t.Context(), "account", "a", "k", eur(1), clientOptions()); err != nil {
		t.Fatal(err)
	}
	g := eventually(t, func(ctx context.Context) (*writv1.Guarantee, error) {
		g, err := c.guarantee(ctx, "n2")
		if err == nil && (!g.GetHeld() || len(g.GetNodes()) != 3 || !strings.Contains(fmt.Sprint(g.GetClauses()[0].GetEvidence()), "effects 1, keys 1")) {
			err = fmt.Errorf("not held, or not recounted: %v", g)
		}
		return g, err
	})
	var names []string
	for _, clause := range g.GetClauses() {
		names = append(names, clause.GetName())
		if !clause.GetHeld() || clause.GetSince().AsTime().After(time.Now()) || clause.GetPromise() == "" || len(clause.GetEvidence()) == 0 {
			t.Errorf("clause %v", clause)
		}
	}
	if strings.Join(names, " ") != "scope window replay degradation boundary" {
		t.Errorf("clauses %v", names)
	}
	contract := g.GetContract()
	if contract.GetWindow().AsDuration() != 24*time.Hour || contract.GetRetryHorizon().AsDuration() != shortWindow ||
		contract.GetWindowByKind()["brief"].AsDuration() != shortWindow || contract.GetReplication() != 3 {
		t.Errorf("contract %v", contract)
	}
}

// TestBrokenPreconditionsShow covers that breaking each precondition that can be
// broken from outside flips the API and the metric, and that mending it flips
// them back.
func TestBrokenPreconditionsShow(t *testing.T) {
	c := newCluster(t, 3, func(cfg *node.Config) {
		newActing().conf(cfg)
		cfg.AuditInterval = 100 * time.Millisecond
		if cfg.ID == "n1" {
			cfg.Window = 24 * time.Hour
		}
	})
	c.awaitPrecondition("n1", "replicas_complete", true)

	// The contract goes away from what n1 was given.
	admin := c.admin()
	set := func(req *nodev1.SetContractRequest) error {
		return second(patiently(t, func(ctx context.Context) (*nodev1.SetContractResponse, error) { return admin.SetContract(ctx, req) }))
	}
	if err := set(&nodev1.SetContractRequest{Window: new(int64(time.Hour)), WindowByKind: map[string]int64{"account": int64(2 * time.Hour)}}); err != nil {
		t.Fatal(err)
	}
	c.awaitPrecondition("n2", "window_agreed", false)
	eventually(t, func(ctx context.Context) (*writv1.Guarantee, error) { // n2 may hear of it later than n1
		g, err := c.guarantee(ctx, "n2")
		if got := g.GetContract(); err == nil && (got.GetWindow().AsDuration() != time.Hour || got.GetWindowByKind()["account"].AsDuration() != 2*time.Hour) {
			err = fmt.Errorf("contract %v", got)
		}
		return g, err
	})
	for name, bad := range map[string]*nodev1.SetContractRequest{
		"window below the horizon":   {Window: new(int64(time.Second))},
		"horizon above a kind's own": {RetryHorizon: new(int64(time.Minute))},
		"unknown kind":               {WindowByKind: map[string]int64{"nothing": int64(time.Hour)}},
		"negative horizon":           {RetryHorizon: new(int64(-5))},
		"negative window of a kind":  {WindowByKind: map[string]int64{"account": -int64(time.Hour)}},
		"window without an end":      {Window: new(int64(math.MaxInt64))},
		"kind below the horizon":     {WindowByKind: map[string]int64{"account": int64(time.Second)}},
	} {
		if err := set(bad); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want INVALID", name, err)
		}
	}
	if err := set(&nodev1.SetContractRequest{Window: new(int64(24 * time.Hour)), WindowByKind: map[string]int64{"account": 0}}); err != nil {
		t.Fatal(err)
	}
	c.awaitPrecondition("n2", "window_agreed", true)

	c.settle()
	c.phantom()
	g := c.awaitPrecondition("n2", "lanes_agree", false)
	if !strings.Contains(g.String(), "phantom: lane") {
		t.Errorf("no reason: %v", g)
	}

	stop := func(name string) {
		if err := c.nodes[name].Stop(t.Context()); err != nil {
			t.Error(err)
		}
		delete(c.nodes, name)
	}
	stop("n3")
	c.awaitPrecondition("n1", "replicas_complete", false)
	eventually(t, func(ctx context.Context) (bool, error) { // new leaders know what n3 knew of its shards
		g, err := c.guarantee(ctx, "n1")
		for _, clause := range g.GetClauses() {
			degraded := clause.GetName() == "degradation"
			if haunted := clause.GetName() == "boundary"; !haunted && clause.GetHeld() == degraded ||
				degraded && !slices.Contains(clause.GetEvidence(), "n3: no answer") {
				err = errors.Join(err, fmt.Errorf("without n3: %v", clause))
			}
		}
		return true, err
	})
	stop("n2")
	c.awaitPrecondition("n1", "leaders_known", false)
	g = c.awaitPrecondition("n1", "meta_group", false)
	if strings.Join(g.GetSilent(), " ") != "n2 n3" {
		t.Errorf("silent nodes %v", g.GetSilent())
	}
}

// phantom commits an applied mark that no source has a row for, as a fault in
// storage or code would, and waits until it is counted and listed.
func (c *testCluster) phantom() {
	c.t.Helper()
	source, destination := entity.Ref{Tenant: "default", Kind: "actor", ID: "ghost"}, entity.Ref{Tenant: "default", Kind: "actor", ID: "haunted"}
	state, err := anypb.New(&testingv1.Sum{})
	if err != nil {
		c.t.Fatal(err)
	}
	rec := &recordv1.Record{Body: &recordv1.Record_Commit{Commit: &recordv1.Commit{
		Entity:    &recordv1.Ref{Tenant: destination.Tenant, Kind: destination.Kind, Id: destination.ID},
		Mutations: []*recordv1.Mutation{{Bucket: recordv1.Bucket_STATE, Value: &recordv1.Payload{Type: "writ.testing.v1.Sum", Schema: 1, Data: state.GetValue()}}},
		Applied:   []*recordv1.AppliedMark{{Source: &recordv1.Ref{Tenant: source.Tenant, Kind: source.Kind, Id: source.ID}, Epoch: 1, LaneSequence: 1}},
	}}}
	shard := c.propose(destination, rec)
	eventually(c.t, func(ctx context.Context) (string, error) {
		_, leader := c.leader(destination.Kind, destination.ID)
		c.nodes[leader].Recount(ctx)
		text := c.metrics(ctx, leader)
		for _, want := range []string{"writ_idempotency_phantom_effect_total 1\n", `writ_audit_findings{finding="phantom"} 1`, `writ_audit_findings_total{finding="phantom"} 1`} {
			if !strings.Contains(text, want) {
				return "", fmt.Errorf("no %s in the metrics of %s", want, leader)
			}
		}
		return text, nil
	})
	res, err := patiently(c.t, func(ctx context.Context) (*nodev1.AuditFindingsResponse, error) {
		return c.admin().AuditFindings(ctx, &nodev1.AuditFindingsRequest{Shard: shard})
	})
	if err != nil || len(res.GetFindings()) != 1 || !strings.Contains(res.GetFindings()[0], "applied up to 1, but only 0 rows were numbered") {
		c.t.Errorf("findings %v, %v", res, err)
	}
}

// propose puts a record into the log of an entity's shard, whoever leads it.
func (c *testCluster) propose(ref entity.Ref, rec *recordv1.Record) (shard uint32) {
	c.t.Helper()
	return eventually(c.t, func(ctx context.Context) (uint32, error) {
		shard, leader := c.leader(ref.Kind, ref.ID)
		err := c.nodes[leader].Propose(ctx, shard, rec)
		if entity.ReasonOf(err) == entity.OutcomeUnknown {
			return shard, nil // once more might be twice; what comes of it is awaited
		}
		return shard, err
	})
}

// TestLostEventIsFound covers the other half: rows confirmed at the source that the
// destination has never applied.
func TestLostEventIsFound(t *testing.T) {
	c := newCluster(t, 1, func(cfg *node.Config) { newActing().conf(cfg); cfg.AuditInterval = 100 * time.Millisecond })
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	req := command(t, "actor", "a", "k", &testingv1.Act{What: "emit", ToKind: "actor", ToId: "b", Text: "no"}) // refused by b
	if got := send(t, cl, req); got.code != codes.OK {
		t.Fatal(got)
	}
	ref := func(id string) *recordv1.Ref { return &recordv1.Ref{Tenant: "default", Kind: "actor", Id: id} }
	explained, err := patiently(t, func(ctx context.Context) (*nodev1.InspectResponse, error) {
		return c.admin().Inspect(ctx, &nodev1.InspectRequest{Entity: ref("a"), Key: []byte("k")})
	})
	if err != nil || explained.GetKey().GetOutcome().GetDecision() != recordv1.Outcome_EXECUTED || len(explained.GetOutgoing()) != 1 || len(explained.GetOutgoing()[0].GetRows()) != 1 {
		t.Errorf("inspection %v, %v", explained, err)
	}
	rec := &recordv1.Record{Body: &recordv1.Record_Lane{Lane: &recordv1.LaneUpdate{Source: ref("a"), Destination: ref("b"), Change: &recordv1.LaneUpdate_Confirm{Confirm: 1}}}}
	c.propose(entity.Ref{Tenant: "default", Kind: "actor", ID: "a"}, rec)
	g := c.awaitPrecondition("n1", "lanes_agree", false)
	if !strings.Contains(g.String(), "lost: lane") {
		t.Errorf("no reason: %v", g)
	}
}

// TestDriftIsRefused covers that a node whose settings are not the cluster's
// contract does not stay up, and that one without settings follows the contract.
func TestDriftIsRefused(t *testing.T) {
	window := time.Duration(0)
	c := newCluster(t, 1, func(cfg *node.Config) { cfg.Window = window })
	for _, w := range []time.Duration{0, 24 * time.Hour} { // followed, and given as it is
		c.stop()
		window = w
		c.start()
	}
	c.stop()
	window = 12 * time.Hour
	n, err := node.Start(t.Context(), c.config("n1"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Stop(context.Background()) }()
	select {
	case err := <-n.Failed():
		if !strings.Contains(err.Error(), "--window 12h0m0s") || !strings.Contains(err.Error(), "24h0m0s") {
			t.Errorf("error %q names not both windows", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("a node with another window than the contract's goes on")
	}
}
