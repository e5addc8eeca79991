package membership

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// table is what this node has heard of the others. memberlist forgets a dead
// member after a while; the table does not, for it has to be found again. It is
// safe for concurrent use and calls nobody while it holds its lock.
type table struct {
	mu      sync.Mutex
	self    Member
	members map[string]*known
	refused map[string]stranger // by name
	life    time.Duration       // of what was heard of a stranger
}

// stranger is a node of another cluster under this one's name, when it was last
// heard of.
type stranger struct {
	clusterID string
	heard     time.Time
}

type known struct {
	Member
	since time.Time // of the last change between alive and not
}

const deadMax = 1024

func newTable(self Member, life time.Duration) *table {
	self.Alive = true
	return &table{self: self, members: map[string]*known{}, refused: map[string]stranger{}, life: life}
}

func (t *table) own() Member {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.self
}

func (t *table) setOwn(m Member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.self = m
}

// heard takes in what a member told about itself.
func (t *table) heard(m Member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.Alive = true
	delete(t.refused, m.Name)
	if old, ok := t.members[m.Name]; ok && old.Alive {
		old.Member = m
		return
	}
	t.members[m.Name] = &known{Member: m, since: time.Now()}
}

func (t *table) lost(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.refused, name)
	if m, ok := t.members[name]; ok && m.Alive {
		m.Alive, m.since = false, time.Now()
	}
	t.forget()
}

// forget drops the member that is dead for longest if there are too many.
func (t *table) forget() {
	oldest, dead := "", 0
	for name, m := range t.members {
		if m.Alive {
			continue
		}
		dead++
		if oldest == "" || m.since.Before(t.members[oldest].since) {
			oldest = name
		}
	}
	if dead > deadMax {
		delete(t.members, oldest)
	}
}

// foreign notes that a member has turned out to belong to another cluster.
func (t *table) foreign(name, clusterID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m, ok := t.members[name]; ok {
		m.ClusterID = clusterID
	}
	maps.DeleteFunc(t.refused, func(_ string, s stranger) bool { return time.Since(s.heard) > t.life })
	if len(t.refused) < deadMax {
		t.refused[name] = stranger{clusterID: clusterID, heard: time.Now()}
	}
}

// strangers lists the living members of other clusters under this one's name.
func (t *table) strangers() map[string][]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := map[string]string{}
	for name, s := range t.refused {
		if time.Since(s.heard) <= t.life {
			of[name] = s.clusterID
		}
	}
	for name, m := range t.members {
		if m.Alive {
			of[name] = m.ClusterID
		}
	}
	clusters := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if id := of[name]; differ(t.self.ClusterID, id) {
			clusters[id] = append(clusters[id], name)
		}
	}
	return clusters
}

// strange reports whether a cluster id is another one than this node's.
func (t *table) strange(clusterID string) (own string, strange bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.self.ClusterID, differ(t.self.ClusterID, clusterID)
}

func differ(a, b string) bool { return a != "" && b != "" && a != b }

// list returns the members of this cluster and those of none, by name.
func (t *table) list() []Member {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]Member, 0, len(t.members)+1)
	for _, name := range slices.Sorted(maps.Keys(t.members)) {
		if m := t.members[name].Member; name != t.self.Name && !differ(t.self.ClusterID, m.ClusterID) {
			list = append(list, m)
		}
	}
	i, _ := slices.BinarySearchFunc(list, t.self.Name, func(m Member, name string) int {
		if m.Name < name {
			return -1
		}
		return 1
	})
	return slices.Insert(list, i, t.self)
}

func (t *table) lookup(name string) (Member, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if name == t.self.Name {
		return t.self, true
	}
	m, ok := t.members[name]
	if !ok || differ(t.self.ClusterID, m.ClusterID) {
		return Member{}, false
	}
	return m.Member, true
}

// size counts the members believed alive, this node included.
func (t *table) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 1
	for _, m := range t.members {
		if m.Alive {
			n++
		}
	}
	return n
}

// present holds the gossip addresses of the members believed alive.
func (t *table) present() map[netip.AddrPort]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	set := map[netip.AddrPort]bool{}
	for _, m := range t.members {
		if addr, err := netip.ParseAddrPort(m.Gossip); err == nil && m.Alive {
			set[addr] = true
		}
	}
	return set
}

// missing lists the gossip addresses of members believed dead.
func (t *table) missing() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []string
	for _, m := range t.members {
		if !m.Alive && !differ(t.self.ClusterID, m.ClusterID) {
			list = append(list, m.Gossip)
		}
	}
	return list
}

// anyone is the gossip address of some member believed alive, "" if there is none.
func (t *table) anyone() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.members { // any will do
		if m.Alive && !differ(t.self.ClusterID, m.ClusterID) {
			return m.Gossip
		}
	}
	return ""
}
