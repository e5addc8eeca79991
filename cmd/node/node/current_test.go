package node_test

import (
	"context"
	"errors"
	"testing"
)

// A node takes calls once it surely knows the contract, and that does not wait for the
// first call: the meta group may be without a leader by then.
func TestContractIsKnownBeforeTheFirstCall(t *testing.T) {
	c := newCluster(t, 3, nil)
	for _, name := range c.names {
		eventually(t, func(context.Context) (any, error) {
			if !c.nodes[name].Current() {
				return nil, errors.New(name + " may have an old contract")
			}
			return nil, nil
		})
	}
}
