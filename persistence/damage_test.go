package persistence_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"writ/internal/format"
	"writ/persistence"
	recordv1 "writ/proto/writ/record/v1"
)

// filled makes a file with something in every bucket and closes it.
func filled(tb testing.TB, cfg persistence.Config) {
	tb.Helper()
	st, err := persistence.Create(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	s := newShard(tb, st)
	for i := range 300 {
		from := ref(fmt.Sprint("from", i%50))
		s.logTime += int64(time.Second)
		r, c := s.commit(from)
		s.key(c, fmt.Sprint("key", i))
		s.emit(c, ref("x"))
		s.emit(c, ref(fmt.Sprint("to", i)))
		s.mark(c, ref("source"))
		c.Mutations = append(c.Mutations, &recordv1.Mutation{Bucket: recordv1.Bucket_TIMERS, Subkey: fmt.Append(nil, i), Value: payload("timer")})
		s.must(r)
		if i%7 == 0 {
			s.must(s.update(from, ref("x"), &recordv1.LaneUpdate_Park{Park: &recordv1.Park{LaneSequence: 1, Reason: "poison"}}))
		}
		if i%100 == 50 {
			flush(tb, st)
		}
	}
	if err := st.Close(); err != nil {
		tb.Fatal(err)
	}
}

// wantDamage opens a file that must not be served from. Nothing may panic.
func wantDamage(t *testing.T, cfg persistence.Config) {
	t.Helper()
	_, verifyErr := persistence.Verify(cfg.Path, cfg)
	s, openErr := persistence.Open(cfg)
	if openErr == nil {
		_ = s.Close()
	}
	for what, err := range map[string]error{"open": openErr, "verify": verifyErr} {
		var d *persistence.Damage
		if !errors.As(err, &d) || d.Path != cfg.Path || d.What == "" {
			t.Errorf("%s: %v, want a *Damage", what, err)
		}
	}
	if openErr != nil {
		t.Log(openErr)
	}
}

func TestDamagedFiles(t *testing.T) {
	cfg := config(t)
	filled(t, cfg)
	good, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	foreign := filepath.Join(t.TempDir(), "foreign")
	db, err := bolt.Open(foreign, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte("other"))
		return err
	}), db.Close()); err != nil {
		t.Fatal(err)
	}
	otherDB, err := os.ReadFile(foreign)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]byte{
		"no bytes":          {},
		"one byte":          {1},
		"less than a page":  good[:page-1],
		"one page":          good[:page],
		"both metas only":   good[:2*page],
		"half":              good[:len(good)/2],
		"half, whole pages": good[:len(good)/2/page*page],
		"foreign bytes":     bytes.Repeat([]byte("writ"), len(good)/4),
		"all zero":          make([]byte, len(good)),
		"another program's": otherDB,
		"metas zeroed":      append(make([]byte, 2*page), good[2*page:]...),
		"content zeroed":    append(append([]byte{}, good[:2*page]...), make([]byte, len(good)-2*page)...),
		"pages in reverse":  reversed(good, page),
	}
	for name, content := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			cfg.Path = filepath.Join(t.TempDir(), "shard")
			if err := os.WriteFile(cfg.Path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			wantDamage(t, cfg)
			after, err := os.ReadFile(cfg.Path)
			if err != nil || !bytes.Equal(content, after) {
				t.Errorf("the damaged file was changed: %v", err)
			}
		})
	}
}

// reversed keeps the metas and turns the order of all other pages round.
func reversed(good []byte, page int) []byte {
	b := append([]byte{}, good[:2*page]...)
	for at := len(good) - page; at >= 2*page; at -= page {
		b = append(b, good[at:at+page]...)
	}
	return b
}

// Every page in use, zeroed, truncated at, or with one bit changed, is noticed;
// nothing panics. Pages that are free make no difference.
func TestEveryDamagedPageIsNoticed(t *testing.T) {
	cfg := config(t)
	filled(t, cfg)
	s := open(t, cfg)
	want := s.Dump()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	page := os.Getpagesize()
	noticed := 0
	check := func(content []byte, what string) {
		cfg.Path = filepath.Join(t.TempDir(), "shard")
		if err := os.WriteFile(cfg.Path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := persistence.Open(cfg)
		var d *persistence.Damage
		switch {
		case err == nil:
			if s.Dump() != want {
				t.Errorf("%s: opened, with other content", what)
			}
			_ = s.Close()
		case errors.As(err, &d):
			noticed++
		default:
			t.Errorf("%s: %v, want a *Damage", what, err)
		}
		_ = os.Remove(cfg.Path)
	}
	pages := len(good) / page
	for i := 2; i < pages; i++ { // a zeroed meta is a torn write, see below
		b := bytes.Clone(good)
		clear(b[i*page : (i+1)*page])
		check(b, fmt.Sprintf("page %d zeroed", i))
	}
	for i := 2; i < pages; i++ { // the head of a page is what bbolt trusts blindly
		for range 2 {
			b := bytes.Clone(good)
			at := i*page + random.IntN(16)
			b[at] ^= byte(1) << random.IntN(8)
			check(b, fmt.Sprintf("byte %d of the head of page %d", at%page, i))
		}
	}
	for range 100 {
		b := bytes.Clone(good)
		at := 2*page + random.IntN(len(b)-2*page)
		bit := byte(1) << random.IntN(8)
		b[at] ^= bit
		check(b, fmt.Sprintf("byte %d of page %d, bit %x", at%page, at/page, bit))
	}
	for range 20 {
		cut := random.IntN(len(good))
		check(good[:cut], fmt.Sprintf("cut at %d of %d", cut, len(good)))
	}
	if noticed < pages/4 {
		t.Errorf("only %d damages noticed in %d pages", noticed, pages)
	}
}

// A torn write of the newest meta is no damage: the transaction before counts.
func TestATornMetaIsNoDamage(t *testing.T) {
	cfg := config(t)
	filled(t, cfg)
	good, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	var opened []uint64
	for _, torn := range []int{0, 1} {
		b := bytes.Clone(good)
		clear(b[torn*page+20 : torn*page+60])
		if err := os.WriteFile(cfg.Path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := persistence.Open(cfg)
		if err != nil {
			t.Fatalf("meta %d torn: %v", torn, err)
		}
		opened = append(opened, s.Meta().Index)
		audit(t, s)
		_ = s.Close()
	}
	if opened[0] == opened[1] {
		t.Errorf("both at index %d", opened[0])
	}
}

func TestIdentityIsChecked(t *testing.T) {
	cfg := config(t)
	filled(t, cfg)
	tests := map[string]func(*persistence.Config){
		"another cluster":    func(c *persistence.Config) { c.ClusterID = "other" },
		"another shard":      func(c *persistence.Config) { c.Shard++ },
		"another range":      func(c *persistence.Config) { c.Range.First++ },
		"another epoch":      func(c *persistence.Config) { c.Epoch++ },
		"another generation": func(c *persistence.Config) { c.Generation++ },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			other := cfg
			change(&other)
			_, err := persistence.Open(other)
			if _, ok := errors.AsType[*persistence.Damage](err); !ok {
				t.Errorf("opened: %v", err)
			}
			_, err = persistence.Verify(other.Path, other)
			if sender := name == "another generation"; sender != (err == nil) {
				t.Errorf("verify: %v", err)
			}
		})
	}
	open(t, cfg)
}

// The files of two shards, swapped.
func TestSwappedFiles(t *testing.T) {
	one, two := config(t), config(t)
	two.Shard, two.Generation = 4, 8
	filled(t, one)
	filled(t, two)
	aside := one.Path + ".aside"
	for _, move := range [][2]string{{one.Path, aside}, {two.Path, one.Path}, {aside, two.Path}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
	wantDamage(t, one)
	wantDamage(t, two)
}

func TestAnotherFormatIsNamed(t *testing.T) {
	cfg := config(t)
	filled(t, cfg)
	persistence.RewriteHead(t, cfg.Path, func(m *recordv1.ShardMeta) { m.Format = 0 })
	wantDamage(t, cfg)
}

// A file of a newer program is no damage: damaged files are thrown away.
func TestANewerFileIsNoDamage(t *testing.T) {
	cfg := config(t)
	filled(t, cfg)
	persistence.RewriteHead(t, cfg.Path, func(m *recordv1.ShardMeta) { m.Format = format.Max + 1 })
	_, openErr := persistence.Open(cfg)
	_, verifyErr := persistence.Verify(cfg.Path, cfg)
	for _, err := range []error{openErr, verifyErr} {
		var newer *format.NewerError
		var damage *persistence.Damage
		if !errors.As(err, &newer) || newer.Format != format.Max+1 || errors.As(err, &damage) {
			t.Errorf("got %v", err)
		}
	}
	persistence.RewriteHead(t, cfg.Path, func(m *recordv1.ShardMeta) { m.Format = format.Base })
	if s, err := persistence.Open(cfg); err != nil {
		t.Error(err)
	} else if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestCountersInTheHeadAreChecked(t *testing.T) {
	cfg := config(t)
	filled(t, cfg)
	persistence.RewriteHead(t, cfg.Path, func(m *recordv1.ShardMeta) { m.Hashes[0]++ })
	wantDamage(t, cfg)
	persistence.RewriteHead(t, cfg.Path, func(m *recordv1.ShardMeta) { m.Hashes = nil })
	wantDamage(t, cfg)
	for _, change := range []func(*recordv1.Generation){
		func(g *recordv1.Generation) { g.Keys++ },
		func(g *recordv1.Generation) { g.Hash++ },
	} {
		cfg := config(t)
		filled(t, cfg)
		persistence.RewriteGenerations(t, cfg.Path, change)
		wantDamage(t, cfg)
	}
}

// What is not the file's fault is not damage.
func TestOpenErrorsThatAreNotDamage(t *testing.T) {
	cfg := config(t)
	var d *persistence.Damage
	if _, err := persistence.Open(cfg); !errors.Is(err, os.ErrNotExist) || errors.As(err, &d) {
		t.Errorf("no file: %v", err)
	}
	if _, err := os.Stat(cfg.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("opening made a file: %v", err)
	}
	if _, err := persistence.Verify(cfg.Path, cfg); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("verify without a file: %v", err)
	}
	create(t, cfg)
	if _, err := persistence.Open(cfg); err == nil || errors.As(err, &d) {
		t.Errorf("opened twice: %v", err)
	}
	if _, err := persistence.Create(cfg); !errors.Is(err, os.ErrExist) {
		t.Errorf("created twice: %v", err)
	}
	if _, err := persistence.Create(persistence.Config{}); err == nil {
		t.Error("created without a configuration")
	}
	bad := cfg
	bad.GenerationWidth, bad.Path = 0, cfg.Path+"2"
	if _, err := persistence.Create(bad); err == nil {
		t.Error("created without a generation width")
	}
}

// The file is cut while it is open: reads and Apply return errors, and the
// process lives on.
func TestFileCutWhileOpen(t *testing.T) {
	cfg := config(t)
	filled(t, cfg)
	cfg.OnFailure = nil
	st, err := persistence.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(cfg.Path, int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	var d *persistence.Damage
	if _, err := st.Entity(ref("from1")); !errors.As(err, &d) {
		t.Errorf("entity: %v", err)
	}
	if _, err := st.Audit(t.Context()); !errors.As(err, &d) {
		t.Errorf("audit: %v", err)
	}
	if _, _, err := st.CopyFile(t.TempDir()); err == nil {
		t.Error("copied")
	}
	s := newShard(t, st)
	if _, err := st.Apply(10_000, 1, encode(t, 0, s.command(ref("from1"), "k"))); !errors.As(err, &d) {
		t.Errorf("apply: %v", err)
	}
	_ = st.Close()
}

// The same for the flusher.
func TestFileCutBeforeAFlush(t *testing.T) {
	cfg := config(t)
	filled(t, cfg)
	failed := make(chan error, 1)
	cfg.OnFailure = func(err error) { failed <- err }
	st, err := persistence.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := newShard(t, st)
	s.must(s.command(ref("new"), "k", ref("x")))
	if err := os.Truncate(cfg.Path, int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	if err := st.WaitFlushed(t.Context(), s.index); !errors.Is(err, persistence.ErrFailed) {
		t.Errorf("flushed into a cut file: %v", err)
	}
	var d *persistence.Damage
	if err := <-failed; !errors.As(err, &d) {
		t.Errorf("reported %v", err)
	}
	if r, err := st.Entity(ref("new")); r.GetVersion() != 1 || err != nil {
		t.Errorf("what was applied cannot be read: %v %v", r, err)
	}
	_ = st.Close()
}
