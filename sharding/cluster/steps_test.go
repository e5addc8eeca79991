package cluster

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

func server(node string, generation uint64) Server { return Server{node, "i" + node, generation} }

func TestNextGroupStep(t *testing.T) {
	a, b, c, d := server("a", 1), server("b", 2), server("c", 3), server("d", 4)
	a2, c2 := server("a", 9), server("c", 9)
	all := func(list ...Server) []Server { return list }
	for name, x := range map[string]struct {
		voters, learners, placed []Server
		preferred                string
		sick                     map[Server]health // all others have caught up
		shaky                    string
		want                     groupStep
	}{
		"nothing to do":                         {voters: all(a, b, c), placed: all(c, a, b), preferred: "a"},
		"add the missing":                       {voters: all(a, b), placed: all(a, b, c), preferred: "a", want: groupStep{groupAdd, c}},
		"not before it is open":                 {voters: all(a, b), placed: all(a, b, c), preferred: "a", sick: map[Server]health{c: unseen}},
		"promote who has caught up":             {voters: all(a, b), learners: all(c), placed: all(a, b, c), preferred: "a", want: groupStep{groupPromote, c}},
		"not before":                            {voters: all(a, b), learners: all(c), placed: all(a, b, c), preferred: "b", sick: map[Server]health{c: serving}},
		"out with a learner nobody wants":       {voters: all(a, b, c), learners: all(d), placed: all(a, b, c), preferred: "a", want: groupStep{groupRemove, d}},
		"promote before removing":               {voters: all(a, b, c), learners: all(d), placed: all(a, b, d), preferred: "a", want: groupStep{groupPromote, d}},
		"a dead vote goes first":                {voters: all(a, b, c), learners: all(d), placed: all(a, b, d), preferred: "a", sick: map[Server]health{c: unseen}, want: groupStep{groupRemove, c}},
		"but not before there is a substitute":  {voters: all(a, b, c), learners: all(d), placed: all(a, b, d), preferred: "a", sick: map[Server]health{c: unseen, d: serving}},
		"then remove":                           {voters: all(a, b, c, d), placed: all(a, b, d), preferred: "a", want: groupStep{groupRemove, c}},
		"never the majority":                    {voters: all(a, b, c, d), placed: all(a, b, d), preferred: "a", sick: map[Server]health{b: open, d: unseen}},
		"drop one without a substitute":         {voters: all(a, b, c), placed: all(a, b), preferred: "a", want: groupStep{groupRemove, c}},
		"one node, new generation":              {voters: all(a, b, c), placed: all(a, b, c2), preferred: "a", sick: map[Server]health{c: unseen}, want: groupStep{groupRemove, c}},
		"one node, new generation, no majority": {voters: all(a, b, c), placed: all(a, b, c2), preferred: "a", sick: map[Server]health{b: unseen, c: unseen}},
		"one node, old one is out":              {voters: all(a, b), placed: all(a, b, c2), preferred: "a", want: groupStep{groupAdd, c2}},
		"the leader's own new generation":       {voters: all(a, b, c), placed: all(a2, b, c), preferred: "c", want: groupStep{groupTransfer, c}},
		"the leader goes":                       {voters: all(a, b, c, d), placed: all(b, c, d), preferred: "c", want: groupStep{groupTransfer, c}},
		"the leader goes, to someone fit":       {voters: all(a, b, c, d), placed: all(b, c, d), preferred: "c", sick: map[Server]health{b: open, c: serving}, want: groupStep{groupTransfer, d}},
		"the leader goes last":                  {voters: all(a, b, c, d), placed: all(b, c), preferred: "c", want: groupStep{groupRemove, d}},
		"to the preferred":                      {voters: all(a, b, c), placed: all(a, b, c), preferred: "b", want: groupStep{groupTransfer, b}},
		"preferred lags":                        {voters: all(a, b, c), placed: all(a, b, c), preferred: "b", sick: map[Server]health{b: serving}},
		"preferred is shaky":                    {voters: all(a, b, c), placed: all(a, b, c), preferred: "b", shaky: "b"},
		"preferred is not in it":                {voters: all(a, b, c), placed: all(a, b, c), preferred: "x"},
	} {
		v := groupView{self: a, voters: x.voters, learners: x.learners, placed: x.placed, preferred: x.preferred}
		v.health = func(s Server) health {
			if h, ok := x.sick[s]; ok {
				return h
			}
			return caughtUp
		}
		v.steady = func(node string) bool { return node != x.shaky }
		if got := nextGroupStep(v); got != x.want {
			t.Errorf("%s: got %v, want %v", name, got, x.want)
		}
	}
}

func TestNextMemberStep(t *testing.T) {
	entry := func(node string, state nodev1.NodeEntry_State) *nodev1.NodeEntry {
		return &nodev1.NodeEntry{Name: node, Incarnation: "i" + node, State: state}
	}
	const active, removed = nodev1.NodeEntry_ACTIVE, nodev1.NodeEntry_REMOVED
	nodes := func(list ...*nodev1.NodeEntry) map[string]*nodev1.NodeEntry {
		m := map[string]*nodev1.NodeEntry{}
		for _, e := range list {
			m[e.Name] = e
		}
		return m
	}
	first := func(n int) map[string]*nodev1.NodeEntry {
		var list []*nodev1.NodeEntry
		for _, node := range "abcdef"[:n] {
			list = append(list, entry(string(node), active))
		}
		return nodes(list...)
	}
	six := first(6)
	m := func(node string) Server { return server(node, MetaGeneration) }
	old := Server{"b", "before", MetaGeneration}
	for name, x := range map[string]struct {
		voters, learners string // names
		nodes            map[string]*nodev1.NodeEntry
		away, dead, deaf string // away: from gossip, and without an answer
		lost, silent     string // only the one, only the other
		holds            string
		extra            []Server // voters of other incarnations
		want             memberStep
	}{
		"nothing":                            {voters: "ab", nodes: nodes(entry("a", active), entry("b", active))},
		"unknown is on its way":              {voters: "ab", nodes: nodes(entry("a", active))},
		"add":                                {voters: "a", nodes: nodes(entry("a", active), entry("b", active)), want: memberStep{memberAdd, m("b")}},
		"not while it is away":               {voters: "a", nodes: nodes(entry("a", active), entry("b", active)), away: "b"},
		"promote":                            {voters: "a", learners: "b", nodes: nodes(entry("a", active), entry("b", active)), want: memberStep{memberPromote, m("b")}},
		"not before it has followed":         {voters: "a", learners: "b", nodes: nodes(entry("a", active), entry("b", active)), deaf: "b"},
		"nor another for it":                 {voters: "abcde", learners: "f", nodes: six, away: "c", dead: "c", deaf: "f"},
		"two of five are dead":               {voters: "abcde", nodes: first(5), away: "de", dead: "de", want: memberStep{memberRemove, m("d")}},
		"one of four is dead":                {voters: "abcd", nodes: first(4), away: "d", dead: "d", want: memberStep{memberRemove, m("d")}},
		"one of five may come back":          {voters: "abcde", nodes: first(5), away: "e", dead: "e"},
		"one of three may come back":         {voters: "abc", nodes: first(3), away: "c", dead: "c"},
		"five votes are enough":              {voters: "abcde", learners: "f", nodes: six},
		"a dead voter makes room":            {voters: "abcde", learners: "f", nodes: six, away: "c", dead: "c", want: memberStep{memberRemove, m("c")}},
		"not for a dead learner":             {voters: "abcde", learners: "f", nodes: six, away: "cf", dead: "cf"},
		"away is not dead":                   {voters: "abcde", learners: "f", nodes: six, away: "c"},
		"replaced incarnation goes":          {voters: "ac", extra: []Server{old}, nodes: six, want: memberStep{memberRemove, old}},
		"but not with the majority":          {voters: "ac", extra: []Server{old}, nodes: nodes(entry("a", active), entry("b", active), entry("c", active)), away: "c"},
		"removed, once it is rid of its own": {voters: "abc", nodes: nodes(entry("a", active), entry("b", active), entry("c", removed)), want: memberStep{memberRemove, m("c")}},
		"removed, but still holds":           {voters: "abc", nodes: nodes(entry("a", active), entry("b", active), entry("c", removed)), holds: "c"},
		"removed and away":                   {voters: "abc", nodes: nodes(entry("a", active), entry("b", active), entry("c", removed)), holds: "c", away: "c", want: memberStep{memberRemove, m("c")}},
		"removed, and silent for a moment":   {voters: "abc", nodes: nodes(entry("a", active), entry("b", active), entry("c", removed)), silent: "c"},
		"removed, and lost to gossip only":   {voters: "abc", nodes: nodes(entry("a", active), entry("b", active), entry("c", removed)), holds: "c", lost: "c"},
		"the leader itself":                  {voters: "abc", nodes: nodes(entry("a", removed), entry("b", active), entry("c", active)), want: memberStep{memberRemove, m("a")}},
		"the leader last":                    {voters: "abc", nodes: nodes(entry("a", removed), entry("b", active), entry("c", removed)), want: memberStep{memberRemove, m("c")}},
	} {
		v := memberView{self: "a", nodes: x.nodes, voters: x.extra}
		for n := range strings.SplitSeq(x.voters, "") {
			v.voters = append(v.voters, m(n))
		}
		for n := range strings.SplitSeq(x.learners, "") {
			if n != "" {
				v.learners = append(v.learners, m(n))
			}
		}
		v.here = func(s Server) bool { return !strings.Contains(x.away+x.lost, s.Node) && s.Incarnation == "i"+s.Node }
		v.answers = func(node string) bool { return !strings.Contains(x.away+x.silent, node) }
		v.dead = func(s Server) bool { return strings.Contains(x.dead, s.Node) }
		v.follows = func(s Server) bool { return v.here(s) && !strings.Contains(x.deaf, s.Node) }
		v.holds = func(node string) bool { return strings.Contains(x.holds, node) }
		if got := nextMemberStep(v); got != x.want {
			t.Errorf("%s: got %v, want %v", name, got, x.want)
		}
	}
}

func TestRegister(t *testing.T) {
	state := func() *nodev1.MetaState {
		return &nodev1.MetaState{ClusterId: "c", Nodes: map[string]*nodev1.NodeEntry{
			"n1": {Name: "n1", Incarnation: "one", Zone: "z", State: nodev1.NodeEntry_DRAINING},
			"n2": {Name: "n2", Incarnation: "two", State: nodev1.NodeEntry_REMOVED},
		}, ActiveFormat: 2}
	}
	for name, x := range map[string]struct {
		req    *nodev1.RegisterRequest
		alive  bool
		reason entity.Reason
		text   string
		state  nodev1.NodeEntry_State
	}{
		"new":                     {req: &nodev1.RegisterRequest{Node: "n3", Incarnation: "x"}, state: nodev1.NodeEntry_ACTIVE},
		"new, promised":           {req: &nodev1.RegisterRequest{Node: "n3", Incarnation: "x", ClusterId: "c"}, state: nodev1.NodeEntry_ACTIVE},
		"again, another zone":     {req: &nodev1.RegisterRequest{Node: "n1", Incarnation: "one", Zone: "y", ClusterId: "c"}, state: nodev1.NodeEntry_DRAINING},
		"new incarnation":         {req: &nodev1.RegisterRequest{Node: "n1", Incarnation: "x"}, state: nodev1.NodeEntry_ACTIVE},
		"old one is alive":        {req: &nodev1.RegisterRequest{Node: "n1", Incarnation: "x"}, alive: true, reason: entity.NotExecuted, text: "two processes"},
		"out of date":             {req: &nodev1.RegisterRequest{Node: "n1", Incarnation: "x", ClusterId: "c"}, reason: entity.Denied, text: "out of date"},
		"removed":                 {req: &nodev1.RegisterRequest{Node: "n2", Incarnation: "two", ClusterId: "c"}, reason: entity.Denied, text: "clear its data folder"},
		"removed, then wiped":     {req: &nodev1.RegisterRequest{Node: "n2", Incarnation: "x"}, alive: true, state: nodev1.NodeEntry_ACTIVE},
		"lost its memory":         {req: &nodev1.RegisterRequest{Node: "n1", Incarnation: "x", Replaces: "one"}, state: nodev1.NodeEntry_DRAINING},
		"lost, never registered":  {req: &nodev1.RegisterRequest{Node: "n3", Incarnation: "x", Replaces: "w"}, state: nodev1.NodeEntry_ACTIVE},
		"lost, old one is alive":  {req: &nodev1.RegisterRequest{Node: "n1", Incarnation: "x", Replaces: "one"}, alive: true, reason: entity.NotExecuted, text: "two processes"},
		"lost, but out of date":   {req: &nodev1.RegisterRequest{Node: "n1", Incarnation: "x", Replaces: "zero"}, reason: entity.Denied, text: "out of date"},
		"lost, but removed":       {req: &nodev1.RegisterRequest{Node: "n2", Incarnation: "x", Replaces: "two"}, reason: entity.Denied, text: "clear its data folder"},
		"foreign":                 {req: &nodev1.RegisterRequest{Node: "n3", Incarnation: "x", ClusterId: "d"}, reason: entity.Denied, text: "cluster d"},
		"reads too little":        {req: &nodev1.RegisterRequest{Node: "n3", Incarnation: "x", FormatMax: 1}, reason: entity.Denied, text: "writes format 2: start a newer version"},
		"known, now too old":      {req: &nodev1.RegisterRequest{Node: "n1", Incarnation: "one", Zone: "z", ClusterId: "c", FormatMax: 1}, reason: entity.Denied, text: "up to 1"},
		"without an incarnation":  {req: &nodev1.RegisterRequest{Node: "n3"}, reason: entity.Invalid},
		"without any name at all": {req: &nodev1.RegisterRequest{Incarnation: "x"}, reason: entity.Invalid},
	} {
		s := state()
		x.req.FormatMax = cmp.Or(x.req.FormatMax, 2)
		err := register(s, x.req, x.alive)
		if entity.ReasonOf(err) != x.reason || (err != nil && !strings.Contains(err.Error(), x.text)) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (!registered(s, x.req) || s.GetNodes()[x.req.Node].GetState() != x.state) {
			t.Errorf("%s: got %v", name, s.GetNodes()[x.req.Node])
		}
	}
}

func TestOrdersThatMakeNoSense(t *testing.T) {
	s := &nodev1.MetaState{
		Nodes: map[string]*nodev1.NodeEntry{
			"n1": {Name: "n1", Incarnation: "1", State: nodev1.NodeEntry_ACTIVE},
			"n2": {Name: "n2", Incarnation: "2", State: nodev1.NodeEntry_REMOVED},
			"n3": {Name: "n3", Incarnation: "3", State: nodev1.NodeEntry_DRAINING},
		},
		Shards: []*nodev1.ShardPlacement{
			{Shard: 0, Formed: true, Preferred: "n1", Replicas: []*nodev1.ReplicaPlacement{{Node: "n1", Incarnation: "1", Generation: 1}}},
			{Shard: 1, Replicas: []*nodev1.ReplicaPlacement{{Node: "n3", Incarnation: "3", Generation: 2}}},
		},
	}
	wider := proto.CloneOf(s)
	wider.Nodes["n4"] = &nodev1.NodeEntry{Name: "n4", Incarnation: "4", State: nodev1.NodeEntry_ACTIVE}
	both := proto.CloneOf(wider)
	both.Shards[0].Replicas = append(both.Shards[0].Replicas, &nodev1.ReplicaPlacement{Node: "n4", Incarnation: "4", Generation: 3})
	for name, err := range map[string]error{
		"no such node":        setNodeState(s, "n9", nodev1.NodeEntry_DRAINING),
		"no such state":       setNodeState(s, "n1", 7),
		"back from removed":   setNodeState(s, "n2", nodev1.NodeEntry_ACTIVE),
		"the last active":     setNodeState(s, "n1", nodev1.NodeEntry_DRAINING),
		"no such shard":       moveShard(s, &nodev1.MoveShardRequest{Shard: 9, From: "n1", To: "n1"}),
		"to a draining node":  moveShard(s, &nodev1.MoveShardRequest{Shard: 0, From: "n1", To: "n3"}),
		"to nobody":           moveShard(s, &nodev1.MoveShardRequest{Shard: 0, From: "n1"}),
		"not formed":          moveShard(s, &nodev1.MoveShardRequest{Shard: 1, From: "n3", To: "n1"}),
		"from a node without": moveShard(wider, &nodev1.MoveShardRequest{Shard: 0, From: "n3", To: "n4"}),
		// The leader cannot give its replica up to a node that has one.
		"to another replica":  moveShard(both, &nodev1.MoveShardRequest{Shard: 0, From: "n1", To: "n4"}),
		"to lead without any": moveShard(wider, &nodev1.MoveShardRequest{Shard: 0, To: "n4"}),
		"to itself":           moveShard(s, &nodev1.MoveShardRequest{Shard: 0, From: "n1", To: "n1"}),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Without a node that gives its replica up, the order is about the leadership: the
// replicas stay where they are.
func TestMoveOfTheLeadership(t *testing.T) {
	s := &nodev1.MetaState{
		Nodes: map[string]*nodev1.NodeEntry{
			"n1": {Name: "n1", Incarnation: "1", State: nodev1.NodeEntry_ACTIVE},
			"n2": {Name: "n2", Incarnation: "2", State: nodev1.NodeEntry_ACTIVE},
		},
		Shards: []*nodev1.ShardPlacement{{Shard: 0, Formed: true, Preferred: "n1", Replicas: []*nodev1.ReplicaPlacement{
			{Node: "n1", Incarnation: "1", Generation: 1}, {Node: "n2", Incarnation: "2", Generation: 2},
		}}},
	}
	want := proto.CloneOf(s)
	want.Shards[0].Preferred = "n2"
	for range 2 { // an operator whose answer was lost asks again
		if err := moveShard(s, &nodev1.MoveShardRequest{Shard: 0, To: "n2"}); err != nil || !proto.Equal(s, want) {
			t.Errorf("got %v, %v", s, err)
		}
	}
	if err := moveShard(s, &nodev1.MoveShardRequest{Shard: 0, From: "n2", To: "n1"}); err == nil || !proto.Equal(s, want) {
		t.Errorf("a replica that n1 has already: %v, %v", s, err)
	}
}

// A node that has given its replica up to another one is a name in the registry, even
// if it was removed meanwhile; any other name is a mistake.
func TestMoveFromANodeWithoutAReplica(t *testing.T) {
	s := &nodev1.MetaState{
		Nodes: map[string]*nodev1.NodeEntry{
			"n1": {Name: "n1", Incarnation: "1", State: nodev1.NodeEntry_ACTIVE},
			"n2": {Name: "n2", Incarnation: "2", State: nodev1.NodeEntry_ACTIVE},
			"n3": {Name: "n3", Incarnation: "3", State: nodev1.NodeEntry_REMOVED},
		},
		Shards: []*nodev1.ShardPlacement{{Shard: 0, Formed: true, Preferred: "n1", Replicas: []*nodev1.ReplicaPlacement{{Node: "n1", Incarnation: "1", Generation: 1}}}},
	}
	for from, want := range map[string]string{
		"n2": "",
		"n3": "",
		"n4": `there is no node "n4"; registered: n1, n2, n3`,
	} {
		before, got := proto.CloneOf(s), ""
		if err := moveShard(s, &nodev1.MoveShardRequest{Shard: 0, From: from, To: "n1"}); err != nil {
			got = err.Error()
		}
		if (want == "") != (got == "") || !strings.Contains(got, want) || !proto.Equal(s, before) {
			t.Errorf("from %s: %q, want %q; %v", from, got, want, s)
		}
	}
}

func TestRegisterFollowsTheLeader(t *testing.T) {
	calls := map[string]func() (*nodev1.RegisterResponse, error){
		"down": func() (*nodev1.RegisterResponse, error) { return nil, errLink },
		"follower": func() (*nodev1.RegisterResponse, error) {
			return &nodev1.RegisterResponse{ClusterId: "c", Leader: "leader"}, nil
		},
		"blind": func() (*nodev1.RegisterResponse, error) { return &nodev1.RegisterResponse{ClusterId: "c"}, nil },
		"lost":  func() (*nodev1.RegisterResponse, error) { return &nodev1.RegisterResponse{Leader: "down"}, nil },
		"leader": func() (*nodev1.RegisterResponse, error) {
			return &nodev1.RegisterResponse{ClusterId: "c", Registered: true}, nil
		},
		"strict": func() (*nodev1.RegisterResponse, error) { return nil, entity.Errorf(entity.Denied, "no") },
	}
	for nodes, want := range map[string]string{
		"down follower": "", "blind lost follower": "", "blind": "no leader", "lost": "", "": "no member", "strict leader": "no",
	} {
		resp, err := registerWithAny(t.Context(), phoneBook(calls), strings.Fields(nodes), &nodev1.RegisterRequest{})
		switch {
		case strings.Contains(nodes, "follower"):
			if err != nil || !resp.GetRegistered() {
				t.Errorf("%q: %v", nodes, err)
			}
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%q: %v", nodes, err)
		}
	}
}

type phoneBook map[string]func() (*nodev1.RegisterResponse, error)

func (p phoneBook) Promise(context.Context, string, *nodev1.PromiseRequest) (*nodev1.PromiseResponse, error) {
	return nil, errLink
}

func (p phoneBook) Register(_ context.Context, node string, _ *nodev1.RegisterRequest) (*nodev1.RegisterResponse, error) {
	return p[node]()
}

// TestDropAsksTheLeaderWhoeverItIs: the leader that could confirm that a replica
// is out may itself be no longer in the placement.
func TestDropAsksTheLeaderWhoeverItIs(t *testing.T) {
	leads := func(node string, term uint64, voters ...string) []*nodev1.ShardStatus {
		return []*nodev1.ShardStatus{{Local: true, State: stateServing, Leader: node, Term: term, Voters: voters}}
	}
	place := &nodev1.ShardPlacement{Replicas: []*nodev1.ReplicaPlacement{{Node: "n1"}, {Node: "n2"}}}
	for name, x := range map[string]struct {
		reports reporter
		want    bool
	}{
		"leader in the placement":   {reporter{"n1": leads("n1", 5, "n1", "n2")}, true},
		"leader outside":            {reporter{"n1": leads("n7", 5), "n7": leads("n7", 5, "n1", "n2", "n7")}, true},
		"still a voter":             {reporter{"n1": leads("n1", 5, "n1", "n2", "me")}, false},
		"a leader of earlier times": {reporter{"n1": leads("n1", 3, "n1", "n2")}, false},
		"two that name each other":  {reporter{"n1": leads("n2", 5), "n2": leads("n1", 5)}, false},
		"nobody answers":            {reporter{}, false},
		"nothing is committed":      {reporter{"n1": leads("n1", 5)}, false},
	} {
		r := NewReconciler(ReconcilerConfig{Node: "me", Reporter: x.reports})
		p := &pass{r: r, ctx: t.Context(), asked: map[string]func() []*nodev1.ShardStatus{}}
		if got := p.excluded(place, &nodev1.ShardStatus{Term: 4}); got != x.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

type reporter map[string][]*nodev1.ShardStatus

func (r reporter) Shards(_ context.Context, node string) ([]*nodev1.ShardStatus, error) {
	if list, ok := r[node]; ok {
		return list, nil
	}
	return nil, errors.New("no answer")
}

// TestUnformedGroupIsNotBootstrappedFromAnOldState: before the meta replica is
// known to be up to date, only groups that have been formed are opened.
func TestUnformedGroupIsNotBootstrappedFromAnOldState(t *testing.T) {
	replicas := []*nodev1.ReplicaPlacement{{Node: "me", Incarnation: "i", Generation: 1}}
	for name, x := range map[string]struct{ ready, formed, opened, bootstrap bool }{
		"new cluster":           {ready: true, opened: true, bootstrap: true},
		"not up to date":        {},
		"formed":                {ready: true, formed: true, opened: true},
		"formed, after restart": {formed: true, opened: true},
	} {
		host := &fakeHost{state: &nodev1.MetaState{ClusterId: "c", Shards: []*nodev1.ShardPlacement{{Formed: x.formed, Replicas: replicas}}}, ready: x.ready}
		r := NewReconciler(ReconcilerConfig{Node: "me", Incarnation: "i", Placements: host, Replicas: host, Reporter: reporter{}})
		if _, err := r.Step(t.Context()); err != nil {
			t.Error(err)
		}
		if (len(host.opened) == 1) != x.opened || (x.opened && (len(host.opened[0].Bootstrap) == 1) != x.bootstrap) {
			t.Errorf("%s: opened %+v", name, host.opened)
		}
	}
}

// TestNothingIsDroppedByAnOldState: after a restart the placement is read again, and
// one from before this node's replica does not have it.
func TestNothingIsDroppedByAnOldState(t *testing.T) {
	for _, state := range []string{stateServing, stateQuarantined} {
		replicas := []*nodev1.ReplicaPlacement{{Node: "n1", Generation: 1}, {Node: "me", Incarnation: "before", Generation: 2}}
		host := &fakeHost{
			state:  &nodev1.MetaState{ClusterId: "c", Shards: []*nodev1.ShardPlacement{{Formed: true, Replicas: replicas}}},
			ready:  true,
			status: []*nodev1.ShardStatus{{Local: true, State: state, ReplicaGeneration: 3}},
		}
		leader := reporter{"n1": {{Local: true, State: stateServing, Leader: "n1", Term: 5, Voters: []string{"n1"}}}}
		r := NewReconciler(ReconcilerConfig{Node: "me", Incarnation: "now", Placements: host, Replicas: host, Reporter: leader})
		for given, drops := range []int{2: 0, 3: 1} { // numbers of replicas given out
			host.state.ReplicaGeneration = uint64(given)
			if _, err := r.Step(t.Context()); err != nil {
				t.Error(err)
			}
			if host.drops != drops {
				t.Errorf("%s, %d replicas placed: dropped %d times, want %d", state, given, host.drops, drops)
			}
		}
	}
}

// TestNobodyIsTakenOutByAnOldState: nor does a leader take out whom its state does not
// know yet.
func TestNobodyIsTakenOutByAnOldState(t *testing.T) {
	me, newer := Server{"me", "i", 1}, Server{"n2", "i", 5}
	host := &fakeHost{
		state: &nodev1.MetaState{ClusterId: "c", Shards: []*nodev1.ShardPlacement{
			{Formed: true, Replicas: []*nodev1.ReplicaPlacement{{Node: "me", Incarnation: "i", Generation: 1}}},
		}},
		ready:  true,
		status: []*nodev1.ShardStatus{{Local: true, State: stateServing, ReplicaGeneration: 1, Leader: "me"}},
	}
	for _, learns := range []bool{false, true} {
		host.group = &fakeMembership{voters: []Server{me, newer}}
		if learns {
			host.group = &fakeMembership{voters: []Server{me}, learners: []Server{newer}}
		}
		takeOut(t, host)
	}
}

func takeOut(t *testing.T, host *fakeHost) {
	t.Helper()
	r := NewReconciler(ReconcilerConfig{Node: "me", Incarnation: "i", Placements: host, Replicas: host, Reporter: reporter{}})
	for given, removed := range []int{4: 0, 5: 1} { // numbers of replicas given out
		host.state.ReplicaGeneration = uint64(given)
		if _, err := r.Step(t.Context()); err != nil {
			t.Error(err)
		}
		if len(host.group.removed) != removed {
			t.Errorf("%d replicas placed: removed %v", given, host.group.removed)
		}
	}
}

type fakeMembership struct {
	Group
	voters, learners, removed []Server
}

func (g *fakeMembership) Members() (voters, learners []Server) { return g.voters, g.learners }

func (g *fakeMembership) Remove(_ context.Context, s Server) error {
	g.removed = append(g.removed, s)
	return nil
}

type fakeHost struct {
	Replicas
	group   *fakeMembership
	state   *nodev1.MetaState
	status  []*nodev1.ShardStatus
	ready   bool
	opened  []ReplicaConfig
	refuses error // to open
	drops   int
}

// TestReplicaThatWasDroppedIsNamed: an old state may have it, the newest must not.
func TestReplicaThatWasDroppedIsNamed(t *testing.T) {
	replicas := []*nodev1.ReplicaPlacement{{Node: "me", Incarnation: "i", Generation: 3}}
	for _, ready := range []bool{false, true} {
		host := &fakeHost{
			state: &nodev1.MetaState{ClusterId: "c", ReplicaGeneration: 3, Shards: []*nodev1.ShardPlacement{{Formed: true, Replicas: replicas}}},
			ready: ready, refuses: ErrOutOfDate,
		}
		r := NewReconciler(ReconcilerConfig{Node: "me", Incarnation: "i", Placements: host, Replicas: host, Reporter: reporter{}})
		if _, err := r.Step(t.Context()); (err != nil) != ready || ready && !strings.Contains(err.Error(), "replica 3 of this node was dropped") {
			t.Errorf("up to date %v: %v", ready, err)
		}
	}
}

func (h *fakeHost) State() *nodev1.MetaState        { return h.state }
func (h *fakeHost) Ready() (bool, string)           { return h.ready, "" }
func (h *fakeHost) Statuses() []*nodev1.ShardStatus { return h.status }
func (h *fakeHost) Drop(uint32) error               { h.drops++; return nil }
func (h *fakeHost) Group(uint32) Group              { return h.group }
func (h *fakeHost) Kept(uint32, uint64) uint64      { return 0 }
func (h *fakeHost) Open(c ReplicaConfig) error      { h.opened = append(h.opened, c); return h.refuses }

func TestAgentRunsAllParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.add("n1", "", config("n1"))
		w.found("n1")
		a := NewAgent(AgentConfig{Registrar: n.registrar, Controller: n.controller, Reconciler: n.reconciler})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.Run(ctx); close(done) }()
		for range 20 {
			a.Poke()
			synctest.Wait()
			w.tick()
			<-time.After(time.Second)
		}
		cancel()
		<-done
		if s := w.problem(); s != "" || a.State() != "" {
			t.Errorf("%s; %s", s, a.State())
		}
	})
}

// TestRemovedNodeHearsOfItByAsking: its replica of the meta group is out of the
// group, and what it holds is older than the removal.
func TestRemovedNodeHearsOfItByAsking(t *testing.T) {
	id := openIdentity(t, t.TempDir(), "me")
	defer closeIdentity(t, id)
	if err := id.join("c"); err != nil {
		t.Fatal(err)
	}
	old := &nodev1.MetaState{ClusterId: "c", Nodes: map[string]*nodev1.NodeEntry{"me": {Name: "me", Incarnation: id.Incarnation()}}}
	removed := entity.Errorf(entity.Denied, "node me has been removed")
	for name, x := range map[string]struct {
		leader string
		answer error
		want   string
	}{
		"removed":              {answer: removed, want: "removed"},
		"nobody answers":       {answer: errLink},
		"the leader is heard":  {leader: "n1", answer: removed}, // it would have told
		"registered all along": {},
	} {
		peers := phoneBook{"n1": func() (*nodev1.RegisterResponse, error) {
			return &nodev1.RegisterResponse{ClusterId: "c", Registered: true}, x.answer
		}}
		meta := oldMeta{state: old, leader: x.leader}
		r := NewRegistrar(RegistrarConfig{Identity: id, Meta: meta, Members: nobody{}, Peers: peers, Directory: onlyN1{}})
		if _, err := r.Step(t.Context()); err != nil && x.want == "" {
			t.Errorf("%s: %v", name, err)
		}
		if got := r.State(); (x.want == "") != (got == "") || !strings.Contains(got, x.want) {
			t.Errorf("%s: it says %q", name, got)
		}
	}
}

// oldMeta is a meta replica that does not hear its group.
type oldMeta struct {
	Meta
	state  *nodev1.MetaState
	leader string
}

func (m oldMeta) State() *nodev1.MetaState { return m.state }
func (m oldMeta) IsLeader() bool           { return false }
func (m oldMeta) Leader() string           { return m.leader }

type nobody struct{ MetaMembers }

func (nobody) Members() (voters, learners []Server) { return nil, nil }

type onlyN1 struct{}

func (onlyN1) Members() []Member { return []Member{{Name: "n1", Alive: true}} }
