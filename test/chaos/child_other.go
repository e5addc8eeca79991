//go:build !linux

package chaos

import "syscall"

// childAttributes keeps a node out of the terminal's group of signals. Only
// Linux can tie its life to the test process's.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// namespaceAttributes: only Linux has network namespaces; [LANTools] says so.
func namespaceAttributes() *syscall.SysProcAttr { return childAttributes() }

// awaitStopped cannot be told here; the signal arrives soon.
func awaitStopped(int, <-chan struct{}) error { return nil }
