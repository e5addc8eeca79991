package replica

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
)

// Names of stable values. The first three are raft's own.
const (
	stableTerm     = "CurrentTerm"
	stableVoteTerm = "LastVoteTerm"
	stableVoteFor  = "LastVoteCand"
	// stableBorn stands from before the replica's file exists: a file without it
	// has lost its log, and with it the votes of this replica.
	stableBorn = "writ/born"
	// stableInstalled is the index of the last snapshot file that was swapped in,
	// written before it is: it explains a file that is ahead of its log.
	stableInstalled = "writ/installed"
	// stableReplaced is the index of the snapshot file whose place the installed one
	// takes, 0 for none: until the swap is done that one, too, may be ahead of its log.
	stableReplaced = "writ/replaced"
	// stableDropped stays for ever when a replica has been deleted.
	stableDropped = "writ/dropped"
)

// Set writes a stable value durably.
func (l *groupLog) Set(name, value []byte) error {
	l.put(string(name), value)
	return nil
}

// SetUint64 writes a stable number durably. Raft writes the term of a vote before
// the candidate; both change together here, since a crash between would leave the
// vote with the candidate of an older term.
func (l *groupLog) SetUint64(name []byte, value uint64) error {
	if string(name) != stableVoteTerm {
		l.putNumber(string(name), value)
		return nil
	}
	b := l.node.db.NewBatch()
	l.set(b, stableVoteTerm, binary.BigEndian.AppendUint64(nil, value))
	l.node.must("forget vote", func() error { return b.Delete(l.key.stable([]byte(stableVoteFor)), nil) })
	l.commit(b)
	return nil
}

// Get reads a stable value, nil if there is none.
func (l *groupLog) Get(name []byte) ([]byte, error) { return l.value(string(name)), nil }

// GetUint64 reads a stable number, 0 if there is none.
func (l *groupLog) GetUint64(name []byte) (uint64, error) { return l.number(string(name)), nil }

func (l *groupLog) put(name string, value []byte) {
	b := l.node.db.NewBatch()
	l.set(b, name, value)
	l.commit(b)
}

// putNumber saves the sync if the number is there already.
func (l *groupLog) putNumber(name string, value uint64) {
	if encoded := binary.BigEndian.AppendUint64(nil, value); !bytes.Equal(l.value(name), encoded) {
		l.put(name, encoded)
	}
}

func (l *groupLog) value(name string) (value []byte) {
	l.node.must("read stable value", func() error {
		found, closer, err := l.node.db.Get(l.key.stable([]byte(name)))
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		value = append([]byte{}, found...)
		return closer.Close()
	})
	return value
}

func (l *groupLog) number(name string) uint64 {
	value := l.value(name)
	if len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

// installing notes, before it is swapped in, the index of a snapshot file that takes
// the place of a file at another index.
func (l *groupLog) installing(index, replaced uint64) {
	if !l.installed(replaced) {
		replaced = 0 // its log reaches as far as it does
	}
	b := l.node.db.NewBatch()
	l.set(b, stableInstalled, binary.BigEndian.AppendUint64(nil, index))
	l.set(b, stableReplaced, binary.BigEndian.AppendUint64(nil, replaced))
	l.commit(b)
}

// installed reports whether a file at an index is a snapshot that was swapped in: it
// may be ahead of its log.
func (l *groupLog) installed(index uint64) bool {
	return index > 0 && (l.number(stableInstalled) == index || l.number(stableReplaced) == index)
}

// pristine reports whether the group has never taken part in anything.
func (l *groupLog) pristine() bool {
	_, last := l.bounds()
	return l.number(stableTerm) == 0 && last == 0
}

// bootstrap makes the first entry of a group out of its first configuration. All
// its voters may do it: the entry is the same on each. Raft's own function for
// this takes two steps and gets stuck if it is interrupted between them.
func (l *groupLog) bootstrap(c raft.Configuration) {
	entry := &raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c)}
	b := l.node.db.NewBatch()
	l.set(b, stableTerm, binary.BigEndian.AppendUint64(nil, 1))
	l.node.must("bootstrap", func() error { return b.Set(l.key.log(1), appendEntry(nil, entry), nil) })
	l.commit(b)
	l.appended([]*raft.Log{entry}, entrySize(entry))
}

func (l *groupLog) set(b *pebble.Batch, name string, value []byte) {
	l.node.must("set stable value", func() error { return b.Set(l.key.stable([]byte(name)), value, nil) })
}
