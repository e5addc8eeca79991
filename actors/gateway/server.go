package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

const (
	// headerBytes bounds the headers of a request: key, token, trace.
	headerBytes = 16 << 10
	// handshakeTimeout bounds how long a new connection may stay silent.
	handshakeTimeout = 10 * time.Second
	// Clients that have vanished are noticed within clientPing + clientPingTimeout.
	clientPing        = 30 * time.Second
	clientPingTimeout = 10 * time.Second
	// Windows of fixed size, bytes. gRPC's own, which grow, measure the way with a
	// ping for almost every call that has the connection to itself: two messages
	// and two wake-ups more on each side.
	streamWindow     = 1 << 20
	connectionWindow = 4 << 20
)

// ServerConfig holds what a [Server] needs. All fields but Secret and TLS must be set.
type ServerConfig struct {
	Entity *EntityService
	Node   *NodeService
	// Credentials guard the operators' service: its callers must be admins.
	Credentials *Credentials
	// Secret guards the service between nodes; nil: every caller counts as a node.
	Secret *NodeSecret
	// TLS of the port; nil: plain text.
	TLS    credentials.TransportCredentials
	Limits Limits
	Logger *slog.Logger
}

// Server is a node's gRPC port: client API, node service, health and reflection.
type Server struct {
	grpc        *grpc.Server
	health      *health.Server
	connections int
}

// NewServer builds the server and registers the services. Health says
// NOT_SERVING until [Server.SetServing].
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Entity == nil || cfg.Node == nil || cfg.Credentials == nil || cfg.Logger == nil {
		return nil, errors.New("server: entity service, node service, credentials and logger must be set")
	}
	if err := cfg.Limits.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		grpc:        grpc.NewServer(options(cfg)...),
		health:      health.NewServer(),
		connections: cfg.Limits.Connections,
	}
	writv1.RegisterEntityServiceServer(s.grpc, cfg.Entity)
	nodev1.RegisterNodeServiceServer(s.grpc, cfg.Node)
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	for _, service := range []string{"", writv1.EntityService_ServiceDesc.ServiceName} {
		s.SetServing(service, false)
	}
	// Both versions; tools find the messages of all kinds that are linked in, so
	// that they can fill the Any of a command.
	reflection.Register(s.grpc)
	return s, nil
}

func options(cfg ServerConfig) []grpc.ServerOption {
	guard := guard{credentials: cfg.Credentials, secret: cfg.Secret, log: cfg.Logger}
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(cfg.Limits.Message),
		grpc.MaxSendMsgSize(cfg.Limits.Message),
		grpc.MaxConcurrentStreams(uint32(cfg.Limits.ConnectionStreams)),
		grpc.MaxHeaderListSize(headerBytes),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMin, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: clientPing, Timeout: clientPingTimeout}),
		// A handler that runs on after Stop would use what has been closed.
		grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(guard.unary),
		grpc.ChainStreamInterceptor(guard.stream),
	}
	if cfg.TLS != nil {
		opts = append(opts, grpc.Creds(cfg.TLS))
	}
	return opts
}

// Registrar is for services of the composition root, before Serve.
func (s *Server) Registrar() grpc.ServiceRegistrar { return s.grpc }

// SetServing sets the health of a service, or of whatever else has a name there.
func (s *Server) SetServing(service string, serving bool) {
	state := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if serving {
		state = grpc_health_v1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus(service, state)
}

// Serve answers calls until Shutdown; then it returns nil.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(newBoundedListener(l, s.connections))
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Shutdown reports NOT_SERVING, takes no new calls and waits for those in
// progress. When ctx ends it breaks them off: their callers get UNAVAILABLE, an
// unknown outcome. It returns when no handler runs any more.
func (s *Server) Shutdown(ctx context.Context) {
	s.health.Shutdown()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
	}
}

// guard stands before every handler: it admits operators and nodes to their
// services and answers for handlers that panic.
type guard struct {
	credentials *Credentials
	secret      *NodeSecret
	log         *slog.Logger
}

func (g guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, ToStatus(recovered(g.log, info.FullMethod, p))
		}
	}()
	if err := g.allow(ctx, info.FullMethod); err != nil {
		return nil, ToStatus(err)
	}
	return handler(ctx, req)
}

func (g guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = ToStatus(recovered(g.log, info.FullMethod, p))
		}
	}()
	if err := g.allow(stream.Context(), info.FullMethod); err != nil {
		return ToStatus(err)
	}
	return handler(srv, stream)
}

func (g guard) allow(ctx context.Context, method string) error {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch service {
	case nodev1.AdminService_ServiceDesc.ServiceName:
		return g.credentials.Admin(ctx)
	case nodev1.NodeService_ServiceDesc.ServiceName:
		return g.secret.check(ctx)
	}
	return nil
}

// recovered is the answer for a handler that panicked. Nobody knows how far it
// had come, so the outcome is unknown.
func recovered(log *slog.Logger, method string, p any) error {
	log.Error("call panicked", slog.String("method", method), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	return entity.Errorf(entity.OutcomeUnknown, "unexpected trouble in the node, see its log: retry with the same key")
}
