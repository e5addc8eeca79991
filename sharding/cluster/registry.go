package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	"writ/sharding"
)

// register changes the registry as a node asks. The decision needs nothing but
// the state, the request and whether the name's present incarnation is alive.
func register(s *nodev1.MetaState, req *nodev1.RegisterRequest, alive bool) error {
	name, incarnation := req.GetNode(), req.GetIncarnation()
	if name == "" || incarnation == "" {
		return entity.Errorf(entity.Invalid, "register: name or incarnation is missing")
	}
	if id := req.GetClusterId(); id != "" && id != s.GetClusterId() {
		return entity.Errorf(entity.Denied, "node %s belongs to cluster %s and this is cluster %s", name, id, s.GetClusterId())
	}
	if active := activeFormat(s); formatMax(req.GetFormatMax()) < active {
		return entity.Errorf(entity.Denied, "node %s reads formats up to %d and the cluster writes format %d: start a newer version of the program on it", name, formatMax(req.GetFormatMax()), active)
	}
	state := nodev1.NodeEntry_ACTIVE
	old := s.GetNodes()[name]
	switch {
	case old == nil:
	case old.GetIncarnation() == incarnation && old.GetState() == nodev1.NodeEntry_REMOVED:
		return entity.Errorf(entity.Denied, "node %s has been removed: stop it and clear its data folder to let it join anew", name)
	case old.GetIncarnation() == incarnation:
		state = old.GetState()
	case req.GetClusterId() != "":
		// It was a member once, and another folder has taken its place since.
		return entity.Errorf(entity.Denied, "node %s now runs on another data folder (incarnation %s): clear this one, which is out of date", name, old.GetIncarnation())
	case alive && old.GetState() != nodev1.NodeEntry_REMOVED:
		return entity.Errorf(entity.NotExecuted, "node %s is alive as incarnation %s: two processes must not have one name", name, old.GetIncarnation())
	}
	if s.Nodes == nil {
		s.Nodes = map[string]*nodev1.NodeEntry{}
	}
	s.Nodes[name] = &nodev1.NodeEntry{Name: name, Incarnation: incarnation, Zone: req.GetZone(), State: state, FormatMax: req.GetFormatMax()}
	return nil
}

// registered reports whether a node's entry says what the node would say.
func registered(s *nodev1.MetaState, req *nodev1.RegisterRequest) bool {
	e := s.GetNodes()[req.GetNode()]
	return e != nil && e.GetIncarnation() == req.GetIncarnation() && e.GetState() != nodev1.NodeEntry_REMOVED &&
		e.GetZone() == req.GetZone() && e.GetFormatMax() == req.GetFormatMax()
}

// setNodeState is an operator's order.
func setNodeState(s *nodev1.MetaState, name string, state nodev1.NodeEntry_State) error {
	e := s.GetNodes()[name]
	switch {
	case e == nil:
		return entity.Errorf(entity.Invalid, "there is no node %q; registered: %s", name, strings.Join(slices.Sorted(maps.Keys(s.GetNodes())), ", "))
	case state != nodev1.NodeEntry_ACTIVE && state != nodev1.NodeEntry_DRAINING && state != nodev1.NodeEntry_REMOVED:
		return entity.Errorf(entity.Invalid, "there is no node state %d", state)
	case e.GetState() == nodev1.NodeEntry_REMOVED && state != nodev1.NodeEntry_REMOVED:
		return entity.Errorf(entity.Invalid, "node %s has been removed: stop it and clear its data folder to let it join anew", name)
	case state != nodev1.NodeEntry_ACTIVE && !anyActiveBut(s, name):
		return entity.Errorf(entity.Invalid, "node %s is the last active one", name)
	}
	e.State = state
	return nil
}

func anyActiveBut(s *nodev1.MetaState, name string) bool {
	for other, e := range s.GetNodes() {
		if other != name && e.GetState() == nodev1.NodeEntry_ACTIVE {
			return true
		}
	}
	return false
}

// moveShard is an operator's order: a replica moves from one node to another, or,
// without from or to a node that has one, the leadership does.
func moveShard(s *nodev1.MetaState, req *nodev1.MoveShardRequest) error {
	var place *nodev1.ShardPlacement
	for _, p := range s.GetShards() {
		if p.GetShard() == req.GetShard() {
			place = p
		}
	}
	to := s.GetNodes()[req.GetTo()]
	switch {
	case place == nil:
		return entity.Errorf(entity.Invalid, "there is no shard %d", req.GetShard())
	case to == nil || to.GetState() != nodev1.NodeEntry_ACTIVE:
		return entity.Errorf(entity.Invalid, "node %q is not an active node", req.GetTo())
	case !place.GetFormed():
		return entity.Errorf(entity.NotExecuted, "shard %d has not had a leader yet", req.GetShard())
	}
	find := func(node string) int {
		return slices.IndexFunc(place.GetReplicas(), func(r *nodev1.ReplicaPlacement) bool { return r.GetNode() == node })
	}
	from := find(req.GetFrom())
	switch {
	case find(req.GetTo()) >= 0 && (req.GetFrom() == "" || req.GetFrom() == place.GetPreferred()):
		place.Preferred = req.GetTo()
		return nil
	case find(req.GetTo()) >= 0 && from < 0:
		return nil // done before: its answer was lost
	case find(req.GetTo()) >= 0:
		return entity.Errorf(entity.Invalid, "node %s holds a replica of shard %d already", req.GetTo(), req.GetShard())
	case from < 0:
		return entity.Errorf(entity.Invalid, "node %q holds no replica of shard %d", req.GetFrom(), req.GetShard())
	}
	s.ReplicaGeneration++
	place.Replicas[from] = &nodev1.ReplicaPlacement{Node: to.GetName(), Incarnation: to.GetIncarnation(), Generation: s.GetReplicaGeneration()}
	if place.GetPreferred() == req.GetFrom() {
		place.Preferred = req.GetTo()
	}
	return nil
}

// placementOf reads a shard's line.
func placementOf(p *nodev1.ShardPlacement) sharding.Placement {
	place := sharding.Placement{Shard: p.GetShard(), Preferred: p.GetPreferred()}
	for _, r := range p.GetReplicas() {
		place.Replicas = append(place.Replicas, sharding.Replica{Node: r.GetNode(), Incarnation: r.GetIncarnation(), Generation: r.GetGeneration()})
	}
	return place
}

func replicasOf(place sharding.Placement) []*nodev1.ReplicaPlacement {
	var list []*nodev1.ReplicaPlacement
	for _, r := range place.Replicas {
		list = append(list, &nodev1.ReplicaPlacement{Node: r.Node, Incarnation: r.Incarnation, Generation: r.Generation})
	}
	return list
}

// apply writes a step of the plan into the state.
func apply(s *nodev1.MetaState, place sharding.Placement) error {
	for _, p := range s.GetShards() {
		if p.GetShard() == place.Shard {
			p.Replicas, p.Preferred = replicasOf(place), place.Preferred
			return nil
		}
	}
	return fmt.Errorf("there is no shard %d", place.Shard)
}

var errNothing = errors.New("nothing to do")
