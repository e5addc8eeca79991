package persistence

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"writ/sharding"
)

// Config names a shard's file and says what must be in it.
type Config struct {
	// Path of the shard file.
	Path string
	// Identity: checked against the file at every open.
	ClusterID  string
	Shard      uint32
	Range      sharding.Range
	Epoch      uint64
	Generation uint64
	// GenerationWidth is the log time covered by one generation of idempotency
	// keys. Create fixes it for the shard; Open takes it from the file.
	GenerationWidth time.Duration
	// FlushInterval is the longest time that an applied record stays in memory
	// only; 1 s if 0. FlushRecords is the number of records after which a flush
	// begins at once; 20,000 if 0.
	FlushInterval time.Duration
	FlushRecords  int
	// FlushSlot staggers the flushes of a node's stores: a flush begins when a
	// value could be sent, and takes one out when it ends. Nil: no stagger.
	FlushSlot chan struct{}
	// FlushDue is called when a flush begins to wait for its slot. It must return
	// soon. May be nil.
	FlushDue func()
	// Flushing is called when a flush begins to write, and what it returns when
	// the flush has ended. Both must return soon. May be nil.
	Flushing func() (ended func())
	// OnFailure is called once, from the flusher, when the file cannot be
	// written. The replica must then be shut down. It must not call Close.
	OnFailure func(error)
	// Logger is silent if nil.
	Logger *slog.Logger
}

// withDefaults fills what was left open.
func (c Config) withDefaults() Config {
	if c.FlushInterval == 0 {
		c.FlushInterval = time.Second
	}
	if c.FlushRecords == 0 {
		c.FlushRecords = 20_000
	}
	if c.FlushDue == nil {
		c.FlushDue = func() {}
	}
	if c.Flushing == nil {
		c.Flushing = func() func() { return func() {} }
	}
	if c.OnFailure == nil {
		c.OnFailure = func(error) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate names everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.Path == "" {
		errs = append(errs, errors.New("path is empty"))
	}
	if c.ClusterID == "" {
		errs = append(errs, errors.New("cluster id is empty"))
	}
	if c.Range.First > c.Range.Last {
		errs = append(errs, fmt.Errorf("range %v is empty", c.Range))
	}
	if c.Epoch == 0 {
		errs = append(errs, errors.New("epochs start at 1"))
	}
	if c.Generation == 0 {
		errs = append(errs, errors.New("replica generations start at 1"))
	}
	if c.GenerationWidth < 0 {
		errs = append(errs, errors.New("generation width is negative"))
	}
	if c.FlushInterval < 0 || c.FlushRecords < 0 {
		errs = append(errs, errors.New("flush interval and flush records must not be negative"))
	}
	return errors.Join(errs...)
}
