package replica

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
)

// roomPiece is how much room is asked for at a time for a file of unknown size, bytes.
const roomPiece = 16 << 20

// room is what was promised to files on their way, copied or received, and is not
// written yet: the disk does not know of it, and when a node returns, all its shards
// may need files at once. It is safe for concurrent use.
type room struct {
	ask func(bytes int64) error // Config.Room

	mu       sync.Mutex
	promised int64
}

// promise sets room for a file aside, or says why there is none.
func (r *room) promise(bytes int64) (*promise, error) {
	if err := r.take(bytes); err != nil {
		return nil, err
	}
	return &promise{room: r, left: bytes}, nil
}

// take asks for all that is promised: this much more.
func (r *room) take(bytes int64) error {
	r.mu.Lock()
	r.promised += bytes
	all := r.promised
	r.mu.Unlock()
	if err := r.ask(all); err != nil {
		r.give(bytes)
		return fmt.Errorf("no room for a shard file: %w", err)
	}
	return nil
}

func (r *room) give(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.promised -= bytes
}

// promise is the room for the rest of one file. It has one user.
type promise struct {
	room *room
	left int64
}

// use takes what is about to be written off the promise, and asks for more if the
// file is larger than it was said to be.
func (p *promise) use(bytes int64) error {
	if bytes > p.left {
		more := max(bytes-p.left, roomPiece)
		if err := p.room.take(more); err != nil {
			return err
		}
		p.left += more
	}
	p.left -= bytes
	p.room.give(bytes)
	return nil
}

// end gives back what was not used.
func (p *promise) end() {
	p.room.give(p.left)
	p.left = 0
}

// shortage is why there is no room for a replica's file. The log says so once, raft
// tries again and again.
type shortage struct{ reason atomic.Pointer[string] }

// note takes the answer to an attempt.
func (s *shortage) note(logger *slog.Logger, err error) {
	if err == nil {
		if s.reason.Swap(nil) != nil {
			logger.Info("there is room for the shard file again")
		}
		return
	}
	reason := err.Error()
	if s.reason.Swap(&reason) == nil {
		logger.Error("a shard file cannot travel: it is tried again", slog.Any("error", err))
	}
}

// why is the reason, "" for none.
func (s *shortage) why() string {
	if reason := s.reason.Load(); reason != nil {
		return *reason
	}
	return ""
}

// over is called when the file is not needed any more.
func (s *shortage) over() { s.reason.Store(nil) }
