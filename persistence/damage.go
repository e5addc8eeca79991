package persistence

// Damage says that a shard file is not what it should be: truncated, foreign,
// another shard's, unreadable. The replica must not serve from it and must not
// vote with it; it is replaced by a new replica under a new generation.
type Damage struct {
	// Path of the file.
	Path string
	// What is odd, in words.
	What string
	// Err is the cause, if there is one.
	Err error
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
