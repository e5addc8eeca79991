// Package persistence is one shard's store.
package persistence
