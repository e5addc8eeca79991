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
	_, err := fmt.Fprintln(std.out, versionText())
	return err
}

func versionText() string {
	return fmt.Sprintf("writ %s (%s, %s/%s)", node.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
