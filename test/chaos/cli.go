package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// CLI runs subcommands of the program.
type CLI struct {
	Binary string
}

// Result is what a subcommand left behind.
type Result struct {
	Stdout, Stderr []byte
	Code           int
}

// Run runs a subcommand to its end. A non-zero exit is a result, not an error.
func (c CLI) Run(ctx context.Context, args ...string) (Result, error) {
	cmd := exec.CommandContext(ctx, c.Binary, args...)
	cmd.SysProcAttr = childAttributes()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return Result{}, fmt.Errorf("node %s: %w", args[0], err)
	}
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("node %s: %w: %s", args[0], ctx.Err(), errs.Bytes())
	}
	return Result{Stdout: out.Bytes(), Stderr: errs.Bytes(), Code: cmd.ProcessState.ExitCode()}, nil
}

// Audit runs `node audit` against the addresses, again while there is nothing wrong but
// that a shard has no leader, or that a replica could not be asked: a node that has just
// come back may be held for dead, or be catching up with what it has missed.
func (c CLI) Audit(ctx context.Context, addrs string) (report AuditReport, err error) {
	err = eventually(ctx, "audit", func(ctx context.Context) (err error) {
		report, err = c.auditOnce(ctx, addrs)
		if err != nil && !strings.Contains(err.Error(), "has no leader just now") {
			return &finalError{err}
		}
		if err == nil && len(report.Findings) == 0 && len(report.Unreachable) > 0 {
			return fmt.Errorf("replicas on %v could not be compared", report.Unreachable)
		}
		return err
	})
	return report, err
}

func (c CLI) auditOnce(ctx context.Context, addrs string) (AuditReport, error) {
	res, err := c.Run(ctx, "audit", "--addr", addrs, "--deep", "--json", "--wait", "60s")
	if err != nil {
		return AuditReport{}, err
	}
	if len(res.Stdout) == 0 {
		return AuditReport{}, fmt.Errorf("audit: exit %d: %s", res.Code, res.Stderr)
	}
	report, err := parseAudit(res.Stdout)
	if err == nil && (res.Code == 0) != report.OK {
		err = fmt.Errorf("audit: exit %d, but ok is %v", res.Code, report.OK)
	}
	return report, err
}

// quickReconnect keeps a restarted node from being avoided for long.
func quickReconnect() grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
		MinConnectTimeout: 2 * time.Second,
	}
}
