package chaos

import "syscall"

// childAttributes make the system kill a node when the test process ends, even
// if it ends by a panic or is killed itself.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
