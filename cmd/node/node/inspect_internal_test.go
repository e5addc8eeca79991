package node

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/persistence"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	"writ/sharding"
)

// hub is an entity that has emitted one event to each of its payees, under a key;
// outcome names the last of them.
type hub struct {
	store *persistence.Store
	ref   entity.Ref
	key   string
	index uint64
}

func payee(i int) string { return fmt.Sprintf("payee-%06d", i) }

// newHub makes a store with a hub. The rows to payees from "waiting" on are confirmed.
func newHub(t *testing.T, payees, waiting int) *hub {
	t.Helper()
	store, err := persistence.Create(persistence.Config{
		Path: filepath.Join(t.TempDir(), "shard"), ClusterID: "cluster", Range: sharding.Range{Last: math.MaxUint64},
		Epoch: 1, Generation: 1, GenerationWidth: time.Minute, FlushInterval: time.Hour, FlushRecords: math.MaxInt,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	h := &hub{store: store, ref: entity.Ref{Tenant: "default", Kind: "hub", ID: "h"}, key: "pay"}
	commit := &recordv1.Commit{
		Entity: protoRef(h.ref), Mutations: []*recordv1.Mutation{{Bucket: recordv1.Bucket_STATE, Value: &recordv1.Payload{Type: "t"}}},
		Key:     &recordv1.Key{CommandType: "t", Key: []byte(h.key), AcceptedAt: 1, ExpiresAt: int64(time.Hour), FingerprintAlgorithm: 1, Fingerprint: []byte{1}},
		Outcome: &recordv1.Outcome{Decision: recordv1.Outcome_EXECUTED, Version: 1, Rows: uint32(payees), Emitted: []*recordv1.Emitted{{Kind: "payee", Id: payee(payees - 1), LaneSequence: 1, Rows: 1}}},
	}
	for i := range payees {
		commit.Rows = append(commit.Rows, &recordv1.Row{
			Source: commit.GetEntity(), Epoch: 1, Sequence: uint64(i) + 1, Destination: &recordv1.Ref{Tenant: "default", Kind: "payee", Id: payee(i)}, LaneSequence: 1,
			Event: &recordv1.Payload{Type: "t"}, AcceptedAt: 1, Hops: 1,
		})
	}
	h.apply(t, &recordv1.Record{Epoch: 1, Term: 1, Body: &recordv1.Record_Commit{Commit: commit}})
	var confirms []*recordv1.Record
	for i := waiting; i < payees; i++ {
		confirms = append(confirms, &recordv1.Record{Epoch: 1, Term: 1, Body: &recordv1.Record_Lane{Lane: &recordv1.LaneUpdate{
			Source: protoRef(h.ref), Destination: &recordv1.Ref{Tenant: "default", Kind: "payee", Id: payee(i)}, Change: &recordv1.LaneUpdate_Confirm{Confirm: 1},
		}}})
	}
	h.apply(t, confirms...)
	if err := store.WaitFlushed(t.Context(), math.MaxUint64); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hub) apply(t *testing.T, records ...*recordv1.Record) {
	t.Helper()
	entry, err := proto.Marshal(&recordv1.Entry{Format: 1, LogTime: 1, Records: records})
	if err != nil {
		t.Fatal(err)
	}
	h.index++
	results, err := h.store.Apply(h.index, 1, entry)
	for _, result := range results {
		if err == nil {
			err = result
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// inspect is what an operator sees, with the key's lanes or without.
func (h *hub) inspect(t *testing.T, key string) *nodev1.InspectResponse {
	t.Helper()
	res := &nodev1.InspectResponse{}
	if err := inspect(h.store, nil, h.ref, &nodev1.InspectRequest{CommandType: "t", Key: []byte(key)}, res); err != nil {
		t.Fatal(err)
	}
	return res
}

func destinations(res *nodev1.InspectResponse) (ids []string) {
	for _, l := range res.GetOutgoing() {
		ids = append(ids, l.GetDestination().GetId())
	}
	return ids
}

// TestInspectedLanes covers which lanes an inspection shows: those that wait come
// first, and what is cut off is said.
func TestInspectedLanes(t *testing.T) {
	for name, tt := range map[string]struct {
		payees, waiting int
		wantCut         bool
		wantRows        int // lanes that show rows
	}{
		"none":                  {1, 0, false, 0},
		"few":                   {5, 2, false, 2},
		"as many as are shown":  {inspectMax, 3, false, 3},
		"one more":              {inspectMax + 1, 3, true, 3},
		"as many wait":          {inspectMax, inspectMax, false, inspectMax},
		"as many wait, one not": {inspectMax + 1, inspectMax, true, inspectMax},
		"more wait":             {3 * pageRows, 2 * pageRows, true, inspectMax},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, tt.payees, tt.waiting)
			res := h.inspect(t, "")
			var want []string
			for i := range min(tt.payees, inspectMax) {
				want = append(want, payee(i))
			}
			if got := destinations(res); !slices.Equal(got, want) || res.GetCut() != tt.wantCut {
				t.Errorf("cut %v, %d lanes: %v", res.GetCut(), len(got), got)
			}
			for i, l := range res.GetOutgoing() {
				if rows := l.GetRows(); len(rows) > 0 != (i < tt.wantRows) {
					t.Errorf("lane %d shows %d rows", i, len(rows))
				}
			}
			// The lane that the key's outcome names is shown, however many others there are.
			res = h.inspect(t, h.key)
			if got := destinations(res); len(got) != len(want) || res.GetCut() != tt.wantCut || !slices.Contains(got, payee(tt.payees-1)) {
				t.Errorf("by key: cut %v, %d lanes: %v", res.GetCut(), len(got), got)
			}
		})
	}
}

// An inspection takes memory for what it shows, not for all that the entity has ever
// opened: a hub may have paid a million accounts.
func TestInspectOfManyLanes(t *testing.T) {
	few, many := newHub(t, 1000, 10), newHub(t, 30_000, 10)
	fewAllocs := testing.AllocsPerRun(3, func() { few.inspect(t, few.key) })
	manyAllocs := testing.AllocsPerRun(3, func() { many.inspect(t, many.key) })
	if manyAllocs > 2*fewAllocs {
		t.Errorf("%v allocations for 30,000 lanes, %v for 1,000", manyAllocs, fewAllocs)
	}
}
