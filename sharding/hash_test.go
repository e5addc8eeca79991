package sharding_test

import (
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"writ/actors/entity"
	"writ/sharding"
)

// The values are an identity: the files of a cluster are cut by them. If this
// test fails the code is wrong, never the table.
func TestHashGolden(t *testing.T) {
	tests := []struct {
		ref  entity.Ref
		want uint64
	}{
		{entity.Ref{}, 0x31886f2e7daf8ca4},
		{entity.Ref{Tenant: "acme", Kind: "account", ID: "alice"}, 0x5d9696da90d3411b},
		{entity.Ref{Tenant: "acme", Kind: "account", ID: "bob"}, 0x7706ad8db1641e8c},
		{entity.Ref{Tenant: "acm", Kind: "eaccount", ID: "alice"}, 0x2b20ffe03edbcc4f},
		{entity.Ref{Tenant: "acme", Kind: "account"}, 0xe880a21e6cd6a86c},
		{entity.Ref{Tenant: "acme", Kind: "account", ID: "\x00\xff/\n"}, 0xb6d488eab6fd7ab7},
		{entity.Ref{Tenant: "t", Kind: "statement", ID: strings.Repeat("x", 200)}, 0x0eb1760f9db3dba2},
	}
	for _, tt := range tests {
		if got := sharding.Hash(tt.ref); got != tt.want {
			t.Errorf("Hash(%v) = %#016x, want %#016x", tt.ref, got, tt.want)
		}
	}
}

// The encoding that other programs have to reproduce.
func TestHashEncoding(t *testing.T) {
	long := strings.Repeat("x", 200)
	tests := []struct {
		ref     entity.Ref
		encoded string
	}{
		{entity.Ref{Tenant: "a", Kind: "bc", ID: "d"}, "\x01a\x02bc\x01d"},
		{entity.Ref{ID: long}, "\x00\x00\xc8\x01" + long},
	}
	for _, tt := range tests {
		if got, want := sharding.Hash(tt.ref), xxhash.Sum64String(tt.encoded); got != want {
			t.Errorf("Hash(%v) = %#016x, want %#016x", tt.ref, got, want)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	ref := entity.Ref{Tenant: "acme", Kind: "account", ID: "0f6b7a52-4a4f-4f5e-9d6b-3f6f2a1d7c11"}
	b.ReportAllocs()
	for b.Loop() {
		sharding.Hash(ref)
	}
}
