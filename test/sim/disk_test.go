package sim_test

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"slices"
)

// entry is one entry of a replica's log. One without data never reaches the store.
type entry struct {
	index, term uint64
	data        []byte
}

// disk is where a replica keeps Raft's log and votes: one file that only grows at
// its end, and of which a power cut leaves what was synced and any piece of the
// rest. Everything else in it is what a reader of the file would know.
type disk struct {
	file   []byte
	synced int // bytes

	term      uint64
	vote      int // -1: nobody
	baseIndex uint64
	baseTerm  uint64
	entries   []entry // behind the base
	installed uint64  // index of the last snapshot that was about to be swapped in
}

func newDisk() *disk { return &disk{vote: -1} }

func (d *disk) last() uint64 { return d.baseIndex + uint64(len(d.entries)) }

// termAt is the term of an entry, 0 if the log does not hold it.
func (d *disk) termAt(index uint64) uint64 {
	switch {
	case index == d.baseIndex:
		return d.baseTerm
	case index > d.baseIndex && index <= d.last():
		return d.entries[index-d.baseIndex-1].term
	}
	return 0
}

// behind are the entries behind an index, which must not lie before the base.
func (d *disk) behind(index uint64, most int) []entry {
	rest := d.entries[index-d.baseIndex:]
	return slices.Clone(rest[:min(most, len(rest))])
}

// Kinds of frames: a frame is a length, a checksum, a kind, three numbers and data.
const (
	frameVote = iota + 1
	frameEntry
	frameCutAfter
	frameBase
	frameInstalled
)

const frameHead = 8 + 1 + 3*8

func (d *disk) write(kind byte, a, b, c uint64, data []byte) {
	frame := make([]byte, frameHead, frameHead+len(data))
	frame[8] = kind
	for i, n := range []uint64{a, b, c} {
		binary.BigEndian.PutUint64(frame[9+8*i:], n)
	}
	frame = append(frame, data...)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)))
	binary.BigEndian.PutUint32(frame[4:], crc32.ChecksumIEEE(frame[8:]))
	d.file = append(d.file, frame...)
	d.take(kind, a, b, c, data)
}

// take changes what is known as a frame says.
func (d *disk) take(kind byte, a, b, c uint64, data []byte) {
	switch kind {
	case frameVote:
		d.term, d.vote = a, int(int64(b))
	case frameEntry:
		e := entry{index: a, term: b}
		if len(data) > 0 {
			e.data = data
		}
		d.entries = append(d.entries, e)
	case frameCutAfter:
		d.entries = d.entries[:a-d.baseIndex]
	case frameBase:
		if c == 1 { // keeps what lies behind
			d.entries = slices.Clone(d.entries[a-d.baseIndex:])
		} else {
			d.entries = nil
		}
		d.baseIndex, d.baseTerm = a, b
	case frameInstalled:
		d.installed = a
	}
}

func (d *disk) setVote(term uint64, vote int) { d.write(frameVote, term, uint64(int64(vote)), 0, nil) }
func (d *disk) append(e entry)                { d.write(frameEntry, e.index, e.term, 0, e.data) }
func (d *disk) cutAfter(index uint64)         { d.write(frameCutAfter, index, 0, 0, nil) }
func (d *disk) setInstalled(index uint64)     { d.write(frameInstalled, index, 0, 0, nil) }

// cutBefore forgets the entries up to index, which is in the log.
func (d *disk) cutBefore(index uint64) { d.write(frameBase, index, d.termAt(index), 1, nil) }

// reset makes the log an empty one behind an index.
func (d *disk) reset(index, term uint64) { d.write(frameBase, index, term, 0, nil) }

// lose is a power cut: what was not synced is there up to some byte, and the end
// of that may be nonsense.
func (d *disk) lose(dice *rand.Rand) (torn bool) {
	kept := d.synced + dice.IntN(len(d.file)-d.synced+1)
	torn = kept > d.synced
	d.file = slices.Clone(d.file[:kept])
	if torn && dice.IntN(2) == 0 {
		d.file[kept-1-dice.IntN(min(kept-d.synced, 64))] ^= byte(1 + dice.IntN(255))
	}
	return torn
}

// read learns again what the file says, up to the first frame that is not whole.
func (d *disk) read() {
	fresh := newDisk()
	fresh.file = d.file
	at := 0
	for at+frameHead <= len(d.file) {
		size := int(binary.BigEndian.Uint32(d.file[at:]))
		if size < frameHead || at+size > len(d.file) {
			break
		}
		frame := d.file[at : at+size]
		if crc32.ChecksumIEEE(frame[8:]) != binary.BigEndian.Uint32(frame[4:]) {
			break
		}
		n := func(i int) uint64 { return binary.BigEndian.Uint64(frame[9+8*i:]) }
		fresh.take(frame[8], n(0), n(1), n(2), frame[frameHead:])
		at += size
	}
	fresh.file, fresh.synced = d.file[:at:at], at
	*d = *fresh
}

// powerCut is a shard file that a power cut has met while it was flushed: bbolt
// has synced its pages and not the head that makes them valid, or not even them.
func powerCut(before, after []byte, dice *rand.Rand) []byte {
	const page, heads = 4096, 2
	if dice.IntN(3) == 0 {
		return before
	}
	torn := slices.Clone(after)
	newest := 0
	if transaction(after[page:]) > transaction(after) {
		newest = 1
	}
	copy(torn[newest*page:(newest+1)*page], before[newest*page:])
	if dice.IntN(2) == 0 {
		return torn // the pages have reached the disk
	}
	// Some of what the transaction of that head wrote is lost. A transaction
	// writes only pages that the one before does not use.
	if transaction(after[newest*page:]) != max(transaction(before), transaction(before[page:]))+1 {
		return torn // more than one transaction: the first one's pages were synced
	}
	for p := heads; p*page < len(after); p++ {
		if dice.IntN(2) != 0 {
			continue
		}
		lost := torn[p*page : min((p+1)*page, len(torn))]
		clear(lost)
		if p*page < len(before) {
			copy(lost, before[p*page:])
		}
	}
	return torn
}

// transaction is the number in a bbolt head: the valid head with the higher one
// counts.
func transaction(head []byte) uint64 { return binary.NativeEndian.Uint64(head[16+48:]) }
