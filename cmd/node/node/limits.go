package node

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"writ/actors"
	"writ/actors/entity"
	"writ/actors/gateway"
)

// Limits are all limits of a node that can be set; docs/limits.md lists them. The
// nodes of a cluster should have the same.
type Limits struct {
	// Entities bound what messages may hold and what handlers may make of them.
	Entities actors.Limits `json:"entities"`
	// Gateway bounds what a node takes in from clients and from other nodes.
	Gateway gateway.Limits `json:"gateway"`
	// Store bounds what a shard's store holds.
	Store StoreLimits `json:"store"`
}

// StoreLimits bound what a shard's store holds.
type StoreLimits struct {
	// Unflushed is the size of what a shard holds in memory and not in its file yet,
	// bytes, above which commands are refused: its disk does not keep up.
	Unflushed int64
}

// DefaultLimits are those of a node that is given none.
func DefaultLimits() Limits {
	return Limits{Entities: actors.DefaultLimits(), Gateway: gateway.DefaultLimits(), Store: StoreLimits{Unflushed: 128 << 20}}
}

// unflushedMost is the size at which a replica gives up. Between it and the size at
// which commands are refused is room for what is under way by then, and for events,
// which are not refused. Nor is a log that a replica catches up with: whatever the
// limits, that must fit in between two flushes.
func (l Limits) unflushedMost() int64 {
	return max(unflushedLeast, l.Store.Unflushed+2*int64(l.Entities.ProposalBytes))
}

// unflushedLeast is several times what is kept of a log.
const unflushedLeast = 256 << 20

// names are what the door checks of the entities' limits.
func (l Limits) names() gateway.NameLimits {
	return gateway.NameLimits{Name: l.Entities.Name, Key: l.Entities.Key}
}

// ParseLimits reads limits from JSON, as docs/limits.md names them; what is left
// out stays as it is by default.
func ParseLimits(text []byte) (Limits, error) {
	l := DefaultLimits()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return l, fmt.Errorf("limits: %w; there are entities: {%s}, gateway: {%s}, store: {%s}",
			err, fieldNames(l.Entities), fieldNames(l.Gateway), fieldNames(l.Store))
	}
	return l, l.Validate()
}

// fieldNames lists the fields of a struct as JSON names them.
func fieldNames(v any) string {
	var names []string
	for field := range reflect.TypeOf(v).Fields() {
		names = append(names, cmp.Or(field.Tag.Get("json"), field.Name))
	}
	return strings.Join(names, ", ")
}

// Validate checks all limits, each and against the others: what one part lets
// through the next one must be able to carry.
func (l Limits) Validate() error {
	errs := []error{l.Entities.Validate(), l.Gateway.Validate(), entity.CheckLimit("store.Unflushed", l.Store.Unflushed)}
	if l.Entities.Command < l.Gateway.Command {
		errs = append(errs, fmt.Errorf("limit entities.Command (%d) is below limit gateway.Command (%d)", l.Entities.Command, l.Gateway.Command))
	}
	const envelope = 64 << 10
	for name, size := range map[string]int{"Event": l.Entities.Event, "State": l.Entities.State, "Reply": l.Entities.Reply} {
		if size+envelope > l.Gateway.Message {
			errs = append(errs, fmt.Errorf("limit entities.%s (%d) does not fit into a message: gateway.Message is %d", name, size, l.Gateway.Message))
		}
	}
	return errors.Join(errs...)
}
