package gateway

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// admission counts calls in progress and the bytes of their requests. It never
// makes a caller wait: a queue here would only hide the overload.
type admission struct {
	what     string
	callsMax int
	bytesMax int64

	mu    sync.Mutex
	calls int
	waits int // of these, reads that may wait for a version
	bytes int64
}

// waitShare is the part of the calls in progress that reads which wait for a
// version may take up. They may wait long, and for something that may never come:
// without a bound of their own they would keep commands out.
const waitShare = 4

// mayWait reports whether a call is a read that waits for a version.
func mayWait(request proto.Message) bool {
	switch r := request.(type) {
	case *writv1.ReadRequest:
		return r.GetMinVersion() > 0 && r.GetConsistency() != writv1.Consistency_STALE
	case *nodev1.ForwardRequest:
		return mayWait(r.GetRead())
	}
	return false
}

func newAdmission(what string, limits Limits) *admission {
	return &admission{what: what, callsMax: limits.InFlight, bytesMax: limits.InFlightBytes}
}

// enter admits a call or refuses it with RESOURCE_EXHAUSTED. Who is admitted
// calls leave once.
func (a *admission) enter(request proto.Message) (leave func(), err error) {
	size, waits := int64(proto.Size(request)), 0
	if mayWait(request) {
		waits = 1
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls >= a.callsMax {
		return nil, entity.Overload("gateway.InFlight", int64(a.callsMax), "%d %s are in progress on this node", a.calls, a.what)
	}
	if a.bytes+size > a.bytesMax {
		return nil, entity.Overload("gateway.InFlightBytes", a.bytesMax, "%d bytes of %s are in progress on this node", a.bytes, a.what)
	}
	if waits > 0 && a.waits >= max(1, a.callsMax/waitShare) {
		return nil, entity.Overload("gateway.InFlight", int64(a.callsMax),
			"%d reads that wait for a version are in progress among the %s of this node, and may take up one in %d", a.waits, a.what, waitShare)
	}
	a.calls++
	a.waits += waits
	a.bytes += size
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.calls--
		a.waits -= waits
		a.bytes -= size
	}, nil
}
