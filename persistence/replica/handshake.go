package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"writ/internal/format"
)

// Every connection opens with one frame from the dialer, answered by one from the
// acceptor. This is a wire format:
//
//	hello:  magic u32, format u16, length u16, then cluster, from, to (each
//	        uvarint length + bytes), shard u32, epoch u64
//	answer: magic u32, format u16, length u16, then a text: empty = welcome,
//	        else why not
//
// The format of a hello is the active one as the dialer knows it: it holds for how
// messages are framed until the connection ends. An answer is of the first format,
// so that every program can read why it is refused.
const (
	wireMagic = 0x57524946
	frameHead = 8
	frameMax  = 2048
)

// hello says who wants to speak to whom.
type hello struct {
	cluster  string
	from, to string // server ids
	shard    uint32
	epoch    uint64
	format   uint32 // stands in the frame's head
}

// refusal is the acceptor's answer when it does not take the connection.
type refusal struct{ reason string }

func (r *refusal) Error() string { return "connection refused by the peer: " + r.reason }

func (h hello) marshal() []byte {
	var b []byte
	for _, s := range []string{h.cluster, h.from, h.to} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.BigEndian.AppendUint32(b, h.shard)
	return binary.BigEndian.AppendUint64(b, h.epoch)
}

var errHello = errors.New("handshake cannot be read")

func parseHello(b []byte) (h hello, err error) {
	for _, s := range []*string{&h.cluster, &h.from, &h.to} {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return hello{}, errHello
		}
		*s, b = string(b[size:size+int(n)]), b[size+int(n):]
	}
	if len(b) != 12 {
		return hello{}, errHello
	}
	h.shard, h.epoch = binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])
	return h, nil
}

func writeFrame(w io.Writer, written uint32, body []byte) error {
	if len(body) > frameMax {
		body = body[:frameMax]
	}
	b := binary.BigEndian.AppendUint32(make([]byte, 0, frameHead+len(body)), wireMagic)
	b = binary.BigEndian.AppendUint16(b, uint16(written))
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	_, err := w.Write(append(b, body...))
	return err
}

// readFrame reads exactly one frame and consumes nothing after it.
func readFrame(r io.Reader) ([]byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("read handshake: %w", err)
	}
	if magic := binary.BigEndian.Uint32(head[:]); magic != wireMagic {
		return nil, fmt.Errorf("read handshake: %#x is not this protocol", magic)
	}
	written := uint32(binary.BigEndian.Uint16(head[4:]))
	if written < format.Base {
		return nil, fmt.Errorf("read handshake: format %d is not known", written)
	}
	if err := format.Check("the connection", written); err != nil {
		return nil, fmt.Errorf("read handshake: %w", err)
	}
	length := int(binary.BigEndian.Uint16(head[6:]))
	if length > frameMax {
		return nil, fmt.Errorf("read handshake: %d bytes are too long", length)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, fmt.Errorf("read handshake: %w", err)
	}
	return body, nil
}

// greet is the dialer's side. The error is a *refusal if the peer answered no.
func greet(conn net.Conn, h hello, deadline time.Time) error {
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if err := writeFrame(conn, h.format, h.marshal()); err != nil {
		return fmt.Errorf("write handshake: %w", err)
	}
	answer, err := readFrame(conn)
	if err != nil {
		return err
	}
	if len(answer) > 0 {
		return &refusal{string(answer)}
	}
	return conn.SetDeadline(time.Time{})
}

// receive is the acceptor's side: check names the reason to refuse, if any.
func receive(conn net.Conn, check func(hello) error, deadline time.Time) (hello, error) {
	if err := conn.SetDeadline(deadline); err != nil {
		return hello{}, err
	}
	var h hello
	body, err := readFrame(conn)
	var newer *format.NewerError
	if err != nil && !errors.As(err, &newer) {
		return hello{}, err // whoever sent this would not understand an answer
	}
	if err == nil {
		h, err = parseHello(body)
	}
	if err == nil {
		err = check(h)
	}
	answer := ""
	if err != nil {
		answer = err.Error()
	}
	if writeErr := writeFrame(conn, format.Base, []byte(answer)); writeErr != nil {
		return h, errors.Join(err, fmt.Errorf("answer handshake: %w", writeErr))
	}
	if err != nil {
		return h, err
	}
	return h, conn.SetDeadline(time.Time{})
}
