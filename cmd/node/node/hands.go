package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/cespare/xxhash/v2"
)

// hands remembers, beyond the end of the process, what the handlers have in hand.
// It is a small file mapped into memory: a write costs no system call, and the
// kernel keeps it when the process dies, however it dies. Nothing is synced, so it
// knows nothing after the machine has died: then it was not a handler.
//
// What was in hand when a process ended is not proven guilty: other handlers ran
// beside it. So it is counted, and only what is found again and again is stopped.
// The counts stand in a second file, as JSON. Its methods may be called from any
// goroutine.
type hands struct {
	path  string
	clock func() time.Time
	log   *slog.Logger
	data  []byte

	mu      sync.Mutex
	free    []int
	crashes map[string]*crashCount
	// elsewhere is what other nodes have said of their own processes, by node.
	elsewhere map[string]map[string]uint32
}

// crashCount is how often the process has ended with something in hand.
type crashCount struct {
	Crashes int `json:"crashes"`
	// Counted are the crashes that were counted elsewhere, through the log.
	Counted int       `json:"counted"`
	Last    time.Time `json:"last"`
}

const (
	handsFile   = "hands"
	crashesFile = "crashes.json"
	handSlots   = 256
	// A slot is a flag, the length of a text, and the text.
	handSize = 1024
	handHead = 8
	// crashesKept is how long a crash is remembered. It is forgotten when the node
	// starts, and by other nodes when they or this one start.
	crashesKept = 24 * time.Hour
)

// openHands opens the files in a node's folder, counts what was in hand when the
// last process ended, and says so in the log.
func openHands(dir string, clock func() time.Time, log *slog.Logger) (*hands, error) {
	h := &hands{path: filepath.Join(dir, crashesFile), clock: clock, log: log, crashes: map[string]*crashCount{}, elsewhere: map[string]map[string]uint32{}}
	f, err := os.OpenFile(filepath.Join(dir, handsFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open crash marker: %w", err)
	}
	// The map stays until the process ends: a handler that outlives its node still
	// writes to it.
	defer func() { _ = f.Close() }()
	if err := f.Truncate(handSlots * handSize); err != nil {
		return nil, fmt.Errorf("open crash marker: %w", err)
	}
	// In real blocks: a write into a hole of the map would end the process once the
	// disk is full. Where the file system cannot do that the hole stays.
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, handSlots*handSize); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("make room for the crash marker: %w", err)
	}
	if h.data, err = syscall.Mmap(int(f.Fd()), 0, handSlots*handSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map crash marker: %w", err)
	}
	h.load()
	for slot := range handSlots {
		h.free = append(h.free, slot)
		if h.flag(slot).Swap(0) != 0 {
			h.found(h.text(slot))
		}
	}
	h.keep()
	return h, nil
}

func (h *hands) flag(slot int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&h.data[slot*handSize])) // aligned: a slot is 1024 bytes
}

func (h *hands) text(slot int) string {
	b := h.data[slot*handSize : (slot+1)*handSize]
	size := int(b[4]) | int(b[5])<<8
	return string(b[handHead:min(handHead+size, handSize)])
}

// short is a text that fits into a slot.
func short(what string) string {
	const most = handSize - handHead
	if len(what) <= most {
		return what
	}
	return fmt.Sprintf("%s…%016x", cut(what, most-24), xxhash.Sum64String(what))
}

// Take implements actors.Hands. If more handlers run than there are slots, some
// are not noted.
func (h *hands) Take(what string) (leave func()) {
	what = short(what)
	h.mu.Lock()
	if len(h.free) == 0 {
		h.mu.Unlock()
		return func() {}
	}
	slot := h.free[len(h.free)-1]
	h.free = h.free[:len(h.free)-1]
	h.mu.Unlock()
	b := h.data[slot*handSize : (slot+1)*handSize]
	b[4], b[5] = byte(len(what)), byte(len(what)>>8)
	copy(b[handHead:], what)
	h.flag(slot).Store(1)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.flag(slot).Store(0)
		h.free = append(h.free, slot)
	}
}

// Crashes implements actors.Hands.
func (h *hands) Crashes(what string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	what = short(what)
	times := h.others(what)
	if c := h.crashes[what]; c != nil {
		times += c.Crashes
	}
	return times
}

// Count implements actors.Hands.
func (h *hands) Count(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.crashes[short(what)]
	if c == nil || c.Counted >= c.Crashes {
		return false
	}
	c.Counted++
	h.keep()
	return true
}

// found counts one thing that was in hand.
func (h *hands) found(what string) {
	c := h.crashes[what]
	if c == nil {
		c = &crashCount{}
		h.crashes[what] = c
	}
	c.Crashes++
	c.Last = h.clock()
	h.log.Warn("the process ended while a handler had this in hand", slog.String("what", what), slog.Int("times", c.Crashes))
}

// known is the number of things that were in hand when a process ended.
func (h *hands) known() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.crashes)
}

func (h *hands) load() {
	text, err := os.ReadFile(h.path)
	if err == nil {
		err = json.Unmarshal(text, &h.crashes)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		h.log.Warn("the crash counts cannot be read: counting begins anew", slog.Any("error", err))
	}
	if h.crashes == nil {
		h.crashes = map[string]*crashCount{}
	}
	for what, c := range h.crashes {
		if c == nil || h.clock().Sub(c.Last) > crashesKept {
			delete(h.crashes, what)
		}
	}
}

// keep writes the counts. A failure costs no more than a count.
func (h *hands) keep() {
	if err := h.save(); err != nil {
		h.log.Warn("the crash counts cannot be written", slog.Any("error", err))
	}
}

func (h *hands) save() error {
	text, err := json.MarshalIndent(h.crashes, "", "  ")
	if err != nil {
		return err
	}
	temp := h.path + ".new"
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, h.path)
}
