package membership

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/hashicorp/memberlist"
)

// entry is a node's metadata in gossip: at most 512 bytes, so keys are short and
// a host that repeats is written once. An address without a host stands at the
// node's gossip address; one that begins with '=' stands at the host of GRPC.
type entry struct {
	Format      int    `json:"v"`
	Incarnation string `json:"i"`
	Instance    string `json:"p"` // drawn anew by every process
	Started     int64  `json:"s"` // Unix nanoseconds
	GRPC        string `json:"g,omitempty"`
	HTTP        string `json:"h,omitempty"`
	Raft        string `json:"r,omitempty"`
	Zone        string `json:"z,omitempty"`
	ClusterID   string `json:"c,omitempty"`
}

const entryFormat = 1

// encodeEntry packs a member's metadata. The error says how much too large it is.
func encodeEntry(m Member, instance string, started int64) ([]byte, error) {
	gossip, _, _ := splitPort(m.Gossip)
	grpc, err := packAddress(m.GRPC, gossip, "")
	if err != nil {
		return nil, fmt.Errorf("gRPC address: %w", err)
	}
	host, _, _ := splitPort(m.GRPC)
	http, err := packAddress(m.HTTP, gossip, host)
	if err != nil {
		return nil, fmt.Errorf("HTTP address: %w", err)
	}
	raft, err := packAddress(m.Raft, gossip, host)
	if err != nil {
		return nil, fmt.Errorf("raft address: %w", err)
	}
	b, err := json.Marshal(entry{
		Format: entryFormat, Incarnation: m.Incarnation, Instance: instance, Started: started,
		GRPC: grpc, HTTP: http, Raft: raft, Zone: m.Zone, ClusterID: m.ClusterID,
	})
	if err != nil {
		return nil, err
	}
	if len(b) > memberlist.MetaMaxSize {
		return nil, fmt.Errorf("the node's entry in gossip has %d bytes and %d is the limit: shorten its zone or its host names", len(b), memberlist.MetaMaxSize)
	}
	return b, nil
}

func packAddress(address, gossip, shared string) (string, error) {
	if address == "" {
		return "", nil
	}
	host, port, err := splitPort(address)
	switch {
	case err != nil:
		return "", err
	case unspecified(host), host == gossip:
		return fmt.Sprintf(":%d", port), nil
	case host == shared:
		return fmt.Sprintf("=%d", port), nil
	}
	return address, nil
}

// decodeEntry unpacks what a node told about itself.
func decodeEntry(n *memberlist.Node) (Member, entry, error) {
	var e entry
	if err := json.Unmarshal(n.Meta, &e); err != nil {
		return Member{}, e, fmt.Errorf("decode the entry of node %q: %w", n.Name, err)
	}
	if e.Format != entryFormat {
		return Member{}, e, fmt.Errorf("the entry of node %q has format %d, not %d", n.Name, e.Format, entryFormat)
	}
	if n.Name == "" || len(n.Name) > nameBytesMax || e.Incarnation == "" {
		return Member{}, e, errors.New("a node without a proper name and incarnation")
	}
	m := Member{Name: n.Name, Incarnation: e.Incarnation, Gossip: n.Address(), Zone: e.Zone, ClusterID: e.ClusterID}
	gossipHost := n.Addr.String()
	m.GRPC = unpackAddress(e.GRPC, gossipHost, "")
	grpcHost, _, _ := splitPort(m.GRPC)
	m.HTTP = unpackAddress(e.HTTP, gossipHost, grpcHost)
	m.Raft = unpackAddress(e.Raft, gossipHost, grpcHost)
	return m, e, nil
}

// atHost gives an address without a host the host that gossip uses.
func atHost(address, gossip string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || !unspecified(host) {
		return address
	}
	return net.JoinHostPort(gossip, port)
}

func unpackAddress(packed, gossipHost, grpcHost string) string {
	if port, ok := strings.CutPrefix(packed, "="); ok {
		return net.JoinHostPort(grpcHost, port)
	}
	if port, ok := strings.CutPrefix(packed, ":"); ok {
		return net.JoinHostPort(gossipHost, port)
	}
	return packed
}
