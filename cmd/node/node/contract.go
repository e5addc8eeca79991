package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/client"
	"writ/actors/entity"
	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
)

// The contract is what the cluster has agreed to promise. It stands in the meta
// group; a node's own settings are used for a cluster that begins, and compared
// with the contract ever after.

// defaultContract is a new cluster's: this node's settings, or the defaults.
func (c Config) defaultContract() *nodev1.Contract {
	window, horizon := c.Window, c.RetryHorizon
	if window == 0 {
		window = defaultWindow
	}
	if horizon == 0 {
		horizon = client.DefaultCallTimeout
	}
	return &nodev1.Contract{Window: int64(window), RetryHorizon: int64(horizon)}
}

// retryHorizon is for how long clients may retry one key. Clusters that began
// before there was such a number have the default.
func retryHorizon(c *nodev1.Contract) time.Duration {
	if d := time.Duration(c.GetRetryHorizon()); d > 0 {
		return d
	}
	return min(client.DefaultCallTimeout, time.Duration(c.GetWindow()))
}

// windowOf is how long keys of a kind are remembered: the contract's word for the
// kind, else the kind's own, else the contract's for all.
func windowOf(c *nodev1.Contract, def *entity.Definition) time.Duration {
	if d := c.GetWindowByKind()[def.Name()]; d > 0 {
		return time.Duration(d)
	}
	if d := def.Window(); d > 0 {
		return d
	}
	return time.Duration(c.GetWindow())
}

// windows are the windows of all kinds.
func windows(c *nodev1.Contract, registry *entity.Registry) map[string]time.Duration {
	all := map[string]time.Duration{}
	for _, kind := range registry.Kinds() {
		all[kind] = windowOf(c, registry.Kind(kind))
	}
	return all
}

// checkContract names every promise of a contract that contradicts another one.
func checkContract(c *nodev1.Contract, registry *entity.Registry) error {
	var errs []error
	horizon := retryHorizon(c)
	if window := time.Duration(c.GetWindow()); window < windowMin {
		errs = append(errs, fmt.Errorf("window is %v: the least is %v", window, windowMin))
	} else if window < horizon {
		errs = append(errs, fmt.Errorf("window is %v, but clients may retry a key for %v: a late retry would be executed again; raise --window or lower --retry-horizon", window, horizon))
	}
	for _, kind := range slices.Sorted(maps.Keys(c.GetWindowByKind())) {
		if _, err := registry.Find(kind); err != nil {
			errs = append(errs, fmt.Errorf("the contract has a window for a kind that this node lacks: %s", messageOf(err)))
		}
	}
	all := windows(c, registry)
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		if d := all[kind]; d != time.Duration(c.GetWindow()) && (d < windowMin || d < horizon) {
			errs = append(errs, fmt.Errorf("window of kind %s is %v, but clients may retry a key for %v, and the least is %v", kind, d, horizon, windowMin))
		}
	}
	return errors.Join(errs...)
}

// checkAmended checks a contract that is made or changed now. What is checked here
// alone could stand in the contract of a running cluster, which must not stop its
// nodes.
func checkAmended(c *nodev1.Contract, registry *entity.Registry) error {
	errs := []error{checkContract(c, registry)}
	if d := time.Duration(c.GetRetryHorizon()); d < 0 {
		errs = append(errs, fmt.Errorf("retry horizon is %v: it must not be negative", d))
	}
	for _, kind := range slices.Sorted(maps.Keys(c.GetWindowByKind())) {
		if d := time.Duration(c.GetWindowByKind()[kind]); d <= 0 {
			errs = append(errs, fmt.Errorf("window of kind %s is %v: give at least %v, or 0 to remove the contract's window for that kind", kind, d, windowMin))
		}
	}
	if d := time.Duration(c.GetWindow()); d > windowMax {
		errs = append(errs, fmt.Errorf("window is %v: the most is %v", d, windowMax))
	}
	all := windows(c, registry)
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		if d := all[kind]; d != time.Duration(c.GetWindow()) && d > windowMax {
			errs = append(errs, fmt.Errorf("window of kind %s is %v: the most is %v", kind, d, windowMax))
		}
	}
	return errors.Join(errs...)
}

// drift says how this node's settings differ from the contract; nil if they agree.
// A setting that was not given follows the contract.
func (c Config) drift(contract *nodev1.Contract) error {
	var errs []error
	if c.Window != 0 && c.Window != time.Duration(contract.GetWindow()) {
		errs = append(errs, fmt.Errorf("this node was given --window %v, the cluster's contract says %v: leave it out to follow the contract, or change that with \"node contract set\"",
			c.Window, time.Duration(contract.GetWindow())))
	}
	if c.RetryHorizon != 0 && c.RetryHorizon != retryHorizon(contract) {
		errs = append(errs, fmt.Errorf("this node was given --retry-horizon %v, the cluster's contract says %v: leave it out to follow the contract, or change that with \"node contract set\"",
			c.RetryHorizon, retryHorizon(contract)))
	}
	return errors.Join(errs...)
}

// checkNewCluster refuses settings that a cluster could not begin with. A node
// that has a cluster, or joins one, is compared with that cluster's contract.
func (n *Node) checkNewCluster() error {
	if n.identity.ClusterID() != "" || len(n.cfg.InitialNodes) == 0 {
		return nil
	}
	return checkAmended(n.cfg.defaultContract(), n.registry)
}

// checkStart compares this node with the contract, once, when the meta group's
// state is known to be new enough. Later differences are shown, not fatal: they
// come from a change of the contract, and ending all nodes at once would be worse.
func (n *Node) checkStart(p *parts) {
	ready, _ := p.meta.Ready() // first: it says nothing of a state read before
	if ready {
		p.current.Store(true)
	}
	contract := p.meta.State().GetContract()
	if !ready || contract == nil || n.agreed.Load() {
		return
	}
	if err := errors.Join(n.cfg.drift(contract), checkContract(contract, n.registry)); err != nil {
		n.check(fmt.Errorf("contract: %w", err))
		return
	}
	n.agreed.Store(true)
}

// SetContract implements AdminService. The contract is changed on the leader of
// the meta group.
func (a *admin) SetContract(ctx context.Context, req *nodev1.SetContractRequest) (*nodev1.SetContractResponse, error) {
	p := a.node.parts()
	if p == nil {
		return nil, gateway.ToStatus(errNotFormed())
	}
	if !p.meta.IsLeader() {
		return forwardToNode(ctx, a, p.meta.Leader(), req, nodev1.AdminServiceClient.SetContract)
	}
	var changed *nodev1.Contract
	err := p.meta.Update(ctx, func(s *nodev1.MetaState) error {
		if s.GetContract() == nil {
			return entity.Errorf(entity.NotExecuted, "the cluster has no contract yet: try again")
		}
		changed = proto.CloneOf(s.GetContract())
		amend(changed, req)
		if err := checkAmended(changed, a.node.registry); err != nil {
			return entity.Errorf(entity.Invalid, "%v", err)
		}
		s.Contract = changed
		return nil
	})
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	return &nodev1.SetContractResponse{Contract: changed}, nil
}

// amend changes what the request names.
func amend(c *nodev1.Contract, req *nodev1.SetContractRequest) {
	if req.Window != nil {
		c.Window = req.GetWindow()
	}
	if req.RetryHorizon != nil {
		c.RetryHorizon = req.GetRetryHorizon()
	}
	for kind, window := range req.GetWindowByKind() {
		if window == 0 {
			delete(c.GetWindowByKind(), kind)
			continue
		}
		if c.WindowByKind == nil {
			c.WindowByKind = map[string]int64{}
		}
		c.WindowByKind[kind] = window
	}
}
