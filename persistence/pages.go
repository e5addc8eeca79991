package persistence

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
)

// A bbolt file is checked here page by page before bbolt opens it, because bbolt
// trusts its pages: it panics, partly in goroutines of its own where nothing can
// recover, on pages that make no sense, and faults beyond the end of a truncated
// file. The reading below is by offset and checks every length.
//
// Layout (bbolt, version 2): pages of one size, numbered; pages 0 and 1 are
// metas, the valid one with the higher transaction wins. A page has a head of 16
// bytes: id, flags, count, number of further pages. Then elements of 16 bytes
// that say where key and value lie. Numbers are in the machine's byte order.
const (
	pageHead    = 16
	elementSize = 16
	bucketHead  = 16
	metaSize    = 64
	metaSum     = 56 // the checksum's place, and what it covers

	pageBranch = 0x01
	pageLeaf   = 0x02

	elementBucket = 0x01

	boltMagic   = 0xED0CDAED
	boltVersion = 2

	treeDepthMax   = 64
	bucketDepthMax = 2 // a generation within idem
)

// order is the order of the bytes in a number.
//
//nolint:gochecknoglobals // a constant
var order = binary.NativeEndian

// pages is a bbolt file as of its last transaction.
type pages struct {
	file io.ReaderAt
	size uint64 // of a page
	high uint64 // pages at or above it are not part of the file
	root uint64
	seen []uint64 // a bit for every page that has been reached
}

// pair is called for every pair of the file in order, bucket by bucket. The path
// holds the names of the buckets it stands in.
type pair func(path []string, key, value []byte) error

// openPages finds the file's last transaction and checks that the file is as
// long as that says.
func openPages(file io.ReaderAt, length int64) (*pages, error) {
	if length == 0 {
		return nil, errors.New("has no content")
	}
	meta, err := lastMeta(file, length)
	if err != nil {
		return nil, err
	}
	if need := meta.high * meta.size; meta.high < 2 || need/meta.size != meta.high || uint64(length) < need {
		return nil, fmt.Errorf("is truncated: %d bytes long, should be at least %d", length, need)
	}
	return &pages{file: file, size: meta.size, high: meta.high, root: meta.root, seen: make([]uint64, meta.high/64+1)}, nil
}

type boltMeta struct{ size, root, high, transaction uint64 }

// lastMeta reads both metas. The second one's place depends on the page size,
// which is taken from the first one or, if that is torn, tried.
func lastMeta(file io.ReaderAt, length int64) (best boltMeta, err error) {
	err = errors.New("is not a store: no valid head")
	sizes := []int64{}
	if first, e := readMeta(file, 0); e == nil {
		best, err = first, nil
		sizes = append(sizes, int64(first.size))
	} else {
		for size := int64(1 << 10); size <= 1<<16; size <<= 1 {
			sizes = append(sizes, size)
		}
	}
	for _, size := range sizes {
		if 2*size > length {
			break
		}
		second, e := readMeta(file, size)
		if e == nil && second.size == uint64(size) && (err != nil || second.transaction > best.transaction) {
			best, err = second, nil
		}
	}
	return best, err
}

func readMeta(file io.ReaderAt, at int64) (boltMeta, error) {
	var b [pageHead + metaSize]byte
	if _, err := file.ReadAt(b[:], at); err != nil {
		return boltMeta{}, err
	}
	m := b[pageHead:]
	sum := fnv.New64a()
	_, _ = sum.Write(m[:metaSum]) // never fails
	size := uint64(order.Uint32(m[8:]))
	switch {
	case order.Uint32(m) != boltMagic, order.Uint32(m[4:]) != boltVersion, order.Uint64(m[metaSum:]) != sum.Sum64():
		return boltMeta{}, errors.New("not a meta page")
	case size < 1<<10 || size > 1<<16 || size&(size-1) != 0:
		return boltMeta{}, fmt.Errorf("page size %d", size)
	}
	return boltMeta{size: size, root: order.Uint64(m[16:]), high: order.Uint64(m[40:]), transaction: order.Uint64(m[48:])}, nil
}

// walk reads the whole file. The bucket named first comes first; all others
// follow in order of their names.
func (p *pages) walk(first string, visit pair) error {
	type child struct {
		name   string
		header []byte
	}
	var children []child
	w := bucketWalk{pages: p, bucket: func(key, header []byte) error {
		c := child{string(key), append([]byte(nil), header...)}
		if c.name == first {
			children = append([]child{c}, children...)
		} else {
			children = append(children, c)
		}
		return nil
	}, pair: func(key, _ []byte) error { return fmt.Errorf("pair %q outside of all buckets", key) }}
	if err := w.page(p.root, 0); err != nil {
		return err
	}
	for _, c := range children {
		if err := p.walkBucket([]string{c.name}, c.header, visit); err != nil {
			return fmt.Errorf("bucket %q: %w", c.name, err)
		}
	}
	return nil
}

func (p *pages) walkBucket(path []string, header []byte, visit pair) error {
	if len(path) > bucketDepthMax {
		return errors.New("buckets are nested too deeply")
	}
	if len(header) < bucketHead {
		return errors.New("bucket head is cut")
	}
	w := bucketWalk{
		pages: p,
		bucket: func(key, header []byte) error {
			return p.walkBucket(append(slices.Clip(path), string(key)), header, visit)
		},
		pair: func(key, value []byte) error { return visit(path, key, value) },
	}
	if root := order.Uint64(header); root != 0 {
		return w.page(root, 0)
	}
	if len(header) < bucketHead+pageHead {
		return errors.New("inline bucket is cut")
	}
	inline := header[bucketHead:]
	if flags := order.Uint16(inline[8:]); flags != pageLeaf {
		return fmt.Errorf("inline bucket has flags %#x", flags)
	}
	return w.leaf(inline)
}

// bucketWalk walks the tree of one bucket.
type bucketWalk struct {
	pages  *pages
	pair   func(key, value []byte) error
	bucket func(key, header []byte) error
	last   []byte // key before
	begun  bool
	low    []byte // no key of the page in hand lies below it
}

func (w *bucketWalk) page(id uint64, depth int) error {
	if depth > treeDepthMax {
		return errors.New("tree is too deep")
	}
	b, err := w.pages.read(id)
	if err != nil {
		return err
	}
	if order.Uint16(b[8:]) == pageLeaf {
		err = w.leaf(b)
	} else {
		err = w.branch(b, depth)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

func (w *bucketWalk) branch(b []byte, depth int) error {
	count := int(order.Uint16(b[10:]))
	if count == 0 {
		return errors.New("branch without children")
	}
	var before []byte
	for i := range count {
		e, err := element(b, i)
		if err != nil {
			return err
		}
		key, err := within(b, e, uint64(order.Uint32(b[e:])), uint64(order.Uint32(b[e+4:])))
		if err != nil {
			return err
		}
		if (i > 0 && string(key) <= string(before)) || (w.begun && string(key) <= string(w.last)) {
			return errors.New("keys are out of order")
		}
		before, w.low = key, key
		if err := w.page(order.Uint64(b[e+8:]), depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (w *bucketWalk) leaf(b []byte) error {
	for i := range int(order.Uint16(b[10:])) {
		e, err := element(b, i)
		if err != nil {
			return err
		}
		flags := order.Uint32(b[e:])
		position, keySize, valueSize := uint64(order.Uint32(b[e+4:])), uint64(order.Uint32(b[e+8:])), uint64(order.Uint32(b[e+12:]))
		both, err := within(b, e, position, keySize+valueSize)
		if err != nil {
			return err
		}
		key, value := both[:keySize], both[keySize:]
		if (w.begun && string(key) <= string(w.last)) || string(key) < string(w.low) {
			return errors.New("keys are out of order")
		}
		w.begun, w.last = true, append(w.last[:0], key...)
		switch flags {
		case 0:
			err = w.pair(key, value)
		case elementBucket:
			err = w.bucket(key, value)
		default:
			err = fmt.Errorf("element has flags %#x", flags)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// element is the offset of element i of a page.
func element(page []byte, i int) (int, error) {
	at := pageHead + i*elementSize
	if at+elementSize > len(page) {
		return 0, errors.New("elements reach beyond the page")
	}
	return at, nil
}

// within is a part of a page, by its position relative to an element.
func within(page []byte, element int, position, size uint64) ([]byte, error) {
	begin := uint64(element) + position
	if position < elementSize || begin+size > uint64(len(page)) {
		return nil, errors.New("data reaches beyond the page")
	}
	return page[begin : begin+size], nil
}

// read returns a branch or leaf page with its further pages, checked to be what
// it should be and to be reached only once.
func (p *pages) read(id uint64) ([]byte, error) {
	if id < 2 || id >= p.high {
		return nil, fmt.Errorf("page %d does not exist", id)
	}
	b := make([]byte, p.size)
	if _, err := p.file.ReadAt(b, int64(id*p.size)); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	flags, more := order.Uint16(b[8:]), uint64(order.Uint32(b[12:]))
	switch {
	case order.Uint64(b) != id:
		return nil, fmt.Errorf("page %d says that it is page %d", id, order.Uint64(b))
	case flags != pageBranch && flags != pageLeaf:
		return nil, fmt.Errorf("page %d has flags %#x", id, flags)
	case id+more >= p.high:
		return nil, fmt.Errorf("page %d reaches beyond the end", id)
	}
	for i := id; i <= id+more; i++ {
		if p.seen[i/64]&(1<<(i%64)) != 0 {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		p.seen[i/64] |= 1 << (i % 64)
	}
	if more > 0 {
		b = append(b, make([]byte, more*p.size)...)
		if _, err := p.file.ReadAt(b[p.size:], int64((id+1)*p.size)); err != nil {
			return nil, fmt.Errorf("page %d: %w", id, err)
		}
	}
	return b, nil
}
