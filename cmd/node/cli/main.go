package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"writ/actors/entity"
)

// commands is the command line; each subcommand has a file of its own.
type commands struct {
	Dev     devCommand     `cmd:"" help:"Run a whole cluster in this process, on loopback."`
	Serve   serveCommand   `cmd:"" help:"Run one node."`
	Submit  submitCommand  `cmd:"" help:"Send one command, or a file of commands."`
	Read    readCommand    `cmd:"" help:"Read an entity's state."`
	Outcome outcomeCommand `cmd:"" help:"Ask what became of an idempotency key."`
	Cancel  cancelCommand  `cmd:"" help:"Make sure that a key that has not executed never will."`
	Audit   auditCommand   `cmd:"" help:"Recount keys, effects and events in all stores; exit 1 unless they agree."`
	Bench   benchCommand   `cmd:"" help:"Measure answers and deliveries; the figures count only if the audit passes."`
	Cluster clusterCommand `cmd:"" help:"Show and change nodes and shards."`
	Lanes   lanesCommand   `cmd:"" help:"List, show, replay, skip, pause and resume lanes of events."`
	Timers  timersCommand  `cmd:"" help:"List timers."`
	Crashes crashesCommand `cmd:"" help:"List what has ended processes, and let it run again."`
	Outbox  outboxCommand  `cmd:"" help:"List events that are not confirmed yet."`

	Contract contractCommand `cmd:"" help:"Show what the cluster promises and whether it holds, or change its values."`
	Explain  explainCommand  `cmd:"" help:"Explain what became of a key, an event or an entity, and what it waits for."`

	Health  healthCommand  `cmd:"" help:"Exit 0 if a node is ready, else say why not."`
	Version versionCommand `cmd:"" help:"Print the version."`

	VersionFlag kong.VersionFlag `name:"version" help:"Print the version."`
}

// streams are where a subcommand writes: results to out, progress and logs to err.
type streams struct {
	out, err io.Writer
}

// usageError is a command line that does not parse.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// usage is an error about the command line itself.
func usage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// errSilent ends the process with status 1 when everything has been said already.
var errSilent = errors.New("")

// definers are the kinds that nodes of this program host.
type definers []entity.Definer

// Main runs the subcommand that the process's arguments name, and ends the process:
// with status 0, 1 if it failed, or 2 if the arguments do not parse. Nodes that it
// starts host these kinds. SIGINT and SIGTERM end it in an orderly way.
func Main(kinds ...entity.Definer) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], kinds, streams{out: os.Stdout, err: os.Stderr})
	stop()
	if err != nil && !errors.Is(err, errSilent) {
		fmt.Fprintln(os.Stderr, "node:", err)
	}
	os.Exit(exitStatus(err))
}

// exitStatus is 2 for a command line that does not parse, as usual, and 1 for
// everything else that failed.
func exitStatus(err error) int {
	switch _, usage := errors.AsType[*usageError](err); {
	case err == nil:
		return 0
	case usage:
		return 2
	default:
		return 1
	}
}

// run parses the arguments and runs one subcommand.
func run(ctx context.Context, args []string, kinds definers, std streams) error {
	if len(kinds) == 0 {
		return errors.New("no kinds: pass at least one to cli.Main")
	}
	var root commands
	parser, err := kong.New(&root,
		kong.Name("node"),
		kong.Description("Writ: entities with one writer, commands that take effect once."),
		kong.Writers(std.out, std.err),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(std, kinds),
		kong.Vars{"version": versionText()},
	)
	if err != nil {
		return fmt.Errorf("command line: %w", err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		text := negative.ReplaceAllString(err.Error(), "$1 is $2: it must not be negative")
		return usage("%s; see \"node %s--help\"", text, verbOf(err))
	}
	return inWords(parsed.Run(), "")
}

// negative is what the parser says of a number that begins like a flag. To write it
// with "=", which it advises, does not help: no flag takes a negative number.
var negative = regexp.MustCompile(`^(--[a-z-]+): expected (?:duration|u?int|float) value but got "(-[0-9][^"]*)" .*`)

// verbOf is the subcommand whose arguments do not parse, followed by a space.
func verbOf(err error) string {
	parse, ok := errors.AsType[*kong.ParseError](err)
	if !ok || parse.Context == nil || parse.Context.Selected() == nil {
		return ""
	}
	return strings.TrimPrefix(parse.Context.Selected().Path(), "node ") + " "
}
