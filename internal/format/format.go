// Package format numbers what nodes write for each other and for later: entries
// of the log, shard files, commands of the meta group, the opening of a
// connection. One number stands for all of them.
//
// A cluster has an active format, kept in the meta group. What writes, writes the
// active format and nothing newer; what reads, reads every format from [Base] to
// [Max], and refuses by name what is newer. So nodes of two versions work side by
// side, and a node can go back to the older version, until an operator raises the
// active format.
//
// The build tag "next" makes a program of the next version: it reads one format
// more, and writes a record of its own ([Note]) once that format is active. It is
// how rolling upgrades are tested before there is a next version.
package format

import "fmt"

const (
	// Base is the first format. A cluster whose state names none has this one.
	Base uint32 = 1
	// Max is the newest format that this program reads.
	Max = Base + next
	// Note is the first format with recordv1.Note.
	Note = Base + 1
)

// NewerError says that something was written in a format that this program does
// not read. It is no damage: a newer program reads it.
type NewerError struct {
	What   string
	Format uint32
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("%s is of format %d and this program reads formats up to %d: start a newer version of the program on this node", e.What, e.Format, Max)
}

// Check refuses what is newer than this program.
func Check(what string, format uint32) error {
	if format > Max {
		return &NewerError{What: what, Format: format}
	}
	return nil
}
