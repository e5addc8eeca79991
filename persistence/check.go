package persistence

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cespare/xxhash/v2"

	"writ/internal/format"
	recordv1 "writ/proto/writ/record/v1"
)

// content is what a full read of a shard file found.
type content struct {
	head        *recordv1.ShardMeta
	generations generations
}

// reading collects it. The bucket meta is read first.
type reading struct {
	content
	heads  map[uint64]*recordv1.Generation
	length int64 // of the file
	odd    error // in the bucket meta; a newer format may have more there
	hashes [bucketCount + 1]uint64
	digest xxhash.Digest
}

// checkFile reads a whole shard file and checks that it is one, undamaged and
// the wanted shard's: every page is where and what it should be, the heads match
// their checksums, and the state hash computed from scratch is the one in the
// head. It builds the filters on the way. The error is a *Damage, unless the file
// could not be read at all or is a newer program's.
func checkFile(f *os.File, path string, want Config, sameReplica bool) (*content, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var c *content
	var broken error
	if err := guard(path, func() error {
		c, broken = readFile(f, info.Size())
		return nil
	}); err != nil {
		return nil, err
	}
	if c != nil && c.head != nil {
		if err := format.Check("shard file "+path, c.head.Format); err != nil {
			return nil, err
		}
	}
	if broken != nil {
		return nil, &Damage{Path: path, What: "is damaged", Err: broken}
	}
	if odd := identity(c.head, want, sameReplica); odd != "" {
		return nil, &Damage{Path: path, What: odd}
	}
	return c, nil
}

func readFile(f io.ReaderAt, length int64) (*content, error) {
	p, err := openPages(f, length)
	if err != nil {
		return nil, err
	}
	r := reading{heads: map[uint64]*recordv1.Generation{}, length: length}
	if err := p.walk(bucketNames[metaBucket], r.pair); err != nil {
		return &r.content, err
	}
	return &r.content, r.finish()
}

func (r *reading) pair(path []string, key, value []byte) error {
	if path[0] == bucketNames[metaBucket] {
		return r.meta(string(key), value)
	}
	if r.head == nil || !formatKnown(r.head) {
		return nil // there are words for it later
	}
	b := bucketNamed(path[0])
	if b == 0 {
		return errors.New("no such bucket in this format")
	}
	if b != idemBucket {
		r.hashes[b] += pairHash(&r.digest, b, string(key), value)
		return nil
	}
	if len(path) != 2 || len(path[1]) != numberSize {
		return errors.New("key without a generation")
	}
	n := number(path[1])
	head := r.heads[n]
	if head == nil {
		return fmt.Errorf("generation %d has no head", n)
	}
	g := r.generations.at(n)
	if g.keys == 0 {
		// Room for more; the head may be damaged, and every key takes some bytes.
		g.seen.reserve(min(2*head.Keys, uint64(r.length)/elementSize))
		g.acceptedLast = head.AcceptedLast
	}
	hash := pairHash(&r.digest, b, path[1]+string(key), value)
	g.keys++
	g.hash += hash
	g.seen.add(key)
	r.hashes[b] += hash
	return nil
}

func (r *reading) meta(key string, value []byte) error {
	if n, ok := strings.CutPrefix(key, generationPrefix); ok && len(n) == numberSize {
		head := &recordv1.Generation{}
		r.heads[number(n)] = head
		if err := readSummed(key, value, head); err != nil {
			r.odd = fmt.Errorf("head of generation %d %w", number(n), err)
		}
		return nil
	}
	if key != headKey {
		r.odd = fmt.Errorf("entry %q is not known", key)
		return nil
	}
	head := &recordv1.ShardMeta{}
	if err := readSummed(key, value, head); err != nil {
		return fmt.Errorf("head %w", err) // not even its format can be believed
	}
	head.Sum = 0 // if there is one, it is a leftover
	r.head = head
	return nil
}

// finish compares what was counted with what the file says about itself.
func (r *reading) finish() error {
	if r.head == nil {
		return errors.New("is not a shard file: no head")
	}
	if !formatKnown(r.head) {
		return nil // identity says so
	}
	if r.odd != nil {
		return r.odd
	}
	if r.head.Counters == nil || len(r.head.Hashes) != bucketCount || r.head.GenerationWidth <= 0 {
		return errors.New("head is incomplete")
	}
	for _, b := range buckets {
		if r.hashes[b] != r.head.Hashes[b-1] {
			return fmt.Errorf("content of bucket %s does not match its hash", bucketNames[b])
		}
	}
	for n, head := range r.heads {
		i, ok := r.generations.find(n)
		if !ok || r.generations[i].keys != head.Keys || r.generations[i].hash != head.Hash {
			return fmt.Errorf("generation %d does not match its head", n)
		}
	}
	return nil
}

func formatKnown(head *recordv1.ShardMeta) bool {
	return head.Format >= format.Base && head.Format <= format.Max
}

func bucketNamed(name string) bucket {
	for _, b := range buckets {
		if bucketNames[b] == name {
			return b
		}
	}
	return 0
}

// identity says in words what is wrong with a file's identity; "" if nothing is.
func identity(head *recordv1.ShardMeta, want Config, sameReplica bool) string {
	switch {
	case !formatKnown(head):
		return fmt.Sprintf("has format %d, which there never was", head.Format)
	case head.ClusterId != want.ClusterID:
		return fmt.Sprintf("belongs to cluster %q, want %q", head.ClusterId, want.ClusterID)
	case head.Shard != want.Shard:
		return fmt.Sprintf("belongs to shard %d, want %d", head.Shard, want.Shard)
	case head.RangeFirst != want.Range.First || head.RangeLast != want.Range.Last:
		return fmt.Sprintf("holds the range %016x-%016x, want %v", head.RangeFirst, head.RangeLast, want.Range)
	case head.Epoch != want.Epoch:
		return fmt.Sprintf("is of epoch %d, want %d", head.Epoch, want.Epoch)
	case sameReplica && head.ReplicaGeneration != want.Generation:
		return fmt.Sprintf("is of replica generation %d, want %d", head.ReplicaGeneration, want.Generation)
	}
	return ""
}
