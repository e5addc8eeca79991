package gateway

import (
	"net"
	"sync"
)

// boundedListener closes connections beyond a number at once. A peer that is
// turned away sees it and can try another node; one left waiting would not.
type boundedListener struct {
	net.Listener
	slots chan struct{}
}

func newBoundedListener(l net.Listener, connections int) *boundedListener {
	return &boundedListener{Listener: l, slots: make(chan struct{}, connections)}
}

// Accept waits for the next connection that has a slot.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &boundedConn{Conn: conn, free: func() { <-l.slots }}, nil
		default:
			_ = conn.Close() // turned away
		}
	}
}

// boundedConn gives its slot back when it is closed.
type boundedConn struct {
	net.Conn
	once sync.Once
	free func()
}

// Close closes the connection.
func (c *boundedConn) Close() error {
	c.once.Do(c.free)
	return c.Conn.Close()
}
