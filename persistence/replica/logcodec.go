package replica

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"writ/internal/format"
)

// Keys of the shared log store: shard u32, epoch u64, generation u64, class u8,
// then the index (u64) of a log entry or the name of a stable value. All numbers
// are big-endian, so that a group's entries are neighbours in index order. This
// is a disk format.
const (
	prefixLen   = 4 + 8 + 8
	classStable = 1
	classLog    = 2
	classEnd    = 3 // above every class: the end of a group's keys
	logKeyLen   = prefixLen + 1 + 8
)

// metaShard is the shard number of the meta group in keys and handshakes.
const metaShard = ^uint32(0)

// groupKey names one replica's part of the shared log store.
type groupKey struct {
	shard             uint32
	epoch, generation uint64
}

func (g groupKey) prefix() []byte {
	b := make([]byte, 0, prefixLen)
	b = binary.BigEndian.AppendUint32(b, g.shard)
	b = binary.BigEndian.AppendUint64(b, g.epoch)
	return binary.BigEndian.AppendUint64(b, g.generation)
}

// begin and end enclose all keys of the group.
func (g groupKey) begin() []byte { return append(g.prefix(), 0) }
func (g groupKey) end() []byte   { return append(g.prefix(), classEnd) }

func (g groupKey) stable(name []byte) []byte {
	return append(append(g.prefix(), classStable), name...)
}

func (g groupKey) log(index uint64) []byte {
	return binary.BigEndian.AppendUint64(append(g.prefix(), classLog), index)
}

// groupOf reads the group back from a key.
func groupOf(key []byte) (groupKey, bool) {
	if len(key) < prefixLen+1 {
		return groupKey{}, false
	}
	return groupKey{
		shard:      binary.BigEndian.Uint32(key),
		epoch:      binary.BigEndian.Uint64(key[4:]),
		generation: binary.BigEndian.Uint64(key[12:]),
	}, true
}

// Values of log entries: format u8, type u8, term u64, time of append (Unix
// nanoseconds, u64), length of extensions (uvarint), extensions, data.
const (
	entryFormat = 1
	entryHead   = 1 + 1 + 8 + 8
)

var errEntry = errors.New("log entry cannot be read")

func entrySize(l *raft.Log) int {
	return entryHead + uvarintLen(uint64(len(l.Extensions))) + len(l.Extensions) + len(l.Data)
}

func appendEntry(b []byte, l *raft.Log) []byte {
	b = append(b, entryFormat, byte(l.Type))
	b = binary.BigEndian.AppendUint64(b, l.Term)
	var at int64
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	b = binary.AppendUvarint(b, uint64(len(l.Extensions)))
	b = append(b, l.Extensions...)
	return append(b, l.Data...)
}

// parseEntry reads a value. The log keeps no reference to it.
func parseEntry(value []byte, index uint64, l *raft.Log) error {
	if len(value) > 0 {
		if err := format.Check("the log entry", uint32(value[0])); err != nil {
			return err
		}
	}
	if len(value) < entryHead+1 || value[0] != entryFormat {
		return errEntry
	}
	n, size := binary.Uvarint(value[entryHead:])
	rest := len(value) - entryHead - size
	if size <= 0 || rest < 0 || n > uint64(rest) {
		return errEntry
	}
	body := append([]byte(nil), value[entryHead+size:]...)
	*l = raft.Log{
		Index: index,
		Term:  binary.BigEndian.Uint64(value[2:]),
		Type:  raft.LogType(value[1]),
		Data:  body[n:],
	}
	if n > 0 {
		l.Extensions = body[:n:n]
	}
	if at := int64(binary.BigEndian.Uint64(value[10:])); at != 0 {
		l.AppendedAt = time.Unix(0, at)
	}
	return nil
}

func uvarintLen(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}
