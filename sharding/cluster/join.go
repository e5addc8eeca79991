package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

// joinAny looks for a cluster to join: any that a living member belongs to. If
// this node is a listed one, it goes on waiting for the request of the first.
func (f *Formation) joinAny(ctx context.Context, r identityRecord) (bool, error) {
	clusters := map[string]bool{}
	for _, m := range f.config.Directory.Members() {
		if m.Alive && m.ClusterID != "" && m.Name != r.Name {
			clusters[m.ClusterID] = true
		}
	}
	switch {
	case len(clusters) > 1:
		f.notice.say(fmt.Sprintf("joining: there are %d clusters under this cluster's name, and this node cannot choose", len(clusters)))
		return false, nil
	case len(clusters) == 1:
		for id := range clusters {
			return f.join(ctx, r, id)
		}
	case f.listed(r.Name):
		f.notice.say(fmt.Sprintf("forming a cluster: waiting for node %s, the first of %s%s", f.list[0], strings.Join(f.list, ","), f.unseen()))
	default:
		f.notice.say("joining: waiting to meet a node that belongs to a cluster")
	}
	return false, nil
}

// unseen lists the initial nodes that are missing in gossip.
func (f *Formation) unseen() string {
	var missing []string
	members := f.config.Directory.Members()
	for _, name := range f.list {
		if !slices.ContainsFunc(members, func(m Member) bool { return m.Name == name && m.Alive }) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return "; not seen in gossip: " + strings.Join(missing, ", ")
}

// join registers this node, whose disk is empty, with a cluster that is there: as
// a new incarnation, if its name is known.
func (f *Formation) join(ctx context.Context, r identityRecord, clusterID string) (bool, error) {
	req := &nodev1.RegisterRequest{Node: r.Name, Incarnation: r.Incarnation, Zone: f.config.Zone, FormatMax: f.config.FormatMax}
	var members []string
	for _, m := range f.config.Directory.Members() {
		if m.Alive && m.Name != r.Name && (m.ClusterID == clusterID || f.listed(m.Name)) {
			members = append(members, m.Name)
		}
	}
	resp, err := registerWithAny(ctx, f.config.Peers, members, req)
	var refusal *entity.Error
	switch {
	case errors.As(err, &refusal) && refusal.Reason == entity.Denied:
		return false, fmt.Errorf("join cluster %s: %s", clusterID, refusal.Message)
	case err != nil:
		f.notice.say(fmt.Sprintf("joining cluster %s: %s", clusterID, cause(err)))
		return false, nil
	case resp.GetClusterId() == "":
		return false, fmt.Errorf("join cluster %s: registered, but no cluster id came back", clusterID)
	}
	if err := f.config.Identity.join(resp.GetClusterId()); err != nil {
		return false, err
	}
	f.config.Logger.Info("joined a cluster", slog.String("cluster", resp.GetClusterId()))
	return true, nil
}

// rejoin has the cluster take in the incarnation that follows one whose memory is
// lost, as it takes in a node with an empty disk. Only members of the very cluster
// are asked, whatever the list of initial nodes says, and nothing is ever formed:
// if most of the others have lost their memory as well, or there are none, the node
// waits for a person.
func (f *Formation) rejoin(ctx context.Context, r identityRecord) (bool, error) {
	req := &nodev1.RegisterRequest{
		Node: r.Name, Incarnation: r.Incarnation, Zone: f.config.Zone, FormatMax: f.config.FormatMax, Replaces: r.Loss.Former,
	}
	var members []string
	for _, m := range f.config.Directory.Members() {
		if m.Alive && m.Name != r.Name && m.ClusterID == r.ClusterID {
			members = append(members, m.Name)
		}
	}
	resp, err := registerWithAny(ctx, f.config.Peers, members, req)
	if err == nil && resp.GetClusterId() != r.ClusterID {
		err = fmt.Errorf("cluster %s has answered", resp.GetClusterId())
	}
	if err != nil {
		folder := filepath.Join(f.config.Identity.dir, r.Loss.Folder)
		never := ""
		if r.Loss.Promised {
			never = fmt.Sprintf("; if that cluster was never formed (none of its nodes has ever served), clear the folder %s and start the node again", f.config.Identity.dir)
		}
		f.notice.say(fmt.Sprintf("%s; the data was set aside in %s, and the node waits for cluster %s to take it in anew: %s; start the other nodes (most of them must have their data)%s; if that cannot be, docs/operations.md tells more under Damage to a file",
			r.Loss.Reason, folder, r.ClusterID, cause(err), never))
		return false, nil
	}
	if err := f.config.Identity.rejoined(); err != nil {
		return false, err
	}
	f.config.Logger.Info("taken in anew after a loss of memory", slog.String("cluster", r.ClusterID), slog.String("former", r.Loss.Former))
	return true, nil
}

// registerWithAny asks nodes in turn, following each one's word on who leads the
// meta group, until one has registered the caller.
func registerWithAny(ctx context.Context, peers Founders, nodes []string, req *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error) {
	err := error(entity.Errorf(entity.NotExecuted, "no member can be reached"))
	asked := map[string]bool{}
	for queue := slices.Clone(nodes); len(queue) > 0; queue = queue[1:] {
		node := queue[0]
		if asked[node] {
			continue
		}
		asked[node] = true
		callCtx, cancel := context.WithTimeout(ctx, callTimeout)
		resp, callErr := peers.Register(callCtx, node, req)
		cancel()
		switch {
		case callErr == nil && resp.GetRegistered():
			return resp, nil
		case callErr == nil && resp.GetLeader() != "":
			queue = slices.Insert(queue, 1, resp.GetLeader())
			err = entity.Errorf(entity.NotExecuted, "node %s, the leader of the meta group, does not answer", resp.GetLeader())
		case callErr == nil:
			err = entity.Errorf(entity.NotExecuted, "the cluster's meta group has no leader")
		case entity.ReasonOf(callErr) == entity.Denied:
			return nil, callErr
		default:
			err = callErr
		}
	}
	return nil, err
}

// cause is the text of an error without its reason.
func cause(err error) string {
	if e, ok := errors.AsType[*entity.Error](err); ok {
		return e.Message
	}
	return err.Error()
}
