package persistence

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
)

const (
	// auditsKept is the number of audits whose hash is remembered.
	auditsKept = 16
	// hashesKept is the number of entries whose hash is remembered, to be compared
	// with that of a new leader.
	hashesKept = 64
	// differencesKept bounds the memory for what is found to differ.
	differencesKept = 16
)

// audits is what a store remembers for comparison with other replicas. It is in
// memory only and not part of the content.
type audits struct {
	due         []string // of the entry in hand
	checkpoints []checkpoint
	hashes      [hashesKept]checkpoint // by index, modulo their number
	differences []string
}

type checkpoint struct {
	audit string
	index uint64
	hash  uint64
}

// remember notes the state hash at the end of an entry.
func (s *Store) remember(index uint64) {
	a, hash := &s.audits, contentHash(s.meta)
	a.hashes[index%hashesKept] = checkpoint{index: index, hash: hash}
	if len(a.due) == 0 {
		return
	}
	for _, audit := range a.due {
		a.checkpoints = append(a.checkpoints, checkpoint{audit: audit, index: index, hash: hash})
	}
	if over := len(a.checkpoints) - auditsKept; over > 0 {
		a.checkpoints = append(a.checkpoints[:0], a.checkpoints[over:]...)
	}
	a.due = a.due[:0]
	s.tell()
}

// compare looks whether a new leader had the same content as this replica at the
// index it names. A difference is an alarm and changes nothing: every replica
// must treat the record alike.
func (s *Store) compare(t *termStart) {
	known := s.audits.hashes[t.index%hashesKept]
	// Nothing is remembered of index 0: there the slot is merely unused.
	if len(t.hash) == 0 || t.index == 0 || known.index != t.index || bytes.Equal(hashBytes(known.hash), t.hash) {
		return
	}
	text := fmt.Sprintf("content differs from that of leader %s at index %d: %016x here, %x there", t.node, t.index, known.hash, t.hash)
	s.cfg.Logger.Error("replicas differ", slog.Uint64("shard", uint64(s.cfg.Shard)), slog.String("difference", text))
	if len(s.audits.differences) < differencesKept {
		s.audits.differences = append(s.audits.differences, text)
	}
}

// WaitCheckpoint waits for the checkpoint of an audit to be applied, and returns
// its index and the state hash there. The last 16 audits are remembered, in
// memory only: after a restart, wait with a deadline.
func (s *Store) WaitCheckpoint(ctx context.Context, audit string) (index uint64, hash []byte, err error) {
	for {
		s.mu.RLock()
		news, err := s.news, s.usable()
		for _, c := range s.audits.checkpoints {
			if c.audit == audit {
				index, hash = c.index, hashBytes(c.hash)
			}
		}
		s.mu.RUnlock()
		switch {
		case hash != nil:
			return index, hash, nil
		case err != nil:
			return 0, nil, err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		}
	}
}
