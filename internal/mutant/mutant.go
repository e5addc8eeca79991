// Package mutant switches safeguards off, one at a time, to prove that the tests
// notice. The switches exist only under the build tag "mutants"; without it [Off]
// is a constant that the compiler removes together with what it guards.
//
// `make mutants` runs the tests against each of them and prints what caught it.
package mutant

// Safeguard is a piece of code without which a promise would be broken.
type Safeguard string

// The safeguards.
const (
	// Apply compares a record's (epoch, term) with its entry's.
	Term Safeguard = "term check"
	// Apply compares a record's base version with the entity's.
	Version Safeguard = "version check"
	// Apply refuses rows that do not continue their lane.
	Lane Safeguard = "lane sequence check"
	// Apply refuses marks that do not continue what was applied.
	Applied Safeguard = "applied mark"
	// Apply refuses a key that is in use.
	Key Safeguard = "key check"
	// A relay marks rows as confirmed after it has sent them, not before.
	SendBeforeMark Safeguard = "send before mark"
	// An answer waits for the commit of what it tells.
	OutputGate Safeguard = "output gate"
	// A lease begins when its TermStart has been applied.
	TermStart Safeguard = "TermStart"
	// A read waits for a barrier in the log.
	ReadBarrier Safeguard = "read barrier"
	// Content and Raft index reach the file in one transaction.
	IndexWithContent Safeguard = "index in the same transaction"
	// A file that is swapped in drops what was applied in memory.
	DropAtRestore Safeguard = "overlay dropped at restore"
	// Log time never falls.
	MonotonicTime Safeguard = "monotonic log time"
	// The log is synced before anything is acknowledged.
	Sync Safeguard = "fsync"
	// The log is trimmed only up to what the file stands for.
	LogFloor Safeguard = "log floor"
	// A command with a key that is in flight waits for the first one's outcome.
	InFlightKey Safeguard = "key in flight"
	// The first batch of a new epoch is not overtaken.
	EpochAlone Safeguard = "first batch of an epoch"
	// Entries are written in the active format.
	ActiveFormat Safeguard = "active format"
	// A refused event is counted through the log.
	Attempt Safeguard = "attempts in the log"
	// A skip is marked at the destination before its row loses the event.
	SkipThere Safeguard = "skip at the destination"
)

// All are all safeguards.
func All() []Safeguard {
	return []Safeguard{
		Term, Version, Lane, Applied, Key, SendBeforeMark, OutputGate, TermStart, ReadBarrier, IndexWithContent,
		DropAtRestore, MonotonicTime, Sync, LogFloor, InFlightKey, EpochAlone, ActiveFormat, Attempt, SkipThere,
	}
}

// Variable is the environment variable that names the safeguard to switch off.
const Variable = "WRIT_MUTANT"
