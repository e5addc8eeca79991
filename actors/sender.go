package actors

import "sync"

// senders runs deliveries on a bounded number of goroutines, first come first
// served. Waiting costs a closure, not a goroutine and not the rows. Goroutines
// start on demand and end when there is nothing to do.
type senders struct {
	most int
	wg   sync.WaitGroup

	mu      sync.Mutex
	jobs    []func()
	workers int
	closed  bool
}

func newSenders(most int) *senders { return &senders{most: most} }

// run queues a job. It is dropped if the senders are closed.
func (s *senders) run(job func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.jobs = append(s.jobs, job)
	if s.workers < s.most {
		s.workers++
		s.wg.Go(s.work)
	}
}

func (s *senders) work() {
	for {
		job := s.next()
		if job == nil {
			return
		}
		job()
	}
}

// next takes a job; nil ends the worker that asks.
func (s *senders) next() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.jobs) == 0 {
		s.jobs = nil
		s.workers--
		return nil
	}
	job := s.jobs[0]
	s.jobs[0] = nil
	s.jobs = s.jobs[1:]
	return job
}

// close drops what waits and waits for what runs.
func (s *senders) close() {
	s.mu.Lock()
	s.closed = true
	s.jobs = nil
	s.mu.Unlock()
	s.wg.Wait()
}
