package replica

import (
	"sync"

	"github.com/hashicorp/raft"
)

// AppendEntriesPipeline implements raft.Transport.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return newPipeline(p), nil
}

// pipeline is raft's own, but for this: it ends with the first answer that is not
// good. Raft stops taking answers then and goes over to sending without a pipeline,
// unless its sender has just begun to wait for room in this one; since nobody takes
// answers, there never is any, and the follower hears heartbeats, and nothing else, as
// long as the leader leads (hashicorp/raft#612).
type pipeline struct {
	raft.AppendPipeline
	answers chan raft.AppendFuture
	closed  chan struct{}
	once    sync.Once
}

func newPipeline(p raft.AppendPipeline) *pipeline {
	l := &pipeline{AppendPipeline: p, answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
	go l.pass()
	return l
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}

// pass hands answers on until the pipeline is closed.
func (p *pipeline) pass() {
	for {
		var answer raft.AppendFuture
		select {
		case answer = <-p.AppendPipeline.Consumer():
		case <-p.closed:
			return
		}
		good := answer.Error() == nil && answer.Response().Success
		if !good {
			_ = p.AppendPipeline.Close() // whoever waits for room goes on, and raft closes it once more
		}
		select {
		case p.answers <- answer:
		case <-p.closed:
			return
		}
		if !good {
			return
		}
	}
}
