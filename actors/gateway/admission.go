package gateway

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
)

// admission counts calls in progress and the bytes of their requests. It never
// makes a caller wait: a queue here would only hide the overload.
type admission struct {
	what     string
	callsMax int
	bytesMax int64

	mu    sync.Mutex
	calls int
	bytes int64
}

func newAdmission(what string, limits Limits) *admission {
	return &admission{what: what, callsMax: limits.InFlight, bytesMax: limits.InFlightBytes}
}

// enter admits a call or refuses it with RESOURCE_EXHAUSTED. Who is admitted
// calls leave once.
func (a *admission) enter(request proto.Message) (leave func(), err error) {
	size := int64(proto.Size(request))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls >= a.callsMax {
		return nil, entity.Errorf(entity.Overloaded,
			"%d %s are in progress on this node, its limit: retry later with the same key", a.calls, a.what)
	}
	if a.bytes+size > a.bytesMax {
		return nil, entity.Errorf(entity.Overloaded,
			"%d bytes of %s are in progress on this node, its limit is %d: retry later with the same key",
			a.bytes, a.what, a.bytesMax)
	}
	a.calls++
	a.bytes += size
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.calls--
		a.bytes -= size
	}, nil
}
