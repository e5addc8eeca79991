package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"

	"writ/persistence/replica"
)

// ErrMemoryLost is wrapped by what Failed yields when the node's log or its replica
// of the meta group turns out to be damaged. That is noted in the data folder: stop
// the node and start it again, in this process or another, and it sets the damaged
// data aside and is taken in anew by its cluster.
var ErrMemoryLost = errors.New("the node must start anew")

// noteLoss notes a loss of memory for the next start. Other errors it returns as
// they are.
func (n *Node) noteLoss(err error) error {
	loss, lost := errors.AsType[*replica.LostMemory](err)
	if !lost {
		return err
	}
	n.log.Error("what this node has voted and acknowledged is not known any more: its data will be set aside", slog.Any("reason", loss))
	if noteErr := n.identity.NoteLoss(loss.Reason); noteErr != nil {
		return errors.Join(err, noteErr)
	}
	if loss.InUse {
		return fmt.Errorf("start the process again, to have the damaged data set aside: %w", err)
	}
	return fmt.Errorf("%w: %w", ErrMemoryLost, err)
}

// tidyQuarantine says at the start what was set aside, now or before, and deletes
// what is too much of it. Trouble with it keeps no node from starting.
func (n *Node) tidyQuarantine() {
	pruneErr := n.identity.Prune()
	folders, listErr := n.identity.Quarantine()
	if err := cmp.Or(pruneErr, listErr); err != nil {
		n.log.Warn("the quarantine could not be tidied; see to its folder in the data folder", slog.Any("error", err))
	}
	for _, folder := range folders {
		n.log.Warn("damaged data was set aside; delete it when the node is ready and you have no more use for it", slog.String("folder", folder))
	}
}
