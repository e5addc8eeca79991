package cli

import (
	"context"
	"fmt"

	"writ/internal/format"
	nodev1 "writ/proto/writ/node/v1"
)

// clusterUpgradeCommand raises the active format.
type clusterUpgradeCommand struct {
	statusFlags `embed:""`
}

// Run implements the subcommand.
func (c *clusterUpgradeCommand) Run(ctx context.Context, std streams) error {
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	res, err := admin.Upgrade(ctx, &nodev1.UpgradeRequest{})
	switch {
	case err != nil:
		return err
	case c.JSON:
		return printMessage(std.out, res)
	case res.GetTo() == res.GetFrom():
		_, err = fmt.Fprintf(std.out, "the active format is %d, the newest that the nodes read: nothing to do\n", res.GetTo())
	default:
		_, err = fmt.Fprintf(std.out, "the active format is %d now, it was %d\n", res.GetTo(), res.GetFrom())
	}
	return err
}

// formatLine says which format the cluster writes, and what there is to do about it.
func formatLine(s *nodev1.StatusResponse) string {
	active := max(s.GetMeta().GetActiveFormat(), format.Base)
	oldest, newest := uint32(0), active
	for _, n := range s.GetMeta().GetNodes() {
		if n.GetState() == nodev1.NodeEntry_REMOVED {
			continue
		}
		if reads := max(n.GetFormatMax(), format.Base); oldest == 0 || reads < oldest {
			oldest = reads
		}
		newest = max(newest, n.GetFormatMax())
	}
	line := fmt.Sprintf("active format %d", active)
	switch {
	case newest == active:
		return line
	case oldest > active:
		return line + fmt.Sprintf(": all nodes read %d; \"node cluster upgrade\" raises it, and then no node can go back to the version before", oldest)
	}
	return line + fmt.Sprintf(": not all nodes read %d yet", newest)
}
