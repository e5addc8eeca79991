package persistence

// Audit is what a recount of one shard at one index found.
type Audit struct {
	Index uint64
	Term  uint64
	// Hash is the state hash at Index.
	Hash []byte
	// Counted from the buckets.
	Entities    uint64
	KeysLive    uint64
	KeysExpired uint64 // from the counters: expired keys are gone
	Effects     uint64 // sum of the entities' decided commands
	Numbered    uint64
	Confirmed   uint64
	Skipped     uint64
	Pending     uint64
	Parked      uint64
	Applied     uint64
	// Findings are contradictions in words; empty if the shard is sound.
	Findings []string
}
