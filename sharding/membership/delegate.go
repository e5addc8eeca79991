package membership

import (
	"fmt"
	"log/slog"

	"github.com/hashicorp/memberlist"
)

// Kinds of messages between nodes: the first byte.
const (
	messageHint   = 1
	messageAsk    = 2 // who has this name?
	messageAnswer = 3 // I have
)

// delegate is what memberlist calls, often under its own lock. Everything here
// copies into a table, a queue or a one-slot channel and returns; nothing calls
// memberlist.
type delegate struct{ g *Gossip }

// NodeMeta tells the others about this node.
func (d delegate) NodeMeta(int) []byte { return *d.g.entry.Load() }

// NotifyMsg takes a message of this package in.
func (d delegate) NotifyMsg(b []byte) {
	if len(b) == 0 {
		return
	}
	switch b[0] {
	case messageHint:
		d.takeHints(b[1:], true)
	case messageAsk, messageAnswer:
		m, err := decodeInstance(b)
		if err != nil {
			d.g.logger.Debug("gossip: instance message dropped", slog.Any("error", err))
			return
		}
		select { // one that is lost is asked again
		case d.g.instances <- m:
		default:
		}
	default:
		d.g.logger.Debug("gossip: message of unknown kind dropped", slog.Int("kind", int(b[0])))
	}
}

// GetBroadcasts hands out leader hints.
func (d delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.g.queue.GetBroadcasts(overhead, limit)
}

// LocalState carries all hints to a node that syncs, so that latecomers know
// them at once.
func (d delegate) LocalState(bool) []byte {
	return encodeHints(d.g.table.own().ClusterID, d.g.hints.all()...)
}

// MergeRemoteState takes the other's hints.
func (d delegate) MergeRemoteState(b []byte, _ bool) { d.takeHints(b, false) }

func (d delegate) takeHints(b []byte, spread bool) {
	clusterID, list, err := decodeHints(b)
	if err != nil {
		d.g.logger.Debug("gossip: leader hints dropped", slog.Any("error", err))
		return
	}
	own := d.g.table.own().ClusterID
	if own == "" || own != clusterID {
		return
	}
	news := false
	for _, h := range list {
		if !d.g.hints.merge(h) {
			continue
		}
		news = true
		if spread {
			d.g.spread(h)
		}
	}
	if news {
		d.g.signal()
	}
}

// NotifyJoin implements memberlist.EventDelegate.
func (d delegate) NotifyJoin(n *memberlist.Node) { d.heard(n) }

// NotifyUpdate implements memberlist.EventDelegate.
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.heard(n) }

// NotifyLeave implements memberlist.EventDelegate.
func (d delegate) NotifyLeave(n *memberlist.Node) {
	d.g.table.lost(n.Name)
	d.g.signal()
}

func (d delegate) heard(n *memberlist.Node) {
	m, _, err := decodeEntry(n)
	if err != nil || m.Name == d.g.name {
		return
	}
	d.g.table.heard(m)
	d.g.signal()
}

// NotifyAlive refuses members of another cluster and entries that make no sense.
func (d delegate) NotifyAlive(n *memberlist.Node) error {
	if n.Name == d.g.name {
		return nil
	}
	m, _, err := decodeEntry(n)
	if err != nil {
		return err
	}
	if own, strange := d.g.table.strange(m.ClusterID); strange {
		d.g.table.foreign(m.Name, m.ClusterID)
		d.g.signal()
		return fmt.Errorf("it belongs to cluster %s, this node to %s", m.ClusterID, own)
	}
	return nil
}

// NotifyMerge refuses a sync with a group of which nobody could be admitted. A
// group of both kinds is let in: its members are sifted one by one.
func (d delegate) NotifyMerge(peers []*memberlist.Node) error {
	var refusal error
	welcome := false
	for _, n := range peers {
		if n.State != memberlist.StateAlive || n.Name == d.g.name {
			continue
		}
		m, _, err := decodeEntry(n)
		if err != nil {
			continue
		}
		own, strange := d.g.table.strange(m.ClusterID)
		if !strange {
			welcome = true
			continue
		}
		d.g.table.foreign(m.Name, m.ClusterID)
		refusal = fmt.Errorf("node %s belongs to cluster %s, this node to %s", m.Name, m.ClusterID, own)
	}
	if welcome {
		return nil
	}
	return refusal
}

// NotifyConflict hears of two addresses for one name; only the own one matters.
func (d delegate) NotifyConflict(existing, other *memberlist.Node) {
	if existing.Name != d.g.name {
		return
	}
	d.g.contested.Store(true)
	select {
	case d.g.conflicts <- other.Address():
	default:
	}
}
