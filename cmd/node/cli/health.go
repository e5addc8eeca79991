package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"time"

	"writ/actors/client"
)

// healthCommand asks a node whether it is ready; of use as a container's health
// check, where there is no curl.
type healthCommand struct {
	HTTP string        `name:"http" default:"127.0.0.1:7401" env:"WRIT_HTTP" help:"HTTP address of the node."`
	Path string        `default:"/readyz" enum:"/readyz,/healthz,/startupz" help:"Which check: /readyz, /healthz or /startupz."`
	Wait time.Duration `help:"Keep asking for this long until the node is ready."`
}

// askTimeout bounds one question: a node that is frozen takes it and says nothing.
const askTimeout = 5 * time.Second

// Run implements the subcommand.
func (c *healthCommand) Run(ctx context.Context, std streams) error {
	if err := client.CheckAddress(c.HTTP); err != nil {
		return &usageError{fmt.Errorf("--http: %w", err)}
	}
	log.SetOutput(io.Discard) // net/http writes there of servers that speak first
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Wait, askTimeout))
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, text, err := c.ask(ctx)
		if ok {
			fmt.Fprint(std.out, text)
			return nil
		}
		if c.Wait == 0 {
			if err != nil {
				return err
			}
			fmt.Fprint(std.out, text)
			return errSilent
		}
		select {
		case <-ctx.Done():
			if err != nil {
				return err
			}
			fmt.Fprint(std.out, text)
			return errSilent
		case <-tick.C:
		}
	}
}

func (c *healthCommand) ask(ctx context.Context) (ok bool, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+loopback(c.HTTP)+c.Path, nil)
	if err != nil {
		return false, "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		if speaksFirst(ctx, c.HTTP) {
			return false, "", fmt.Errorf("what answers at %s does not speak HTTP: is this a node's HTTP port? Its gRPC port is another one", c.HTTP)
		}
		if whole, ok := errors.AsType[*url.Error](err); ok { // its text repeats the request
			err = whole.Err
		}
		return false, "", fmt.Errorf("no node answers at %s: %s", c.HTTP, words(err.Error(), c.HTTP))
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	return res.StatusCode == http.StatusOK, string(body), err
}

// speaksFirst reports whether the server of an address begins with a frame of
// HTTP/2, as that of a gRPC port does. A server of HTTP waits for the client.
func speaksFirst(ctx context.Context, addr string) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(deadline) // it fails on a connection that is closed, and so does the read
	}
	frame := make([]byte, 9) // a frame's header: three bytes of length, the type, flags, the stream
	_, err = io.ReadFull(conn, frame)
	const settings = 4
	return err == nil && frame[3] == settings
}
