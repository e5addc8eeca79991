package actors

import "sync/atomic"

// gauge counts work in progress and its bytes. It is safe for concurrent use.
type gauge struct {
	items atomic.Int64
	bytes atomic.Int64
}

// enter counts one more item unless that would go over a limit. An item that
// stands alone may be of any size.
func (g *gauge) enter(size, itemsMax, bytesMax int64) bool {
	items, bytes := g.items.Add(1), g.bytes.Add(size)
	if items > itemsMax || (bytes > bytesMax && items > 1) {
		g.leave(size)
		return false
	}
	return true
}

func (g *gauge) leave(size int64) {
	g.items.Add(-1)
	g.bytes.Add(-size)
}
