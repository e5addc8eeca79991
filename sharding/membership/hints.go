package membership

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/hashicorp/memberlist"
)

// LeaderHint says which node leads a shard. It may be out of date; of two hints
// the one with the higher (epoch, term) is the newer.
type LeaderHint struct {
	Shard       uint32
	Epoch, Term uint64
	Node        string
}

// Limits of what a hint may say. Terms never get near the limit, and without it
// one damaged hint would outrank all others for ever.
const (
	hintShardMax  = 1<<20 - 1
	hintNumberMax = 1<<48 - 1
	hintsMax      = 1 << 16
)

func (h LeaderHint) valid() bool {
	return h.Shard <= hintShardMax && h.Epoch <= hintNumberMax && h.Term > 0 && h.Term <= hintNumberMax &&
		h.Node != "" && len(h.Node) <= nameBytesMax && utf8.ValidString(h.Node)
}

func (h LeaderHint) newer(than LeaderHint) bool {
	if h.Epoch != than.Epoch {
		return h.Epoch > than.Epoch
	}
	return h.Term > than.Term
}

// hints is the newest hint of every shard. It is safe for concurrent use.
type hints struct {
	mu     sync.Mutex
	newest map[uint32]LeaderHint
}

// merge takes a hint in and reports whether it was news.
func (t *hints) merge(h LeaderHint) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, known := t.newest[h.Shard]
	if !h.valid() || (known && !h.newer(old)) || (!known && len(t.newest) >= hintsMax) {
		return false
	}
	if t.newest == nil {
		t.newest = map[uint32]LeaderHint{}
	}
	t.newest[h.Shard] = h
	return true
}

func (t *hints) get(shard uint32) (LeaderHint, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, ok := t.newest[shard]
	return h, ok
}

func (t *hints) all() []LeaderHint {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]LeaderHint, 0, len(t.newest))
	for _, shard := range slices.Sorted(maps.Keys(t.newest)) {
		list = append(list, t.newest[shard])
	}
	return list
}

// encodeHints: cluster id, then the hints to the end.
func encodeHints(clusterID string, list ...LeaderHint) []byte {
	b := appendText(nil, clusterID)
	for _, h := range list {
		b = binary.AppendUvarint(b, uint64(h.Shard))
		b = binary.AppendUvarint(b, h.Epoch)
		b = binary.AppendUvarint(b, h.Term)
		b = appendText(b, h.Node)
	}
	return b
}

var errMalformed = errors.New("malformed message")

// decodeHints takes all or nothing: one bad hint spoils the message.
func decodeHints(b []byte) (clusterID string, list []LeaderHint, err error) {
	r := reader{b: b}
	clusterID = r.text()
	for len(r.b) > 0 && !r.bad {
		shard := r.number()
		h := LeaderHint{Shard: uint32(min(shard, hintShardMax+1)), Epoch: r.number(), Term: r.number(), Node: r.text()}
		if !h.valid() || len(list) == hintsMax {
			return "", nil, errMalformed
		}
		list = append(list, h)
	}
	if r.bad {
		return "", nil, errMalformed
	}
	return clusterID, list, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// reader takes a message apart; after the first fault it reads zeros.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) text() string {
	n := r.number()
	if n > uint64(len(r.b)) {
		r.b, r.bad = nil, true
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

// hintBroadcast is a hint on its way; a newer one of the same shard replaces it.
type hintBroadcast struct {
	shard   uint32
	message []byte
}

func (b *hintBroadcast) Name() string    { return strconv.FormatUint(uint64(b.shard), 10) }
func (b *hintBroadcast) Message() []byte { return b.message }
func (b *hintBroadcast) Finished()       {}

func (b *hintBroadcast) Invalidates(other memberlist.Broadcast) bool {
	o, ok := other.(*hintBroadcast)
	return ok && o.shard == b.shard
}
