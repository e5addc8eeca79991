// Command node is Writ with the example's kinds, account and statement. A program
// with other kinds is one line like this one's.
package main

import (
	"writ/actors/account"
	"writ/cmd/node/cli"
)

func main() { cli.Main(account.Kinds()...) }
