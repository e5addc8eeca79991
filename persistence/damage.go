package persistence

import (
	"fmt"
	"runtime/debug"
)

// Damage says that a shard file is not what it should be: truncated, foreign,
// another shard's, unreadable. The replica must not serve from it and must not
// vote with it; it is replaced by a new replica under a new generation.
type Damage struct { //nolint:errname // the word of the trade
	// Path of the file.
	Path string
	// What is odd, in words.
	What string
	// Err is the cause, nil if there is none beyond What.
	Err error
	// stack is where reading panicked, for the log.
	stack []byte
}

func (d *Damage) Error() string {
	text := "shard file " + d.Path + ": " + d.What
	if d.Err != nil {
		text += ": " + d.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (d *Damage) Unwrap() error { return d.Err }

// guard runs an access to a file and turns into a *Damage what would otherwise
// end the process: bbolt panics on pages that make no sense, and a page of its
// memory map that cannot be read (a truncated file, a failing disk) is a fault.
// It only covers the calling goroutine.
func guard(path string, access func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			cause, ok := r.(error)
			if !ok {
				cause = fmt.Errorf("%v", r)
			}
			err = &Damage{Path: path, What: "cannot be read", Err: cause, stack: debug.Stack()}
		}
	}()
	return access()
}
