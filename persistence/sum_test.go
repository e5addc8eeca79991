package persistence_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"writ/internal/format"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// sumField is the field of the checksum in every entry of the bucket meta, as raw
// bytes.
func sumField(sum uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(nil, 18, protowire.Fixed64Type), sum)
}

// rewriteMeta changes the stored bytes of the bucket meta of a file that is not
// open.
func rewriteMeta(t *testing.T, path string, change func(key string, value []byte) []byte) {
	t.Helper()
	values := metaOf(t, path)
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoFreelistSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) (err error) {
		for key, value := range values {
			err = errors.Join(err, tx.Bucket([]byte("meta")).Put([]byte(key), change(key, value)))
		}
		return err
	})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// metaOf are the stored bytes of the bucket meta of a file that is not open.
func metaOf(t *testing.T, path string) map[string][]byte {
	t.Helper()
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	values := map[string][]byte{}
	err = db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("meta")).ForEach(func(key, value []byte) error {
			values[string(key)] = bytes.Clone(value)
			return nil
		})
	})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return values
}

// golden makes a file in one flush, so that it has no second copy of an entry.
func golden(t *testing.T) persistence.Config {
	t.Helper()
	cfg := config(t)
	s := newShard(t, create(t, cfg))
	goldenLog(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// The bits flip in the file itself, one at a time.
func TestEveryBitOfTheHeadsIsNoticed(t *testing.T) {
	cfg := golden(t)
	entries := metaOf(t, cfg.Path)
	content, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(cfg.Path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	write := func(b byte, at int) {
		t.Helper()
		if _, err := f.WriteAt([]byte{b}, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	if len(entries) < 3 {
		t.Fatalf("too few entries: %q", entries)
	}
	for key, value := range entries {
		entry := append([]byte(key), value...) // as they stand side by side
		if n := bytes.Count(content, entry); n != 1 {
			t.Fatalf("%q stands %d times in the file", key, n)
		}
		start := bytes.Index(content, entry)
		for bit := range 8 * len(entry) {
			at := start + bit/8
			write(content[at]^1<<(bit%8), at)
			_, err := persistence.Verify(cfg.Path, cfg)
			if d, ok := errors.AsType[*persistence.Damage](err); !ok || d.Path != cfg.Path {
				t.Errorf("%q, byte %d, bit %d: %v, want a *Damage", key, bit/8, bit%8, err)
			}
			write(content[at], at)
		}
	}
	open(t, cfg)
}

// What no hash speaks of decides what is forgotten.
func TestADamagedHeadIsNamed(t *testing.T) {
	for name, part := range map[string]string{"head": "head does not match", "generation/": "head of generation"} {
		t.Run(name, func(t *testing.T) {
			cfg := golden(t)
			rewriteMeta(t, cfg.Path, func(key string, value []byte) []byte {
				if strings.HasPrefix(key, name) {
					value[len(value)-1] ^= 1
				}
				return value
			})
			wantDamage(t, cfg)
			if _, err := persistence.Verify(cfg.Path, cfg); err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%v does not name the part", err)
			}
		})
	}
}

// Programs without checksums have written the file, or over it: it opens, and has
// checksums again from the next flush on.
func TestFilesOfProgramsWithoutChecksums(t *testing.T) {
	// older is such a program: the checksum is a field that it does not know.
	older := func(t *testing.T, value []byte, keep bool) []byte {
		t.Helper()
		head := &recordv1.ShardMeta{}
		if err := proto.Unmarshal(value, head); err != nil {
			t.Fatal(err)
		}
		if keep {
			head.ProtoReflect().SetUnknown(sumField(head.Sum))
		}
		head.Sum = 0
		head.LogTime += int64(time.Second)
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(head)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	for name, keep := range map[string]bool{"wrote it": false, "wrote over it": true} {
		t.Run(name, func(t *testing.T) {
			cfg := golden(t)
			before := open(t, cfg)
			want := before.Meta()
			if err := before.Close(); err != nil {
				t.Fatal(err)
			}
			want.LogTime += int64(time.Second)
			rewriteMeta(t, cfg.Path, func(key string, value []byte) []byte {
				if key == "head" {
					return older(t, value, keep)
				}
				return value[len(sumField(0)):] // it builds these anew
			})
			s := open(t, cfg)
			if got := s.Meta(); !proto.Equal(want, got) {
				t.Errorf("opened with %v, want %v", got, want)
			}
			s.SetConfiguration(want.Index+1, []byte("others"))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := persistence.Verify(cfg.Path, cfg); err != nil {
				t.Error(err)
			}
			rewriteMeta(t, cfg.Path, func(key string, value []byte) []byte {
				if key == "head" {
					value[len(value)-1] ^= 1
				}
				return value
			})
			wantDamage(t, cfg)
		})
	}
}

// The checksum of a file written today is what later versions must find.
func TestTheChecksumStaysAsItIs(t *testing.T) {
	cfg := golden(t)
	persistence.RewriteHead(t, cfg.Path, func(m *recordv1.ShardMeta) {
		proto.Reset(m)
		m.Format, m.ClusterId = format.Base, "cluster"
	})
	want := append(sumField(0x57086b9dd2100513), "\x08\x01\x12\x07cluster"...)
	if got := metaOf(t, cfg.Path)["head"]; !bytes.Equal(got, want) {
		t.Errorf("head is %x, want %x", got, want)
	}
}
