// Package cli is the program that runs and operates Writ, one subcommand each: one
// node, a whole cluster on one machine, and the tools of users and operators.
//
// [Main] is all that a program needs which has kinds of its own:
//
//	func main() { cli.Main(append(account.Kinds(), PiggyBank())...) }
package cli
