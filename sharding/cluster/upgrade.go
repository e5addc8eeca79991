package cluster

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"writ/actors/entity"
	"writ/internal/format"
	nodev1 "writ/proto/writ/node/v1"
)

// activeFormat is the active format of a state.
func activeFormat(s *nodev1.MetaState) uint32 { return max(s.GetActiveFormat(), format.Base) }

// formatMax is what a node reads that announces so much.
func formatMax(announced uint32) uint32 { return max(announced, format.Base) }

// readByAll is the newest format that all nodes read. A removed node counts as
// long as a shard is placed on it.
func readByAll(s *nodev1.MetaState) uint32 {
	lowest := uint32(0)
	for name := range s.GetNodes() {
		if reads := formatMax(s.GetNodes()[name].GetFormatMax()); counts(s, name) && (lowest == 0 || reads < lowest) {
			lowest = reads
		}
	}
	return max(lowest, format.Base)
}

func counts(s *nodev1.MetaState, node string) bool {
	return s.GetNodes()[node].GetState() != nodev1.NodeEntry_REMOVED || placed(s, node)
}

// upgrade raises the active format to the newest one that all nodes read. It is an
// operator's order and never happens by itself: after it no node can go back to
// the version before.
func upgrade(s *nodev1.MetaState) error {
	active, all := activeFormat(s), readByAll(s)
	if all > active {
		s.ActiveFormat = all
		return nil
	}
	newest, behind := active, []string{}
	for name, e := range s.GetNodes() {
		if counts(s, name) {
			newest = max(newest, e.GetFormatMax())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.GetNodes())) {
		if counts(s, name) && formatMax(s.GetNodes()[name].GetFormatMax()) == all {
			behind = append(behind, name)
		}
	}
	if newest > active {
		return entity.Errorf(entity.Invalid, "the active format stays %d: format %d is not read by %s: start the newer version there, or remove the node", active, newest, strings.Join(behind, ", "))
	}
	return nil
}

// Upgrade raises the active format; on the leader of the meta group only. It is not
// an error if there is nothing to raise.
func (c *Controller) Upgrade(ctx context.Context) (from, to uint32, err error) {
	err = c.config.Meta.Update(ctx, func(s *nodev1.MetaState) error {
		from = activeFormat(s)
		err := upgrade(s)
		to = activeFormat(s)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	if to > from {
		c.config.Logger.Info("the active format has risen: no node can go back to the version before", slog.Uint64("from", uint64(from)), slog.Uint64("to", uint64(to)))
	}
	return from, to, nil
}
