package cluster

import "sync"

// each runs do(0) … do(n-1) at the same time and waits for all.
func each(n int, do func(int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { do(i) })
	}
	group.Wait()
}
