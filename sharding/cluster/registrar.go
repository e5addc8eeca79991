package cluster

import (
	"context"
	"errors"
	"log/slog"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

// RegistrarConfig is what NewRegistrar needs.
type RegistrarConfig struct {
	Identity   *Identity
	Zone       string
	FormatMax  uint32
	Meta       Meta
	Members    MetaMembers
	Controller *Controller
	Peers      Founders
	Directory  Directory
	Logger     *slog.Logger
}

// Registrar sees to it that the registry holds this node's entry as it should
// be, and that the node's identity knows when it has become a member. Step
// belongs to one goroutine.
type Registrar struct {
	config RegistrarConfig
	notice *notice
}

// NewRegistrar makes a registrar.
func NewRegistrar(c RegistrarConfig) *Registrar {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Registrar{config: c, notice: newNotice(c.Logger)}
}

// State says why the node is not registered, "" if it is.
func (r *Registrar) State() string { return r.notice.text() }

// Step registers the node if need be.
func (r *Registrar) Step(ctx context.Context) (more bool, err error) {
	id, state := r.config.Identity, r.config.Meta.State()
	voters, _ := r.config.Members.Members()
	if !id.Member() && (state.GetClusterId() != "" || len(voters) > 0) {
		if err := id.join(id.ClusterID()); err != nil {
			return false, err
		}
	}
	req := &nodev1.RegisterRequest{Node: id.Name(), Incarnation: id.Incarnation(), Zone: r.config.Zone, FormatMax: r.config.FormatMax}
	known := registered(state, req)
	if known && r.config.Meta.Leader() != "" {
		r.notice.say("")
		return false, nil
	}
	if id.Member() {
		req.ClusterId = id.ClusterID()
	}
	_, err = r.register(ctx, req)
	var refusal *entity.Error
	switch {
	case errors.As(err, &refusal) && refusal.Reason == entity.Denied:
		r.notice.say("the registry refuses this node: " + refusal.Message)
	case known:
		// No leader of the meta group is heard here. Nobody tells a removed node of
		// its removal either, once it is out: only asking tells the two apart.
		r.notice.say("")
		return false, nil
	case err != nil:
		r.notice.say("not registered yet: " + cause(err))
	}
	return err == nil, err
}

func (r *Registrar) register(ctx context.Context, req *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error) {
	if r.config.Meta.IsLeader() {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return r.config.Controller.Register(ctx, req)
	}
	var nodes []string
	if leader := r.config.Meta.Leader(); leader != "" {
		nodes = append(nodes, leader)
	}
	for _, m := range r.config.Directory.Members() {
		if m.Alive && m.Name != req.GetNode() {
			nodes = append(nodes, m.Name)
		}
	}
	return registerWithAny(ctx, r.config.Peers, nodes, req)
}
