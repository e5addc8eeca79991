package main

import (
	"fmt"
	"runtime"

	"writ/cmd/node/node"
)

// versionCommand prints what this binary is.
type versionCommand struct{}

// Run implements the subcommand.
func (versionCommand) Run(std streams) error {
	_, err := fmt.Fprintf(std.out, "writ %s (%s, %s/%s)\n", node.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
