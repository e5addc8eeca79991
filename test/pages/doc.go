// Package pages checks that README.md and docs name tests that exist. That they
// name metrics that exist, cmd/node/node checks: there is a node to ask.
package pages
