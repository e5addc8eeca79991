package node

import (
	"fmt"
	"syscall"
)

// diskSpace is the room on the disk that holds a folder, bytes. free is what this
// process may use.
func diskSpace(dir string) (free, total uint64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("space of the data disk: %w", err)
	}
	return st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize), nil
}
