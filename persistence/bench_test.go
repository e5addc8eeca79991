package persistence_test

import (
	"fmt"
	"testing"

	recordv1 "writ/proto/writ/record/v1"
)

// BenchmarkApply is the usual commit: state, key, one row and its lane, in
// entries of one and of a hundred records, over entities that are in memory and
// entities that are in the file only.
func BenchmarkApply(b *testing.B) {
	for _, size := range []int{1, 64} {
		for _, cold := range []bool{false, true} {
			b.Run(fmt.Sprintf("records=%d/cold=%t", size, cold), func(b *testing.B) { benchmarkApply(b, size, cold) })
		}
	}
}

func benchmarkApply(b *testing.B, size int, cold bool) {
	b.Helper()
	const entities = 20_000
	s := newShard(b, create(b, config(b)))
	step, at := 0, 0
	next := func(n int) []byte {
		var records []*recordv1.Record
		for range n {
			records = append(records, s.command(ref(fmt.Sprintf("account-%08d", at%entities)), fmt.Sprintf("key-%032d", at), ref("statement")))
			at = at + 7919
			step++
		}
		return encode(b, s.logTime, records...)
	}
	apply := func(entry []byte) {
		s.index++
		if _, err := s.Apply(s.index, s.term, entry); err != nil {
			b.Fatal(err)
		}
	}
	for step < entities {
		apply(next(100))
	}
	flush(b, s.Store)
	const batch = 500
	b.ReportAllocs()
	records := 0
	var entries [][]byte
	for b.Loop() {
		if len(entries) == 0 {
			b.StopTimer()
			for range batch {
				entries = append(entries, next(size))
			}
			if cold || records%50_000 < batch*size {
				flush(b, s.Store)
			}
			b.StartTimer()
		}
		apply(entries[0])
		entries = entries[1:]
		records += size
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(records), "ns/record")
}

// BenchmarkFlush writes 20,000 commits in one transaction.
func BenchmarkFlush(b *testing.B) {
	const commits = 20_000
	s := newShard(b, create(b, config(b)))
	at := 0
	for b.Loop() {
		b.StopTimer()
		for range commits / 100 {
			var records []*recordv1.Record
			for range 100 {
				records = append(records, s.command(ref(fmt.Sprintf("account-%08d", at%100_000)), fmt.Sprintf("key-%032d", at), ref("statement")))
				at += 7919
			}
			s.must(records...)
		}
		b.StartTimer()
		flush(b, s.Store)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*commits), "ns/record")
}
