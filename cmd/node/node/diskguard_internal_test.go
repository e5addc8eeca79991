package node

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"testing"

	"writ/actors/entity"
)

func TestDiskGuardStopsAdmissionBeforeTheDiskIsFull(t *testing.T) {
	dir := t.TempDir()
	free, _, err := diskSpace(dir)
	if err != nil {
		t.Fatal(err)
	}
	handedOver := 0
	g := newDiskGuard(dir, 1<<20, slog.New(slog.DiscardHandler), func() { handedOver++ })
	g.look()
	if err := g.admit(); err != nil || g.reason() != "" {
		t.Errorf("with %d bytes free: %v", free, err)
	}
	if st, err := os.Stat(g.ballast()); err != nil || st.Size() != 1<<20/ballastShare {
		t.Errorf("ballast: %v, %v", st, err)
	}

	g.freeMin = free * 2 // as if the disk had filled up
	g.look()
	g.look()
	if entity.ReasonOf(g.admit()) != entity.Overloaded || handedOver != 1 {
		t.Errorf("on a low disk: %v, handed over %d times; want OVERLOADED, once", g.admit(), handedOver)
	}
	if _, err := os.Stat(g.ballast()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ballast is still there: %v", err)
	}

	g.freeMin = 1 << 20 // room was made
	g.look()
	if err := g.admit(); err != nil {
		t.Errorf("after room was made: %v", err)
	}
}
