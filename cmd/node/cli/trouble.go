package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"writ/actors/client"
	"writ/actors/gateway"
)

// callError is the error of a call in words for a person. Everything that talks to
// a node makes its errors with inWords, so gRPC's own wrapping is seen nowhere.
type callError struct {
	text string
	err  error
}

func (e *callError) Error() string { return e.text }

func (e *callError) Unwrap() error { return e.err }

// GRPCStatus keeps the code and details, with the readable text.
func (e *callError) GRPCStatus() *status.Status {
	st := status.Convert(e.err).Proto()
	st.Message = e.text
	return status.FromProto(st)
}

// inWords turns the error of a call, made by package client or by gRPC, into the
// text of the command line. addr is whom it was made to, if the error does not say.
// Any other error stays as it is.
func inWords(err error, addr string) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if _, done := errors.AsType[*callError](err); done {
		return err
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		if e.Address != "" {
			addr = e.Address
		}
		own := *e
		own.Message = words(e.Message, addr)
		text := own.Error()
		if e.Reason == "" { // its code would be the first word, which is for programs
			text = own.Message
		}
		return &callError{text: text, err: err}
	}
	var of interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &of) {
		return err
	}
	st := of.GRPCStatus()
	return &callError{text: words(st.Message(), addr), err: err}
}

// reasonOf is the reason that Writ has given, "" if it has not spoken.
func reasonOf(st *status.Status) string {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == gateway.Domain {
			return info.GetReason()
		}
	}
	return ""
}

// What gRPC says of a connection.
var (
	grpcWrapping = regexp.MustCompile(`(max retries exhausted: failed after \d+ attempts: )?rpc error: code = \w+ desc = `)
	dialling     = regexp.MustCompile(`(Unavailable: )?connection error: desc = "transport: [Ee]rror while dialing: dial tcp(?: ([^ ]+))?: (?:connect: )?([^"]*)"`)
	dialled      = regexp.MustCompile(`dial tcp [^ ]+: (?:connect: )?`)
	otherTongue  = regexp.MustCompile(`(Unavailable: )?connection error: desc = "error reading server preface: http2: [^"]*"`)
	otherLink    = regexp.MustCompile(`(Unavailable: )?connection error: desc = "(?:transport: |error reading server preface: |read tcp [^ ]+: )*([^"]*)"`)
)

// words is the text of an answer, or of the lack of one.
func words(message, addr string) string {
	message = grpcWrapping.ReplaceAllString(message, "")
	message = dialling.ReplaceAllStringFunc(message, func(text string) string {
		found := dialling.FindStringSubmatch(text)
		return fmt.Sprintf("no node answers at %s: %s", or(found[2], addr), found[3]) // a node's own peer has an address of its own
	})
	message = dialled.ReplaceAllString(message, "")
	message = otherTongue.ReplaceAllString(message, "what answers at "+escape(addr)+" does not speak gRPC: is this a node's gRPC port? Its HTTP port is another one")
	message = otherLink.ReplaceAllString(message, "no node answers at "+escape(addr)+": $2")
	message = strings.ReplaceAll(message, `send the metadata "authorization: Bearer TOKEN"`, "give --token, or set WRIT_TOKEN")
	message = strings.ReplaceAll(message, context.DeadlineExceeded.Error(), "timed out")
	return strings.ReplaceAll(message, context.Canceled.Error(), "interrupted")
}

// escape keeps a text from being read as a template of package regexp.
func escape(text string) string { return strings.ReplaceAll(text, "$", "$$") }

// silent reports whether an error means that no node has answered; speaksOther that
// something else did, which no waiting mends.
func silent(err error) bool {
	st := status.Convert(err)
	return (st.Code() == codes.Unavailable || st.Code() == codes.DeadlineExceeded) && reasonOf(st) == ""
}

func speaksOther(err error) bool { return strings.Contains(err.Error(), "does not speak gRPC") }

// noticeAfter is how long a person waits before being told for what.
const noticeAfter = 2 * time.Second

// patience tells a person who waits for an answer, once, what the trouble is.
type patience struct {
	out io.Writer

	mu   sync.Mutex
	due  *time.Timer // runs while there is trouble that nobody was told of
	last error
	said bool
}

func newPatience(out io.Writer) *patience { return &patience{out: out} }

// trouble takes the error of an attempt that will be made again.
func (p *patience) trouble(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = err
	if p.due == nil && !p.said {
		p.due = time.AfterFunc(noticeAfter, p.say)
	}
}

func (p *patience) say() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due == nil { // it came too late to be stopped
		return
	}
	p.said, p.due = true, nil
	fmt.Fprintf(p.out, "%v; still trying\n", p.last)
}

// over ends the trouble: something was answered, or nobody waits any more. Nothing
// is written after it.
func (p *patience) over() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due != nil {
		p.due.Stop()
		p.due = nil
	}
}

// wordsUnary and wordsStream put the errors of a connection into words.
func wordsUnary(addr string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return inWords(invoke(ctx, method, req, reply, conn, opts...), addr)
	}
}

func wordsStream(addr string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := stream(ctx, desc, conn, method, opts...)
		if err != nil {
			return nil, inWords(err, addr)
		}
		return &wordsOfStream{s, addr}, nil
	}
}

type wordsOfStream struct {
	grpc.ClientStream
	addr string
}

// RecvMsg implements grpc.ClientStream.
func (s *wordsOfStream) RecvMsg(m any) error {
	return inWords(s.ClientStream.RecvMsg(m), s.addr)
}
