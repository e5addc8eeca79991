package replica

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	"writ/internal/format"
	recordv1 "writ/proto/writ/record/v1"
)

// future is an apply future that the test answers.
type future struct {
	entry    *recordv1.Entry
	done     chan struct{}
	err      error
	response any
}

func (f *future) Error() error  { <-f.done; return f.err }
func (f *future) Response() any { return f.response }
func (f *future) Index() uint64 { return 0 }

func (f *future) fail(err error) {
	f.err = err
	close(f.done)
}

func (f *future) succeed() {
	f.response = &applied{results: make([]error, len(f.entry.GetRecords()))}
	close(f.done)
}

// bench is a lease whose proposals wait for the test.
type bench struct {
	lease    *Lease
	proposed chan *future

	active  atomic.Uint32
	mu      sync.Mutex
	answers []string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{proposed: make(chan *future, 16)}
	b.active.Store(format.Base)
	b.lease = newLease(3, 2, 7, 1000, b.active.Load, func(encoded []byte) raft.ApplyFuture {
		f := &future{entry: &recordv1.Entry{}, done: make(chan struct{})}
		if err := proto.Unmarshal(encoded, f.entry); err != nil {
			t.Error(err)
		}
		b.proposed <- f
		return f
	})
	return b
}

func (b *bench) note(name string) func(error) {
	return func(err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if err != nil {
			name += " " + string(entity.ReasonOf(err))
		}
		b.answers = append(b.answers, name)
	}
}

func (b *bench) propose(names ...string) {
	for _, name := range names {
		b.lease.Propose(commitOf(name, 0, name), b.note(name))
	}
}

func (b *bench) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if diff := cmp.Diff(want, b.answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	b.answers = nil
}

func (b *bench) end() {
	b.lease.end(errLost)
	b.lease.batcher.close()
}

func TestRecordsGatherWhileTwoEntriesAreInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		b.propose("1")
		synctest.Wait()
		b.propose("2")
		synctest.Wait()
		b.propose("3", "4", "5")
		synctest.Wait()
		if records, bytes := b.lease.Load(); records != 5 || bytes == 0 {
			t.Errorf("load is %d records, %d bytes", records, bytes)
		}
		first, second := <-b.proposed, <-b.proposed
		if len(b.proposed) != 0 {
			t.Fatal("a third entry is in flight")
		}
		second.succeed()
		b.want(t) // answers come in order
		first.succeed()
		b.want(t, "1", "2")
		third := <-b.proposed
		if n := len(third.entry.GetRecords()); n != 3 {
			t.Errorf("the third entry has %d records, want 3", n)
		}
		for _, rec := range third.entry.GetRecords() {
			if rec.GetEpoch() != 2 || rec.GetTerm() != 7 {
				t.Errorf("record of (%d, %d)", rec.GetEpoch(), rec.GetTerm())
			}
		}
		if third.entry.GetFormat() != 1 || third.entry.GetLogTime() < 1000 {
			t.Errorf("entry of format %d at log time %d", third.entry.GetFormat(), third.entry.GetLogTime())
		}
		third.succeed()
		b.want(t, "3", "4", "5")
		if records, bytes := b.lease.Load(); records != 0 || bytes != 0 {
			t.Errorf("load is %d records, %d bytes at rest", records, bytes)
		}
	})
}

func TestBarriersOfAnEntryShareOneCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		b.lease.Barrier(b.note("b0"))
		synctest.Wait()
		b.lease.Barrier(b.note("b1"))
		synctest.Wait()
		b.propose("1")
		b.lease.Barrier(b.note("b2"))
		b.propose("2")
		b.lease.Barrier(b.note("b3"))
		synctest.Wait()
		(<-b.proposed).succeed()
		(<-b.proposed).succeed()
		synctest.Wait()
		f := <-b.proposed
		var kinds []string
		for _, rec := range f.entry.GetRecords() {
			kinds = append(kinds, fmt.Sprintf("%T", rec.GetBody()))
		}
		want := []string{"*recordv1.Record_Commit", "*recordv1.Record_Commit", "*recordv1.Record_Checkpoint"}
		if diff := cmp.Diff(want, kinds); diff != "" {
			t.Error(diff)
		}
		refused := entity.Errorf(entity.NotExecuted, "no").With("refused", "version")
		f.response = &applied{results: []error{refused, nil, nil}}
		close(f.done)
		b.want(t, "b0", "b1", "1 NOT_EXECUTED", "b2", "2", "b3")
		if b.lease.ctx.Err() != nil {
			t.Error("a refused version has ended the lease")
		}
	})
}

func TestFailedEntriesAndTheLease(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want string
		ends bool
	}{
		{"not leader", raft.ErrNotLeader, "NOT_EXECUTED", true},
		{"enqueue timeout", raft.ErrEnqueueTimeout, "NOT_EXECUTED", false},
		{"transfer", raft.ErrLeadershipTransferInProgress, "NOT_EXECUTED", false},
		{"leadership lost", raft.ErrLeadershipLost, "OUTCOME_UNKNOWN", true},
		{"shutdown", raft.ErrRaftShutdown, "OUTCOME_UNKNOWN", true},
		{"anything else", errors.New("disk"), "OUTCOME_UNKNOWN", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				defer b.end()
				b.propose("1")
				synctest.Wait()
				(<-b.proposed).fail(test.err)
				b.want(t, "1 "+test.want)
				if ended := b.lease.ctx.Err() != nil; ended != test.ends {
					t.Errorf("lease ended: %t, want %t", ended, test.ends)
				}
				b.propose("2")
				synctest.Wait()
				if test.ends {
					b.want(t, "2 NOT_EXECUTED")
					return
				}
				(<-b.proposed).succeed() // a record has its own answer
				b.want(t, "2")
			})
		})
	}
}

func TestEndedLeaseAnswersEverythingOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.propose("1")
		synctest.Wait()
		b.propose("2")
		synctest.Wait()
		b.propose("3")
		b.lease.Barrier(b.note("b"))
		first := <-b.proposed
		b.lease.end(errLost)
		first.succeed()         // its answer was on the way
		b.lease.batcher.close() // the second entry's answer never comes
		b.want(t, "1", "2 OUTCOME_UNKNOWN", "3 NOT_EXECUTED", "b NOT_EXECUTED")
		b.propose("4", "5")
		b.want(t, "4 NOT_EXECUTED", "5 NOT_EXECUTED")
		(<-b.proposed).succeed() // lets its waiting goroutine go
	})
}

func TestRefusedTermEndsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		b.propose("1")
		synctest.Wait()
		f := <-b.proposed
		f.response = &applied{results: []error{entity.Errorf(entity.NotExecuted, "no").With("refused", "term")}}
		close(f.done)
		b.want(t, "1 NOT_EXECUTED")
		if b.lease.ctx.Err() == nil {
			t.Error("the lease goes on")
		}
	})
}

func TestFullQueueRefusesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		big := make([]byte, 20<<20)
		var details map[string]string
		for i := range 4 {
			note := b.note(fmt.Sprint(i))
			b.lease.Propose(commitOf("e", 0, string(big)), func(err error) {
				if refusal, ok := errors.AsType[*entity.Error](err); ok {
					details = refusal.Details
				}
				note(err)
			})
		}
		go func() {
			for f := range b.proposed {
				f.succeed()
			}
		}()
		b.want(t, "0", "1", "2", "3 OVERLOADED")
		// The name stands in docs/limits.md.
		if diff := cmp.Diff(map[string]string{"limit": "bytes of records that wait in a replica", "max": "67108864"}, details); diff != "" {
			t.Errorf("details (-want +got):\n%s", diff)
		}
		close(b.proposed)
	})
}

func TestBatchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		b.propose("a")
		synctest.Wait()
		b.propose("b")
		synctest.Wait()
		for range 2000 {
			b.lease.Propose(commitOf("e", 0, "x"), func(error) {})
		}
		for range 4 {
			b.lease.Propose(commitOf("e", 0, string(make([]byte, 400<<10))), func(error) {})
		}
		var sizes []int
		for records := 0; records < 2006; {
			f := <-b.proposed
			sizes = append(sizes, len(f.entry.GetRecords()))
			records += len(f.entry.GetRecords())
			f.succeed()
		}
		if diff := cmp.Diff([]int{1, 1, 1024, 978, 2}, sizes); diff != "" {
			t.Errorf("records per entry (-want +got):\n%s", diff)
		}
		synctest.Wait()
	})
}

func BenchmarkBatcher(b *testing.B) {
	l := newLease(1, 1, 1, 0, func() uint32 { return format.Base }, func(encoded []byte) raft.ApplyFuture {
		f := &future{entry: &recordv1.Entry{}, done: make(chan struct{})}
		_ = proto.Unmarshal(encoded, f.entry)
		f.succeed()
		return f
	})
	b.ReportAllocs()
	var pending sync.WaitGroup
	for b.Loop() {
		pending.Add(1)
		l.Propose(commitOf("e", 0, "value"), func(error) { pending.Done() })
	}
	pending.Wait()
	l.end(errLost)
	l.batcher.close()
}
