package cli

import (
	"fmt"
	"runtime"

	"writ/cmd/node/node"
	"writ/internal/format"
)

// versionCommand prints what this binary is.
type versionCommand struct{}

// Run implements the subcommand.
func (versionCommand) Run(std streams) error {
	_, err := fmt.Fprintln(std.out, versionText())
	return err
}

// formatRange says which formats a program reads.
func formatRange(newest uint32) string {
	if newest <= format.Base {
		return fmt.Sprint(format.Base)
	}
	return fmt.Sprintf("%d to %d", format.Base, newest)
}

func versionText() string {
	return fmt.Sprintf("writ %s (%s, %s/%s), formats %s", node.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, formatRange(format.Max))
}
