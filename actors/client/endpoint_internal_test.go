package client

import (
	"context"
	"errors"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// TestEndedConnection: calls go past a node whose connection has ended, without an
// attempt, and to it again as soon as there is a new connection.
func TestEndedConnection(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	address, stop := listen(t, "127.0.0.1:0")
	other, _ := listen(t, "127.0.0.1:0")
	c, err := New(Config{Addresses: []string{address, other}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	picked := func(want int) {
		t.Helper()
		if node, _ := c.pick(0); node != c.endpoints[want] {
			t.Errorf("picked %s in the state %v", node.address, c.endpoints[0].conn.GetState())
		}
	}
	picked(0) // nothing is known yet
	await(ctx, t, c.endpoints[0], func(s connectivity.State) bool { return s == connectivity.Ready })
	picked(0)
	stop()
	for range 3 {
		await(ctx, t, c.endpoints[0], func(s connectivity.State) bool { return s == connectivity.TransientFailure })
		picked(1)
	}
	listen(t, address)
	await(ctx, t, c.endpoints[0], func(s connectivity.State) bool { return s == connectivity.Ready })
	picked(0)
}

// TestConnectionThatEndsUnused: nothing has asked for the connection since.
func TestConnectionThatEndsUnused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	address, stop := listen(t, "127.0.0.1:0")
	e, err := newEndpoint(address, Config{}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.conn.Close() }()
	await(ctx, t, e, func(s connectivity.State) bool { return s == connectivity.Ready })
	e.works()
	stop()
	await(ctx, t, e, func(s connectivity.State) bool { return s != connectivity.Ready })
	if !e.avoided(time.Now()) {
		t.Errorf("not avoided in the state %v", e.conn.GetState())
	}
	listen(t, address)
	// The question itself has made it dial.
	for state := e.conn.GetState(); state != connectivity.Ready; state = e.conn.GetState() {
		if !e.conn.WaitForStateChange(ctx, state) {
			t.Fatalf("it stays %v", state)
		}
	}
}

// await dials until the connection is as it should be.
func await(ctx context.Context, t *testing.T, e *endpoint, right func(connectivity.State) bool) {
	t.Helper()
	for {
		state := e.conn.GetState()
		if right(state) {
			return
		}
		e.conn.Connect()
		if !e.conn.WaitForStateChange(ctx, state) {
			t.Fatalf("the connection to %s stays %v", e.address, state)
		}
	}
}

// listen runs a server that knows no service.
func listen(t *testing.T, at string) (address string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	// A connection of somebody else may have this port for a moment.
	for over := time.Now().Add(30 * time.Second); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(over); {
		runtime.Gosched()
		l, err = net.Listen("tcp", at)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	stop = func() {
		s.Stop()
		<-served
	}
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// TestSilence: one answer, whichever, is enough for a node to keep its turn.
func TestSilence(t *testing.T) {
	e := endpoint{born: time.Now()}
	began := time.Now()
	silent := func(after time.Duration, want bool) {
		t.Helper()
		if e.silent(began.Add(after)) != want {
			t.Errorf("after %v: silent %v", after, !want)
		}
	}
	silent(time.Hour, false) // nobody has asked
	e.ask(began)
	e.ask(began.Add(silentFor / 2))
	silent(silentFor, false)
	silent(silentFor+1, true)
	e.heard()
	silent(time.Hour, false)
	e.ask(began.Add(time.Hour))
	silent(time.Hour, false)
	silent(2*time.Hour, true)
}
