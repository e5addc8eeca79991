package actors

import (
	"errors"
	"fmt"
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
	// Outbox is the number of an entity's unconfirmed rows above which its commands
	// are refused; events are still handled.
	Outbox int
	// ShardCalls, ShardBytes: work in progress in one shard; calls and deliveries are
	// counted separately. EntityCalls, EntityBytes: the same for one entity, so that
	// one whose handler does not come back leaves the others their room.
	ShardCalls  int
	ShardBytes  int64
	EntityCalls int
	EntityBytes int64
	// Activations, ActivationBytes: how many entities of one shard stay in memory
	// unused, and the encoded bytes of their states. Above either those end that have
	// been unused for longest; one that has work or events on their way does not.
	Activations     int
	ActivationBytes int64
	// Waits is the number of reads that wait for a version in one shard. They are
	// counted apart, so that they never keep a command out.
	Waits int
	// Proposals, ProposalBytes: records waiting in a lease above which new work
	// is refused.
	Proposals     int
	ProposalBytes int
}

// DefaultLimits fit a node that carries messages of up to 16 MiB.
func DefaultLimits() Limits {
	return Limits{
		Command:         4 << 20,
		State:           4 << 20,
		Event:           4 << 20,
		Reply:           4 << 20,
		Rows:            1_000,
		Timers:          1_000,
		Record:          12 << 20,
		Name:            255,
		Key:             255,
		Text:            2 << 10,
		Hops:            64,
		Outbox:          100_000,
		ShardCalls:      16_384,
		ShardBytes:      64 << 20,
		EntityCalls:     2_048,
		EntityBytes:     16 << 20,
		Activations:     16_384,
		ActivationBytes: 64 << 20,
		Waits:           1_024,
		Proposals:       65_536,
		ProposalBytes:   64 << 20,
	}
}

// Validate checks the limits against each other.
func (l Limits) Validate() error {
	var errs []error
	for _, v := range []struct {
		field string
		value int64
	}{
		{"Command", int64(l.Command)},
		{"State", int64(l.State)},
		{"Event", int64(l.Event)},
		{"Reply", int64(l.Reply)},
		{"Rows", int64(l.Rows)},
		{"Timers", int64(l.Timers)},
		{"Record", int64(l.Record)},
		{"Name", int64(l.Name)},
		{"Key", int64(l.Key)},
		{"Text", int64(l.Text)},
		{"Hops", int64(l.Hops)},
		{"Outbox", int64(l.Outbox)},
		{"ShardCalls", int64(l.ShardCalls)},
		{"ShardBytes", l.ShardBytes},
		{"EntityCalls", int64(l.EntityCalls)},
		{"EntityBytes", l.EntityBytes},
		{"Activations", int64(l.Activations)},
		{"ActivationBytes", l.ActivationBytes},
		{"Waits", int64(l.Waits)},
		{"Proposals", int64(l.Proposals)},
		{"ProposalBytes", int64(l.ProposalBytes)},
	} {
		errs = append(errs, entity.CheckLimit(limitName(v.field), v.value))
	}
	if largest := l.State + max(l.Event, l.Reply); l.Record < largest {
		errs = append(errs, fmt.Errorf("limit entities.Record (%d) is below an entities.State with an entities.Event or entities.Reply (%d)", l.Record, largest))
	}
	if l.ShardBytes < int64(l.Command) {
		errs = append(errs, fmt.Errorf("limit entities.ShardBytes (%d) is below limit entities.Command (%d)", l.ShardBytes, l.Command))
	}
	if l.EntityCalls > l.ShardCalls {
		errs = append(errs, fmt.Errorf("limit entities.EntityCalls (%d) is above limit entities.ShardCalls (%d)", l.EntityCalls, l.ShardCalls))
	}
	// A key of the store, made of several of these, is at most 32 KiB.
	if l.Name > 4096 || l.Key > 4096 {
		errs = append(errs, errors.New("limits entities.Name and entities.Key must be at most 4096"))
	}
	return errors.Join(errs...)
}

func (l Limits) entityCalls() bound { return bound{"EntityCalls", int64(l.EntityCalls)} }

// limitName is the name of one of Limits in docs/limits.md.
func limitName(field string) string { return "entities." + field }

// tooLarge is the refusal of something whose bytes are over a limit.
func tooLarge(what, field string, size, most int) *entity.Error {
	return entity.OverLimit(what, limitName(field), size, most)
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
