package chaos

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// childAttributes make the system kill a node when the test process ends, even
// if it ends by a panic or is killed itself.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// namespaceAttributes give a child a network namespace of its own.
func namespaceAttributes() *syscall.SysProcAttr {
	attributes := childAttributes()
	attributes.Cloneflags = syscall.CLONE_NEWNET
	return attributes
}

// stopWait bounds how long a process may take to obey SIGSTOP.
const stopWait = 10 * time.Second

// awaitStopped waits until the kernel says that a process is stopped, or until it
// has ended.
func awaitStopped(pid int, ended <-chan struct{}) error {
	over := time.NewTimer(stopWait)
	defer over.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return fmt.Errorf("state of process %d: %w", pid, err)
		}
		// "pid (name) state …": the name may hold anything, also ')'.
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 && i+2 < len(stat) && stat[i+2] == 'T' {
			return nil
		}
		select {
		case <-ended:
			return nil
		case <-over.C:
			return fmt.Errorf("process %d was not stopped within %v", pid, stopWait)
		case <-tick.C:
		}
	}
}
