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
	switch replaces := req.GetReplaces(); {
	case old == nil:
	case old.GetIncarnation() == incarnation && old.GetState() == nodev1.NodeEntry_REMOVED:
		return entity.Errorf(entity.Denied, "node %s has been removed: stop it and clear its data folder to let it join anew", name)
	case old.GetIncarnation() == incarnation:
		state = old.GetState()
	case req.GetClusterId() != "":
		// It was a member once, and another folder has taken its place since.
		return entity.Errorf(entity.Denied, "node %s now runs on another data folder (incarnation %s): clear this one, which is out of date", name, old.GetIncarnation())
	case replaces != "" && old.GetState() == nodev1.NodeEntry_REMOVED:
		return entity.Errorf(entity.Denied, "node %s has been removed: stop it and clear its data folder to let it join anew", name)
	case replaces != "" && old.GetIncarnation() != replaces:
		return entity.Errorf(entity.Denied, "node %s now runs on another data folder (incarnation %s): clear this one, which is out of date", name, old.GetIncarnation())
	case alive && old.GetState() != nodev1.NodeEntry_REMOVED:
		return entity.Errorf(entity.NotExecuted, "node %s is alive as incarnation %s: two processes must not have one name", name, old.GetIncarnation())
	case replaces != "":
		state = old.GetState() // a drain goes on
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
		return noSuchNode(s, name)
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

func noSuchNode(s *nodev1.MetaState, name string) error {
	return entity.Errorf(entity.Invalid, "there is no node %q; registered: %s", name, strings.Join(slices.Sorted(maps.Keys(s.GetNodes())), ", "))
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
// without from, the leadership goes to a node that has one. An order that names both
// nodes is never taken for one about the leadership: who waits for the replica to
// leave would wait for ever.
func moveShard(s *nodev1.MetaState, req *nodev1.MoveShardRequest) error {
	var place *nodev1.ShardPlacement
	for _, p := range s.GetShards() {
		if p.GetShard() == req.GetShard() {
			place = p
		}
	}
	to := s.GetNodes()[req.GetTo()]
	switch {
	case len(s.GetShards()) == 0:
		return entity.Errorf(entity.NotExecuted, "the cluster has no shards yet: wait until it is ready")
	case place == nil:
		return entity.Errorf(entity.Invalid, "there is no shard %d; shards are 0 to %d", req.GetShard(), len(s.GetShards())-1)
	case to == nil:
		return noSuchNode(s, req.GetTo())
	case to.GetState() != nodev1.NodeEntry_ACTIVE:
		return entity.Errorf(entity.Invalid, "node %q is not an active node", req.GetTo())
	case req.GetFrom() != "" && s.GetNodes()[req.GetFrom()] == nil:
		return noSuchNode(s, req.GetFrom()) // or a misspelt one would pass for one that has given its replica up
	case !place.GetFormed():
		return entity.Errorf(entity.NotExecuted, "shard %d has not had a leader yet", req.GetShard())
	}
	find := func(node string) int {
		return slices.IndexFunc(place.GetReplicas(), func(r *nodev1.ReplicaPlacement) bool { return r.GetNode() == node })
	}
	from, holds := find(req.GetFrom()), find(req.GetTo()) >= 0
	switch {
	case holds && req.GetFrom() == "":
		place.Preferred = req.GetTo()
		return nil
	case holds && from < 0:
		return nil // done before: its answer was lost
	case holds:
		return entity.Errorf(entity.Invalid, "node %s holds a replica of shard %d already: name a node that holds none, or name no node that gives its replica up to hand the leadership to %s", req.GetTo(), req.GetShard(), req.GetTo())
	case req.GetFrom() == "":
		return entity.Errorf(entity.Invalid, "node %s holds no replica of shard %d and cannot lead it: name the node that gives its replica up, one of %s", req.GetTo(), req.GetShard(), strings.Join(holders(place), ", "))
	case from < 0:
		return entity.Errorf(entity.Invalid, "node %q holds no replica of shard %d: %s do", req.GetFrom(), req.GetShard(), strings.Join(holders(place), ", "))
	}
	s.ReplicaGeneration++
	place.Replicas[from] = &nodev1.ReplicaPlacement{Node: to.GetName(), Incarnation: to.GetIncarnation(), Generation: s.GetReplicaGeneration()}
	if place.GetPreferred() == req.GetFrom() {
		place.Preferred = req.GetTo()
	}
	return nil
}

// holders are the nodes that hold a replica of a shard.
func holders(p *nodev1.ShardPlacement) []string {
	var names []string
	for _, r := range p.GetReplicas() {
		names = append(names, r.GetNode())
	}
	return names
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
