package persistence

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// findingsMax bounds the findings of one audit; it says so when there are more.
const findingsMax = 100

// Audit is what a recount of one shard at one index found. All numbers come from
// the buckets, unless said otherwise.
type Audit struct {
	Index uint64
	Term  uint64
	// Hash is the state hash at Index.
	Hash []byte

	Entities uint64
	KeysLive uint64
	// KeysExpired is from the counters: expired keys are gone.
	KeysExpired uint64
	// Effects is the sum of the entities' decided commands. In a sound shard it is
	// KeysLive + KeysExpired.
	Effects uint64
	// Of all lanes: rows given a number, confirmed, skipped, and rows in the outbox.
	Numbered  uint64
	Confirmed uint64
	Skipped   uint64
	Pending   uint64
	// Parked is the number of parked lanes.
	Parked uint64
	// Applied is the sum of the applied lane sequences.
	Applied uint64
	// Findings are contradictions in words; empty if the shard is sound.
	Findings []string
	// Differences from replicas that became leaders, as they were noticed since the
	// store was opened. Such a replica may have been mended since.
	Differences []string
}

// auditor counts one view.
type auditor struct {
	*scan
	*Audit
	hashes   [bucketCount + 1]uint64
	digest   *xxhash.Digest
	versions uint64
	epochs   uint64 // highest epoch of an applied mark
	source   entity.Ref
	sourceN  uint64 // rows numbered by source
	unnamed  int    // findings beyond the limit
}

// Audit recounts everything from the buckets in one consistent view, computes
// the hashes from scratch, and lists what contradicts the counters, the hashes
// or itself. Apply goes on meanwhile. The error says that the recount could not
// be finished, never that something was found.
func (s *Store) Audit(ctx context.Context) (*Audit, error) {
	c, err := s.scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	a := &auditor{scan: c, digest: xxhash.New(), Audit: &Audit{
		Index:       c.meta.Index,
		Term:        c.meta.Term,
		Hash:        hashBytes(contentHash(c.meta)),
		KeysExpired: c.meta.Counters.KeysExpired,
		Findings:    []string{},
		Differences: slices.Clone(c.differences),
	}}
	err = guard(c.path, func() error {
		defer c.close()
		return a.count()
	})
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("audit: %w", err)
	}
	return a.Audit, nil
}

func (a *auditor) count() error {
	for _, part := range []func() error{a.entities, a.keys, a.lanes, a.marks, a.parked, a.timers} {
		if err := part(); err != nil {
			return err
		}
	}
	a.conclude()
	return nil
}

func (a *auditor) find(format string, args ...any) {
	if len(a.Findings) >= findingsMax {
		a.unnamed++
		return
	}
	a.Findings = append(a.Findings, fmt.Sprintf(format, args...))
}

// every visits a bucket and hashes it on the way.
func (a *auditor) every(b bucket, prefix string, visit func(key string, value []byte) error) error {
	return a.each(b, prefix, func(key string, value []byte) error {
		a.hashes[b] += pairHash(a.digest, b, key, value)
		return visit(key, value)
	})
}

func (a *auditor) entities() error {
	return a.every(stateBucket, "", func(key string, value []byte) error {
		_, subkey, err := cutRef(key)
		if err != nil {
			a.find("state: %v", err)
			return nil
		}
		if subkey != "\x00" {
			return nil
		}
		v, err := parseEntity(value)
		if err != nil {
			a.find("state: %q: %v", key, err)
		}
		a.Entities++
		a.Effects += v.decided
		a.versions += v.version
		return nil
	})
}

func (a *auditor) keys() error {
	for _, n := range a.numbers {
		head, keys, hash := a.generations[n], uint64(0), a.hashes[idemBucket]
		if err := a.every(idemBucket, string(appendNumber(nil, n)), func(string, []byte) error {
			keys++
			return nil
		}); err != nil {
			return err
		}
		if hash = a.hashes[idemBucket] - hash; keys != head.Keys || hash != head.Hash {
			a.find("generation %d holds %d keys with hash %016x, its head says %d, %016x", n, keys, hash, head.Keys, head.Hash)
		}
		a.KeysLive += keys
	}
	return nil
}

// lanes walks the lanes and, beside them, the outbox: both are in the order of
// the lanes' keys.
func (a *auditor) lanes() error {
	rows := a.cursor(outboxBucket, "")
	more := rows.first()
	err := a.every(lanesBucket, "", func(key string, value []byte) error {
		lane, err := parseLane(value)
		source, _, rest, e := cutPair(key)
		if err != nil || e != nil || rest != "" {
			a.find("lane %q cannot be read", key)
			return nil
		}
		for ; more && rows.key < key; more = rows.next() {
			a.strayRow(rows)
		}
		next := lane.confirmed + 1
		for ; more && strings.HasPrefix(rows.key, key); more = rows.next() {
			if err := a.step(); err != nil {
				return err
			}
			a.row(rows)
			if got := number(rows.key[len(key):]); len(rows.key) != len(key)+numberSize || got != next {
				a.find("lane %q: row %d stands where %d should be", key, got, next)
			}
			next++
		}
		if next != lane.numbered+1 {
			a.find("lane %q: %d rows are in the outbox, should be %d", key, next-lane.confirmed-1, lane.pending())
		}
		a.Numbered += lane.numbered
		a.Confirmed += lane.confirmed
		a.Skipped += lane.skipped
		if lane.status == recordv1.Lane_PARKED {
			a.Parked++
		}
		if indexed := a.get(parkedBucket, key).exists(); indexed != (lane.status != recordv1.Lane_ACTIVE) {
			a.find("lane %q is %v, listed as standing: %t", key, lane.status, indexed)
		}
		a.addSource(source, lane.numbered)
		return nil
	})
	if err != nil {
		return err
	}
	for ; more; more = rows.next() {
		a.strayRow(rows)
	}
	a.addSource(entity.Ref{}, 0)
	return nil
}

func (a *auditor) row(c *cursor) {
	a.Pending++
	a.hashes[outboxBucket] += pairHash(a.digest, outboxBucket, c.key, c.value)
}

func (a *auditor) strayRow(c *cursor) {
	a.row(c)
	a.find("row %q is in no lane", c.key)
}

// addSource adds up the lanes of one source, which stand together, and compares
// the sum with the source's own counter.
func (a *auditor) addSource(source entity.Ref, numbered uint64) {
	if source != a.source {
		if a.source != (entity.Ref{}) {
			v := entityValue{}
			if f := a.get(stateBucket, stateKey(a.source)); f.exists() {
				v, _ = parseEntity(f.value) // entities has found it
			}
			if v.sequence != a.sourceN {
				a.find("entity %v has emitted %d events, its lanes have numbered %d", a.source, v.sequence, a.sourceN)
			}
		}
		a.source, a.sourceN = source, 0
	}
	a.sourceN += numbered
}

func (a *auditor) marks() error {
	return a.every(appliedBucket, "", func(key string, value []byte) error {
		v, err := parseApplied(value)
		if _, _, rest, e := cutPair(key); err != nil || e != nil || rest != "" {
			a.find("applied mark %q cannot be read", key)
			return nil
		}
		a.Applied += v.sequence
		a.epochs = max(a.epochs, v.epoch)
		return nil
	})
}

func (a *auditor) parked() error {
	return a.every(parkedBucket, "", func(key string, _ []byte) error {
		if !a.get(lanesBucket, key).exists() {
			a.find("lane %q is listed as standing, but does not exist", key)
		}
		return nil
	})
}

// conclude compares the recount with the head.
func (a *auditor) conclude() {
	n := a.meta.Counters
	for _, c := range []struct {
		what         string
		counted, say uint64
	}{
		{"commands decided", a.Effects, n.Decided},
		{"commits", a.versions, n.Changes},
		{"live keys", a.KeysLive, n.KeysLive},
		{"effects beside keys live and expired", a.Effects, n.KeysLive + n.KeysExpired},
		{"rows numbered", a.Numbered, n.Numbered},
		{"rows confirmed", a.Confirmed, n.Confirmed},
		{"rows skipped", a.Skipped, n.Skipped},
		{"rows in the outbox", a.Pending, n.RowsPending},
		{"lanes parked", a.Parked, n.LanesParked},
	} {
		if c.counted != c.say {
			a.find("%s: counted %d, the counters say %d", c.what, c.counted, c.say)
		}
	}
	// A restored source repeats numbers in a higher epoch: then more events were
	// applied than the last numbers say.
	if a.Applied > n.Applied || (a.epochs <= 1 && a.Applied != n.Applied) {
		a.find("events applied: counted %d, the counters say %d", a.Applied, n.Applied)
	}
	for _, b := range buckets {
		if a.hashes[b] != a.meta.Hashes[b-1] {
			a.find("bucket %s: the hash of its content is %016x, the head says %016x", bucketNames[b], a.hashes[b], a.meta.Hashes[b-1])
		}
	}
	if a.unnamed > 0 {
		a.Findings = append(a.Findings, fmt.Sprintf("and %d more", a.unnamed))
	}
}
