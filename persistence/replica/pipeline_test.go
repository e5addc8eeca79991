package replica

import (
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A follower refuses what the leader sends it. Raft takes the first answer and none
// after it, while its sender may go on: it must not wait for ever.
func TestPipelineEndsWithTheFirstRefusal(t *testing.T) {
	leader, follower := tcpTransport(t), tcpTransport(t)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case rpc := <-follower.Consumer():
				rpc.Respond(&raft.AppendEntriesResponse{}, nil)
			case <-stop:
				return
			}
		}
	}()
	inner, err := leader.AppendEntriesPipeline("follower", follower.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	p := newPipeline(inner)
	defer func() { _ = p.Close() }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for err := error(nil); err == nil; {
			_, err = p.AppendEntries(&raft.AppendEntriesRequest{Term: 1}, &raft.AppendEntriesResponse{})
		}
	}()
	if answer := <-p.Consumer(); answer.Response().Success {
		t.Error("the answer is good")
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the sender waits for room that there never will be")
	}
}

func tcpTransport(t *testing.T) *raft.NetworkTransport {
	t.Helper()
	trans, err := raft.NewTCPTransport("127.0.0.1:0", nil, 2, patience, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = trans.Close() })
	return trans
}
