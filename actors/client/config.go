package client

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// DefaultCallTimeout bounds a call, its retries included, whose context has no
// deadline. It equals the default retry horizon of a cluster; windows are longer.
const DefaultCallTimeout = 60 * time.Second

// Config says whom to call and how patiently. Only Addresses must be set.
type Config struct {
	// Addresses are host:port of nodes; any node serves any entity, so a few are
	// enough. Calls go to them in turn.
	Addresses []string
	// Token is sent as bearer token; "" sends none.
	Token string
	// TLS secures the connections; nil: plain text.
	TLS *tls.Config
	// CallTimeout bounds a call whose context has no deadline; 0: 60 s.
	CallTimeout time.Duration
	// AttemptTimeout bounds one attempt on one node, so that a node that does not
	// answer costs little. An attempt that was too short does no harm: the next
	// one, with the same key, joins the execution in progress. 0: 2.5 s, so that a
	// call to a node that is lost is answered by another within 3 s.
	AttemptTimeout time.Duration
	// BackoffMin and BackoffMax bound the pause between attempts, which grows
	// with jitter; a node's own hint can make it longer. 0: 25 ms and 2 s.
	BackoffMin, BackoffMax time.Duration
	// Troubled, if set, is told of every attempt that failed and will be made again,
	// with what is known so far. It must not block.
	Troubled func(*Error)
	// MessageMax is the largest request or answer, bytes. 0: 16 MiB.
	MessageMax int
}

func (c Config) withDefaults() Config {
	setDefault(&c.CallTimeout, DefaultCallTimeout)
	setDefault(&c.AttemptTimeout, 2500*time.Millisecond)
	setDefault(&c.BackoffMin, 25*time.Millisecond)
	setDefault(&c.BackoffMax, 2*time.Second)
	setDefault(&c.MessageMax, 16<<20)
	return c
}

func setDefault[T time.Duration | int](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Validate checks the configuration with its defaults filled in.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if len(c.Addresses) == 0 {
		errs = append(errs, errors.New("no address given"))
	}
	for _, a := range c.Addresses {
		if err := CheckAddress(a); err != nil {
			errs = append(errs, err)
		}
	}
	if c.CallTimeout < 0 || c.AttemptTimeout < 0 || c.MessageMax < 0 {
		errs = append(errs, errors.New("timeouts and sizes must not be negative"))
	}
	if c.BackoffMin < 0 || c.BackoffMax < c.BackoffMin {
		errs = append(errs, fmt.Errorf("backoff must grow: min %s, max %s", c.BackoffMin, c.BackoffMax))
	}
	return errors.Join(errs...)
}

// CheckAddress refuses what can never be dialled. Without it every attempt would
// fail, and a caller would learn of a typing mistake when its patience ends.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	number, notNumber := strconv.ParseUint(port, 10, 16)
	switch {
	case strings.Contains(address, "/"):
		return fmt.Errorf("address %q: give host:port alone, without scheme or path", address)
	case err != nil || strings.Contains(host, " "):
		return fmt.Errorf("address %q: give host:port, e.g. localhost:7400", address)
	case notNumber != nil || number == 0:
		return fmt.Errorf("address %q: the port must be a number from 1 to 65535", address)
	}
	return nil
}

// NewKey makes an idempotency key: 130 random bits as text. Make one for each
// intent, before the first attempt, and keep it for the retries.
func NewKey() string { return rand.Text() }
