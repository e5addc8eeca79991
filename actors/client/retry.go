package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	writv1 "writ/proto/writ/v1"
)

// exhaustedMax bounds attempts that end in a RESOURCE_EXHAUSTED of gRPC itself
// or of a proxy: often a message over a limit, which no retry makes smaller.
const exhaustedMax = 3

// settle is the least pause, at most doubled at random, before a call goes to another
// node when its own has just been lost. If the node has died, the others are about to
// notice; one that has not yet would forward the call to the dead node, and the
// outcome would be unknown.
const settle = 15 * time.Millisecond

// attempt is one try of a call on one node.
type attempt func(ctx context.Context, service writv1.EntityServiceClient, opts ...grpc.CallOption) error

// call is a call with its retries.
type call struct {
	client *Client
	try    attempt
	// effect: the call can change something, so its fate may be unknown.
	effect bool
	// unknown: an attempt may have been executed.
	unknown  bool
	attempts int
	// exhausted counts answers of RESOURCE_EXHAUSTED that Writ did not make.
	exhausted int
	switches  int
	backoff   *backoff.ExponentialBackOff
	replayed  bool // flag in the metadata of the last answer
	// told is the last answer of Writ itself: of a cluster in trouble it says more
	// than the refused connection of a node that is down.
	told *Error
}

func (c *Client) newCall(effect bool, try attempt) *call {
	return &call{client: c, try: try, effect: effect, backoff: &backoff.ExponentialBackOff{
		InitialInterval:     c.cfg.BackoffMin,
		MaxInterval:         c.cfg.BackoffMax,
		Multiplier:          2,
		RandomizationFactor: 0.5,
	}}
}

// run repeats attempts until one has an answer that repeating does not change.
// The error is an *Error or a *RejectedError.
func (k *call) run(ctx context.Context) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, k.client.cfg.CallTimeout)
		defer cancel()
	}
	var node *endpoint
	for at := k.client.first(); ; {
		k.attempts++
		node, at = k.client.pick(at)
		a, v := k.once(ctx, node)
		if a == nil {
			node.works()
			return nil
		}
		if a.rejected != nil {
			node.works()
			a.rejected.Replayed = k.replayed
			a.rejected.Attempts = k.attempts
			return a.rejected
		}
		k.unknown = k.unknown || v.unknown
		a.err.Address = node.address
		if v.link {
			v.lost = v.unknown || node.met.Load()
			node.trouble(time.Now())
		}
		if a.info {
			k.told = a.err
		}
		if !v.again || k.givesUp(*a) {
			return k.failed(*a.err, nil)
		}
		if ctx.Err() == nil {
			k.tell(a.err)
		}
		if !k.pause(ctx, v, a.err.RetryAfter) {
			if k.told != nil {
				a.err = k.told
			}
			return k.failed(*a.err, context.Cause(ctx))
		}
	}
}

// tell reports an attempt that will be made again.
func (k *call) tell(last *Error) {
	if k.client.cfg.Troubled == nil {
		return
	}
	if k.told != nil {
		last = k.told
	}
	e := *last
	e.Attempts = k.attempts
	e.Unknown = k.effect && k.unknown
	k.client.cfg.Troubled(&e)
}

// once makes one attempt. A nil answer means OK.
func (k *call) once(ctx context.Context, node *endpoint) (*answer, verdict) {
	ctx, cancel := context.WithTimeout(ctx, k.client.cfg.AttemptTimeout)
	defer cancel()
	ctx, sent := withSent(k.client.authorize(ctx))
	var header, trailer metadata.MD
	node.ask(time.Now())
	defer node.heard()
	err := k.try(ctx, node.service, grpc.Header(&header), grpc.Trailer(&trailer))
	if err == nil {
		return nil, verdict{}
	}
	k.replayed = len(header.Get(replayedHeader))+len(trailer.Get(replayedHeader)) > 0
	a := read(status.Convert(err))
	return &a, judge(a, sent.Load())
}

func (k *call) givesUp(a answer) bool {
	if a.err.Code == codes.ResourceExhausted && !a.info {
		k.exhausted++
	}
	return k.exhausted >= exhaustedMax
}

// pause waits before the next attempt. A node that could not be reached costs no
// pause as long as there is another address to try, and one that was lost just now
// a short one. It returns false if the call's time ends first.
func (k *call) pause(ctx context.Context, v verdict, hint time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	var wait time.Duration
	switch {
	case !v.link || k.switches >= len(k.client.endpoints)-1:
		wait = max(hint, k.backoff.NextBackOff())
	case v.lost:
		k.switches++
		wait = settle + rand.N(settle)
	default:
		k.switches++
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// failed is the error of the call, whose last answer was e. cause is set if the
// call has run out of time.
func (k *call) failed(e Error, cause error) error {
	e.Attempts = k.attempts
	e.Unknown = k.effect && k.unknown
	if cause == nil {
		return &e
	}
	e.Err = cause
	last := e.Message
	if e.Reason == "" {
		last = e.Code.String() + ": " + last
	}
	if !k.effect {
		e.Reason = ""
		e.Message = fmt.Sprintf("%s; last answer: %s", cause, last)
		return &e
	}
	e.Reason = ReasonNotExecuted
	if e.Unknown {
		e.Reason = ReasonOutcomeUnknown
	}
	e.Message = fmt.Sprintf("%s: retry with the same key; last answer: %s", cause, last)
	return &e
}
