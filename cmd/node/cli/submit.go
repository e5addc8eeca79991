package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"google.golang.org/protobuf/proto"

	"writ/actors/client"
)

// submitCommand sends one command, or a file of commands with their keys.
type submitCommand struct {
	target  `embed:""`
	Kind    string        `help:"Kind of the entity, e.g. account."`
	ID      string        `name:"id" help:"Id of the entity."`
	Key     string        `help:"Idempotency key. Retry with the same one; a new key is a new command."`
	Command string        `placeholder:"TYPE" help:"Full name of the command's message, e.g. writ.account.v1.Deposit."`
	Issued  time.Time     `name:"issued-at" placeholder:"RFC3339" help:"When the command was first sent, for a retry: a key that may have been forgotten since then is EXPIRED, not executed again. Default: now."`
	JSON    jsonFlag      `name:"json" placeholder:"[{...}]" help:"With a value: the command's fields, e.g. --json '{\"amount_minor\":5}'. Alone: print the result as one JSON object, a rejection too. It may be given twice, once for each."`
	File    string        `help:"Send each line of this file instead: {\"kind\",\"id\",\"key\",\"command\":{\"@type\":…}}. \"issued_at\" may be added. Lines of one entity keep their order. Give - for standard input."`
	Clients int           `default:"64" help:"Commands in flight with --file."`
	Timeout time.Duration `default:"60s" help:"How long to keep retrying one command."`
}

// Run implements the subcommand.
func (c *submitCommand) Run(ctx context.Context, std streams) error {
	if c.File != "" {
		return c.runFile(ctx, std)
	}
	return c.runOne(ctx, std)
}

func (c *submitCommand) runOne(ctx context.Context, std streams) error {
	for _, need := range []struct{ flag, value string }{{"kind", c.Kind}, {"id", c.ID}, {"key", c.Key}, {"command", c.Command}} {
		if need.value == "" {
			return usage("--%s is missing: name the entity, the key and the command, or give --file", need.flag)
		}
	}
	body := c.JSON.body
	if body == "" {
		body = "{}"
	}
	if err := checkJSON(body); err != nil {
		return err
	}
	cl, closeClient, err := c.client()
	if err != nil {
		return err
	}
	defer closeClient()
	types := c.types(ctx)
	defer types.Close()
	command, err := types.parseCommand(c.Command, body)
	if err != nil {
		return c.nameCommands(ctx, cl, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	out, err := cl.Submit(ctx, c.Kind, c.ID, c.Key, command, client.SubmitOptions{IssuedAt: c.Issued})
	if rejected, ok := errors.AsType[*client.RejectedError](err); ok && c.JSON.output {
		if err := printJSON(std.out, keyResult{State: client.Rejected.String(), Rejection: newRejectionJSON(rejected)}); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	if c.JSON.output {
		return printJSON(std.out, outcomeJSON(types, out))
	}
	if out.Reply != nil {
		if err := printJSON(std.out, types.json(out.Reply)); err != nil {
			return err
		}
	}
	what := "executed"
	if out.Replayed {
		what = "replayed: an earlier call with this key was executed"
	}
	fmt.Fprintf(std.err, "%s; accepted %s, version %d\n", what, out.AcceptedAt.Format(time.RFC3339Nano), out.Version)
	return nil
}

// checkJSON names the place where a text is not JSON; the protobuf library's words
// for it do not say what to mend.
func checkJSON(body string) error {
	var any json.RawMessage
	err := json.Unmarshal([]byte(body), &any)
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return nil
	}
	what := syntax.Error()
	if strings.Contains(what, "object key string") {
		what = "names need double quotes"
	}
	return usage("--json is not JSON at column %d: %s", syntax.Offset, what)
}

// issued is --issued-at as a text, "" if it was not given.
func (c *submitCommand) issued() string {
	if c.Issued.IsZero() {
		return ""
	}
	return c.Issued.String()
}

// nameCommands has a node list the commands of the kind, for a name that nobody
// knows. To ask what became of a key changes nothing.
func (c *submitCommand) nameCommands(ctx context.Context, cl *client.Client, err error) error {
	if !isUnknownType(err) {
		return err
	}
	_, listed := cl.Outcome(ctx, c.Kind, c.ID, c.Key, c.Command)
	if e, ok := errors.AsType[*client.Error](listed); ok && e.Reason == client.ReasonInvalid {
		return listed
	}
	return err
}

// submitSummary is the result of a file of commands.
type submitSummary struct {
	Executed int64 `json:"executed"`
	Replayed int64 `json:"replayed"`
	Rejected int64 `json:"rejected"`
	// Failed are all commands without an outcome: Refused, which the same file
	// never changes, Expired, whose keys are no longer remembered, Unknown, which
	// may have been executed, Held, which were not sent because one before them for
	// the same entity has no outcome, and those that timed out.
	Failed  int64   `json:"failed"`
	Refused int64   `json:"refused"`
	Expired int64   `json:"expired"`
	Unknown int64   `json:"unknown"`
	Held    int64   `json:"held"`
	Retries int64   `json:"retries"`
	Seconds float64 `json:"seconds"`
}

func (c *submitCommand) runFile(ctx context.Context, std streams) error {
	if c.Clients < 1 {
		return usage("--clients must be at least 1")
	}
	for _, other := range []struct{ flag, value string }{
		{"kind", c.Kind}, {"id", c.ID}, {"key", c.Key}, {"command", c.Command}, {"json '{...}'", c.JSON.body}, {"issued-at", c.issued()},
	} {
		if other.value != "" {
			return usage("--%s does not go with --file: each line of the file says it for itself", other.flag)
		}
	}
	// The whole file is read and checked first: a bad line is reported before
	// anything is sent.
	types := c.types(ctx)
	defer types.Close()
	lines, err := readCommandFile(types, c.File)
	if err != nil {
		return err
	}
	cl, closeClient, err := c.client()
	if err != nil {
		return err
	}
	defer closeClient()

	bar := progress(std.err, len(lines), "commands")
	start := time.Now()
	sum, failures := c.send(ctx, cl, lines, func() { _ = bar.Add(1) })
	_ = bar.Finish()
	sum.Seconds = time.Since(start).Seconds()

	for _, f := range failures {
		fmt.Fprintln(std.err, f)
	}
	if c.JSON.output {
		err = printJSON(std.out, sum)
	} else {
		_, err = fmt.Fprintf(std.out, "executed %d, replayed %d, rejected %d, failed %d, retries %d, %.1f s\n",
			sum.Executed, sum.Replayed, sum.Rejected, sum.Failed, sum.Retries, sum.Seconds)
	}
	return errors.Join(err, sum.verdict())
}

// verdict says what to do about commands without an outcome; nil if there are none.
func (s submitSummary) verdict() error {
	var texts []string
	if s.Refused > 0 {
		texts = append(texts, fmt.Sprintf("%d refused, and not executed: fix them, the same lines will be refused again", s.Refused))
	}
	if s.Expired > 0 {
		texts = append(texts, fmt.Sprintf("%d were issued so long ago that their keys may have been forgotten: whether they took effect is not known, and running the file again does not help; find out, then remove their lines", s.Expired))
	}
	again := make([]string, 0, 2)
	if s.Unknown > 0 {
		again = append(again, fmt.Sprintf("%d may have been executed", s.Unknown))
	}
	if late := s.Failed - s.Refused - s.Expired - s.Unknown - s.Held; late > 0 {
		again = append(again, fmt.Sprintf("%d not executed, they timed out", late))
	}
	if s.Held > 0 {
		again = append(again, fmt.Sprintf("%d not sent, after one of those for the same entity", s.Held))
	}
	if len(again) > 0 {
		texts = append(texts, strings.Join(again, ", ")+": run the same file again, keys that took effect are replayed")
	}
	if len(texts) == 0 {
		return nil
	}
	have := "have"
	if s.Failed == 1 {
		have = "has"
	}
	return fmt.Errorf("%s %s no outcome: %s", count(s.Failed, "command"), have, strings.Join(texts, "; "))
}

// failuresShown bounds what is printed about single commands.
const failuresShown = 10

// send shares the lines out by entity and sends with c.Clients at a time. One
// entity's lines keep their order, even over several runs: after a line that has no
// outcome, the entity's later lines are not sent.
func (c *submitCommand) send(ctx context.Context, cl *client.Client, lines []commandLine, done func()) (submitSummary, []string) {
	var (
		sum      submitSummary
		mu       sync.Mutex
		failures []string
		wg       sync.WaitGroup
		seed     = maphash.MakeSeed()
		queues   = make([][]commandLine, min(c.Clients, max(len(lines), 1)))
	)
	for _, l := range lines {
		i := maphash.Comparable(seed, l.entity()) % uint64(len(queues))
		queues[i] = append(queues[i], l)
	}
	for _, queue := range queues {
		wg.Go(func() {
			held := map[[2]string]bool{}
			for _, l := range queue {
				if held[l.entity()] {
					atomic.AddInt64(&sum.Failed, 1)
					atomic.AddInt64(&sum.Held, 1)
					done()
					continue
				}
				err := submitLine(ctx, cl, l, c.Timeout, &sum)
				if err != nil {
					held[l.entity()] = true
					mu.Lock()
					switch len(failures) {
					case failuresShown:
						failures = append(failures, "and more")
					case failuresShown + 1:
					default:
						failures = append(failures, fmt.Sprintf("line %d, key %q: %v", l.number, l.key, inWords(err, "")))
					}
					mu.Unlock()
				} else {
					c.wait.over()
				}
				done()
			}
		})
	}
	wg.Wait()
	return sum, failures
}

// submitLine sends one line; it returns an error if there is no outcome.
func submitLine(ctx context.Context, cl *client.Client, l commandLine, timeout time.Duration, sum *submitSummary) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out, err := cl.Submit(ctx, l.kind, l.id, l.key, l.command, client.SubmitOptions{IssuedAt: l.issuedAt})
	var rejected *client.RejectedError
	switch {
	case errors.As(err, &rejected):
		atomic.AddInt64(&sum.Rejected, 1)
		atomic.AddInt64(&sum.Retries, int64(rejected.Attempts-1))
		return nil
	case err != nil:
		atomic.AddInt64(&sum.Failed, 1)
		switch e, _ := errors.AsType[*client.Error](err); {
		case e != nil && e.Reason == client.ReasonExpired: // it is unknown too, and stays so
			atomic.AddInt64(&sum.Expired, 1)
		case client.IsUnknown(err):
			atomic.AddInt64(&sum.Unknown, 1)
		case e != nil && e.Err == nil: // a node has said so, and does not take it back
			atomic.AddInt64(&sum.Refused, 1)
		}
		return err
	}
	atomic.AddInt64(&sum.Retries, int64(out.Attempts-1))
	if out.Replayed {
		atomic.AddInt64(&sum.Replayed, 1)
	} else {
		atomic.AddInt64(&sum.Executed, 1)
	}
	return nil
}

// commandLine is one checked line of a command file.
type commandLine struct {
	number        int
	kind, id, key string
	issuedAt      time.Time // zero: when it is sent
	command       proto.Message
}

func (l commandLine) entity() [2]string { return [2]string{l.kind, l.id} }

// progress is a bar on a terminal and nothing elsewhere.
func progress(w io.Writer, total int, what string) *progressbar.ProgressBar {
	return progressbar.NewOptions(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetVisibility(isTerminal(w)))
}
