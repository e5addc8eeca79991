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
// beside it. So it is counted, and only what is found again and again is stopped;
// its count is cleared once its handler has ended and the process has not, whatever
// the handler answered. The counts stand in a second file, as JSON. Its methods may be
// called from any goroutine.
type hands struct {
	path  string
	clock func() time.Time
	log   *slog.Logger
	data  []byte
	// news has room for one: counts were cleared, and are to be saved and told of.
	news chan struct{}

	// saving is held while the file is written, for which no handler is to wait. It is
	// taken before mu.
	saving sync.Mutex
	closed bool // the folder may be another process's

	mu      sync.Mutex
	free    []int
	crashes map[string]*crashCount
	// elsewhere is what other nodes have said of their own processes, by node. None
	// has said nothing.
	elsewhere map[string]map[string]uint32
	unsaved   bool
	done      []string // whose counts were cleared here, and the others not told yet
}

// crashCount is how often the process has ended with something in hand.
type crashCount struct {
	Crashes int `json:"crashes"`
	// Counted are the crashes that were counted elsewhere, through the log.
	Counted int       `json:"counted"`
	Last    time.Time `json:"last"`
	// DoneElsewhere: another node has done it since the last of them. So it is not what
	// is done that ends processes, but it may be this node's program, or its machine:
	// they count here, and for no other node.
	DoneElsewhere bool `json:"done_elsewhere,omitempty"`
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
	h := &hands{
		path: filepath.Join(dir, crashesFile), clock: clock, log: log, news: make(chan struct{}, 1),
		crashes: map[string]*crashCount{}, elsewhere: map[string]map[string]uint32{},
	}
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
		return func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.end(what)
		}
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
		h.end(what)
	}
}

// end clears the count of what was done now, with the process still there. It does
// not write: the handler's caller waits. The caller holds mu.
func (h *hands) end(what string) {
	if len(h.crashes)+len(h.elsewhere) == 0 || !h.drop(what) {
		return
	}
	h.done = append(h.done, what)
	h.changed()
}

// drop forgets what is known of one thing, also of elsewhere, and reports whether
// anything was. The caller holds mu.
func (h *hands) drop(what string) (known bool) {
	if h.crashes[what] != nil {
		known = true
		delete(h.crashes, what)
	}
	return h.dropElsewhere(what) || known
}

// dropElsewhere forgets what other nodes have told of one thing, and reports whether
// they had. The caller holds mu.
func (h *hands) dropElsewhere(what string) (known bool) {
	for node, crashes := range h.elsewhere {
		if _, said := crashes[what]; !said {
			continue
		}
		known = true
		delete(crashes, what)
		if len(crashes) == 0 {
			delete(h.elsewhere, node)
		}
	}
	return known
}

// changed has the counts saved soon. The caller holds mu.
func (h *hands) changed() {
	h.unsaved = true
	select {
	case h.news <- struct{}{}:
	default:
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
	c := h.crashes[short(what)]
	counts := c != nil && c.Counted < c.Crashes
	if counts {
		c.Counted++
	}
	h.mu.Unlock()
	if counts {
		h.keep()
	}
	return counts
}

// found counts one thing that was in hand.
func (h *hands) found(what string) {
	c := h.crashes[what]
	if c == nil {
		c = &crashCount{}
		h.crashes[what] = c
	}
	c.Crashes++
	c.Last, c.DoneElsewhere = h.clock(), false
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

// keepChanges writes the counts if some were cleared since they were written.
func (h *hands) keepChanges() {
	h.mu.Lock()
	unsaved := h.unsaved
	h.mu.Unlock()
	if unsaved {
		h.keep()
	}
}

// close writes what is not written yet, and is the end of writing. Handlers that
// outlive their node still use the rest.
func (h *hands) close() {
	h.keepChanges()
	h.saving.Lock()
	defer h.saving.Unlock()
	h.closed = true
}

func (h *hands) save() (err error) {
	h.saving.Lock()
	defer h.saving.Unlock()
	if h.closed {
		return nil
	}
	h.mu.Lock()
	text, err := json.MarshalIndent(h.crashes, "", "  ")
	h.unsaved = false
	h.mu.Unlock()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // the next change, or the stop, tries again
			h.mu.Lock()
			defer h.mu.Unlock()
			h.unsaved = true
		}
	}()
	temp := h.path + ".new"
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, h.path)
}
