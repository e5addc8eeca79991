// Package faults kills real processes at the named points of internal/fault and
// shows that nothing is lost, doubled or torn. [Cases] says which test attacks
// which point; a point without a row fails `make test`. The tests that run
// processes need the build tag "faults": `make faults`.
package faults
