package node

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
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

func TestDiskGuardKeepsRoomFromFiles(t *testing.T) {
	dir := t.TempDir()
	free, _, err := diskSpace(dir)
	if err != nil {
		t.Fatal(err)
	}
	g := newDiskGuard(dir, free/2, slog.New(slog.DiscardHandler), func() {})
	if err := g.room(1); err != nil {
		t.Errorf("a small file: %v", err)
	}
	if err := g.room(int64(free)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d MiB must stay free (--free-min-mb): make room", free/2>>20)) {
		t.Errorf("a file that would take what must stay free: %v", err)
	}
	g.freeMin = freeMinMax
	if err := g.room(0); err == nil {
		t.Error("a disk that is low already has room")
	}
	g.dir = filepath.Join(dir, "nowhere")
	if err := g.room(0); err == nil {
		t.Error("a disk that is not known has room")
	}
}
