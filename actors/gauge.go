package actors

import "sync/atomic"

// gauge counts work in progress and its bytes. It is safe for concurrent use.
type gauge struct {
	items atomic.Int64
	bytes atomic.Int64
}

// bound is one of Limits, by its field.
type bound struct {
	field string
	most  int64
}

// enter counts one more item, unless that would go over a bound, which is the result
// then. An item that stands alone may be of any size.
func (g *gauge) enter(size int64, items, bytes bound) (full *bound) {
	n, sum := g.items.Add(1), g.bytes.Add(size)
	switch {
	case n > items.most:
		full = &items
	case sum > bytes.most && n > 1:
		full = &bytes
	default:
		return nil
	}
	g.leave(size)
	return full
}

func (g *gauge) leave(size int64) {
	g.items.Add(-1)
	g.bytes.Add(-size)
}
