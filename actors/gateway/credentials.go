package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/metadata"

	"writ/actors/entity"
)

// DefaultTenant is the tenant of every caller of a node without a token table.
const DefaultTenant = "default"

const tenantBytes = 64

// Identity is who calls.
type Identity struct {
	Tenant string
	// Admin may use the operators' service.
	Admin bool
}

// Credentials turn a bearer token into an identity. They are immutable and safe
// for concurrent use.
type Credentials struct {
	// byHash has the SHA-256 of each token. Looking a hash up takes a time that
	// tells nothing about the tokens.
	byHash map[[sha256.Size]byte]Identity
}

// OpenCredentials take every caller for an admin of tenant "default": for
// development, or where the network itself keeps strangers out.
func OpenCredentials() *Credentials { return &Credentials{} }

// LoadCredentials reads a token table from a file; see [ParseCredentials].
func LoadCredentials(path string) (*Credentials, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read token table: %w", err)
	}
	c, err := ParseCredentials(data)
	if err != nil {
		return nil, fmt.Errorf("token table %s: %w", path, err)
	}
	return c, nil
}

// ParseCredentials reads a token table, a JSON object whose names are tokens:
//
//	{"token-a": "tenant-a", "token-o": {"tenant": "tenant-a", "admin": true}}
//
// A tenant is 1 to 64 bytes. Errors never quote a token.
func ParseCredentials(data []byte) (*Credentials, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("it must be a JSON object: {\"token\": \"tenant\"}")
	}
	c := &Credentials{byHash: make(map[[sha256.Size]byte]Identity)}
	for line := 1; dec.More(); line++ {
		name, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("entry %d: not JSON", line)
		}
		token, _ := name.(string)
		var id identityJSON
		if err := dec.Decode(&id); err != nil {
			return nil, fmt.Errorf("entry %d: the value must be a tenant or {\"tenant\": …, \"admin\": true}", line)
		}
		if err := c.add(token, Identity(id)); err != nil {
			return nil, fmt.Errorf("entry %d: %w", line, err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, errors.New("it is cut off")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	if len(c.byHash) == 0 {
		return nil, errors.New("it holds no token")
	}
	return c, nil
}

func (c *Credentials) add(token string, id Identity) error {
	if token == "" {
		return errors.New("the token is empty")
	}
	if id.Tenant == "" || len(id.Tenant) > tenantBytes || !utf8.ValidString(id.Tenant) {
		return fmt.Errorf("the tenant must be 1 to %d bytes", tenantBytes)
	}
	hash := sha256.Sum256([]byte(token))
	if _, twice := c.byHash[hash]; twice {
		return errors.New("the token is already in an earlier entry")
	}
	c.byHash[hash] = id
	return nil
}

// identityJSON is an identity as a tenant's name or as an object.
type identityJSON Identity

func (id *identityJSON) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &id.Tenant); err == nil {
		return nil
	}
	var object struct {
		Tenant string `json:"tenant"`
		Admin  bool   `json:"admin"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&object); err != nil {
		return err
	}
	*id = identityJSON{Tenant: object.Tenant, Admin: object.Admin}
	return nil
}

// Authenticate finds out who makes the gRPC call of ctx. The error is an
// *[entity.Error] with reason UNAUTHENTICATED.
func (c *Credentials) Authenticate(ctx context.Context) (Identity, error) {
	if len(c.byHash) == 0 {
		return Identity{Tenant: DefaultTenant, Admin: true}, nil
	}
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) == 0 {
		return Identity{}, entity.Errorf(entity.Unauthenticated,
			"this cluster wants a token: send the metadata \"authorization: Bearer TOKEN\"")
	}
	if len(values) > 1 {
		return Identity{}, entity.Errorf(entity.Unauthenticated, "send one authorization header, not %d", len(values))
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "bearer") {
		return Identity{}, entity.Errorf(entity.Unauthenticated,
			"the authorization must read \"Bearer TOKEN\"; other schemes are not known here")
	}
	id, ok := c.byHash[sha256.Sum256([]byte(strings.TrimSpace(token)))]
	if !ok {
		return Identity{}, entity.Errorf(entity.Unauthenticated,
			"the token is not known here: check it, or have it added to the token table of every node")
	}
	return id, nil
}

// Admin authenticates the call of ctx and refuses it unless the caller may use
// the operators' service.
func (c *Credentials) Admin(ctx context.Context) error {
	id, err := c.Authenticate(ctx)
	if err != nil {
		return err
	}
	if !id.Admin {
		return entity.Errorf(entity.Denied,
			"this call is for operators: use a token whose entry in the token table says \"admin\": true")
	}
	return nil
}
