package replica

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/raft"
)

// Server names one replica of a group for all time: a node, the incarnation of
// its disk, and the generation that placement gave to this replica.
type Server struct {
	Node        string
	Incarnation string
	Generation  uint64
}

// String is the server's raft id: node#incarnation#generation.
func (s Server) String() string {
	return s.Node + "#" + s.Incarnation + "#" + strconv.FormatUint(s.Generation, 10)
}

func (s Server) id() raft.ServerID { return raft.ServerID(s.String()) }

// address is the node's name: it is resolved when a connection is dialed.
func (s Server) address() raft.ServerAddress { return raft.ServerAddress(s.Node) }

func (s Server) validate() error {
	switch {
	case s.Node == "" || strings.Contains(s.Node, "#"):
		return fmt.Errorf("node name %q is empty or contains '#'", s.Node)
	case s.Incarnation == "" || strings.Contains(s.Incarnation, "#"):
		return fmt.Errorf("incarnation %q of node %s is empty or contains '#'", s.Incarnation, s.Node)
	case s.Generation == 0:
		return errors.New("replica generations start at 1")
	}
	return nil
}

// parseServer reads a raft server id.
func parseServer(id string) (Server, error) {
	parts := strings.Split(id, "#")
	if len(parts) != 3 {
		return Server{}, fmt.Errorf("server id %q is not node#incarnation#generation", id)
	}
	generation, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil {
		return Server{}, fmt.Errorf("server id %q: %w", id, err)
	}
	s := Server{Node: parts[0], Incarnation: parts[1], Generation: generation}
	return s, s.validate()
}

// votersOf is the configuration in which all servers vote.
func votersOf(servers []Server) raft.Configuration {
	var c raft.Configuration
	for _, s := range servers {
		c.Servers = append(c.Servers, raft.Server{Suffrage: raft.Voter, ID: s.id(), Address: s.address()})
	}
	return c
}

// membersOf splits a configuration into voters and learners. Ids that cannot be
// read are left out: this code wrote none.
func membersOf(c raft.Configuration) (voters, learners []Server) {
	for _, member := range c.Servers {
		s, err := parseServer(string(member.ID))
		if err != nil {
			continue
		}
		if member.Suffrage == raft.Voter {
			voters = append(voters, s)
		} else {
			learners = append(learners, s)
		}
	}
	return voters, learners
}
