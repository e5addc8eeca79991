package actors

import (
	"encoding/hex"
	"strconv"
	"strings"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// Hands remembers what handlers have in hand beyond the end of the process, so
// that what ends it is found. Its methods may be called from any goroutine.
type Hands interface {
	// Take notes that a handler has begun. The function notes that it has ended.
	Take(what string) (leave func())
	// Crashes is how often a process, of this node or of another that this one has
	// heard of, has ended with this in hand since it was last done.
	Crashes(what string) int
	// Count is true once for every such time on this node: the caller counts it
	// through the log.
	Count(what string) bool
}

// commandHand begins the names of commands that are in hand.
const commandHand = "command "

// queryHand begins the names of queries that are in hand.
const queryHand = "query "

// ClientsCall reports whether what is in hand is a client's command or query: it is
// refused after too many crashes. An event's lane is parked then, and so is the
// timer whose command it is.
func ClientsCall(what string) bool {
	return strings.HasPrefix(what, queryHand) || strings.HasPrefix(what, commandHand) && !strings.HasPrefix(what, commandHand+timerCommands)
}

// DefaultMaxCrashes is Config.MaxCrashes unless it is set.
const DefaultMaxCrashes = 3

// noHands remembers nothing.
type noHands struct{}

func (noHands) Take(string) func() { return func() {} }
func (noHands) Crashes(string) int { return 0 }
func (noHands) Count(string) bool  { return false }

// crashed begins the reason of what has ended the process before.
const crashed = "the process of node "

// crashReason says why something is not run now.
func (a *activation) crashReason() string {
	return crashed + a.rt.cfg.Node + " ended while the handler ran"
}

// commandInHand names a command that is in hand, by its key.
func commandInHand(ref entity.Ref, commandType, key string) string {
	b := append(make([]byte, 0, 128), commandHand...)
	b = append(b, commandType...)
	b = append(b, " key "...)
	b = strconv.AppendQuote(b, key)
	return string(appendEntity(append(b, " of "...), ref))
}

// callInHand names a query, or a command without a key, by what it asks.
func callInHand(hand string, ref entity.Ref, name string, fingerprint []byte) string {
	b := append(append(make([]byte, 0, 128), hand...), name...)
	b = hex.AppendEncode(append(b, ' '), fingerprint)
	return string(appendEntity(append(b, " of "...), ref))
}

// rowInHand names a row that is in hand.
func rowInHand(ref entity.Ref, row *recordv1.Row) string {
	b := appendEntity(append(make([]byte, 0, 128), "event "...), fromRef(row.GetSource()))
	b = strconv.AppendUint(append(b, '#'), row.GetEpoch(), 10)
	b = strconv.AppendUint(append(b, '.'), row.GetSequence(), 10)
	return string(appendEntity(append(b, " in "...), ref))
}

func appendEntity(b []byte, ref entity.Ref) []byte {
	b = append(strconv.AppendQuote(b, ref.Tenant), '/')
	b = append(append(b, ref.Kind...), '/')
	return strconv.AppendQuote(b, ref.ID)
}
