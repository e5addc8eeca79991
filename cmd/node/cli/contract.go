package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// contractCommand holds the verbs for what the cluster promises.
type contractCommand struct {
	Show contractShowCommand `cmd:"" default:"withargs" help:"Print the five clauses, their values and whether they hold; exit 1 unless all do."`
	Set  contractSetCommand  `cmd:"" help:"Change values of the contract."`
}

// contractShowCommand prints the guarantee.
type contractShowCommand struct {
	target `embed:""`
	Local  bool `help:"Show only what the node that is asked sees itself."`
	JSON   bool `name:"json" help:"Print one JSON object."`
}

// Run implements the subcommand.
func (c *contractShowCommand) Run(ctx context.Context, std streams) error {
	var g *writv1.Guarantee
	_, closeConn, err := c.connect(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		g, err = writv1.NewGuaranteeServiceClient(conn).Get(ctx, &writv1.GetGuaranteeRequest{Local: c.Local})
		return err
	})
	if err != nil {
		return err
	}
	defer closeConn()
	if c.JSON {
		err = printMessage(std.out, g)
	} else {
		printGuarantee(std.out, g)
	}
	if err == nil && !g.GetHeld() {
		err = errSilent
	}
	return err
}

func printGuarantee(w io.Writer, g *writv1.Guarantee) {
	fmt.Fprintf(w, "as seen by %s", strings.Join(g.GetNodes(), ", "))
	if len(g.GetSilent()) > 0 {
		fmt.Fprintf(w, "; no answer from %s", strings.Join(g.GetSilent(), ", "))
	}
	fmt.Fprintln(w)
	if c := g.GetContract(); c != nil {
		fmt.Fprintf(w, "window %v, retry horizon %v, replicas %d\n", c.GetWindow().AsDuration(), c.GetRetryHorizon().AsDuration(), c.GetReplication())
		for _, kind := range slices.Sorted(maps.Keys(c.GetWindowByKind())) {
			fmt.Fprintf(w, "  kind %s: %v\n", kind, c.GetWindowByKind()[kind].AsDuration())
		}
	}
	for _, c := range g.GetClauses() {
		state := "HELD"
		if !c.GetHeld() {
			state = "NOT HELD"
		}
		fmt.Fprintf(w, "\n%s: %s since %s\n  %s\n", c.GetName(), state, c.GetSince().AsTime().UTC().Format(time.RFC3339), c.GetPromise())
		if v := c.GetViolated(); len(v) > 0 {
			fmt.Fprintf(w, "  violated: %s\n", strings.Join(v, ", "))
		}
		for _, e := range c.GetEvidence() {
			fmt.Fprintf(w, "  - %s\n", e)
		}
	}
}

// contractSetCommand changes the contract.
type contractSetCommand struct {
	target       `embed:""`
	Window       *time.Duration    `help:"Least time for which idempotency keys are remembered."`
	Kind         map[string]string `placeholder:"KIND=DURATION" help:"The same for one kind, e.g. --kind account=48h; 0 removes the contract's window for that kind."`
	RetryHorizon *time.Duration    `help:"For how long clients may retry one key."`
}

// Run implements the subcommand.
func (c *contractSetCommand) Run(ctx context.Context, std streams) error {
	req := &nodev1.SetContractRequest{WindowByKind: map[string]int64{}}
	if c.Window != nil {
		req.Window = new(int64(*c.Window))
	}
	if c.RetryHorizon != nil {
		req.RetryHorizon = new(int64(*c.RetryHorizon))
	}
	for kind, text := range c.Kind {
		window, err := time.ParseDuration(text)
		if err != nil || window < 0 {
			return usage("--kind %s=%s: give a duration with its unit, e.g. %s=48h, 30m or 90s", kind, text, kind)
		}
		req.WindowByKind[kind] = int64(window)
	}
	if req.Window == nil && req.RetryHorizon == nil && len(req.GetWindowByKind()) == 0 {
		return usage("nothing to change: give --window, --kind or --retry-horizon")
	}
	admin, closeConn, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	res, err := admin.SetContract(ctx, req)
	if err != nil {
		return err
	}
	fmt.Fprintf(std.out, "window %v, retry horizon %v\n", time.Duration(res.GetContract().GetWindow()), time.Duration(res.GetContract().GetRetryHorizon()))
	for _, kind := range slices.Sorted(maps.Keys(res.GetContract().GetWindowByKind())) {
		fmt.Fprintf(std.out, "  kind %s: %v\n", kind, time.Duration(res.GetContract().GetWindowByKind()[kind]))
	}
	fmt.Fprintln(std.out, "keys that are stored already keep the time they were given; nodes that were started with another --window show window_agreed as not met, and must be given the new one when they start again")
	return nil
}
