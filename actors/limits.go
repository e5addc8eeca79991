package actors

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"writ/actors/entity"
)

// Limits bound what the runtime takes in and what handlers may make of it.
// Sizes are in bytes.
type Limits struct {
	// Command, State, Event and Reply bound one encoded message each.
	Command int
	State   int
	Event   int
	Reply   int
	// Rows is the number of events that one command or event may emit.
	Rows int
	// Timers is the number of timers that one message may set, move or cancel.
	Timers int
	// Record bounds the whole commit record.
	Record int
	// Name bounds tenant and id, Key an idempotency key.
	Name int
	Key  int
	// Text bounds a rejection's message and a park reason; longer ones are cut.
	Text int
	// Hops is the length of a chain of events after which its lane is parked.
	Hops int
	// Outbox is the number of an entity's unconfirmed rows above which its
	// commands are refused; events and their rows never are.
	Outbox int
	// ShardCalls, ShardBytes: work in progress in one shard, separately for
	// calls and for deliveries. EntityCalls: the same for one entity.
	ShardCalls  int
	ShardBytes  int64
	EntityCalls int
	// Waits is the number of reads that wait for a version in one shard. They are
	// counted apart, so that they keep no command out.
	Waits int
	// Proposals, ProposalBytes: records waiting in a lease above which new work
	// is refused.
	Proposals     int
	ProposalBytes int
}

// DefaultLimits fit a node that carries messages of up to 16 MiB.
func DefaultLimits() Limits {
	return Limits{
		Command:       4 << 20,
		State:         4 << 20,
		Event:         4 << 20,
		Reply:         4 << 20,
		Rows:          1_000,
		Timers:        1_000,
		Record:        12 << 20,
		Name:          255,
		Key:           255,
		Text:          2 << 10,
		Hops:          64,
		Outbox:        100_000,
		ShardCalls:    16_384,
		ShardBytes:    64 << 20,
		EntityCalls:   2_048,
		Waits:         1_024,
		Proposals:     65_536,
		ProposalBytes: 64 << 20,
	}
}

// Validate checks the limits against each other.
func (l Limits) Validate() error {
	var errs []error
	for _, v := range []struct {
		name  string
		value int64
	}{
		{"command", int64(l.Command)},
		{"state", int64(l.State)},
		{"event", int64(l.Event)},
		{"reply", int64(l.Reply)},
		{"rows", int64(l.Rows)},
		{"timers", int64(l.Timers)},
		{"record", int64(l.Record)},
		{"name", int64(l.Name)},
		{"key", int64(l.Key)},
		{"text", int64(l.Text)},
		{"hops", int64(l.Hops)},
		{"outbox", int64(l.Outbox)},
		{"shard calls", int64(l.ShardCalls)},
		{"shard bytes", l.ShardBytes},
		{"entity calls", int64(l.EntityCalls)},
		{"waits", int64(l.Waits)},
		{"proposals", int64(l.Proposals)},
		{"proposal bytes", int64(l.ProposalBytes)},
	} {
		if v.value <= 0 {
			errs = append(errs, fmt.Errorf("limit %s must be positive, is %d", v.name, v.value))
		}
	}
	if largest := l.State + max(l.Event, l.Reply); l.Record < largest {
		errs = append(errs, fmt.Errorf("limit record (%d) is below a state with an event or a reply (%d)", l.Record, largest))
	}
	if l.ShardBytes < int64(l.Command) {
		errs = append(errs, fmt.Errorf("limit shard bytes (%d) is below limit command (%d)", l.ShardBytes, l.Command))
	}
	if l.EntityCalls > l.ShardCalls {
		errs = append(errs, fmt.Errorf("limit entity calls (%d) is above limit shard calls (%d)", l.EntityCalls, l.ShardCalls))
	}
	// A key of the store, made of several of these, is at most 32 KiB.
	if l.Name > 4096 || l.Key > 4096 {
		errs = append(errs, errors.New("limits name and key must be at most 4096"))
	}
	return errors.Join(errs...)
}

// tooLarge is the refusal of something whose size is over a limit.
func tooLarge(limit string, size, most int) *entity.Error {
	return entity.Errorf(entity.TooLarge, "the %s has %d, the limit is %d", limit, size, most).
		With("limit", limit).With("size", strconv.Itoa(size)).With("max", strconv.Itoa(most))
}

// cut shortens a text for people to at most n bytes, and makes it valid UTF-8: a
// message that holds anything else cannot be sent.
func cut(text string, n int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= n {
		return text
	}
	for n > 0 && text[n]&0xc0 == 0x80 { // not in the middle of a rune
		n--
	}
	return text[:n]
}
