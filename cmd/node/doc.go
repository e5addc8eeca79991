// Command node is Writ: the server, the whole cluster on one machine, and the
// tools of users and operators, one subcommand each.
//
// It is the only place that joins the layers: package [writ/cmd/node/node] puts
// one node together, the files here are the command line.
package main
