// Package mutants proves that the tests can fail: it switches off one safeguard
// at a time and wants a test to notice. Its own test needs the build tag
// "mutants"; `make mutants` runs it and prints what caught what.
package mutants
