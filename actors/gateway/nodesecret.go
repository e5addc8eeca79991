package gateway

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"

	"google.golang.org/grpc/metadata"

	"writ/actors/entity"
)

// NodeSecret is what the nodes of a cluster show each other with every call. The
// service between nodes stands on the port that clients use and takes the tenant
// from the request: without a secret, whoever reaches the port may speak as a node.
// It is immutable and implements credentials.PerRPCCredentials.
type NodeSecret struct{ text string }

const (
	nodeSecretHeader = "writ-node-secret"
	nodeSecretBytes  = 32
)

// NewNodeSecret derives a secret from the key that the nodes share, by HKDF (RFC
// 5869), so that a secret that leaks does not open the gossip.
func NewNodeSecret(key []byte) (*NodeSecret, error) {
	secret, err := hkdf.Key(sha256.New, key, nil, "writ.node.v1 calls", nodeSecretBytes)
	if err != nil {
		return nil, fmt.Errorf("node secret: %w", err)
	}
	return &NodeSecret{text: hex.EncodeToString(secret)}, nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (s *NodeSecret) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{nodeSecretHeader: s.text}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (s *NodeSecret) RequireTransportSecurity() bool { return false }

// check admits a call between nodes. A nil secret admits all.
func (s *NodeSecret) check(ctx context.Context) error {
	if s == nil {
		return nil
	}
	for _, shown := range metadata.ValueFromIncomingContext(ctx, nodeSecretHeader) {
		if subtle.ConstantTimeCompare([]byte(shown), []byte(s.text)) == 1 {
			return nil
		}
	}
	return entity.Errorf(entity.Denied, "only nodes of this cluster may call this service: give all of them the same --gossip-key")
}
