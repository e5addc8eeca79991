// Package persistence is one shard's store: what a replica of the shard knows,
// as a function of the Raft log.
//
// # Contract
//
// [Store.Apply] takes the log's entries in order. It depends on the content and
// the entry alone, so every replica that has applied the same entries holds the
// same bytes; the state hash in the meta shows it at no cost. A record takes
// effect as a whole, or is refused with the name of the check it failed, which
// is a definite "not executed". The checks are what makes an effect happen once:
// the fencing token (epoch, term), the entity's version, the idempotency key,
// the dense numbers of rows and of applied marks.
//
// # Where things are
//
// The Raft log is the write-ahead log. Apply changes an overlay in memory: an
// active level over, while a flush is on its way, a frozen one. A goroutine of
// the store, the flusher, writes the frozen level, sorted, in one fsynced bbolt
// transaction, together with the Raft index that it stands for. Reads see the
// levels over the file. After a crash the file is what it was after the last
// flush, and the log is applied again from the index found in it; entries at or
// below the index are skipped. Apply never waits for a flush: the caller bounds
// [Store.UnflushedBytes] at admission.
//
// The file has the buckets meta, state, idem, outbox, applied, lanes, timers and
// parked; keys.go has the keys. Idempotency keys stand in a bucket per
// generation, a slice of log time, so that forgetting them drops whole buckets.
// A snapshot is a copy of the file.
//
// # Invariants
//
//   - Content and index change in one transaction, or by one rename.
//   - Every hash is the sum over what is in its bucket, and every counter is what
//     a recount finds; [Store.Audit] counts.
//   - A lane's rows are exactly those numbered and not confirmed.
//   - No number and no live idempotency key is ever used twice, deletion of the
//     entity included.
//
// # Failures
//
// A file that is not what it should be is a [*Damage]: it is read and checked in
// full before bbolt may trust it. Content is compared with its hashes, the heads
// with checksums of their own (sum.go). What was written and then damaged while
// open comes out of reads as a *Damage too; nothing here ends the process. If the
// file cannot be written, or an entry cannot be decoded, the store has failed
// ([ErrFailed]): it takes nothing more, and what was applied stays readable. It
// reports the first through [Config.OnFailure], the second as Apply's error.
//
// # Limits
//
// Opening reads the whole file. A long read ([Store.Audit], [Store.ScanLanes])
// keeps pages of the file from being used again. A key of the file is at most
// 32 KiB, which bounds names and idempotency keys; Apply refuses longer ones.
package persistence
