package cluster

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

// Details of a refused promise.
const (
	detailCluster  = "cluster"
	detailBound    = "bound"
	detailListHash = "list_hash"

	boundMember   = "member"   // of a cluster that is formed
	boundPromised = "promised" // to a cluster that may never be formed
)

// Promise answers a node that forms a cluster: it binds this node to one cluster
// and one list for ever, and refuses every other by name. A request without a
// cluster id only asks whether this node is bound.
func (f *Formation) Promise(_ context.Context, req *nodev1.PromiseRequest) (*nodev1.PromiseResponse, error) {
	id := f.config.Identity
	r := id.snapshot()
	if err := f.judge(r, req); err != nil {
		return nil, err
	}
	if req.GetClusterId() != "" {
		if err := id.promise(req.GetClusterId(), f.listHash); err != nil {
			// Another promise came in between, or the disk cannot be written.
			return nil, entity.Errorf(entity.NotExecuted, "%v", err)
		}
	}
	return &nodev1.PromiseResponse{Node: r.Name, Incarnation: r.Incarnation, Zone: f.config.Zone}, nil
}

// judge says why a promise is refused, nil if it is given.
func (f *Formation) judge(r identityRecord, req *nodev1.PromiseRequest) error {
	sameList := hex.EncodeToString(req.GetListHash()) == f.listHash
	switch {
	case r.rejoins():
		return f.refuse(r, "it has lost its data and waits for cluster %s to take it in anew", r.ClusterID)
	case r.ClusterID != "" && r.ClusterID != req.GetClusterId():
		return f.refuse(r, "it belongs to cluster %s", r.ClusterID)
	case req.GetClusterId() == "":
		return nil // not bound: that was the question
	case !sameList || !f.first(req.GetFrom()) || !f.listed(r.Name):
		return f.refuse(r, "it was started with another list of initial nodes")
	case r.ClusterID == "":
		if other := f.elsewhere(req.GetClusterId()); other != "" {
			return f.refuse(r, "it sees nodes of cluster %s, which is there already", other)
		}
	}
	return nil
}

func (f *Formation) refuse(r identityRecord, format string, args ...any) error {
	e := entity.Errorf(entity.Denied, format, args...).With(detailCluster, r.ClusterID).With(detailListHash, r.ListHash)
	switch {
	case r.Member, f.config.Configured():
		return e.With(detailBound, boundMember)
	case r.ClusterID != "":
		return e.With(detailBound, boundPromised)
	}
	return e
}

func (f *Formation) listed(name string) bool { return slices.Contains(f.list, name) }

// elsewhere finds a cluster, other than the given one, that a living node of
// which the list knows nothing belongs to. Listed nodes are asked, not believed:
// what they are promised to may not exist yet.
func (f *Formation) elsewhere(than string) string {
	for _, m := range f.config.Directory.Members() {
		if m.Alive && m.ClusterID != "" && m.ClusterID != than && !f.listed(m.Name) {
			return m.ClusterID
		}
	}
	return ""
}

// binding is what a refused node is bound to.
type binding struct{ state, clusterID, listHash string }

func boundTo(err error) binding {
	var e *entity.Error
	if !errors.As(err, &e) {
		return binding{}
	}
	return binding{e.Details[detailBound], e.Details[detailCluster], e.Details[detailListHash]}
}
